"""Which kind an object is of."""

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import ctypes
import datetime
import decimal
import functools
import io
import numbers
import os
import pathlib
import queue
import random
import re
import sys
import threading
import types
import uuid
import weakref
from typing import Any

from nbdist.values import figures, files, frames, library, numeric, plain
from nbdist.values.kind import ATOMS, Kind, slots_of
from nbdist.values.models import BETWEEN_RANKS
from nbdist.values.modules import ModuleKind

# Machinery of the kernel and of Python: stands for itself, is never entered and never rewritten.
_MACHINERY = frozenset(
    "IPython ipykernel ipywidgets traitlets zmq tornado jupyter_client comm logging threading asyncio "
    "concurrent multiprocessing os socket io _io _thread subprocess nbdist matplotlib".split()
)

_ITSELF = Kind()
_INSTANCE = plain.PlainInstance()
_FROZEN = plain.Frozen()
_WRAPPING = plain.Wrapping()
_RUNNING = plain.RunningKind()
_ITERATOR = library.IteratorKind()
_SAYING = library.SayingKind(lambda cls: _is_hidden(cls))
_OPAQUE = library.OpaqueKind()
_FILE = files.FileKind()
# Libraries whose compiled objects do not change, and may be large.
_UNCHANGING = frozenset("builtins types typing operator functools pyarrow polars torch numpy pandas".split())


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
    (types.ModuleType, ModuleKind()),
    (BaseException, library.ErrorKind()),
    (contextvars.ContextVar, library.ContextVarKind()),
    (ctypes.c_int.__mro__[-2], library.CDataKind()),
    (memoryview, plain.ViewKind()),
    *_each(library.WeakKind(), weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
    *_each(_INSTANCE, queue.Queue),
    (queue.SimpleQueue, library.SimpleQueueKind()),
    (functools._lru_cache_wrapper, library.CachedKind()),
    (threading.Event, library.EventKind()),
    *_each(_FILE, *files.LAYERS),
    # They do not change, although they can be pickled.
    *_each(_ITSELF, numbers.Number, decimal.Decimal, datetime.date, datetime.time, datetime.timedelta),
    *_each(_ITSELF, datetime.tzinfo, pathlib.PurePath, os.DirEntry, uuid.UUID, re.Pattern, re.Match),
    *_each(_ITSELF, weakref.ref, *weakref.ProxyTypes, types.GenericAlias, types.BuiltinFunctionType),
    (type, plain.ClassKind()),
    *_each(_WRAPPING, types.MethodType, types.MappingProxyType, functools.partial, functools.partialmethod),
    *_each(_WRAPPING, property, classmethod, staticmethod),
    (random.Random, plain.Stateful()),
    *_each(plain.BufferKind(), io.StringIO, io.BytesIO),
    *_each(_RUNNING, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType),
)
# Classes of libraries that may not be loaded: module, name, kind.
_BY_NAME: tuple[tuple[str, str, Kind], ...] = (
    ("torch", "Tensor", numeric.TensorKind()),
    ("torch.jit", "ScriptModule", plain.ScriptKind()),
    ("numpy", "ndarray", numeric.ArrayKind()),
    ("pandas", "DataFrame", frames.FrameKind()),
    ("pandas", "Series", frames.FrameKind()),
    ("pandas", "Index", frames.IndexKind()),
    ("pandas._libs.arrays", "NDArrayBacked", frames.BackedKind()),
    ("pandas._libs.internals", "BlockValuesRefs", frames.RefsKind()),
    ("numpy.random", "Generator", plain.NumpyGeneratorKind()),
    ("numpy.random", "RandomState", plain.OldNumpyGeneratorKind()),
    ("torch", "Generator", plain.TorchGeneratorKind()),
    ("torch.utils.hooks", "RemovableHandle", library.HandleKind()),
    ("torch.utils.data", "DataLoader", plain.PartlyInstance("_iterator")),  # with its workers
    ("torch.nn.parallel", "DistributedDataParallel", plain.PartlyInstance(*BETWEEN_RANKS)),
    ("sqlite3", "Connection", library.DatabaseKind()),
    ("matplotlib.figure", "Figure", figures.FigureKind()),
    ("matplotlib.artist", "Artist", figures.ArtistKind()),
    *((module, name, _FILE) for module, name in files.COMPRESSED),
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
    if cls.__dictoffset__ or slots_of(cls):
        return _SAYING if hasattr(cls, "__setstate__") and _says_state(cls) else _INSTANCE
    return _of_compiled_code(cls)


def _says_state(cls: Any) -> bool:
    return getattr(cls, "__getstate__", None) is not getattr(object, "__getstate__", None)


def _is_hidden(cls: type) -> bool:
    """Whether compiled code of some library keeps what an object holds to itself."""
    root = cls.__module__.partition(".")[0]
    if root == "builtins":  # also of libraries that do not say where their classes are from
        return cls not in _PYTHONS
    return cls not in ATOMS and kind_of_class(cls) is _ITSELF and root not in _MACHINERY | _UNCHANGING


_PYTHONS = {cls for cls in (*vars(builtins).values(), *vars(types).values()) if isinstance(cls, type)}


def _of_compiled_code(cls: Any) -> Kind:
    if hasattr(cls, "__next__") and cls.__module__ in ("builtins", "itertools"):
        return _ITERATOR
    says_state = cls.__reduce__ is not object.__reduce__ or hasattr(cls, "__setstate__")
    return _OPAQUE if says_state and cls.__module__.partition(".")[0] not in _UNCHANGING else _ITSELF


def kind_of(obj: object) -> Kind:
    """The kind an object is of."""
    return kind_of_class(type(obj))


class KindCache(dict[type, Kind]):
    """Kinds by class, for a walk over many objects."""

    def __missing__(self, cls: type) -> Kind:
        kind = self[cls] = kind_of_class(cls)
        return kind
