"""What a live rank is told of the notebook before its next work.

Keys: ``around:TITLE`` is written into the rank's surroundings, ``sources`` are texts of cells,
``object:KEY`` and ``memory:KEY`` are written into the rank's own twin of an object of the notebook,
``layouts`` says how that memory is looked at, ``name:x`` is bound to ``x``, ``missing:x`` where there is no
``x`` yet; objects that are new here become twins. ``led`` says which names lead to what has a new content.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from nbdist.errors import SessionError, ValueLost
from nbdist.messages import Run
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.memory import Original, open_memory
from nbdist.values.models import is_flattened, is_wrapper_of, tie_to_group
from nbdist.values.parcel import LABELS, TWINS, unpack_each
from nbdist.values.refitting import FLATTENED, refit
from nbdist.values.surroundings import Waiting
from nbdist.values.twins import Twins
from nbdist.values.walk import reached

NOTES = "notes"
"""What the user is to know of the rank's own values, under this key of what `take_news` gives."""


def take_news(message: Run, fd: int, twins: Twins, around: Waiting) -> dict[str, Any]:
    """Write what the notebook has new into this rank.

    Args:
        fd: of the news' memory file; this takes it over.
        around: takes what is new of the notebook's surroundings.

    Returns:
        What is not for the namespace, by key.

    Raises:
        SessionError: a value cannot be rebuilt here; what came before it is written, and the notebook sends
            all of it again.
    """
    try:
        return _taken(message, fd, twins, around)
    except ValueLost as lost:
        name = _named(lost.key, twins)
        raise SessionError(f"nothing ran here: {name} could not be made on the rank: {lost.reason}") from None


def _taken(message: Run, fd: int, twins: Twins, around: Waiting) -> dict[str, Any]:
    taking = _Taking(twins, around)
    twins.drop(set(message.dropped))
    for name in message.unbound:
        twins.namespace.pop(name, None)
    memory = open_memory(fd, message.news.size_bytes)
    original = Original(fd, memory)
    for key, value in unpack_each(message.news, memory, twins):
        taking.take(key, value)
    around.write()  # names may have brought libraries with them
    rest = taking.end()
    new = rest.get(TWINS, {})
    if new:
        twins.adopt(new, rest[LABELS], told=True, rebuilt=True, original=original)
    return rest


class _Taking:
    """Writes news into this rank, one after the other."""

    def __init__(self, twins: Twins, around: Waiting):
        self._twins = twins
        self._around = around
        self._rest: dict[str, Any] = {}
        self._notes: list[str] = []
        self._written: set[int] = set()
        self._unfit: dict[int, str] = {}  # what cannot be written into, and why

    def take(self, key: str, value: Any) -> None:
        """Write one, or keep it if it is not for the namespace."""
        kind, _, name = key.partition(":")
        if kind == "around":
            self._around.tell(name, value)
        elif kind == "name":
            self._bind(name, value)
        elif kind == "missing":
            self._twins.namespace.setdefault(name, value)
        elif kind == "layouts":
            self._unfit = refit(value, self._twins)
        elif kind in ("object", "memory"):
            self._write(kind, int(name), value)
        else:
            self._rest[key] = value

    def _bind(self, name: str, value: Any) -> None:
        former = self._twins.namespace.get(name)
        if not is_wrapper_of(former, value):  # the notebook has it unwrapped
            self._twins.namespace[name] = value
            self._notes += _untied(name, tie_to_group(former), value)

    def _write(self, kind: str, key: int, value: Any) -> None:
        twins = self._twins
        if is_flattened(twins.known[key]):
            self._unfit[key] = FLATTENED
        if key in self._unfit:
            return
        tie = tie_to_group(twins.known[key])
        landed = call_foreign(partial(twins.land if kind == "object" else twins.land_memory, key, value))
        if isinstance(landed, Refusal):
            raise ValueLost(f"{kind}:{key}", landed.reason)
        self._notes += _untied(twins.labels[key], tie, twins.known[key])
        self._written.add(key)

    def end(self) -> dict[str, Any]:
        """What is not for the namespace, with the notes."""
        twins = self._twins
        told = {twins.labels[key]: reason for key, reason in self._unfit.items()}
        self._notes += [
            f"{name}: what the notebook has changed in it is not written here: {reason}. It stays as it is "
            "on this rank, until the notebook binds the name anew."
            for name, reason in told.items()
        ]
        self._notes += [
            f"{name}: the notebook has changed something in it in whose place this rank has put something "
            f"else. %distributed push {name} sends all of it."
            for name, keys in self._rest.pop("led", {}).items()
            if not _leads_to(name, keys, twins)
        ]
        twins.renew(self._written)
        return {**self._rest, NOTES: self._notes}


def _untied(name: str, tie: str, now: Any) -> list[str]:
    """What is to be said of a model that is not the ranks' common one any more.

    Args:
        tie: what made it that, as `tie_to_group` gave it.
    """
    if not tie or tie_to_group(now):
        return []
    again = "wrap it again (nbdist.setup, DistributedDataParallel)"
    if tie == "sharded":
        again = "shard it again (nbdist.setup, fully_shard), with a new optimizer,"
    return [
        f"{name} was a {tie} model on the ranks and is now the notebook's, which is not: "
        f"{again} before you train it."
    ]


def _leads_to(name: str, keys: Iterable[int], twins: Twins) -> bool:
    """Whether a name of this rank leads to objects, wherever it has put other ones of its own."""
    found = reached(twins.namespace, [name]).objects
    return all(id(twins.known[key]) in found for key in keys)


def _named(key: str, twins: Twins) -> str:
    """How a message names what comes under a key."""
    kind, _, name = key.partition(":")
    if kind in ("object", "memory"):
        return f"{twins.labels.get(int(name), 'a value')} (its new content)"
    return name or key
