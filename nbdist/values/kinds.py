"""Which kind an object is of."""

from __future__ import annotations

import array
import collections
import copyreg
import functools
import io
import random
import sys
import types
from typing import Any

from nbdist.values import frames, numeric, plain
from nbdist.values.kind import Kind

# Machinery of the kernel and of Python: stands for itself, is never entered and never rewritten.
_MACHINERY = frozenset(
    "IPython ipykernel ipywidgets traitlets zmq tornado jupyter_client comm logging threading asyncio "
    "concurrent multiprocessing os socket io _io _thread queue subprocess weakref nbdist matplotlib".split()
)

_ITSELF = Kind()
_INSTANCE = plain.PlainInstance()
_FROZEN = plain.Frozen()
_WRAPPING = plain.Wrapping()
_STATEFUL = plain.Stateful()
_RUNNING = plain.RunningKind()


def _each(kind: Kind, *classes: type) -> tuple[tuple[type, Kind], ...]:
    return tuple((cls, kind) for cls in classes)


_BY_BASE: tuple[tuple[type, Kind], ...] = (
    (list, plain.ListKind()),
    (dict, plain.DictKind()),
    (set, plain.SetKind()),
    (tuple, _FROZEN),
    (frozenset, _FROZEN),
    (collections.deque, plain.DequeKind()),
    (bytearray, plain.ByteArrayKind()),
    (array.array, plain.NumberArrayKind()),
    (types.FunctionType, plain.FunctionKind()),
    (types.CellType, plain.CellKind()),
    (type, plain.ClassKind()),
    *_each(_WRAPPING, types.MethodType, types.MappingProxyType, functools.partial, functools.partialmethod),
    *_each(_WRAPPING, property, classmethod, staticmethod),
    *_each(_STATEFUL, random.Random, io.StringIO, io.BytesIO, type(iter([])), type(iter(()))),
    *_each(_RUNNING, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType),
)
# Classes of libraries that may not be loaded: module, name, kind.
_BY_NAME: tuple[tuple[str, str, Kind], ...] = (
    ("torch", "Tensor", numeric.TensorKind()),
    ("numpy", "ndarray", numeric.ArrayKind()),
    ("pandas", "DataFrame", frames.FrameKind()),
    ("pandas", "Series", frames.FrameKind()),
    ("pandas", "Index", _ITSELF),  # it does not change, except for its caches
    ("numpy.random", "Generator", plain.NumpyGeneratorKind()),
    ("numpy.random", "RandomState", plain.OldNumpyGeneratorKind()),
    ("torch", "Generator", plain.TorchGeneratorKind()),
    ("torch.utils.data", "DataLoader", plain.LoaderKind()),
)


def kind_of_class(cls: type) -> Kind:
    """The kind of a class's objects; objects that cannot be looked into stand for themselves.

    Asked of the class: an object such as a lazy proxy may lie about its own.
    """
    for module, name, kind in _BY_NAME:
        base: Any = getattr(sys.modules.get(module), name, None)
        if base is not None and issubclass(cls, base):
            return kind
    for base, kind in _BY_BASE:
        if issubclass(cls, base):
            return kind
    if cls.__module__.partition(".")[0] in _MACHINERY:
        return _ITSELF
    has_attributes = cls.__dictoffset__ or copyreg._slotnames(cls)  # type: ignore[attr-defined]
    return _INSTANCE if has_attributes else _ITSELF


def kind_of(obj: object) -> Kind:
    """The kind an object is of."""
    return kind_of_class(type(obj))


class KindCache(dict[type, Kind]):
    """Kinds by class, for a walk over many objects."""

    def __missing__(self, cls: type) -> Kind:
        kind = self[cls] = kind_of_class(cls)
        return kind
