"""Whether a run hangs: pure, from what is known of the ranks.

Certain is a collective to which nobody is on the way any more: its other members have finished. Ranks that
wait for each other in different collectives, and ranks that stand still for long, are likely to hang.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nbdist.errors import ranks_phrase
from nbdist.messages import Standing
from nbdist.state import RankState, RunState

# How long a rank must wait until what it waits in counts.
_LEFT_S = 0.5
_LEFT_VAGUE_S = 2.0
_VAGUE = ("backward", "an asynchronous operation")  # where it may also wait for something else
_MISMATCH_S = 5.0
# How long a rank that has been interrupted may wait for others in what it does then; and where data are on
# their way, or other threads at work.
_VAIN_S = 0.3
_VAIN_BUSY_S = 1.0


@dataclass(frozen=True, slots=True)
class Hang:
    """A reason to believe that the run will not go on.

    Attributes:
        kind: a rank has left a collective, ranks wait in different ones, or nothing moves for long.
        ranks: those that wait.
        reason: in words.
    """

    kind: Literal["left", "mismatched", "still"]
    ranks: tuple[int, ...]
    reason: str

    @property
    def certain(self) -> bool:
        """Whether the run can never go on."""
        return self.kind == "left"


def find_hang(state: RunState, now_s: float, timeout_s: float) -> Hang | None:
    """The most certain hang that there is now.

    Args:
        now_s: monotonic.
        timeout_s: how long a rank may stand still; 0 for ever.
    """
    if any(rank.asking for rank in state.ranks):
        return None  # whoever stands still may wait for the user's word
    still = [(rank, rank.standing) for rank in state.ranks if _stands(rank) and rank.standing is not None]
    for found in (_left(state, still, now_s), _mismatched(state, still, now_s)):
        if found is not None:
            return found
    return _still_for_long(still, now_s, timeout_s)


def wait_in_vain(state: RunState, now_s: float, since_s: float) -> tuple[int, ...]:
    """Ranks that have been interrupted and wait for others again, in a ``finally`` say, when all that still
    work wait: nobody is on the way, or somebody would have come.

    Args:
        now_s: monotonic.
        since_s: when they were interrupted. Whoever waits for longer has not answered yet.
    """
    waiting = {}
    for rank in state.working:
        standing = state.ranks[rank].standing
        if standing is None or standing.since_s is None or standing.collective is None or not standing.idle:
            return ()
        if not _still_for(standing, _VAIN_S if standing.alone else _VAIN_BUSY_S, now_s):
            return ()
        waiting[rank] = standing.since_s
    return tuple(rank for rank, entered_s in waiting.items() if entered_s > since_s)


def next_look_s(state: RunState, looked_s: float, timeout_s: float) -> float | None:
    """When a hang may be found next, monotonic, if nothing is heard meanwhile; None for never.

    Args:
        looked_s: when `find_hang` looked last. Time has passed since then, and may have brought the moment:
            it is due now.
    """
    times = [moment for rank in state.ranks for moment in _moments(rank, timeout_s)]
    return min((moment for moment in times if moment > looked_s), default=None)


def _moments(rank: RankState, timeout_s: float) -> Iterator[float]:
    if _stands(rank) and rank.standing is not None and rank.standing.since_s is not None:
        waits = (_LEFT_S, _LEFT_VAGUE_S, _MISMATCH_S, *([timeout_s] if timeout_s else []))
        yield from (rank.standing.since_s + wait_s for wait_s in waits)
    if rank.finished_s is not None:
        yield from (rank.finished_s + wait_s for wait_s in (_LEFT_S, _LEFT_VAGUE_S))


def _stands(rank: RankState) -> bool:
    standing = rank.standing
    return rank.phase == "running" and standing is not None and standing.since_s is not None


_Still = list[tuple[RankState, Standing]]


def _waiting(still: _Still, now_s: float, for_s: float) -> dict[int, Standing]:
    """Ranks that have done nothing but wait in a collective for some time."""
    return {
        rank.rank: standing
        for rank, standing in still
        if standing.collective is not None
        and standing.idle
        and standing.alone
        and _still_for(standing, for_s, now_s)
    }


def _left(state: RunState, still: _Still, now_s: float) -> Hang | None:
    """A collective whose members all wait in it, or have finished: nobody is on the way to it.

    One that has finished may have done its part all the same (a `broadcast` does not wait for all), but
    then those that wait are released as soon as the last one comes.
    """
    for standing in _waiting(still, now_s, _LEFT_S).values():
        name, meeting = _name(standing), _meeting(standing)
        patience_s = _LEFT_S if name not in _VAGUE else _LEFT_VAGUE_S
        waiting = _waiting(still, now_s, patience_s)
        with_it = tuple(rank for rank in waiting if _meeting(waiting[rank]) == meeting)
        others = [state.ranks[rank] for rank in _members(standing) if rank not in with_it]
        if with_it and others and all(_has_left(other, patience_s, now_s) for other in others):
            reason = f"it waits in {name}, which can never complete: {_how_left(others)}"
            return Hang("left", with_it, f"{reason}{_or_other_data(standing)}")
    return None


def _how_left(ranks: Sequence[RankState]) -> str:
    finished = [rank.rank for rank in ranks if rank.phase != "idle"]
    if finished:
        return f"{ranks_phrase(finished)} finished without it"
    takes = "takes" if len(ranks) == 1 else "take"
    return f"{ranks_phrase([rank.rank for rank in ranks])} {takes} no part in this cell (--ranks)"


def _or_other_data(standing: Standing) -> str:
    """gloo lets a rank go on that gave another tensor than the others."""
    data = standing.collective.data if standing.collective is not None else ""
    return f", or with another tensor than {data}" if data else ""


def _has_left(rank: RankState, for_s: float, now_s: float) -> bool:
    if rank.phase == "idle":
        return True
    if rank.finished_s is None or rank.phase != "finished" or rank.threads:
        return False
    return rank.finished_s + for_s <= now_s


def _mismatched(state: RunState, still: _Still, now_s: float) -> Hang | None:
    """Ranks that wait for each other in different collectives, while nobody is on the way to these."""
    waiting = _waiting(still, now_s, _MISMATCH_S)
    waits_for = {
        rank: [other for other in _members(standing) if other != rank and other in waiting]
        for rank, standing in waiting.items()
        if all(other in waiting or _takes_no_step(state.ranks[other]) for other in _members(standing))
    }
    waits_for = {
        rank: [other for other in others if _meeting(waiting[other]) != _meeting(waiting[rank])]
        for rank, others in waits_for.items()
    }
    circle = min((_circle(rank, waits_for) for rank in waits_for), key=_length, default=())
    if not circle:
        return None
    places = [f"rank {rank} waits in {_name(waiting[rank])}{_at(waiting[rank])}" for rank in circle]
    each = "the other" if len(circle) == 2 else "the next"
    return Hang("mismatched", circle, f"{', '.join(places)}: each waits for {each}")


def _takes_no_step(rank: RankState) -> bool:
    return rank.phase == "idle" or rank.finished_s is not None


def _circle(start: int, waits_for: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """The shortest way from a rank by those that it waits for back to itself; empty if there is none."""
    paths: list[tuple[int, ...]] = [(start,)]
    seen: set[int] = set()
    while paths:
        path = paths.pop(0)
        for other in waits_for.get(path[-1], ()):
            if other == start:
                return path
            if other not in seen:
                seen.add(other)
                paths.append((*path, other))
    return ()


def _length(circle: tuple[int, ...]) -> float:
    return len(circle) or math.inf


def _name(standing: Standing) -> str:
    return standing.collective.name if standing.collective is not None else ""


def _members(standing: Standing) -> tuple[int, ...]:
    return standing.collective.ranks if standing.collective is not None else ()


def _meeting(standing: Standing) -> tuple[str, tuple[int, ...], str]:
    """The same for all who take part: a `send` meets its `recv`."""
    assert standing.collective is not None
    name = "recv" if standing.collective.name == "send" else standing.collective.name
    return name, standing.collective.ranks, standing.collective.group


def _still_for_long(still: _Still, now_s: float, timeout_s: float) -> Hang | None:
    long = [rank.rank for rank, s in still if timeout_s and _still_for(s, timeout_s, now_s)]
    if not long:
        return None
    return Hang("still", tuple(long), f"{ranks_phrase(long)} made no step for {timeout_s:g} s")


def _still_for(standing: Standing, for_s: float, now_s: float) -> bool:
    """Whether it has stood where it stands for so long; reckoned as `_moments` does, to the last digit."""
    return standing.since_s is not None and standing.since_s + for_s <= now_s


def _at(standing: Standing) -> str:
    return f" (line {standing.cell_line})" if standing.cell_line is not None else ""
