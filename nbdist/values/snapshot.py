"""Python's own containers as they stood: there can be millions of them, so they are kept and compared
many at a time, by loops of C."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, compress, repeat
from typing import Any

from nbdist.values.kind import Buffer

PLAIN: frozenset[type] = frozenset({list, dict, set, tuple, frozenset})
"""Classes whose objects are nothing but what they hold."""

_TOGETHER = 1024


def contents(cls: type, objects: Iterable[Any]) -> Iterator[Any]:
    """What objects of one of the classes in `PLAIN` hold."""
    if cls is dict:
        objects = list(objects)
        return chain(chain.from_iterable(objects), chain.from_iterable(map(dict.values, objects)))
    return chain.from_iterable(objects)


@dataclass(slots=True)
class Changes:
    """What a rank changed of the notebook's objects, by their keys.

    Attributes:
        contents: what to send of those whose content is another.
        memory: that of those whose memory was written.
        refused: why a changed content cannot be sent.
    """

    contents: dict[int, Any] = field(default_factory=dict)
    memory: dict[int, Buffer] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


class Snapshot:
    """What lists, dicts and sets held when this was made; of other objects it takes no notice."""

    def __init__(self, keys: Sequence[int], objects: Sequence[Any]):
        self._groups: list[_Group] = []
        self.add(keys, objects)

    def add(self, keys: Sequence[int], objects: Sequence[Any]) -> None:
        """Keep more of them, as they are now."""
        classes = list(map(type, objects))
        for cls in {list, dict, set}.intersection(classes):
            chosen = list(map(operator.is_, classes, repeat(cls)))
            own_keys, own = list(compress(keys, chosen)), list(compress(objects, chosen))
            self._groups += [
                _Group(cls, own_keys[at : at + _TOGETHER], own[at : at + _TOGETHER])
                for at in range(0, len(own), _TOGETHER)
            ]

    def drop(self, keys: AbstractSet[int]) -> None:
        """Keep these no longer."""
        groups, self._groups = self._groups, []
        rest: dict[type, tuple[list[int], list[Any], list[list[Any]]]] = {}
        for group in groups:
            if keys.isdisjoint(group.keys) and len(group.keys) > _TOGETHER // 2:
                self._groups.append(group)
                continue
            own_keys, objects, held = rest.setdefault(group.cls, ([], [], []))
            for key, obj, before in group.each():
                if key not in keys:
                    own_keys.append(key)
                    objects.append(obj)
                    held.append(before)
        for cls, (own_keys, objects, held) in rest.items():
            for at in range(0, len(own_keys), _TOGETHER):
                part = slice(at, at + _TOGETHER)
                self._groups.append(_Group(cls, own_keys[part], objects[part], held[part]))

    def changed(self) -> Iterator[tuple[int, Any]]:
        """Those that hold something else now, or the same in another order, with their keys."""
        for group in self._groups:
            yield from group.changed()

    def before(self, key: int) -> tuple[list[Any], list[Any]]:
        """A dict's keys and values as they were, by its key."""
        return next(group.pairs(key) for group in self._groups if key in group.keys)


class _Group:
    """Some of them, of one class.

    Args:
        held: what each held, a dict's keys before its values; None for what it holds now.
    """

    def __init__(self, cls: type, keys: list[int], objects: list[Any], held: list[list[Any]] | None = None):
        self.cls, self.keys, self._objects = cls, keys, objects
        if held is None:
            self._lengths = list(map(len, self._objects))
            self._held = list(contents(cls, self._objects))
            return
        share = 2 if cls is dict else 1
        self._lengths = [len(own) // share for own in held]
        firsts = chain.from_iterable(own[: len(own) // share] for own in held)
        seconds = chain.from_iterable(own[len(own) // share :] for own in held)
        self._held = [*firsts, *seconds]

    def each(self) -> Iterator[tuple[int, Any, list[Any]]]:
        """Key, object, and what it held, a dict's keys before its values."""
        starts = [0]  # a dict's keys and its values are kept apart
        if self.cls is dict:
            starts.append(sum(self._lengths))
        for key, obj, length in zip(self.keys, self._objects, self._lengths, strict=True):
            yield key, obj, [held for at in starts for held in self._held[at : at + length]]
            starts = [at + length for at in starts]

    def changed(self) -> Iterator[tuple[int, Any]]:
        if list(map(len, self._objects)) == self._lengths and all(
            map(operator.is_, self._held, contents(self.cls, self._objects))
        ):
            return
        for key, obj, before in self.each():
            now = list(contents(self.cls, [obj]))
            if len(now) != len(before) or not all(map(operator.is_, before, now)):
                yield key, obj

    def pairs(self, key: int) -> tuple[list[Any], list[Any]]:
        at = self.keys.index(key)
        start, length = sum(self._lengths[:at]), self._lengths[at]
        half = start + sum(self._lengths)
        return self._held[start : start + length], self._held[half : half + length]
