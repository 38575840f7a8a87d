"""Start method ``fork``: workers are copies of the kernel and share its memory until they write.

It serves on Linux alone, and uses what only Linux has.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from nbdist.errors import LaunchError
from nbdist.forksafety import fork_gate, heal, no_logging
from nbdist.messages import Assignment
from nbdist.shell import current_shell
from nbdist.start.birth import Birth
from nbdist.start.process import reap_child
from nbdist.start.worker import Ends, Worker, end_workers, not_started
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
    # What the notebook's files and its history hold in memory is the kernel's to write, once.
    flush_files(birth.twins.files)
    shell = current_shell()
    if shell is not None:
        from nbdist.worker.history import write_out

        write_out(shell)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an ipykernel's streams have a thread to write, here
            stream.flush()
    ends: list[Ends] = []
    workers: list[Worker] = []
    try:
        # Before the first fork: what the kernel writes after one costs a copy of its page.
        for _ in assignments:
            ends.append(Ends())
        heal()
        for assignment, own in zip(assignments, ends, strict=True):
            pid = _fork(assignment, own, birth)
            workers.append(own.worker(assignment.rank, ForkedProcess(pid)))
    except OSError as error:
        end_workers(workers)
        for unused in ends[len(workers) :]:
            unused.close()
        raise not_started(len(workers), len(assignments), error) from error
    return workers


class ForkedProcess:
    """A child of the kernel, held by a descriptor of Linux: no other process is ever taken for it."""

    def __init__(self, pid: int):
        self.pid = pid
        self._pidfd = _open(pid)
        self._is_open = True
        # One thread buries the dead while another may signal the living: the descriptor's number may be
        # another process's by then.
        self._lock = threading.RLock()

    def fileno(self) -> int:
        return self._pidfd

    def signal(self, number: signal.Signals) -> None:
        if sys.platform == "linux":
            with self._lock, contextlib.suppress(ProcessLookupError):  # it has ended already
                if self._is_open:
                    signal.pidfd_send_signal(self._pidfd, number)

    def reap(self) -> int:
        return reap_child(self.pid)

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            os.close(self._pidfd)


def _open(pid: int) -> int:
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    raise AssertionError("fork is chosen on Linux alone")


@contextlib.contextmanager
def quiet_fork_warning() -> Iterator[None]:
    """Python 3.12 warns of any fork in a process with threads; the fork gate is our answer to that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


def _fork(assignment: Assignment, ends: Ends, birth: Birth) -> int:
    kernel_pid = os.getpid()
    random_state = random.getstate()
    with fork_gate, no_logging():
        with quiet_fork_warning():
            pid = os.fork()
        if pid == 0:  # it never leaves this block: what is held here is the kernel's to release
            random.setstate(random_state)  # Python seeds it anew in every forked child
            be_worker(
                lambda: run_rank(assignment, ends.their_channel, birth.twins, birth.wanted, birth.work),
                kernel_pid,
                ends.their_fds,
            )
    return pid


def be_worker(live: Callable[[], None], parent_pid: int, fds: tuple[int, int, int]) -> NoReturn:
    """A worker's whole life; it never returns into the code that started it.

    Args:
        live: what it does.
        parent_pid: the process that it must not outlive.
        fds: its own: of its channel, its output, its errors.
    """
    code = _SETUP_FAILED
    try:
        become_rank(parent_pid, fds)
        live()
        code = 0
    except BaseException:  # noqa: BLE001  the last frame of this process: report and end
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
