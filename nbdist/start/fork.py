"""Start method ``fork``: workers are copies of the kernel and share its memory until they write."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence

from nbdist.channel import Channel, channel_pair
from nbdist.errors import LaunchError
from nbdist.forksafety import fork_gate, heal, unsafe_reason
from nbdist.messages import Assignment
from nbdist.start.worker import Worker
from nbdist.worker.afterfork import become_rank

_SETUP_FAILED = 70  # EX_SOFTWARE


def fork_workers(
    assignments: Sequence[Assignment], live: Callable[[Assignment, Channel], None]
) -> list[Worker]:
    """Fork one worker per assignment, one after another, each a direct child.

    Args:
        live: what a worker does with its life; when it returns, the process ends with code 0.

    Raises:
        LaunchError: this thread or this process must not fork.
    """
    _check_may_fork()
    workers: list[Worker] = []
    try:
        with _quiet_fork_warning():
            for assignment in assignments:
                workers.append(_fork(assignment, live))
    except OSError as error:
        for worker in workers:
            worker.kill()
            worker.reap()
            worker.close()
        raise LaunchError(
            f"rank {len(workers)} of {len(assignments)} could not be forked: {error}. "
            "Ask for fewer ranks (--devices), or raise the limit that it names (ulimit -u, ulimit -n)."
        ) from error
    return workers


def _check_may_fork() -> None:
    if threading.current_thread() is not threading.main_thread():
        raise LaunchError(
            "Ranks are forked from the kernel's main thread, and this is another one "
            f"({threading.current_thread().name}). Run the cell in the notebook itself."
        )
    reason = unsafe_reason()
    if reason is not None:
        raise LaunchError(
            f"--start-method fork: {reason}. "
            "Restart the kernel, and run the cells that use the GPU under %%distributed."
        )


@contextlib.contextmanager
def _quiet_fork_warning() -> Iterator[None]:
    """Python 3.12 warns of any fork in a process with threads; the fork gate is our answer to that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


def _fork(assignment: Assignment, live: Callable[[Assignment, Channel], None]) -> Worker:
    kernel_end, worker_end = channel_pair()
    pipes = [os.pipe(), os.pipe()]
    kernel_pid = os.getpid()
    random_state = random.getstate()
    sys.stdout.flush()
    sys.stderr.flush()
    with fork_gate:
        heal()
        pid = os.fork()
    if pid == 0:
        random.setstate(random_state)  # Python seeds it anew in every forked child
        _be_worker(assignment, live, worker_end, pipes, kernel_pid)
    worker_end.close()
    for _, write_end in pipes:
        os.close(write_end)
    for read_end, _ in pipes:
        os.set_blocking(read_end, False)
    return Worker(
        rank=assignment.rank,
        pid=pid,
        pidfd=os.pidfd_open(pid),
        channel=kernel_end,
        stdout_fd=pipes[0][0],
        stderr_fd=pipes[1][0],
    )


def _be_worker(
    assignment: Assignment,
    live: Callable[[Assignment, Channel], None],
    channel: Channel,
    pipes: list[tuple[int, int]],
    kernel_pid: int,
) -> None:
    """The child's side; it must never return into the kernel's code."""
    code = _SETUP_FAILED
    try:
        become_rank(kernel_pid, pipes[0][1], pipes[1][1], keep=[channel.fileno()])
        live(assignment, channel)
        code = 0
    except BaseException:  # noqa: BLE001  the last frame of this process: report and end
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
