"""What the notebook has bound anew or changed since the ranks began, while cells ran beside them.

Names and contents are compared exactly. Of memory no copy is kept: up to `_DIGESTED_BYTES` in all a digest
tells, the smallest first, and beyond that torch's count of a tensor's changes. A large array of numpy counts
nothing: there a change goes unseen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from nbdist.values.kind import ATOMS, Buffer
from nbdist.values.twins import Twins

_DIGESTED_BYTES = 1 << 26  # 60 ms
_NOTHING = object()  # of a name that is not bound


class Since:
    """Compares the notebook with what it was when this was made.

    Args:
        twins: made when the ranks began, just before this.
    """

    def __init__(self, twins: Twins):
        self._twins = twins
        self._digests: dict[Buffer, bytes] = {}
        self._counts: dict[int, int] = {}
        room_bytes = _DIGESTED_BYTES
        for key, buffer in sorted(twins.memory.items(), key=lambda item: item[1].size_bytes):
            if buffer not in self._digests and buffer.size_bytes <= room_bytes:
                room_bytes -= buffer.size_bytes
                self._digests[buffer] = _digest(buffer)
            elif buffer not in self._digests:
                self._counts[key] = _count(twins.known[key])

    def conflicts(self, arrived: Mapping[str, Any], unbound: Iterable[str]) -> list[str]:
        """Names through which landing would undo what the notebook has done meanwhile.

        Args:
            arrived: rank 0's values, under the keys of `worker.handover`.
            unbound: names that rank 0 deleted.
        """
        parts = [(*key.partition(":"), value) for key, value in arrived.items()]
        names = {name: value for kind, _, name, value in parts if kind == "name"}
        names |= {name: _NOTHING for kind, _, name, _ in parts if kind == "gather"}
        keys = {int(name) for kind, _, name, _ in parts if kind in ("object", "memory")}
        twins = self._twins
        rebound = [
            name
            for name, value in {**names, **dict.fromkeys(unbound, _NOTHING)}.items()
            if twins.namespace.get(name, _NOTHING) is not twins.names.get(name, _NOTHING)
            and not _is_same(twins.namespace.get(name, _NOTHING), value)
        ]
        changed = [twins.labels[key] for key in (*twins.moved_on(keys), *filter(self._was_written, keys))]
        return list(dict.fromkeys([*rebound, *changed]))

    def _was_written(self, key: int) -> bool:
        buffer = self._twins.memory.get(key)
        if buffer in self._digests:
            return self._twins.key_at(buffer) is not None and self._digests[buffer] != _digest(buffer)
        return key in self._counts and self._counts[key] != _count(self._twins.known[key])


def _is_same(mine: object, theirs: object) -> bool:
    """Whether nothing is lost when the one takes the other's place: both imported the same module, say."""
    return mine is theirs or (type(mine) is type(theirs) and type(mine) in ATOMS and mine == theirs)


def _digest(buffer: Buffer) -> bytes:
    return hashlib.blake2b(buffer.view(), digest_size=16).digest()


def _count(obj: Any) -> int:
    """How often torch has changed a tensor; 0 for anything else."""
    return int(getattr(obj, "_version", 0))
