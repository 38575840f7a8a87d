"""Pickling values as one object graph, in which the notebook's own objects stand for themselves.

Several values are dumped one after another with one memo, so that what they share stays shared.
Large buffers leave the stream (pickle protocol 5, PEP 574).
"""

from __future__ import annotations

import functools
import io
import marshal
import os
import pickle
import types
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import cloudpickle

from nbdist.values.classes import without_notebooks_code
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.numbers import NumberReducer, storage_of
from nbdist.values.twins import Twins, is_definition

_IN_BAND_BYTES = 1 << 14


class GraphPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes values to a stream and collects their large buffers.

    Args:
        stream: where the pickles go.
        twins: objects that the other side has and that stand for themselves.
        definitions_only: of those, only functions and classes; data goes by value (each rank's
            own, for `--gather`).
    """

    def __init__(
        self, stream: io.BytesIO, twins: Twins, *, definitions_only: bool = False, out_of_band: bool = True
    ):
        buffers: list[pickle.PickleBuffer] = []

        def take_buffer(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes < _IN_BAND_BYTES:
                return True
            buffers.append(buffer)
            return False

        # Not a method of ours: a cycle through this object would leave its buffers to the garbage
        # collector, which clears a memoryview before what is built on it.
        super().__init__(stream, protocol=5, buffer_callback=take_buffer if out_of_band else None)
        self.buffers = buffers
        self._twins = twins
        self._definitions_only = definitions_only
        self._numbers = NumberReducer(twins, by_value=definitions_only)

    def expect(self, objects: Iterable[Any]) -> None:
        """Objects that may be among the values: what shares their memory is put on it, in any order."""
        self._numbers.expect(objects)

    def persistent_id(self, obj: Any) -> Any:
        if obj is self._twins.namespace:
            return "namespace"
        if type(obj).__name__ == "UntypedStorage":
            return self._numbers.key_of(obj)
        key = self._twins.key_of(obj)
        return None if key is None or (self._definitions_only and not is_definition(obj)) else key

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType) and obj.__globals__ is self._twins.namespace:
            return _reduce_function(obj)
        if isinstance(obj, types.CellType):
            return _make_cell, (), _cell_contents(obj), None, None, _fill_cell
        reduced = _reduce_python(obj)
        if reduced is not None:
            return reduced
        reduced = self._numbers.reduce(obj)
        if reduced is not None:
            return reduced
        return without_notebooks_code(obj, super().reducer_override(obj))


class GraphUnpickler(pickle.Unpickler):
    """Reads what `GraphPickler` wrote, in the process that has the twins."""

    def __init__(self, stream: io.BytesIO, twins: Twins, buffers: Iterable[memoryview]):
        super().__init__(stream, buffers=buffers)
        self._twins = twins

    def persistent_load(self, pid: Any) -> Any:
        if pid == "namespace":
            return self._twins.namespace
        if isinstance(pid, tuple):
            _, key, offset, size_bytes = pid
            return storage_of(self._twins.known[key], offset, size_bytes)
        return self._twins.known[pid]


def dump_error(error: BaseException, twins: Twins) -> bytes | None:
    """An exception as bytes, or None where it cannot be pickled."""
    stream = io.BytesIO()
    pickler = GraphPickler(stream, twins, definitions_only=True, out_of_band=False)
    dumped = call_foreign(partial(pickler.dump, error))
    return None if isinstance(dumped, Refusal) else stream.getvalue()


def load_error(data: bytes, twins: Twins) -> BaseException | None:
    """What `dump_error` wrote, or None where the exception's class cannot be built from it."""
    error = call_foreign(GraphUnpickler(io.BytesIO(data), twins, ()).load)
    return error if isinstance(error, BaseException) else None


def _reduce_function(function: types.FunctionType) -> Any:
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


def _reduce_python(obj: Any) -> Any:
    """Python's own objects that pickle takes by name, or copies where a copy is none."""
    if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":
        wrapped: Any = obj
        return _make_cached, (wrapped.__wrapped__, wrapped.cache_parameters())
    if isinstance(obj, types.CodeType):  # cloudpickle would drop the file's name; both sides are one Python
        return marshal.loads, (marshal.dumps(obj),)
    if type(obj) is weakref.ref and obj() is not None:
        return weakref.ref, (obj(),)
    if isinstance(obj, functools.cached_property):  # before Python 3.12 it holds a lock
        return _make_cached_property, (obj.func, obj.attrname)
    if isinstance(obj, (io.TextIOWrapper, io.BufferedIOBase, io.FileIO)) and not isinstance(obj, io.BytesIO):
        if obj.closed:
            return _make_closed_file, ("b" if not isinstance(obj, io.TextIOWrapper) else "",)
        raise TypeError("an open file stays with its process")
    return None


def _make_cached(function: Any, parameters: Any) -> Any:
    return functools.lru_cache(**parameters)(function)


def _make_cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


def _make_closed_file(kind: str) -> Any:
    file = open(os.devnull, f"r{kind}")  # noqa: SIM115
    file.close()
    return file


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
