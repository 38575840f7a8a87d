"""Values in one memory file: packed by a rank, opened by the kernel.

The rank copies each buffer once into the file; the kernel maps it privately and tensors and arrays lie
right on that mapping: no second copy.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from nbdist.errors import ValueLost
from nbdist.messages import Parcel
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.graph import GraphPickler, GraphUnpickler
from nbdist.values.memory import write_memory
from nbdist.values.twins import Twins

_ALIGN_BYTES = 64


def pack(
    values: Mapping[str, Any],
    twins: Twins,
    *,
    definitions_only: bool = False,
    echo: Mapping[int, Any] | None = None,
) -> tuple[Parcel, int, dict[str, str]]:
    """Pack values into a new memory file.

    Args:
        values: by key.
        twins: objects that stand for themselves.
        definitions_only: of those, only functions and classes.
        echo: objects by key; those that turn out to be parts of the values are listed under the key
            ``twins``, so that the reader learns which of its objects is which.

    Returns:
        The layout, the file's descriptor (the caller owns it), and for each key that cannot be
        pickled the reason.
    """
    lost: dict[str, str] = {}
    while True:
        stream = io.BytesIO()
        pickler = GraphPickler(stream, twins, definitions_only=definitions_only)
        if echo is not None:
            pickler.expect(echo.values())
        frames: list[tuple[str, int, int]] = []
        failed = _dump_all({k: v for k, v in values.items() if k not in lost}, pickler, stream, frames)
        if not failed:
            if echo is not None:
                _dump_all({"twins": _packed_of(echo, pickler)}, pickler, stream, frames)
            parcel, fd = _write(stream.getbuffer(), frames, pickler.buffers)
            return parcel, fd, lost
        # A dump that failed half-way has spoilt the memo: begin again without that value.
        lost |= failed


def _dump_all(
    values: Mapping[str, Any], pickler: GraphPickler, stream: io.BytesIO, frames: list[tuple[str, int, int]]
) -> dict[str, str]:
    """Dump values until one fails; that one's key and reason, if any."""
    for key, value in values.items():
        start = stream.tell()
        dumped = call_foreign(partial(pickler.dump, value))
        if isinstance(dumped, Refusal):
            return {key: dumped.reason}
        frames.append((key, start, stream.tell()))
    return {}


def _packed_of(objects: Mapping[int, Any], pickler: GraphPickler) -> dict[int, Any]:
    memo: Any = pickler.memo
    packed = memo.copy()
    return {key: obj for key, obj in objects.items() if id(obj) in packed}


def _write(
    pickles: memoryview, frames: list[tuple[str, int, int]], buffers: list[pickle.PickleBuffer]
) -> tuple[Parcel, int]:
    raws = [buffer.raw() for buffer in buffers]
    spans, end = [], len(pickles)
    for raw in raws:
        start = -(-end // _ALIGN_BYTES) * _ALIGN_BYTES
        end = start + raw.nbytes
        spans.append((start, end))
    pieces = [(0, pickles), *((start, raw) for raw, (start, _) in zip(raws, spans, strict=True))]
    fd = write_memory(end, pieces)
    return Parcel(frames=tuple(frames), buffers=tuple(spans), size_bytes=end), fd


def unpack_each(parcel: Parcel, memory: memoryview, twins: Twins) -> Iterator[tuple[str, Any]]:
    """Read one value after another, in the order in which they were packed; they share the memory.

    Args:
        memory: the parcel's file, opened.

    Raises:
        ValueLost: ``key`` names the value that cannot be read, and why. The rest of
            the graph cannot be trusted then: ask the rank to send again without that value.
    """
    if parcel.size_bytes == 0:
        return
    stream = io.BytesIO(memory[: max((end for _, _, end in parcel.frames), default=0)])
    unpickler = GraphUnpickler(stream, twins, _views(memory, parcel))
    for key, _, _ in parcel.frames:
        loaded = call_foreign(unpickler.load)
        if isinstance(loaded, Refusal):
            raise ValueLost(key, loaded.reason)
        yield key, loaded


def _views(memory: memoryview, parcel: Parcel) -> Iterator[memoryview]:
    return (memory[start:end] for start, end in parcel.buffers)
