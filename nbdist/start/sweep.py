"""The guard's work where there is no ``/proc``: what its shell script does, by way of psutil."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Collection

import psutil

from nbdist.messages import RUN_VARIABLE

_ROUNDS = 5  # what is ended may have started others meanwhile
_TRACKER = "multiprocessing.resource_tracker"


def main(scratch: str) -> None:
    """Read what to watch until nobody writes any more, end what is left, and remove `scratch`."""
    watched: dict[int, str] = {}
    for line in sys.stdin:
        what, pid, mark = line.split()
        if what == "watch":
            watched[int(pid)] = mark
        else:
            _sweep({int(pid)}, {mark})
            del watched[int(pid)]  # the system may give it anew
    _sweep(watched, set(watched.values()))
    shutil.rmtree(scratch, ignore_errors=True)


def _sweep(pids: Collection[int], marks: Collection[str]) -> None:
    for _ in range(_ROUNDS):
        if not sum(_end_if_left(process, pids, marks) for process in psutil.process_iter()):
            return


def _end_if_left(process: psutil.Process, pids: Collection[int], marks: Collection[str]) -> bool:
    """Whether a process was left by one of the workers; then it is ended."""
    if process.pid == os.getpid():
        return False
    with contextlib.suppress(psutil.Error, OSError):  # it has ended by now, or is somebody else's
        ours = os.getsid(process.pid) in pids or process.environ().get(RUN_VARIABLE) in marks
        # Python's tracker of shared memory ends by itself, once it has removed what the others left.
        if ours and process.status() != psutil.STATUS_ZOMBIE and _TRACKER not in " ".join(process.cmdline()):
            process.kill()
            return True
    return False
