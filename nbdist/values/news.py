"""What a live rank is told of the notebook before its next work.

Keys: ``around:TITLE`` is written into the rank's surroundings, ``sources`` are texts of cells,
``object:KEY`` and ``memory:KEY`` are written into the rank's own twin of an object of the notebook,
``name:x`` is bound to ``x``, ``missing:x`` where there is no ``x`` yet; objects that are new here become
twins. ``led`` says which names lead to containers whose content is new.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from nbdist.errors import SessionError, ValueLost
from nbdist.messages import Run
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.memory import Original, open_memory
from nbdist.values.models import is_wrapper, is_wrapper_of
from nbdist.values.parcel import LABELS, TWINS, unpack_each
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
    rest: dict[str, Any] = {NOTES: []}
    written: set[int] = set()
    twins.drop(set(message.dropped))
    for name in message.unbound:
        twins.namespace.pop(name, None)
    memory = open_memory(fd, message.news.size_bytes)
    original = Original(fd, memory)
    for key, value in unpack_each(message.news, memory, twins):
        kind, _, name = key.partition(":")
        if kind == "around":
            around.tell(name, value)
        elif kind == "name":
            former = twins.namespace.get(name)
            if not is_wrapper_of(former, value):  # the notebook has it unwrapped
                twins.namespace[name] = value
                if is_wrapper(former) and not is_wrapper(value):
                    rest[NOTES].append(
                        f"{name} was a wrapped model on the ranks and is now the notebook's, which is not: "
                        "wrap it again (nbdist.setup, DistributedDataParallel) before you train it."
                    )
        elif kind == "missing":
            twins.namespace.setdefault(name, value)
        elif kind in ("object", "memory"):
            land = twins.land if kind == "object" else twins.land_memory
            landed = call_foreign(partial(land, int(name), value))
            if isinstance(landed, Refusal):
                raise ValueLost(key, landed.reason)
            written.add(int(name))
        else:
            rest[key] = value
    around.write()  # names may have brought libraries with them
    rest[NOTES] += [
        f"{name}: the notebook has changed something in it in whose place this rank has put something else. "
        f"%distributed push {name} sends all of it."
        for name, keys in rest.pop("led", {}).items()
        if not _leads_to(name, keys, twins)
    ]
    twins.renew(written)
    new = rest.get(TWINS, {})
    if new:
        twins.adopt(new, rest[LABELS], told=True, rebuilt=True, original=original)
    return rest


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
