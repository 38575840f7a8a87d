"""How workers come to be. Each start method gives `Worker`s: signal, reap.

fork        copies of the kernel; shares its memory; the kernel must be safe to fork
forkserver  forked from a clean process that has torch loaded; the cell's needs are sent
spawn       new processes; the cell's needs are sent
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbdist.messages import Assignment
    from nbdist.start.birth import Birth
    from nbdist.start.worker import Worker


def start_workers(
    method: str, assignments: Sequence[Assignment], birth: Birth, *, with_ipython: bool
) -> list[Worker]:
    """Start one worker per assignment.

    Args:
        method: ``fork``, ``forkserver`` or ``spawn``.
        with_ipython: whether the work is a notebook's.

    Raises:
        LaunchError: none was started, and why.
    """
    if method == "fork":
        from nbdist.start.fork import fork_workers

        return fork_workers(assignments, birth)
    if method == "forkserver":
        from nbdist.start.forkserver import forkserver_workers

        return forkserver_workers(assignments, birth, with_ipython=with_ipython)
    from nbdist.start.spawn import spawn_workers

    return spawn_workers(assignments, birth, with_ipython=with_ipython)
