"""Watches a run for hangs: each is told once, and only after a second look from outside.

A rank's own word may be old: where C code keeps Python from running, its watching thread cannot say that it
has moved on. Its use of CPU tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psutil

from nbdist.session.hangs import Hang, find_hang, next_look_s
from nbdist.start.worker import Worker
from nbdist.state import RunState

_SECOND_LOOK_S = 0.3
_MOST_CPU_S = 0.03  # between the two looks


class Lookout:
    """For one set of workers.

    Args:
        timeout_s: how long a rank may stand still without a word about it; 0 for ever.
    """

    def __init__(self, workers: Sequence[Worker], timeout_s: float):
        self._workers = workers
        self._timeout_s = timeout_s
        self._looked_s = 0.0
        self._suspected: Hang | None = None
        self._suspected_s = 0.0
        self._cpu_s: Mapping[int, float] = {}
        self._told: set[tuple[object, ...]] = set()
        self._lasting: str | None = None  # the kind of the last one told, until it is over

    def next_look_s(self, state: RunState) -> float | None:
        """When to look next, monotonic, if nothing is heard meanwhile. It may be past by now."""
        if self._suspected is not None:
            return self._suspected_s + _SECOND_LOOK_S
        return next_look_s(state, self._looked_s, self._timeout_s)

    def look(self, state: RunState, now_s: float) -> Hang | None:
        """A hang that has not been told yet."""
        self._looked_s = now_s
        hang = find_hang(state, now_s, self._timeout_s)
        if hang is None or hang.kind != self._lasting:
            self._lasting = None
        if hang is None or state.broken_off or self._lasting or _place(state, hang) in self._told:
            self._suspected = None
            return None
        if self._suspected is None or (self._suspected.kind, self._suspected.ranks) != (
            hang.kind,
            hang.ranks,
        ):
            self._suspect(hang, now_s)
            return None
        if now_s - self._suspected_s < _SECOND_LOOK_S:
            return None
        if hang.kind != "still" and self._moved(hang):
            self._suspect(hang, now_s)
            return None
        self._suspected, self._lasting = None, hang.kind
        self._told.add(_place(state, hang))
        return hang

    def _suspect(self, hang: Hang, now_s: float) -> None:
        self._suspected, self._suspected_s = hang, now_s
        self._cpu_s = {rank: _cpu_of(self._workers[rank].pid) for rank in hang.ranks}

    def _moved(self, hang: Hang) -> bool:
        return any(
            _cpu_of(self._workers[rank].pid) - self._cpu_s.get(rank, 0.0) > _MOST_CPU_S for rank in hang.ranks
        )


def _place(state: RunState, hang: Hang) -> tuple[object, ...]:
    """Where a hang is: one that comes again and again, at a slow step, is told once."""
    standings = (state.ranks[rank].standing for rank in hang.ranks)
    where = {(standing.cell_line, standing.function) for standing in standings if standing is not None}
    return hang.kind, frozenset(where)


def _cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:  # it has ended, or the system does not tell
        return 0.0
    return float(times.user + times.system)
