"""What has to be sent as new to all ranks, because only some of them have it, with all that holds it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.kind import ATOMS, Buffer
from nbdist.values.kinds import KindCache, kind_of
from nbdist.values.snapshot import Changes
from nbdist.values.twins import Twins
from nbdist.values.walk import Reached, is_librarys, reached


def lone_ones(twins: Twins, changes: Changes, values: Iterable[Any]) -> set[int]:
    """Ids of objects that only some ranks have and that were changed, or go by value with these values."""
    if not twins.lone:
        return set()
    changed = {*changes.contents, *changes.memory, *changes.refused}
    own = {id_ for id_, key in twins.lone.items() if key in changed}
    sent = [content for key, content in changes.contents.items() if id(twins.known[key]) not in own]
    return own | _lone_inside(twins, [*values, *sent])


def changed_here(twins: Twins, names: Collection[str]) -> frozenset[int]:
    """Keys of what these names lead to, or have led to, and the notebook has changed by itself."""
    ids = set(reached(twins.namespace, names).objects)
    ids |= {id(twins.known[key]) for key, label in twins.labels.items() if label in names}
    changes = twins.changes(ids)
    return frozenset(changes.contents.keys() | changes.memory.keys() | changes.refused.keys())


def with_holders(twins: Twins, found: Reached, anew: set[int], changes: Changes) -> set[int]:
    """Ids of all that goes as new together with some objects: what holds them, and what they hold.

    What holds them and is on all ranks stays, and gets them as its new content.
    """
    parts = {id_: {id(part) for part in found.parts(obj)} for id_, obj in found.objects.items()}
    find = twins.finder()
    while True:
        holders = {id_ for id_, inside in parts.items() if id_ not in anew and not anew.isdisjoint(inside)}
        stay = {id_ for id_ in holders if find(id_) is not None}
        more = holders - stay
        more |= _lone_inside(twins, [found.objects[id_] for id_ in anew | more if id_ in found.objects])
        if more <= anew:
            break
        anew = anew | more
    for id_ in stay:
        obj, key = found.objects[id_], find(id_)
        content = call_foreign(partial(kind_of(obj).portable, obj))
        if key is not None and not isinstance(content, Refusal):
            changes.contents[key] = content
    return anew


def _lone_inside(twins: Twins, values: Iterable[Any]) -> set[int]:
    """Ids of objects in values, or with memory in common with them, that only some ranks have."""
    find, kinds = twins.finder(), KindCache()
    seen: dict[int, Any] = {}
    lone: set[int] = set()
    waiting = list(values)
    while waiting:
        obj = waiting.pop()
        cls = type(obj)
        if cls in ATOMS or id(obj) in seen or find(id(obj)) is not None:
            continue
        if is_librarys(obj, twins.namespace):
            continue
        seen[id(obj)] = obj
        kind = kinds[cls]
        parts = call_foreign(partial(kind.parts, obj))
        waiting += () if isinstance(parts, Refusal) else parts
        memory = call_foreign(partial(kind.memory, obj))
        if isinstance(memory, Buffer):
            lone |= {id(twins.known[key]) for key in twins.owners(memory)} & twins.lone.keys()
    return lone | (seen.keys() & twins.lone.keys())
