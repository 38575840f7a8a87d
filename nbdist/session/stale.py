"""What the notebook may no longer have: nothing of ours is to keep it alive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nbdist.shell import SHELLS_OWN
from nbdist.values.kind import Buffer
from nbdist.values.kinds import kind_of
from nbdist.values.twins import Twins
from nbdist.values.walk import reached

_MOST_BYTES = 1 << 20
_MOST_OBJECTS = 256
_MOST_SHARE = 8  # one in so many of all that is known: to look at it takes a while

_MISSING = object()


class Stale:
    """Objects that names led to which are bound to others now. Another name may lead there, too."""

    def __init__(self, twins: Twins):
        self._twins = twins
        self._names: set[str] = set()
        self._bytes: dict[int, int] = {}  # by key

    def add(self, names: Iterable[str]) -> None:
        """Names that are bound to others now, or not at all."""
        self._names.update(names)

    def let_go(self) -> set[int]:
        """Forget what the notebook no longer has, once that is much.

        Returns:
            The keys.
        """
        known, labels, namespace = self._twins.known, self._twins.labels, self._twins.namespace
        if not self._names:
            return set()
        keys = {key for key, label in labels.items() if label in self._names} - self._bytes.keys()
        keys = {key for key in keys if known[key] is not namespace.get(labels[key], _MISSING)}
        self._names.clear()
        self._bytes |= {key: memory_bytes(known[key]) for key in keys}
        few = len(self._bytes) < max(_MOST_OBJECTS, len(known) // _MOST_SHARE)
        if few and sum(self._bytes.values()) < _MOST_BYTES:
            return set()
        held = reached(namespace, namespace.keys() - SHELLS_OWN)
        gone = {key for key, obj in known.items() if id(obj) not in held.objects}
        for key in self._bytes.keys() & labels.keys() - gone:
            labels[key] = held.labels.get(id(known[key]), labels[key])
        self._bytes.clear()
        self._twins.drop(gone)
        return gone


def memory_bytes(obj: Any) -> int:
    """How much memory a tensor or an array has."""
    memory = kind_of(obj).memory(obj)
    return memory.size_bytes if isinstance(memory, Buffer) else 0
