"""Where ranks stand, in words: asked for, or because a run may hang."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from nbdist.session.monitor import Hung
from nbdist.session.native import native_stack
from nbdist.start.worker import Worker
from nbdist.state import RunState
from nbdist.views.hang import odd_ranks, odd_stacks, standing_report


def where_they_stand(states: Iterable[RunState]) -> list[str]:
    """Where the ranks of each state are, and their stacks."""
    now_s = time.monotonic()
    return [
        line for state in states for line in (*standing_report(state, now_s), *odd_stacks(state, every=True))
    ]


def hang_note(hung: Hung, workers: Sequence[Worker]) -> str:
    """What is told of a run that may hang."""
    where = [*standing_report(hung.state, time.monotonic()), *odd_stacks(hung.state)]
    for rank in odd_ranks(hung.state):
        frames = native_stack(workers[rank].pid)
        where += [f"C frames of rank {rank}, the most recent call first:", *frames] if frames else []
    return "\n".join([f"the run may hang: {hung.hang.reason}", *where])
