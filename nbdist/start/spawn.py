"""Start method ``spawn``: each worker is a new Python process, started by the kernel itself."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nbdist.messages import Assignment, Begin
from nbdist.start.birth import Birth
from nbdist.start.luggage import pack_luggage
from nbdist.start.worker import Ends, Worker, start_python


def spawn_workers(assignments: Sequence[Assignment], birth: Birth, *, with_ipython: bool) -> list[Worker]:
    """Start one worker per assignment.

    Raises:
        LaunchError: a needed value cannot be sent.
    """
    luggage = pack_luggage(birth)
    try:
        workers = [_spawn(assignment, with_ipython) for assignment in assignments]
        for worker, assignment in zip(workers, assignments, strict=True):
            worker.channel.send(Begin(assignment=assignment, parcel=luggage.parcel), fds=[luggage.fd])
    finally:
        os.close(luggage.fd)
    return workers


def _spawn(assignment: Assignment, with_ipython: bool) -> Worker:
    ends = Ends()
    fds = ends.their_fds
    code = f"from nbdist.start.child import main; main({fds}, {os.getpid()}, with_ipython={with_ipython})"
    return ends.worker(assignment.rank, start_python(code, fds))
