"""How workers come to be. Each start method gives `Worker`s: signal, reap.

fork        copies of the kernel; shares its memory; the kernel must be safe to fork
forkserver  forked from a clean process that has torch loaded; the cell's needs are sent
spawn       new processes; the cell's needs are sent
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbdist.messages import Assignment
    from nbdist.start.birth import Birth
    from nbdist.start.worker import Worker


def start_workers(
    method: str,
    assignments: Sequence[Assignment],
    birth: Birth,
    packing: Callable[[], AbstractContextManager[None]],
    *,
    with_ipython: bool,
) -> list[Worker]:
    """Start one worker per assignment.

    Args:
        method: ``fork``, ``forkserver`` or ``spawn``.
        packing: makes the block in which what the work needs is packed, before anything starts; an interrupt
            may be raised there.
        with_ipython: whether the work is a notebook's.

    Raises:
        LaunchError: none was started, and why.
    """
    if method == "fork":
        from nbdist.start.fork import fork_workers

        return fork_workers(assignments, birth)
    from nbdist.start.luggage import pack_luggage

    with packing():
        luggage = pack_luggage(birth)
    try:
        if method == "forkserver":
            from nbdist.start.forkserver import forkserver_workers

            return forkserver_workers(assignments, luggage, with_ipython=with_ipython)
        from nbdist.start.spawn import spawn_workers

        return spawn_workers(assignments, luggage, with_ipython=with_ipython)
    finally:
        os.close(luggage.fd)
