"""What must be sendable for a piece of work, or there is none."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from nbdist.errors import SessionError
from nbdist.messages import Parcel
from nbdist.values.parcel import pack
from nbdist.values.reasons import explain, explain_parts
from nbdist.values.twins import Twins
from nbdist.worker.work import CallWork, NoWork, Wanted, Work, values_of


def pack_work(work: Work, wanted: Wanted, twins: Twins) -> tuple[Parcel, int]:
    """The work itself in a memory file, which the caller owns.

    Raises:
        SessionError: it cannot be sent.
    """
    packed = pack({"work": (work, wanted)}, twins, definitions_only=True)
    if packed.lost:
        os.close(packed.fd)
        parts = work.parts if isinstance(work, CallWork) else {}
        raise SessionError(
            f"The call cannot be sent to the ranks: {explain_parts(parts, packed.lost['work'])}"
        )
    return packed.parcel, packed.fd


def asked_for(work: Work, wanted: Wanted) -> frozenset[str]:
    """Names that the work only asks for: what the notebook has of them would hide what the ranks have."""
    if isinstance(work, CallWork) and work.function is values_of:
        names: tuple[str, ...] = work.args[0]
        return frozenset(names)
    return frozenset(wanted.output or ()) if isinstance(work, NoWork) else frozenset()


def check_sendable(lost: Mapping[str, str], work: Work, names: Collection[str], twins: Twins) -> None:
    """What the work reads must be there; what it assigns by itself may be missing.

    Args:
        lost: why parts of the news cannot be sent, by key.
        names: that must be bound anew.

    Raises:
        SessionError: it reads one of them.
    """
    for key, why in lost.items():
        kind, _, name = key.partition(":")
        # What only some ranks lack, one that reads it asks for itself.
        if kind == "missing" or (kind == "name" and name in names and _may_lack(name, work)):
            continue
        if kind in ("object", "memory"):
            name = twins.labels[int(name)]
        reason = explain(name, twins.namespace.get(name), why, advise=False)
        reads = "" if isinstance(work, NoWork) else ", and the cell or a function that it calls reads it"
        raise SessionError(
            f"{name} cannot be sent to the ranks{reads}: {reason}. Make {name} in a cell on the ranks."
        )


def _may_lack(name: str, work: Work) -> bool:
    """Whether the work can do without: it assigns the name, or some text in it mentions it."""
    return name in work.assigns or (name in work.mentions and name not in work.reads)
