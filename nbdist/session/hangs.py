"""Whether a run hangs: pure, from what is known of the ranks.

Certain is a collective that lacks a rank which has finished: it can never complete. Two ranks that wait in
different collectives of one group, and ranks that stand still for long, are likely to hang.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from nbdist.errors import ranks_phrase
from nbdist.messages import Standing
from nbdist.state import RankState, RunState

# How long a rank must wait until what it waits in counts.
_LEFT_S = 0.5
_LEFT_BACKWARD_S = 2.0  # it may also wait for something else there
_MISMATCH_S = 5.0


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
    still = [(rank, rank.standing) for rank in state.ranks if _stands(rank) and rank.standing is not None]
    for found in (_left(state, still, now_s), _mismatched(still, now_s)):
        if found is not None:
            return found
    return _still_for_long(still, now_s, timeout_s)


def next_look_s(state: RunState, now_s: float, timeout_s: float) -> float | None:
    """When a hang may be found next, monotonic, if nothing is heard meanwhile; None for never."""
    times = [moment for rank in state.ranks for moment in _moments(rank, timeout_s)]
    return min((moment for moment in times if moment > now_s), default=None)


def _moments(rank: RankState, timeout_s: float) -> Iterator[float]:
    if _stands(rank) and rank.standing is not None and rank.standing.since_s is not None:
        waits = (_LEFT_S, _LEFT_BACKWARD_S, _MISMATCH_S, *([timeout_s] if timeout_s else []))
        yield from (rank.standing.since_s + wait_s for wait_s in waits)
    if rank.finished_s is not None:
        yield from (rank.finished_s + wait_s for wait_s in (_LEFT_S, _LEFT_BACKWARD_S))


def _stands(rank: RankState) -> bool:
    standing = rank.standing
    return rank.phase == "running" and standing is not None and standing.since_s is not None


_Still = list[tuple[RankState, Standing]]


def _waiting(still: _Still, now_s: float, for_s: float) -> Iterable[tuple[RankState, Standing, str]]:
    """Ranks that have waited in a collective for some time, with its name."""
    for rank, standing in still:
        if standing.collective is not None and standing.idle and _time_still(standing, now_s) >= for_s:
            yield rank, standing, standing.collective.name


def _left(state: RunState, still: _Still, now_s: float) -> Hang | None:
    """A collective that a rank has left for good."""
    hangs: dict[str, list[int]] = {}
    for rank, standing, name in _waiting(still, now_s, _LEFT_S):
        patience_s = _LEFT_BACKWARD_S if name == "backward" else _LEFT_S
        assert standing.collective is not None
        gone = [
            other.rank
            for other in state.ranks
            if other.rank in standing.collective.ranks
            and other.phase == "finished"
            and other.finished_s is not None
            and now_s - other.finished_s >= patience_s
        ]
        if gone and _time_still(standing, now_s) >= patience_s:
            reason = f"it waits in {name}, which can never complete: {ranks_phrase(gone)} finished without it"
            hangs.setdefault(reason, []).append(rank.rank)
    for reason, ranks in hangs.items():
        return Hang("left", tuple(ranks), reason)
    return None


def _mismatched(still: _Still, now_s: float) -> Hang | None:
    """Two ranks that wait for each other in different collectives of one group."""
    waiting = list(_waiting(still, now_s, _MISMATCH_S))
    for rank, standing, name in waiting:
        for other, others_standing, others_name in waiting:
            mine, theirs = standing.collective, others_standing.collective
            assert mine is not None
            assert theirs is not None
            if name != others_name and mine.ranks and set(mine.ranks) == set(theirs.ranks):
                reason = (
                    f"rank {rank.rank} waits in {name}{_at(standing)}, rank {other.rank} in "
                    f"{others_name}{_at(others_standing)}: each waits for the other"
                )
                return Hang("mismatched", (rank.rank, other.rank), reason)
    return None


def _still_for_long(still: _Still, now_s: float, timeout_s: float) -> Hang | None:
    long = [rank.rank for rank, s in still if timeout_s and _time_still(s, now_s) >= timeout_s]
    if not long:
        return None
    return Hang("still", tuple(long), f"{ranks_phrase(long)} made no step for {timeout_s:g} s")


def _time_still(standing: Standing, now_s: float) -> float:
    """Seconds since it stands where it stands."""
    return now_s - standing.since_s if standing.since_s is not None else 0.0


def _at(standing: Standing) -> str:
    return f" (line {standing.cell_line})" if standing.cell_line is not None else ""
