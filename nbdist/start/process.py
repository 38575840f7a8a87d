"""A worker's process as the kernel sees it: signal it, learn that it has ended, and how."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Protocol

import psutil

_GONE_WITHOUT_TRACE = 255
_HASH_SEED = "1"
_CODE = struct.Struct("i")


class Process(Protocol):
    """One process."""

    @property
    def pid(self) -> int:
        """Its number."""

    def fileno(self) -> int:
        """A descriptor that is readable once the process has ended."""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; one that has ended gets none."""

    def reap(self) -> int:
        """Wait for its end, once.

        Returns:
            Its exit code; minus the signal's number for a signal.
        """

    def close(self) -> None:
        """Give the descriptor back."""


class ReportedProcess:
    """A process whose parent calls `report_end`: the kernel itself, or the fork server.

    Args:
        end_fd: read end of the pipe that the report goes to; this object owns it.
    """

    def __init__(self, pid: int, end_fd: int):
        self.pid = pid
        self._end_fd = end_fd
        try:
            self._process = psutil.Process(pid)  # notices if the system gives the number anew
        except psutil.NoSuchProcess:  # it has ended already
            self._process = None

    def fileno(self) -> int:
        return self._end_fd

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.send_signal(number)

    def reap(self) -> int:
        report = os.read(self._end_fd, _CODE.size)
        return _CODE.unpack(report)[0] if report else _GONE_WITHOUT_TRACE  # nothing: its parent is gone

    def close(self) -> None:
        os.close(self._end_fd)


def report_end(pid: int, end_fd: int) -> None:
    """Write into `end_fd`, which is closed then, how a child of this process ended, once it has."""

    def wait() -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
            os.write(end_fd, _CODE.pack(reap_child(pid)))
        os.close(end_fd)

    threading.Thread(target=wait, name="nbdist-wait", daemon=True).start()


def reap_child(pid: int) -> int:
    """Wait for the end of a child of this process.

    Returns:
        Its exit code; minus the signal's number for a signal.
    """
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the notebook's own code waited for all children
        return _GONE_WITHOUT_TRACE


def python_command(code: str) -> list[str]:
    """Runs `code` in a new Python with this one's module path."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]


def start_python(code: str, fds: Sequence[int]) -> int:
    """Start a new Python that runs `code`, with this one's module path and these descriptors; its pid.

    All that are started so hash strings alike: ranks must see a set's elements in one order.
    """
    environment = {"PYTHONHASHSEED": _HASH_SEED, **os.environ}
    # A session of its own: an interrupt for the kernel's process group must not end it while it starts.
    process = subprocess.Popen(python_command(code), pass_fds=fds, env=environment, start_new_session=True)
    process.returncode = 0  # it is reaped through its pid, not by this object
    return process.pid
