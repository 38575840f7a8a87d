"""Values in one memory file: packed by a rank, opened by the kernel, or the other way round.

The memory of large tensors and arrays of a rank stays out of it where the kernel may read it from the rank:
it is copied once, into memory of the new tensor's own. What is in the file is copied into it, and the reader
maps it privately: large tensors and arrays lie right on that mapping.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nbdist.errors import ValueLost
from nbdist.messages import Parcel
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.graph import GraphPickler, GraphUnpickler
from nbdist.values.kind import Buffer
from nbdist.values.memory import write_memory
from nbdist.values.remote import Unreadable
from nbdist.values.shards import INCOMPLETE
from nbdist.values.surroundings import PATH, write
from nbdist.values.twins import Twins
from nbdist.values.walk import inside_out, without_gc

_ALIGN_BYTES = 64
TWINS, LABELS = "twins", "labels"
_PART = "part"  # of a deep value: dealt with on the way to it
_TOO_DEEP = "recursion"  # pickle's word for it


class Echo:
    """Objects among what is packed that the reader is to know by the writer's keys.

    Args:
        objects: by key.
        labels: by key the name that leads to it.

    Attributes:
        packed: those that turned out to be parts of the values.
    """

    def __init__(self, objects: Mapping[int, Any], labels: Mapping[int, str]):
        self.objects = objects
        self.labels = labels
        self.packed: dict[int, Any] = {}

    def take(self, pickler: GraphPickler) -> dict[str, Any]:
        """What tells the reader."""
        memo: Any = pickler.memo
        packed = memo.copy()
        self.packed = {key: obj for key, obj in self.objects.items() if id(obj) in packed}
        return {
            TWINS: self.packed,
            LABELS: {key: self.labels[key] for key in self.packed if key in self.labels},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Values in a memory file.

    Attributes:
        parcel: how they are laid out.
        fd: the file's descriptor; whoever has this owns it.
        lost: for each key that cannot be pickled, or was left out, the reason.
        held: what lent memory belongs to: to be held until the other side has read it.
    """

    parcel: Parcel
    fd: int
    lost: dict[str, str]
    held: Any = None


def pack(
    values: Mapping[str, Any],
    twins: Twins,
    *,
    definitions_only: bool = False,
    echo: Echo | None = None,
    admit: Callable[[Mapping[str, int]], Mapping[str, str]] = lambda _: {},
    lends: bool = False,
) -> Packed:
    """Pack values into a new memory file.

    Args:
        values: by key.
        twins: objects that stand for themselves.
        definitions_only: of those, only functions and classes.
        echo: what the reader is to know by its keys; it comes last, under the keys `TWINS` and `LABELS`.
        admit: is told the size in bytes of each value, by key, before anything is copied; says which are
            left out, with the reason.
        lends: whether large memory is not copied: the reader may read it from this process.
    """
    if not values:
        return Packed(parcel=Parcel(frames=(), buffers=(), size_bytes=0), fd=write_memory(0, ()), lost={})
    lost: dict[str, str] = {}
    deep: set[str] = set()
    while True:
        stream = io.BytesIO()
        pickler = GraphPickler(stream, twins, definitions_only=definitions_only, lends=lends)
        if echo is not None:
            pickler.expect(echo.objects.values())
        frames: list[tuple[str, int, int]] = []
        sizes: dict[str, int] = {}
        with without_gc():
            failed = _dump_all(_steps(values, lost, deep, twins), pickler, stream, frames, sizes)
        failed = failed or dict(admit(sizes))
        if not failed:
            if echo is not None:
                told = [(key, value, False) for key, value in echo.take(pickler).items()]
                _dump_all(told, pickler, stream, frames, sizes)
            parcel, fd = _write(stream.getbuffer(), frames, pickler.buffers)
            # The pickler's memo holds what it has met, and what was made only to be pickled.
            return Packed(parcel=parcel, fd=fd, lost=lost, held=pickler if pickler.lent_bytes else None)
        # A dump that failed half-way has spoilt the memo: begin again, without that value or step by step.
        for key, reason in failed.items():
            if _TOO_DEEP in reason and key not in deep:
                deep.add(key)
            else:
                lost[key] = reason


def _steps(
    values: Mapping[str, Any], lost: Mapping[str, str], deep: Collection[str], twins: Twins
) -> Iterator[tuple[str, Any, bool]]:
    """The values to dump, and whether each is only a part of one.

    Of a deep one, a linked list say, parts go first, from the end on: pickle would go down to it in one go.
    """
    for key, value in values.items():
        if key in deep and key not in lost:
            yield from ((key, part, True) for part in inside_out(value, twins.finder()))
        if key not in lost:
            yield key, value, False


def _dump_all(
    values: Iterable[tuple[str, Any, bool]],
    pickler: GraphPickler,
    stream: io.BytesIO,
    frames: list[tuple[str, int, int]],
    sizes: dict[str, int],
) -> dict[str, str]:
    """Dump values until one fails; that one's key and reason, if any. Counts their bytes."""
    for key, value, is_part in values:
        start, buffers, lent = stream.tell(), len(pickler.buffers), pickler.lent_bytes
        dumped = call_foreign(partial(pickler.dump, value))
        if isinstance(dumped, Refusal):
            return {key: dumped.reason}
        frames.append((_PART if is_part else key, start, stream.tell()))
        out_of_band = sum(buffer.raw().nbytes for buffer in pickler.buffers[buffers:])
        # The reader has room for memory by itself: it is written over what lies there.
        lent = 0 if isinstance(value, Buffer) else pickler.lent_bytes - lent
        sizes[key] = sizes.get(key, 0) + stream.tell() - start + out_of_band + lent
    return {}


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


def unpack(parcel: Parcel, memory: memoryview, twins: Twins, *, rank: int = 0) -> dict[str, Any]:
    """Read all values of a rank's parcel; they share the memory.

    Parts of sharded tensors are kept for those who hold the whole. Where modules are imported from counts at
    once, for the values that come from there.

    Args:
        memory: the parcel's file, opened.

    Raises:
        Unreadable: memory that the rank has lent; ask it to send copies.
        ValueLost: ``key`` names the value that cannot be read, and why. The rest of
            the graph cannot be trusted then: ask the rank to send again without that value.
    """
    values = {}
    with without_gc():
        for key, value in unpack_each(parcel, memory, twins):
            if key == "shards":
                twins.shards.add(rank, value)
                missing = twins.shards.missing() if rank == 0 else None
                if missing is not None:
                    raise ValueLost(missing, INCOMPLETE)
            else:
                values[key] = value
            if key == f"around:{PATH}":
                write(PATH, value)
    return values


def unpack_each(parcel: Parcel, memory: memoryview, twins: Twins) -> Iterator[tuple[str, Any]]:
    """Read one value after another, as `unpack` does, in the order in which they were packed."""
    if parcel.size_bytes == 0:
        return
    stream = io.BytesIO(memory[: max((end for _, _, end in parcel.frames), default=0)])
    unpickler = GraphUnpickler(stream, twins, _views(memory, parcel))
    for key, _, _ in parcel.frames:
        loaded = call_foreign(unpickler.load)
        if isinstance(loaded, Refusal) and issubclass(loaded.error_class, Unreadable):
            raise Unreadable(loaded.reason)
        if isinstance(loaded, Refusal):
            raise ValueLost(key, loaded.reason)
        if key != _PART:
            yield key, loaded


def _views(memory: memoryview, parcel: Parcel) -> Iterator[memoryview]:
    return (memory[start:end] for start, end in parcel.buffers)
