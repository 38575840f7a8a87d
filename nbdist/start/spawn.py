"""Start method ``spawn``: each worker is a new Python process, started by the kernel itself."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nbdist.channel import channel_pair
from nbdist.messages import Assignment, Begin
from nbdist.start.birth import Birth
from nbdist.start.luggage import pack_luggage
from nbdist.start.worker import Worker, open_pipes, start_python


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
    ours, theirs = channel_pair()
    (out, out_end), (err, err_end) = open_pipes()
    fds = [theirs.fileno(), out_end, err_end]
    code = f"from nbdist.start.child import main; main(*{fds}, {os.getpid()}, with_ipython={with_ipython})"
    pid = start_python(code, fds)
    theirs.close()
    os.close(out_end)
    os.close(err_end)
    return Worker(
        rank=assignment.rank, pid=pid, pidfd=os.pidfd_open(pid), channel=ours, stdout_fd=out, stderr_fd=err
    )
