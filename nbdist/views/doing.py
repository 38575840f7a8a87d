"""What a rank does, in a word and in words: where ranks stand, tables of sessions, dashboards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from nbdist.messages import Standing
from nbdist.shell import MODULE
from nbdist.state import RankState
from nbdist.views.dashboard.picture import RankWord

Presence = Literal["starting", "idle", "running", "dead"]
"""Of a rank that is there for one run after another."""


class _End(NamedTuple):
    word: RankWord
    phrase: str
    last_work: str


_ENDS: Mapping[str, _End] = {
    "ok": _End("finished", "has finished", ""),
    "failed": _End("failed", "has failed", "its last work failed"),
    "interrupted": _End("interrupted", "was stopped", "its last work was stopped"),
}


def in_the_run(rank: RankState) -> tuple[RankWord, str]:
    """What a rank does in one run, as a word and in words."""
    standing = rank.standing
    if rank.phase == "gone" and rank.failure is not None and rank.failure is rank.death:
        return "dead", "has died"
    if rank.phase in ("finished", "gone"):  # a process also ends when its work has
        word = _end_of(rank).word
        return word, word
    if rank.phase == "failing":
        return "failed", f"raised {rank.raised.type_name}" if rank.raised is not None else "failed"
    if rank.phase == "handing over":
        return "finishing", "hands over its values"
    if rank.phase in ("idle", "starting"):
        return ("idle", "takes no part") if rank.phase == "idle" else ("starting", "starting")
    if rank.asking:
        return "asking", "waits for your answer"
    if standing is not None and standing.collective is not None:
        return "waiting", f"waits in {standing.collective.name}"
    return "running", "running"


def in_the_session(rank: RankState) -> tuple[Presence, str]:
    """What a rank does that is there for one run after another, with the detail of `RankStatus`."""
    if rank.phase == "gone":
        death = rank.death or rank.failure
        return "dead", death.summary if death is not None else ""
    if rank.phase in ("finished", "idle"):
        return "idle", _end_of(rank).last_work
    return ("starting", "") if rank.phase == "starting" else ("running", phrase(rank))


def phrase(rank: RankState) -> str:
    """What a rank does, and where: ``waits in all_reduce at line 3 of the cell``."""
    if rank.phase == "finished":
        return _end_of(rank).phrase
    if rank.phase == "gone":
        return "has ended"
    if rank.phase == "idle":
        return "is idle"
    if rank.phase == "failing":
        return _ENDS["failed"].phrase
    standing = rank.standing
    if standing is None:
        return "is starting" if rank.phase == "starting" else "runs"
    return f"{_verb(standing)} {_where(standing)}".rstrip()


def _end_of(rank: RankState) -> _End:
    return _ENDS[rank.outcome or "ok"]


def _verb(standing: Standing) -> str:
    if standing.since_s is None:
        return "runs"
    if not standing.idle:
        return "computes"
    return f"waits in {standing.collective.name}" if standing.collective else "waits"


def _where(standing: Standing) -> str:
    place = f"at line {standing.cell_line} of the cell" if standing.cell_line is not None else ""
    if standing.collective is not None or standing.function in (MODULE, ""):
        return place
    return f"{place}, in {standing.function}" if place else f"in {standing.function}"
