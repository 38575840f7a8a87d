"""Describes a notebook in plain text, so that two kernels can be compared. Runs in the kernel.

An object is described where it is met first and named by that place wherever it is met again, so that
aliases, shared storages and replaced objects show.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import io
import logging
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ATOMS = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, slice)
SHELLS_OWN = frozenset(
    "In Out exit quit open get_ipython _ __ ___ _i _ii _iii _ih _oh _dh _exit_code "
    "__name__ __doc__ __package__ __loader__ __spec__ __builtin__ __builtins__ __session__ __warningregistry__".split()
)
# Python's own notes in a class: not what a user wrote.
CLASS_MACHINERY = frozenset(
    "__dict__ __weakref__ __module__ __qualname__ __slotnames__ __static_attributes__ __firstlineno__ "
    "__abstractmethods__ _abc_impl __parameters__ _is_protocol _is_runtime_protocol __non_callable_proto_members__ "
    "__protocol_attrs__ __annotate_func__ __annotations_cache__".split()
)
# Caches of libraries' objects, and what they drop by themselves when they are pickled.
TRANSIENT = frozenset(
    "_zero_grad_profile_name __weakref__ _cache _warned_capturable_if_run_uncaptured _compiled_call_impl".split()
)
WRAPPED_HOOK = ("hook", "with_module")
# Of objects made by these only the class is told.
MACHINERY = (
    "torch._dynamo.",
    "torch._inductor.",
    "torch._functorch.",
    "torch._subclasses.",
    "torch.fx.",
    "torch.jit.",
)


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]{6,}", "0x…", text)


def digest(data: Any) -> str:
    return hashlib.sha256(bytes(data)).hexdigest()[:12]


class Description:
    """Texts of objects, by the place where they are met first."""

    def __init__(self, namespace: dict[str, Any]):
        self.namespace = namespace
        self.places: dict[int, str] = {}
        self.memories: dict[int, str] = {}
        self.kept: list[Any] = []  # so that no id is used twice

    def of(self, value: Any, place: str) -> str:
        cls = type(value)
        if cls in ATOMS:
            return repr(value)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if value is self.namespace:
            return "the namespace"
        if isinstance(value, type) and value.__module__ != "__main__":
            return f"class {value.__module__}.{value.__qualname__}"
        if isinstance(value, logging.Logger):
            return f"logger {value.name}"
        known = self.places.get(id(value))
        if known is not None:
            return f"= {known}"
        if not (cls in (tuple, frozenset) and not value):  # Python has one empty tuple
            self.places[id(value)] = place
            self.kept.append(value)
        return self._described(value, place)

    def _described(self, value: Any, place: str) -> str:
        cls = type(value)
        for test, describe in self._ways():
            if test(value):
                return describe(value, place)
        if cls in (list, tuple, set, frozenset):
            return f"{cls.__name__}({self._items(value, place)})"
        if cls is dict:
            return f"dict({self._pairs(value, place)})"
        return self._instance(value, place)

    def _ways(self) -> Iterable[tuple[Callable[[Any], bool], Callable[[Any, str], str]]]:
        yield (lambda v: isinstance(v, type)), self._class
        yield (lambda v: isinstance(v, types.FunctionType)), self._function
        yield (lambda v: isinstance(v, types.MethodType)), self._method
        yield (lambda v: isinstance(v, classmethod | staticmethod | property)), self._wrapped
        yield (lambda v: isinstance(v, enum.Enum)), self._enum
        for module, name, describe in (
            ("torch", "Tensor", self._tensor),
            ("numpy", "ndarray", self._array),
            ("pandas", "DataFrame", self._frame),
            ("pandas", "Series", self._frame),
            ("torch", "Generator", lambda v, _: f"torch.Generator({digest(v.get_state().numpy())})"),
            ("numpy.random", "Generator", lambda v, p: f"Generator({self.of(v.bit_generator.state, p)})"),
            ("matplotlib.figure", "Figure", self._figure),
            ("matplotlib.artist", "Artist", lambda v, _: type(v).__qualname__),
        ):
            known = getattr(sys.modules.get(module), name, None)
            if known is not None:
                yield (lambda v, known=known: isinstance(v, known)), describe
        yield (lambda v: isinstance(v, io.StringIO | io.BytesIO)), self._buffer
        yield (lambda v: isinstance(v, io.IOBase)), lambda v, _: f"{type(v).__name__}(closed={v.closed})"
        yield (lambda v: isinstance(v, Path)), lambda v, _: repr(v)
        yield inspect.isgenerator, lambda v, _: f"generator {v.__name__} {inspect.getgeneratorstate(v)}"
        yield inspect.iscoroutine, lambda v, _: f"coroutine {v.__name__} {inspect.getcoroutinestate(v)}"

    # Python's own

    def _items(self, values: Iterable[Any], place: str) -> str:
        if isinstance(values, set | frozenset):
            values = sorted(values, key=repr)
        return ", ".join(self.of(value, f"{place}[{at}]") for at, value in enumerate(values))

    def _pairs(self, pairs: Mapping[Any, Any], place: str) -> str:
        texts = []
        for at, (key, value) in enumerate(list(pairs.items())):
            key_text = self.of(key, f"{place}.key{at}")
            texts.append(f"{key_text}: {self.of(value, f'{place}[{key_text}]')}")
        return ", ".join(texts)

    def _class(self, cls: Any, place: str) -> str:
        held = {name: value for name, value in vars(cls).items() if name not in CLASS_MACHINERY}
        held = dict(sorted(held.items(), key=lambda item: self._order_in_class(cls, item[0])))
        bases = self._items(cls.__bases__, f"{place}.bases")
        return f"class {cls.__qualname__}({bases}; {self.of(type(cls), f'{place}.meta')}; {self._pairs(held, place)})"

    def _order_in_class(self, cls: type, name: str) -> str:
        """What the user has defined stands as it was written, and what libraries add is sorted."""
        return name if name.startswith("_") or isinstance(cls, enum.EnumMeta) else "~"

    def _function(self, function: Any, place: str) -> str:
        if function.__globals__ is not self.namespace:
            library = f"function {function.__globals__.get('__name__')}.{function.__qualname__}"
            wrapped = getattr(function, "__wrapped__", None)
            return f"{library}({self.of(wrapped, f'{place}.wrapped')})" if wrapped else library
        facts = {
            "module": function.__module__,
            "doc": function.__doc__,
            "defaults": function.__defaults__,
            "kwdefaults": function.__kwdefaults__,
            "annotations": inspect.get_annotations(function),
            "vars": dict(vars(function)),
        }
        cells = self._items((cell_content(cell) for cell in function.__closure__ or ()), f"{place}.cells")
        return f"function {function.__qualname__}({self._pairs(facts, place)}, cells=[{cells}])"

    def _method(self, method: Any, place: str) -> str:
        owner = self.of(method.__self__, f"{place}.self")
        return f"method({owner}, {self.of(method.__func__, f'{place}.func')})"

    def _wrapped(self, wrapper: Any, place: str) -> str:
        inside = [getattr(wrapper, name, None) for name in ("__func__", "fget", "fset", "fdel")]
        return f"{type(wrapper).__name__}({self._items(inside, place)})"

    def _enum(self, member: Any, place: str) -> str:
        cls = type(member)
        same = cls.__members__.get(member.name) is member
        return f"{self.of(cls, f'{place}.class')}.{member.name}({same})"

    def _buffer(self, buffer: Any, _: str) -> str:
        content = "closed" if buffer.closed else f"{buffer.getvalue()!r} at {buffer.tell()}"
        return f"{type(buffer).__name__}({content})"

    def _instance(self, value: Any, place: str) -> str:
        cls = type(value)
        cls_text = self.of(cls, f"{place}.class")
        if cls.__module__.startswith(MACHINERY):
            return f"{cls_text}<{self.of(getattr(value, '_orig_mod', None), f'{place}._orig_mod')}>"
        parts = []
        if isinstance(value, dict):
            parts.append(f"items {{{self._pairs(value, place)}}}")
        elif isinstance(value, list | tuple | set | frozenset):
            parts.append(f"items [{self._items(value, place)}]")
        held = {name: item for name, item in attributes(value).items() if name not in TRANSIENT}
        if cls.__name__ == "_WrappedHook":  # a copy of the hook's name and text is dropped when it is pickled
            held = {name: held[name] for name in WRAPPED_HOOK}
        if held:
            if cls.__module__ != "__main__":
                held = dict(sorted(held.items()))
            parts.append(self._pairs(held, place))
        if not parts:
            parts.append(self._by_pickle(value, place))
        return f"{cls_text}<{'; '.join(parts)}>"

    def _by_pickle(self, value: Any, place: str) -> str:
        try:
            reduced = value.__reduce_ex__(4)
        except (TypeError, NotImplementedError, RuntimeError, AttributeError):
            return without_addresses(repr(value)) if type(value).__module__ == "builtins" else ""
        if isinstance(reduced, str):
            return reduced
        state = [list(part) if hasattr(part, "__next__") else part for part in reduced[1:]]
        return self._items(state, f"{place}.state")

    # Libraries'

    def _memory(self, owner: Any, address: int, place: str) -> str:
        self.kept.append(owner)
        return f"= {self.memories[address]}" if address in self.memories else self._first(address, place)

    def _first(self, address: int, place: str) -> str:
        self.memories[address] = place
        return "own"

    def _tensor(self, tensor: Any, place: str) -> str:
        import torch

        if is_odd(tensor):
            return f"{type(tensor).__name__}({tensor.dtype})"
        facts: dict[str, Any] = {"dtype": str(tensor.dtype), "shape": list(tensor.shape)}
        facts |= {"layout": str(tensor.layout), "device": str(tensor.device)}
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            facts["class"] = type(tensor)
        # What a computed tensor remembers of its computation has a case of its own.
        if tensor.is_leaf and tensor.requires_grad:
            facts |= {"requires_grad": tensor.requires_grad, "grad": tensor.grad}
            facts["hooks"] = len(tensor._backward_hooks or ())
        facts["vars"] = dict(vars(tensor)) if hasattr(tensor, "__dict__") else {}
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        memory = ""
        if plain:
            facts |= {"stride": list(tensor.stride()), "offset": tensor.storage_offset()}
            memory = self._memory(tensor, tensor.untyped_storage().data_ptr(), f"{place}.storage")
        name = "Parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor"
        return f"{name}({values_of(tensor)}, storage {memory}, {self._pairs(facts, place)})"

    def _array(self, array: Any, place: str) -> str:
        root = array
        while getattr(root, "base", None) is not None and hasattr(root.base, "__array_interface__"):
            root = root.base
        address = root.__array_interface__["data"][0] if root.nbytes else 0
        memory = self._memory(root, address, f"{place}.memory")
        facts = f"{type(array).__name__} {array.dtype} {array.shape} {array.strides} writeable={array.flags.writeable}"
        if array.dtype.hasobject:
            return f"array({facts}, {self._items(array.ravel().tolist(), place)})"
        return f"array({facts}, memory {memory}, {array.tolist() if array.size <= 20 else digest(array.tobytes())})"

    def _frame(self, frame: Any, _: str) -> str:
        kinds = frame.dtypes if type(frame).__name__ == "Series" else frame.dtypes.to_dict()
        index = f"{type(frame.index).__name__} {frame.index.tolist()[:20]} {frame.index.name}"
        return f"{type(frame).__name__}({kinds} {index} {frame.attrs} {frame.to_csv()!r})"

    def _figure(self, figure: Any, _: str) -> str:
        lines = [[line.get_xydata().tolist() for line in axes.get_lines()] for axes in figure.axes]
        return f"Figure({[axes.get_title() for axes in figure.axes]}, {lines})"


def cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "<empty>"


def is_odd(tensor: Any) -> bool:
    """Whether it has no memory and no fixed size that could be told."""
    name = type(tensor).__name__
    return tensor.is_nested or name.startswith("Uninitialized") or name in ("FakeTensor", "FunctionalTensor")


def values_of(tensor: Any) -> str:
    """A tensor's numbers, or a digest of many."""
    import torch

    if tensor.device.type == "meta":
        return "no values"
    with torch.no_grad():
        dense = tensor.dequantize() if tensor.is_quantized else tensor
        dense = dense.to_dense() if dense.layout != torch.strided else dense
        dense = dense.detach().resolve_conj().resolve_neg().contiguous()
        if dense.numel() <= 12:
            return str(dense.tolist())
        return digest(dense.flatten().view(torch.uint8).numpy().tobytes())


def attributes(value: Any) -> dict[str, Any]:
    """What an object holds in its ``__dict__`` and its slots."""
    held = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            private = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            if hasattr(value, private):
                held[name] = getattr(value, private)
    return held


def names(namespace: dict[str, Any]) -> dict[str, str]:
    """A text for each name that a user may have bound."""
    description = Description(namespace)
    chosen = {
        name: value
        for name, value in namespace.items()
        if name not in SHELLS_OWN and not re.match(r"_i?\d+$|__compiled_fn_|__builtins_dict_", name)
    }
    texts = {name: description.of(chosen[name], name) for name in sorted(chosen)}
    out = namespace.get("Out", {})
    texts["Out"] = description.of({number: out[number] for number in sorted(out)}, "Out")
    texts["_"] = description.of(namespace.get("_"), "_")
    return {name: without_addresses(text) for name, text in texts.items()}
