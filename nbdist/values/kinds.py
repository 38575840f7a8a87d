"""Kinds of objects: what each holds directly, how that is compared, sent and written back.

Nothing here recurses. Parts are kept by reference and compared by identity, so that taking a
`Content` costs a shallow copy and "changed" is exact. Large buffers are not copied: they are
named by address and compared by their memory pages (`pages`).
"""

from __future__ import annotations

import collections
import copyreg
import ctypes
import operator
import sys
import types
from dataclasses import dataclass
from typing import Any

# Values without parts that could change and without an identity anybody relies on.
ATOMS: frozenset[type] = frozenset(
    {
        *(int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range, slice),
        *(types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.MethodDescriptorType),
        *(types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    }
)

# Machinery of the kernel and of Python: stands for itself, is never entered and never rewritten.
_MACHINERY = frozenset(
    "IPython ipykernel ipywidgets traitlets zmq tornado jupyter_client comm logging threading asyncio "
    "concurrent multiprocessing socket io _io _thread queue subprocess weakref nbdist matplotlib".split()
)


@dataclass(frozen=True, slots=True)
class Content:
    """What an object holds: `parts` count by identity, `facts` by value."""

    parts: tuple[Any, ...] = ()
    facts: tuple[Any, ...] = ()

    def same_as(self, other: Content) -> bool:
        return (
            len(self.parts) == len(other.parts)
            and all(map(operator.is_, self.parts, other.parts))
            and self.facts == other.facts
        )


@dataclass(frozen=True, slots=True)
class Buffer:
    """A stretch of this process's memory that belongs to an object."""

    address: int
    size_bytes: int

    def view(self) -> memoryview:
        """The memory itself; valid while its owner lives."""
        return memoryview((ctypes.c_char * self.size_bytes).from_address(self.address)).cast("B")


class Kind:
    """An object that stands for itself: known by identity, neither entered nor rewritten."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        """Objects to walk to from `obj`."""
        return self.content(obj).parts

    def content(self, obj: Any) -> Content:
        """What `obj` holds now, for comparison."""
        return Content()

    def buffer(self, obj: Any) -> Buffer | None:
        """The memory whose bytes belong to `obj`, if it has any worth not copying."""
        return None

    def portable(self, obj: Any) -> Any:
        """What to send so that `land` can make a twin equal to `obj`."""
        raise TypeError(f"{type(obj).__name__} objects cannot be changed in place")

    def land(self, twin: Any, portable: Any) -> None:
        """Write what `portable` gave into the notebook's own object."""
        raise TypeError(f"{type(twin).__name__} objects cannot be changed in place")


def _attributes(obj: Any) -> dict[str, Any]:
    """Instance attributes, from ``__dict__`` and ``__slots__``, past any ``__getattr__``."""
    held = dict(getattr(obj, "__dict__", None) or {})
    for name in copyreg._slotnames(type(obj)):  # type: ignore[attr-defined]
        try:
            held[name] = object.__getattribute__(obj, name)
        except AttributeError:  # a slot that is not filled
            continue
    return held


def _set_attributes(twin: Any, attributes: dict[str, Any]) -> None:
    for name in [name for name in _attributes(twin) if name not in attributes]:
        object.__delattr__(twin, name)
    own = getattr(twin, "__dict__", None)
    for name, value in attributes.items():
        if isinstance(own, dict) and name not in copyreg._slotnames(type(twin)):  # type: ignore[attr-defined]
            own[name] = value
        else:
            object.__setattr__(twin, name, value)


class Frozen(Kind):
    """Tuples and frozen sets: entered, never rewritten."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return () if set(map(type, obj)) <= ATOMS else tuple(obj)


class Instance(Kind):
    """Objects with attributes: the notebook's own classes, modules, optimizers, schedulers."""

    def content(self, obj: Any) -> Content:
        held = _attributes(obj)
        return Content((type(obj), *held, *held.values()))

    def portable(self, obj: Any) -> Any:
        return type(obj), _attributes(obj)

    def land(self, twin: Any, portable: Any) -> None:
        cls, attributes = portable
        if type(twin) is not cls:
            twin.__class__ = cls
        _set_attributes(twin, attributes)


class Container(Instance):
    """Lists, dicts, sets and their relatives, with what attributes a subclass adds."""

    plain: type
    bases: tuple[type, ...]

    def items(self, obj: Any) -> tuple[Any, ...]:
        base: Any = self.bases[0]
        return tuple(base.__iter__(obj))

    def fill(self, twin: Any, items: Any) -> None:
        raise NotImplementedError

    def parts(self, obj: Any) -> tuple[Any, ...]:
        items = self.items(obj)
        if type(obj) in self.bases:
            return () if set(map(type, items)) <= ATOMS else items
        return (*items, *_attributes(obj).values(), type(obj))

    def content(self, obj: Any) -> Content:
        if type(obj) in self.bases:
            return Content(self.items(obj))
        return Content((*self.items(obj), *super().content(obj).parts))

    def portable(self, obj: Any) -> Any:
        plain = type(obj) in self.bases
        return self.items(obj), None if plain else super().portable(obj)

    def land(self, twin: Any, portable: Any) -> None:
        items, rest = portable
        self.fill(twin, items)
        if rest is not None:
            super().land(twin, rest)


class ListKind(Container):
    bases = (list,)

    def fill(self, twin: Any, items: Any) -> None:
        list.__setitem__(twin, slice(None), items)


class DequeKind(Container):
    bases = (collections.deque,)

    def fill(self, twin: Any, items: Any) -> None:
        collections.deque.clear(twin)
        collections.deque.extend(twin, items)


class SetKind(Container):
    bases = (set,)

    def items(self, obj: Any) -> tuple[Any, ...]:
        return tuple(sorted(set.__iter__(obj), key=id))

    def fill(self, twin: Any, items: Any) -> None:
        set.clear(twin)
        set.update(twin, items)


class DictKind(Container):
    bases = (dict, collections.defaultdict, collections.OrderedDict, collections.Counter)

    def items(self, obj: Any) -> tuple[Any, ...]:
        return (*dict.keys(obj), *dict.values(obj))

    def fill(self, twin: Any, items: Any) -> None:
        half = len(items) // 2
        twin_clear = (
            collections.OrderedDict.clear if isinstance(twin, collections.OrderedDict) else dict.clear
        )
        twin_clear(twin)
        twin_set = (
            collections.OrderedDict.__setitem__
            if isinstance(twin, collections.OrderedDict)
            else dict.__setitem__
        )
        for key, value in zip(items[:half], items[half:], strict=True):
            twin_set(twin, key, value)


class ByteArrayKind(Kind):
    def content(self, obj: Any) -> Content:
        return Content(facts=(bytes(obj),))

    def portable(self, obj: Any) -> Any:
        return bytes(obj)

    def land(self, twin: Any, portable: Any) -> None:
        twin[:] = portable


class FunctionKind(Kind):
    """Functions of the notebook: attributes can be set on them; a new body is a new function."""

    def content(self, obj: Any) -> Content:
        return Content((*vars(obj), *vars(obj).values()))

    def portable(self, obj: Any) -> Any:
        return dict(vars(obj))

    def land(self, twin: Any, portable: Any) -> None:
        vars(twin).clear()
        vars(twin).update(portable)

    def parts(self, obj: Any) -> tuple[Any, ...]:
        defaults = (*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values())
        return (*defaults, *(obj.__closure__ or ()), *vars(obj).values())


class CellKind(Kind):
    """A closure's variable."""

    def content(self, obj: Any) -> Content:
        try:
            return Content((obj.cell_contents,))
        except ValueError:  # not filled yet
            return Content()

    def portable(self, obj: Any) -> Any:
        return self.content(obj).parts

    def land(self, twin: Any, portable: Any) -> None:
        if portable:
            twin.cell_contents = portable[0]
        else:
            del twin.cell_contents


class ClassKind(Kind):
    """Classes of the notebook: their attributes are walked, so that what they hold keeps its identity."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return (*obj.__bases__, *vars(obj).values())


class MethodKind(Kind):
    def parts(self, obj: Any) -> tuple[Any, ...]:
        return (obj.__func__, obj.__self__)


class ArrayKind(Kind):
    """numpy arrays."""

    def content(self, obj: Any) -> Content:
        layout = (obj.ctypes.data, obj.shape, obj.strides, obj.dtype)
        return Content(tuple(obj.flat) if obj.dtype.hasobject else (), layout)

    def buffer(self, obj: Any) -> Buffer | None:
        if obj.dtype.hasobject or obj.nbytes == 0:
            return None
        import numpy

        # numpy 2 moved the function.
        bounds: Any = getattr(numpy, "byte_bounds", None) or numpy.lib.array_utils.byte_bounds
        low, high = bounds(obj)
        return Buffer(low, high - low)

    def portable(self, obj: Any) -> Any:
        return obj.view()  # another object: the array itself would be sent as a reference to its twin

    def land(self, twin: Any, portable: Any) -> None:
        if twin.shape != portable.shape or twin.dtype != portable.dtype:
            twin.resize(portable.shape, refcheck=False)
        twin[...] = portable


class TensorKind(Kind):
    """torch tensors and parameters. The bytes are the storage's: views share them."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        grad = obj.grad if obj.is_leaf else None
        return (grad, *_attributes(obj).values())

    def content(self, obj: Any) -> Content:
        layout: tuple[Any, ...] = (obj.shape, obj.dtype, obj.device, obj.requires_grad)
        if _is_strided(obj):
            layout += (obj.data_ptr(), obj.storage_offset(), obj.stride())
        return Content((type(obj), *self.parts(obj)), layout)

    def buffer(self, obj: Any) -> Buffer | None:
        if not _is_strided(obj) or obj.device.type != "cpu":
            return None
        storage = obj.untyped_storage()
        return Buffer(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else None

    def portable(self, obj: Any) -> Any:
        grad = obj.grad if obj.is_leaf else None
        return obj.detach(), obj.requires_grad, grad, _attributes(obj)

    def land(self, twin: Any, portable: Any) -> None:
        import torch

        data, requires_grad, grad, attributes = portable
        with torch.no_grad():
            if (
                twin.shape == data.shape
                and twin.dtype == data.dtype
                and _is_strided(twin)
                and _is_strided(data)
            ):
                twin.detach().copy_(data)
            else:
                twin.data = data
        if twin.is_leaf:
            twin.requires_grad_(requires_grad)
            twin.grad = grad
        _set_attributes(twin, attributes)


def _is_strided(tensor: Any) -> bool:
    import torch

    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not hasattr(type(tensor), "__tensor_flatten__")
    )


_ITSELF = Kind()
_FROZEN = Frozen()
_INSTANCE = Instance()
_BY_BASE: tuple[tuple[type, Kind], ...] = (
    (list, ListKind()),
    (dict, DictKind()),
    (set, SetKind()),
    (tuple, _FROZEN),
    (frozenset, _FROZEN),
    (collections.deque, DequeKind()),
    (bytearray, ByteArrayKind()),
    (types.FunctionType, FunctionKind()),
    (types.CellType, CellKind()),
    (types.MethodType, MethodKind()),
    (type, ClassKind()),
)
_ARRAY = ArrayKind()
_TENSOR = TensorKind()


def kind_of(obj: object) -> Kind:
    """The kind an object is of; objects that cannot be looked into stand for themselves."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and hasattr(torch, "Tensor") and isinstance(obj, torch.Tensor):
        return _TENSOR
    if numpy is not None and hasattr(numpy, "ndarray") and isinstance(obj, numpy.ndarray):
        return _ARRAY
    for base, kind in _BY_BASE:
        if isinstance(obj, base):
            return kind
    if type(obj).__module__.partition(".")[0] in _MACHINERY:
        return _ITSELF
    if hasattr(type(obj), "__dictoffset__") and (type(obj).__dictoffset__ or copyreg._slotnames(type(obj))):  # type: ignore[attr-defined]
        return _INSTANCE
    return _ITSELF
