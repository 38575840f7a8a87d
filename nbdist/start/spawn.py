"""Start method ``spawn``: each worker is a new Python process, started by the kernel itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from nbdist.errors import ChannelError
from nbdist.messages import Assignment
from nbdist.start.luggage import Luggage
from nbdist.start.orders import Begin
from nbdist.start.process import report_end, start_python
from nbdist.start.worker import Worker, end_workers, not_started, reported_worker


def spawn_workers(assignments: Sequence[Assignment], luggage: Luggage, *, with_ipython: bool) -> list[Worker]:
    """Start one worker per assignment.

    Raises:
        LaunchError: the system allows no more processes.
    """
    workers: list[Worker] = []
    try:
        for assignment in assignments:
            workers.append(_spawn(assignment, with_ipython))
        for worker, assignment in zip(workers, assignments, strict=True):
            with contextlib.suppress(ChannelError):  # it died; the monitor says how
                worker.channel.send(Begin(assignment=assignment, parcel=luggage.parcel), fds=[luggage.fd])
    except OSError as error:
        end_workers(workers)
        raise not_started(len(workers), len(assignments), error) from error
    return workers


def _spawn(assignment: Assignment, with_ipython: bool) -> Worker:
    def start(fds: tuple[int, int, int], report_fd: int) -> int:
        arguments = f"{fds}, {os.getpid()}, with_ipython={with_ipython}"
        pid = start_python(f"from nbdist.start.child import main; main({arguments})", fds)
        report_end(pid, os.dup(report_fd))
        return pid

    return reported_worker(assignment.rank, start)
