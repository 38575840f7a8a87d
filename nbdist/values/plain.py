"""Kinds of Python's own objects."""

from __future__ import annotations

import array
import collections
import gc
import pickle
from typing import Any

from nbdist.values.kind import ATOMS, Content, Kind, attributes_of, set_attributes


class Frozen(Kind):
    """Tuples and frozen sets: entered, never rewritten."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return () if set(map(type, obj)) <= ATOMS else tuple(obj)


class Instance(Kind):
    """Objects with attributes: the notebook's own classes, modules, optimizers, schedulers."""

    def held(self, obj: Any) -> dict[str, Any]:
        """The attributes that count."""
        return attributes_of(obj)

    def content(self, obj: Any) -> Content:
        held = self.held(obj)
        return Content((type(obj), *held, *held.values()))

    def portable(self, obj: Any) -> Any:
        return type(obj), self.held(obj), ()

    def land(self, twin: Any, portable: Any) -> None:
        cls, attributes, kept = portable
        if cls is not None and type(twin) is not cls:
            twin.__class__ = cls
        set_attributes(twin, attributes, kept)


class PlainInstance(Instance):
    """Instances that are nothing but their attributes: what has not changed, a lock say, is not sent."""

    def difference(self, obj: Any, before: Content) -> Any:
        count = len(before.parts) // 2
        old = dict(zip(before.parts[1 : count + 1], before.parts[count + 1 :], strict=True))
        held = self.held(obj)
        kept = tuple(name for name, value in held.items() if name in old and old[name] is value)
        cls = None if type(obj) is before.parts[0] else type(obj)
        return cls, {name: value for name, value in held.items() if name not in kept}, kept


class Container(Instance):
    """Lists, dicts, sets and their relatives, with what attributes a subclass adds."""

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
        return (*items, *attributes_of(obj).values(), type(obj))

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
        if isinstance(obj, collections.OrderedDict):  # it keeps an order of its own
            return (*collections.OrderedDict.keys(obj), *collections.OrderedDict.values(obj))
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
    """Functions of the notebook: their attributes, and what else can be set of them."""

    def content(self, obj: Any) -> Content:
        defaults = (*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values())
        return Content(
            (obj.__code__, *defaults, *vars(obj), *vars(obj).values()),
            (obj.__name__, obj.__qualname__, obj.__doc__, len(obj.__defaults__ or ())),
        )

    def portable(self, obj: Any) -> Any:
        return {name: getattr(obj, name) for name in _SETTABLE}, dict(vars(obj))

    def land(self, twin: Any, portable: Any) -> None:
        settable, own = portable
        for name, value in settable.items():
            if getattr(twin, name) is not value:
                setattr(twin, name, value)
        vars(twin).clear()
        vars(twin).update(own)

    def parts(self, obj: Any) -> tuple[Any, ...]:
        defaults = (*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values())
        space = (obj.__globals__,) if is_in_filled_space(obj) else ()
        return (*defaults, *(obj.__closure__ or ()), *vars(obj).values(), *space)


def is_in_filled_space(function: Any) -> bool:
    """Whether a function's globals are no module's, but a dict that `exec` has filled."""
    return "__name__" not in function.__globals__


_SETTABLE = ("__code__", "__defaults__", "__kwdefaults__", "__name__", "__qualname__", "__doc__")


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
    """Classes of the notebook: attributes and methods that the cell sets on them."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return (type(obj), *obj.__bases__, *_class_attributes(obj).values())

    def content(self, obj: Any) -> Content:
        held = _class_attributes(obj)
        return Content((*held, *held.values()))

    def portable(self, obj: Any) -> Any:
        return _class_attributes(obj)

    def land(self, twin: Any, portable: Any) -> None:
        before = _class_attributes(twin)
        for name in before.keys() - portable.keys():
            type.__delattr__(twin, name)
        for name, value in portable.items():
            if before.get(name, twin) is not value:
                type.__setattr__(twin, name, value)


def _class_attributes(cls: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if name not in _CLASS_MACHINERY}


# What Python keeps in a class for itself.
_CLASS_MACHINERY = frozenset(
    "__dict__ __weakref__ __module__ __qualname__ __abstractmethods__ _abc_impl __slotnames__ "
    "__static_attributes__ __firstlineno__ __subclasshook__ __match_args__ "
    "__annotations_cache__".split()
)


class Wrapping(Kind):
    """Objects of C that hold others and do not change: partials, properties, bound methods, views."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return tuple(gc.get_referents(obj))


class ViewKind(Kind):
    """Memory views: what is written through one is its owner's."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return (obj.obj,)


class Stateful(Kind):
    """Objects of C with a state of their own that pickle knows: random generators, buffers, iterators."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return ()

    def content(self, obj: Any) -> Content:
        return Content(facts=(pickle.dumps(obj.__reduce_ex__(4)),))

    def portable(self, obj: Any) -> Any:
        return obj.__reduce_ex__(4)[2]

    def land(self, twin: Any, portable: Any) -> None:
        twin.__setstate__(portable)


class BufferKind(Stateful):
    """Files in memory; a closed one has no content."""

    def content(self, obj: Any) -> Content:
        return Content(facts=("closed",)) if obj.closed else super().content(obj)

    def portable(self, obj: Any) -> Any:
        return None if obj.closed else super().portable(obj)

    def land(self, twin: Any, portable: Any) -> None:
        if portable is None:
            twin.close()
        else:
            super().land(twin, portable)


class NumpyGeneratorKind(Kind):
    """numpy's random generators."""

    def content(self, obj: Any) -> Content:
        return Content(facts=(pickle.dumps(self.portable(obj)),))

    def portable(self, obj: Any) -> Any:
        return obj.bit_generator.state

    def land(self, twin: Any, portable: Any) -> None:
        twin.bit_generator.state = portable


class OldNumpyGeneratorKind(NumpyGeneratorKind):
    """`numpy.random.RandomState`."""

    def portable(self, obj: Any) -> Any:
        return obj.get_state()

    def land(self, twin: Any, portable: Any) -> None:
        twin.set_state(portable)


class TorchGeneratorKind(NumpyGeneratorKind):
    """`torch.Generator`; a GPU's generator stands for itself."""

    def portable(self, obj: Any) -> Any:
        return obj.get_state().numpy().tobytes() if obj.device.type == "cpu" else b""

    def land(self, twin: Any, portable: Any) -> None:
        import torch

        twin.set_state(torch.frombuffer(bytearray(portable), dtype=torch.uint8))


class NumberArrayKind(Kind):
    """`array.array`."""

    def content(self, obj: Any) -> Content:
        return Content(facts=(obj.tobytes(),))

    def portable(self, obj: Any) -> Any:
        return obj.tobytes()

    def land(self, twin: Any, portable: Any) -> None:
        twin[:] = array.array(twin.typecode, portable)


class RunningKind(Kind):
    """Generators and coroutines: where they stand is theirs alone."""

    def content(self, obj: Any) -> Content:
        frame = getattr(obj, "gi_frame", None) or getattr(obj, "cr_frame", None)
        return Content(facts=(None if frame is None else frame.f_lasti,))

    def portable(self, obj: Any) -> Any:
        raise TypeError(f"a {type(obj).__name__} that has run on a rank cannot be brought back")


class PartlyInstance(PlainInstance):
    """Instances of which some attributes are their process's own affair, and stay as they are.

    Args:
        own: their names.
    """

    def __init__(self, *own: str):
        self._own = own

    def held(self, obj: Any) -> dict[str, Any]:
        return {name: value for name, value in super().held(obj).items() if name not in self._own}

    def land(self, twin: Any, portable: Any) -> None:
        cls, attributes, kept = portable
        super().land(twin, (cls, attributes, (*kept, *self._own)))


class ScriptKind(Kind):
    """torch's scripted modules: compiled code that holds tensors."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return (*obj.parameters(), *obj.buffers())

    def content(self, obj: Any) -> Content:
        return Content((*self.parts(obj), type(obj)), (obj.training,))

    def portable(self, obj: Any) -> Any:
        return bool(obj.training), [tensor.detach() for tensor in self.parts(obj)]

    def difference(self, obj: Any, before: Content) -> Any:
        return bool(obj.training), None

    def land(self, twin: Any, portable: Any) -> None:
        training, tensors = portable
        twin.train(training)
        for tensor, value in zip(self.parts(twin), tensors or (), strict=tensors is not None):
            tensor.detach().copy_(value)
