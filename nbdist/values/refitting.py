"""Memory that is written into twins on the other side must be there: a rank may have given its own tensor
other memory meanwhile (``w.data = ...``), of another size even."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.kind import Buffer
from nbdist.values.kinds import kind_of
from nbdist.values.models import is_flattened
from nbdist.values.twins import Twins

FLATTENED = "it is a part of a sharded model here"

Layouts = Mapping[int, tuple[int, Mapping[int, Any]]]
"""By the key under which memory is sent: its size in bytes, and how each object looks at it, by key."""


def layouts_of(memory: Mapping[int, Buffer], twins: Twins) -> Layouts:
    """Of all objects that have memory which is to be sent."""
    return {key: (one.size_bytes, _looks(key, one, twins)) for key, one in memory.items()}


def _looks(key: int, memory: Buffer, twins: Twins) -> dict[int, Any]:
    looks = {}
    for owner in (key, *twins.owners(memory)):
        kind, obj = kind_of(twins.known[owner]), twins.known[owner]
        if kind.memory(obj) == memory:
            looks[owner] = kind.layout(obj)
    return looks


def refit(layouts: Layouts, twins: Twins) -> dict[int, str]:
    """Lay this side's objects out as the other side's are, where they are no longer so.

    Returns:
        Why that cannot be, by the key of the memory, which is not to be written then.
    """
    refused: dict[int, str] = {}
    for key, (size_bytes, wanted) in layouts.items():
        done = call_foreign(partial(_refit, key, size_bytes, wanted, twins))
        if isinstance(done, Refusal):
            refused[key] = done.reason
    return refused


def _refit(key: int, size_bytes: int, wanted: Mapping[int, Any], twins: Twins) -> None:
    objects = {owner: twins.known[owner] for owner in wanted}
    if any(map(is_flattened, objects.values())):
        raise TypeError(FLATTENED)
    memory = {owner: kind_of(obj).memory(obj) for owner, obj in objects.items()}
    fitting = [
        owner
        for owner, own in memory.items()
        if own is not None and own.size_bytes == size_bytes and not _belongs_to_others(own, wanted, twins)
    ]
    first = min(fitting, key=lambda owner: memory[owner] != twins.memory.get(key), default=None)
    strayed = [
        owner
        for owner, obj in objects.items()
        if first is None or memory[owner] != memory[first] or kind_of(obj).layout(obj) != wanted[owner]
    ]
    holder = None if first is None else objects[first]
    for owner in strayed:
        kind_of(objects[owner]).refit(objects[owner], wanted[owner], size_bytes, holder)
        holder = objects[owner] if holder is None else holder
    if strayed or first is None or memory[first] != twins.memory.get(key):
        twins.renew(objects.keys())


def _belongs_to_others(memory: Buffer, wanted: Mapping[int, Any], twins: Twins) -> bool:
    """Whether objects look at it that have memory of their own on the other side."""
    others = (twins.known[key] for key in twins.owners(memory) - wanted.keys())
    return any(kind_of(other).memory(other) == memory for other in others)
