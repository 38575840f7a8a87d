"""How Python's own objects are rebuilt that pickle takes by name, copies where a copy is none, or refuses."""

from __future__ import annotations

import ctypes
import functools
import io
import marshal
import os
import queue
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

from nbdist.role import NotebooksOwn, StandIn
from nbdist.values.kind import attributes_of, set_attributes
from nbdist.values.library import check_no_address, fill_weak, waiting_in

Reduce = Callable[[Any], Any]


def reducer_of(cls: type) -> Reduce | None:
    """What says how objects of a class are rebuilt, as `object.__reduce__` does; it may answer None."""
    if cls in _EXACTLY:
        return _EXACTLY[cls]
    for base, reduce in _BY_BASE:
        if issubclass(cls, base):
            return reduce
    return _reduce_container if _fills_its_own_way(cls) else None


def make_empty(cls: Any) -> Any:
    """An object without its attributes."""
    return cls.__new__(cls)


def set_vars(obj: Any, attributes: dict[str, Any]) -> None:
    """Give an object attributes, past any ``__setattr__``."""
    vars(obj).update(attributes)


def itself(obj: Any) -> Any:
    """For objects that are rebuilt as another."""
    return obj


def _reduce_to_stand_in(own: NotebooksOwn) -> Any:
    """A run or a session where it is not: it says so to all that ask."""
    return StandIn, (own.what,)


# ── Functions ───────────────────────────────────────────────────────────────────────────────────────────────


def reduce_function(function: types.FunctionType) -> Any:
    """A function on the notebook's own globals, with its cells: functions go on sharing a variable."""
    made = (function.__code__, function.__globals__, function.__name__, function.__closure__ or ())
    attributes = {
        "__defaults__": function.__defaults__,
        "__kwdefaults__": function.__kwdefaults__,
        "__annotations__": _annotations(function),
        "__qualname__": function.__qualname__,
        "__module__": function.__module__,
        "__doc__": function.__doc__,
    }
    return _make_function, made, (attributes, vars(function)), None, None, _fill_function


def _annotations(function: types.FunctionType) -> dict[str, Any]:
    try:
        return function.__annotations__
    except NameError:  # Python 3.14 evaluates them late, and their names may be gone
        return {}


def _make_function(
    code: types.CodeType, namespace: dict[str, Any], name: str, cells: Any
) -> types.FunctionType:
    return types.FunctionType(code, namespace, name, None, cells or None)


def _fill_function(function: types.FunctionType, state: Any) -> None:
    attributes, own = state
    for name, value in attributes.items():
        setattr(function, name, value)
    vars(function).update(own)


def _reduce_cell(cell: types.CellType) -> Any:
    return _make_cell, (), _cell_contents(cell), None, None, _fill_cell


def _make_cell() -> types.CellType:
    return types.CellType()


def _cell_contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # an empty cell
        return ()


def _fill_cell(cell: types.CellType, contents: tuple[Any, ...]) -> None:
    if contents:
        cell.cell_contents = contents[0]


def _reduce_code(code: types.CodeType) -> Any:
    # cloudpickle would drop the file's name; both sides are one Python.
    return marshal.loads, (marshal.dumps(code),)


def _reduce_cached(function: Any) -> Any:
    if function.__module__ != "__main__":
        return None
    return _make_cached, (function.__wrapped__, function.cache_parameters())


def _make_cached(function: Any, parameters: Any) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_cached_property(obj: Any) -> Any:
    return _make_cached_property, (obj.func, obj.attrname)  # before Python 3.12 it holds a lock


def _make_cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _reduce_type_variable(variable: Any) -> Any:
    """A `TypeVar` or `ParamSpec` that no module has by its name: of where it was made, not where it is made
    anew."""
    name, module = variable.__name__, variable.__module__
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is variable:
        return None
    args = (name, *getattr(variable, "__constraints__", ()))
    held = {option: getattr(variable, f"__{option}__", None) for option in _OPTIONS}
    options = {option: value for option, value in held.items() if value}
    if getattr(variable, "has_default", bool)():  # since Python 3.13
        options["default"] = variable.__default__
    return _make_type_variable, (type(variable), args, options, module)


_OPTIONS = ("bound", "covariant", "contravariant", "infer_variance")


def _make_type_variable(cls: Any, args: tuple[Any, ...], options: dict[str, Any], module: str | None) -> Any:
    made = cls(*args, **options)
    made.__module__ = module
    return made


def _reduce_new_type(new: Any) -> Any:
    if new.__module__ != "__main__":
        return None
    return typing.NewType, (new.__name__, new.__supertype__), vars(new), None, None, set_vars


# ── References and views ────────────────────────────────────────────────────────────────────────────────────


def _reduce_reference(reference: Any) -> Any:
    obj = reference()
    return (_dead_reference, ()) if obj is None else (weakref.ref, (obj,))


def _dead_reference() -> Any:
    return weakref.ref(io.BytesIO())


def _reduce_weak(obj: Any) -> Any:
    items = tuple(obj) if isinstance(obj, weakref.WeakSet) else (*obj.keys(), *obj.values())
    return type(obj), (), items, None, None, fill_weak


def _reduce_view(view: memoryview) -> Any:
    if not view.contiguous or view.readonly or view.nbytes == 0:
        return None
    whole = memoryview(view.obj)
    if not whole.contiguous:
        return None
    start = _address(view) - _address(whole)
    return _make_view, (view.obj, start, view.nbytes, view.format, view.shape)


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _make_view(owner: Any, start: int, size_bytes: int, form: str, shape: Any) -> memoryview:
    part = memoryview(owner).cast("B")[start : start + size_bytes]
    return part if form == "B" and len(shape) == 1 else part.cast(form, shape)  # type: ignore[call-overload]


# ── Containers with code of their own ───────────────────────────────────────────────────────────────────────


def _fills_its_own_way(cls: Any) -> bool:
    """Whether pickle would run the user's code on each item once more, which has changed it already."""
    if cls.__reduce_ex__ is not object.__reduce_ex__ or cls.__reduce__ is not object.__reduce__:
        return False
    if hasattr(cls, "__setstate__") or hasattr(cls, "__getnewargs_ex__") or hasattr(cls, "__getnewargs__"):
        return False
    names = ("__setitem__",) if issubclass(cls, dict) else ("append", "extend")
    base = dict if issubclass(cls, dict) else list
    return issubclass(cls, base) and any(getattr(cls, name) is not getattr(base, name) for name in names)


def _reduce_container(obj: Any) -> Any:
    items = dict(dict.items(obj)) if isinstance(obj, dict) else list(list.__iter__(obj))
    return make_empty, (type(obj),), (items, attributes_of(obj)), None, None, _fill_container


def _fill_container(obj: Any, state: Any) -> None:
    items, attributes = state
    if isinstance(obj, dict):
        dict.update(obj, items)
    else:
        list.extend(obj, items)
    set_attributes(obj, attributes)


# ── Others ──────────────────────────────────────────────────────────────────────────────────────────────────


def _reduce_error(error: BaseException) -> Any:
    """An exception with what it was raised from, made without the `__init__` of its own class, which may
    take other arguments than those that exceptions keep."""
    cls: Any = type(error)
    if not _is_builtins_way(cls, "__reduce_ex__") or not _is_builtins_way(cls, "__reduce__"):
        reduced = error.__reduce_ex__(4)
        plain = error.__cause__ is None and not error.__suppress_context__
        if plain or isinstance(reduced, str) or len(reduced) > 3:
            return reduced
        make, args, state = (*reduced, None)[:3]
    else:
        _, args, state = (*error.__reduce_ex__(4), None)[:3]
        make, args = make_error, (cls, args)
    return make, args, (state, error.__cause__, error.__suppress_context__), None, None, _fill_error


def _is_builtins_way(cls: Any, name: str) -> bool:
    return any(getattr(cls, name) is getattr(base, name) for base in cls.__mro__ if _is_builtin(base))


def _is_builtin(cls: type) -> bool:
    return issubclass(cls, BaseException) and cls.__module__ == "builtins"


def make_error(cls: Any, args: tuple[Any, ...]) -> Any:
    """An exception with the arguments of Python's own class that it is made of, without attributes."""
    builtin: Any = next(base for base in cls.__mro__ if _is_builtin(base))
    error = builtin.__new__(cls, *args)
    builtin.__init__(error, *args)
    return error


def _fill_error(error: BaseException, filling: Any) -> None:
    state, cause, suppress = filling
    if state is not None:
        error.__setstate__(state)
    error.__cause__, error.__suppress_context__ = cause, suppress


def _reduce_queue(obj: Any) -> Any:
    return type(obj), (obj.maxsize,), (obj.queue, obj.unfinished_tasks), None, None, _fill_queue


def _fill_queue(obj: Any, state: Any) -> None:
    obj.queue, obj.unfinished_tasks = state


def _reduce_simple_queue(obj: Any) -> Any:
    return type(obj), (), waiting_in(obj), None, None, _fill_simple_queue


def _fill_simple_queue(obj: Any, items: tuple[Any, ...]) -> None:
    for item in items:
        obj.put(item)


def _reduce_file(file: Any) -> Any:
    if not file.closed:
        raise TypeError(f"cannot pickle {type(file).__name__!r} object")
    return _make_closed_file, ("b" if not isinstance(file, io.TextIOWrapper) else "",)


def _make_closed_file(kind: str) -> Any:
    file = open(os.devnull, f"r{kind}")  # noqa: SIM115
    file.close()
    return file


def _reduce_buffer(buffer: Any) -> Any:
    if not buffer.closed:
        return None
    return _make_closed_buffer, (type(buffer),), attributes_of(buffer), None, None, set_attributes


def _make_closed_buffer(cls: Any) -> Any:
    buffer = cls.__new__(cls)
    base: Any = io.StringIO if issubclass(cls, io.StringIO) else io.BytesIO
    base.__init__(buffer)
    base.close(buffer)
    return buffer


def _reduce_c_data(obj: Any) -> Any:
    check_no_address(type(obj))
    return _make_c_data, (type(obj), bytes(obj))


def _make_c_data(cls: Any, data: bytes) -> Any:
    return cls.from_buffer_copy(data)


def _reduce_c_array_class(cls: Any) -> Any:
    made = cls._type_ * cls._length_
    return (_make_c_array_class, (cls._type_, cls._length_)) if made is cls else None


def _make_c_array_class(item: Any, length: int) -> Any:
    return item * length


_TYPE_VARIABLES: tuple[Any, ...] = (
    *(typing.TypeVar, typing.ParamSpec),
    *filter(None, [getattr(typing, "TypeVarTuple", None)]),  # since Python 3.11
)
_EXACTLY: dict[type, Reduce] = {
    types.CellType: _reduce_cell,
    types.CodeType: _reduce_code,
    functools._lru_cache_wrapper: _reduce_cached,
    functools.cached_property: _reduce_cached_property,
    **dict.fromkeys(_TYPE_VARIABLES, _reduce_type_variable),
    typing.NewType: _reduce_new_type,
    weakref.ref: _reduce_reference,
    memoryview: _reduce_view,
    **dict.fromkeys((weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary), _reduce_weak),
    queue.SimpleQueue: _reduce_simple_queue,
    **dict.fromkeys((queue.Queue, queue.LifoQueue, queue.PriorityQueue), _reduce_queue),
    type(ctypes.Array): _reduce_c_array_class,
}
_C_DATA: Any = ctypes.c_int.__mro__[-2]
_BY_BASE: tuple[tuple[type, Reduce], ...] = (
    (BaseException, _reduce_error),
    (io.StringIO, _reduce_buffer),
    (io.BytesIO, _reduce_buffer),
    (io.TextIOWrapper, _reduce_file),
    (io.BufferedIOBase, _reduce_file),
    (io.FileIO, _reduce_file),
    (_C_DATA, _reduce_c_data),
    (NotebooksOwn, _reduce_to_stand_in),
)
