"""Pickling values as one object graph, in which the notebook's own objects stand for themselves.

Several values are dumped one after another with one memo, so that what they share stays shared.
Large buffers leave the stream (pickle protocol 5, PEP 574).
"""

from __future__ import annotations

import builtins
import io
import pickle
import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import cloudpickle

from nbdist.values import frames
from nbdist.values.classes import without_notebooks_code
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.numbers import NumberReducer
from nbdist.values.plain import is_in_filled_space
from nbdist.values.rebuild import Reduce, make_error, reduce_function, reducer_of
from nbdist.values.shards import SHARDS
from nbdist.values.twins import Twins
from nbdist.values.walk import is_definition

_IN_BAND_BYTES = 1 << 14


class GraphPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes values to a stream and collects their large buffers.

    Args:
        stream: where the pickles go.
        twins: objects that the other side has and that stand for themselves.
        definitions_only: of those, only functions and classes; data goes by value (each rank's
            own, for `--gather`).
        lends: whether large memory may stay where it is: the other side reads it from this process.
    """

    def __init__(
        self,
        stream: io.BytesIO,
        twins: Twins,
        *,
        definitions_only: bool = False,
        out_of_band: bool = True,
        lends: bool = False,
    ):
        buffers: list[pickle.PickleBuffer] = []

        def take_buffer(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes < _IN_BAND_BYTES:
                return True
            buffers.append(buffer)
            return False

        # Not a method of ours: a cycle through this object would leave its buffers to the garbage
        # collector, which clears a memoryview before what is built on it.
        self.persistent_id = _ids_of(twins, definitions_only=definitions_only)
        super().__init__(stream, protocol=5, buffer_callback=take_buffer if out_of_band else None)
        self.buffers = buffers
        self._namespace = twins.namespace
        self._barred = twins.barred
        self._numbers = NumberReducer(twins, by_value=definitions_only, lends=lends)
        self._reducers: dict[type, Reduce | None] = {}

    @property
    def lent_bytes(self) -> int:
        """How much memory it has lent so far."""
        return self._numbers.lent_bytes

    def expect(self, objects: Iterable[Any]) -> None:
        """Objects that may be among the values: what shares their memory is put on it, in any order."""
        self._numbers.expect(objects)

    def reducer_override(self, obj: Any) -> Any:
        cls = type(obj)
        if id(obj) in self._barred:
            raise TypeError(self._barred[id(obj)])
        if cls not in self._reducers:
            self._reducers[cls] = reducer_of(cls) or frames.reducer_of(cls) or self._numbers.reducer_of(cls)
        reduce = self._reducers[cls]
        if reduce is not None:
            reduced = reduce(obj)
            if reduced is not None:
                return reduced
        if cls is types.FunctionType:
            if obj.__globals__ is self._namespace or is_in_filled_space(obj):
                return reduce_function(obj)
        elif not issubclass(cls, type):
            return NotImplemented
        return without_notebooks_code(obj, super().reducer_override(obj))


def _ids_of(twins: Twins, *, definitions_only: bool) -> Callable[[Any], Any]:
    """The pickler's `persistent_id`. It is asked of every number and text, so it does one look-up."""
    find, known = twins.finder(), twins.known
    others: dict[int, Any] = {
        id(twins.namespace): "namespace",
        id(SHARDS): "shards",
        id(vars(builtins)): "builtins",  # `exec` puts it into each namespace that it is given
    }

    def by_id(obj: Any) -> Any:
        id_ = id(obj)
        return id_ if id_ in known else others.get(id_)

    def persistent_id(obj: Any) -> Any:
        id_ = id(obj)
        key = find(id_)
        if key is None or (definitions_only and not is_definition(known[key])):
            return others.get(id_)
        return key

    return by_id if twins.ids_are_keys and not definitions_only else persistent_id


class GraphUnpickler(pickle.Unpickler):
    """Reads what `GraphPickler` wrote, in the process that has the twins."""

    def __init__(self, stream: io.BytesIO, twins: Twins, buffers: Iterable[memoryview]):
        super().__init__(stream, buffers=buffers)
        self._twins = twins

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is int:
            return self._twins.known[pid]
        twins = self._twins
        return {"namespace": twins.namespace, "shards": twins.shards, "builtins": vars(builtins)}[pid]


def dump_error(error: BaseException, twins: Twins) -> bytes | None:
    """An exception as bytes, without attributes that cannot be pickled; None where nothing of it can."""
    whole = _dumped(error, twins)
    if whole is not None:
        return whole
    bare = call_foreign(lambda: make_error(type(error), tuple(_or_repr(arg, twins) for arg in error.args)))
    if isinstance(bare, Refusal):
        return None
    held = {name: _if_dumped(value, twins) for name, value in vars(error).items()}
    vars(bare).update({name: value for name, value in held.items() if value is not None})
    bare.__cause__, bare.__suppress_context__ = _if_dumped(error.__cause__, twins), error.__suppress_context__
    return _dumped(bare, twins)


def _if_dumped(value: Any, twins: Twins) -> Any:
    return value if _dumped(value, twins) is not None else None


def _or_repr(value: Any, twins: Twins) -> Any:
    return value if _dumped(value, twins) is not None else repr(value)


def _dumped(value: Any, twins: Twins) -> bytes | None:
    stream = io.BytesIO()
    pickler = GraphPickler(stream, twins, definitions_only=True, out_of_band=False)
    refused = isinstance(call_foreign(partial(pickler.dump, value)), Refusal)
    return None if refused else stream.getvalue()


def load_error(data: bytes, twins: Twins) -> BaseException | None:
    """What `dump_error` wrote, or None where the exception's class cannot be built from it."""
    error = call_foreign(GraphUnpickler(io.BytesIO(data), twins, ()).load)
    return error if isinstance(error, BaseException) else None
