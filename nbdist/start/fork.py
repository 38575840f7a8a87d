"""Start method ``fork``: workers are copies of the kernel and share its memory until they write."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NoReturn

from nbdist.channel import channel_pair
from nbdist.errors import LaunchError
from nbdist.forksafety import fork_gate, heal, no_logging
from nbdist.messages import Assignment
from nbdist.start.birth import Birth
from nbdist.start.worker import Worker, end_workers, open_pipes
from nbdist.worker.afterfork import become_rank
from nbdist.worker.leaving import flush_files
from nbdist.worker.main import run_rank

_SETUP_FAILED = 70  # EX_SOFTWARE


def fork_workers(assignments: Sequence[Assignment], birth: Birth) -> list[Worker]:
    """Fork one worker per assignment, one after another, each a direct child.

    Raises:
        LaunchError: this thread must not fork, or the system allows no more processes.
    """
    if threading.current_thread() is not threading.main_thread():
        raise LaunchError(
            "Ranks are forked from the kernel's main thread, and this is another one "
            f"({threading.current_thread().name}). Run the cell in the notebook itself."
        )
    # What the notebook's files hold in memory is the kernel's to write, once.
    flush_files(birth.twins.known.values())
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # a process without a terminal may have none
            stream.flush()
    workers: list[Worker] = []
    heal()
    try:
        with _quiet_fork_warning():
            for assignment in assignments:
                workers.append(_fork(assignment, birth))
    except OSError as error:
        end_workers(workers)
        raise LaunchError(
            f"rank {len(workers)} of {len(assignments)} could not be forked: {error}. "
            "Ask for fewer ranks (--devices), or raise the limit that it names (ulimit -u, ulimit -n)."
        ) from error
    return workers


@contextlib.contextmanager
def _quiet_fork_warning() -> Iterator[None]:
    """Python 3.12 warns of any fork in a process with threads; the fork gate is our answer to that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


def _fork(assignment: Assignment, birth: Birth) -> Worker:
    kernel_end, worker_end = channel_pair()
    with contextlib.ExitStack() as undo:
        undo.callback(kernel_end.close)
        undo.callback(worker_end.close)
        pipes = open_pipes()
        undo.pop_all()
    (out, out_end), (err, err_end) = pipes
    kernel_pid = os.getpid()
    random_state = random.getstate()
    with fork_gate, no_logging():
        pid = os.fork()
        if pid == 0:  # it never leaves this block: what is held here is the kernel's to release
            random.setstate(random_state)  # Python seeds it anew in every forked child
            be_worker(
                lambda: run_rank(assignment, worker_end, birth.twins, birth.wanted, birth.work),
                kernel_pid,
                stdout_fd=out_end,
                stderr_fd=err_end,
                keep=[worker_end.fileno()],
            )
    worker_end.close()
    os.close(out_end)
    os.close(err_end)
    return Worker(
        rank=assignment.rank,
        pid=pid,
        pidfd=os.pidfd_open(pid),
        channel=kernel_end,
        stdout_fd=out,
        stderr_fd=err,
    )


def be_worker(
    live: Callable[[], None], parent_pid: int, *, stdout_fd: int, stderr_fd: int, keep: Collection[int]
) -> NoReturn:
    """A worker's whole life; it never returns into the code that started it.

    Args:
        live: what it does.
        parent_pid: the process that it must not outlive.
        keep: descriptors of its own, beside the two pipes.
    """
    code = _SETUP_FAILED
    try:
        become_rank(parent_pid, stdout_fd, stderr_fd, keep)
        live()
        code = 0
    except BaseException:  # noqa: BLE001  the last frame of this process: report and end
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
