"""Where ranks stand, in words: asked for, or because a run may hang."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from nbdist.session.interrupts import Interrupts
from nbdist.session.monitor import Hung
from nbdist.session.native import native_stacks
from nbdist.start.worker import Worker
from nbdist.state import RunState
from nbdist.views.hang import odd_ranks, odd_stacks, standing_report


def where_they_stand(state: RunState) -> list[str]:
    """Where the ranks are, and their stacks."""
    return [*standing_report(state, time.monotonic()), *odd_stacks(state, every=True)]


def hang_note(hung: Hung, workers: Sequence[Worker], interrupts: Interrupts) -> str:
    """What is told of a run that may hang. The user's interrupt does not wait for all of it."""
    where = [*standing_report(hung.state, time.monotonic()), *odd_stacks(hung.state)]
    with contextlib.suppress(KeyboardInterrupt), interrupts.raised(1):
        stacks = native_stacks({rank: workers[rank].pid for rank in odd_ranks(hung.state)})
        for rank, frames in stacks.items():
            where += [f"C frames of rank {rank}, the most recent call first:", *frames]
    return "\n".join([f"the run may hang: {hung.hang.reason}", *where])
