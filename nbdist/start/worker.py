"""The kernel's handle on one worker process, however it was started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nbdist.channel import Channel, channel_pair

_GONE_WITHOUT_TRACE = 255
_LAST_STANDARD_FD = 2
_HASH_SEED = "1"


def start_python(code: str, fds: Sequence[int]) -> int:
    """Start a new Python that runs `code`, with this one's module path and these descriptors; its pid.

    All that are started so hash strings alike: ranks must see a set's elements in one order.
    """
    prepared = f"import sys; sys.path[:] = {sys.path!r}; {code}"
    environment = {"PYTHONHASHSEED": _HASH_SEED, **os.environ}
    process = subprocess.Popen([sys.executable, "-c", prepared], pass_fds=fds, env=environment)
    process.returncode = 0  # it is reaped through its pid, not by this object
    return process.pid


def reap_child(pid: int) -> int:
    """Collect an ended child of this process.

    Returns:
        Its exit code; minus the signal's number for a signal.
    """
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the notebook's own code waited for all children
        return _GONE_WITHOUT_TRACE


def occupy_standard_descriptors() -> None:
    """Give a process that was started without some of the descriptors 0 to 2 the null device there:
    a pipe or socket of ours must not get such a number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD_FD:
        continue
    os.close(fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker process.

    Attributes:
        pidfd: readable once the process has ended.
        channel: this side's end of its messages.
        stdout_fd: read end of the pipe on its descriptor 1; non-blocking.
        stderr_fd: the same for descriptor 2.
        reaper: collects it, in its parent process.
    """

    rank: int
    pid: int
    pidfd: int
    channel: Channel
    stdout_fd: int
    stderr_fd: int
    reaper: Callable[[int], int] = reap_child

    def interrupt(self) -> None:
        """Send SIGINT to the worker alone."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End the worker at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:  # it has ended already
            return

    def reap(self) -> int:
        """Collect the ended process.

        Returns:
            Its exit code; minus the signal's number for a signal.
        """
        return self.reaper(self.pid)

    def close(self) -> None:
        """Give back the descriptors of a worker that has been reaped."""
        self.channel.close()
        for fd in (self.pidfd, self.stdout_fd, self.stderr_fd):
            os.close(fd)


class Ends:
    """Both ends of what ties a worker that is about to be started to this process: its channel, and
    pipes for its descriptors 1 and 2.

    Attributes:
        their_channel: the worker's end.
        their_fds: its descriptors: of its channel, its output, its errors.
    """

    def __init__(self) -> None:
        occupy_standard_descriptors()
        with contextlib.ExitStack() as undo:
            self._channel, self.their_channel = channel_pair()
            undo.callback(self._channel.close)
            undo.callback(self.their_channel.close)
            self._out, out_end = _open_pipe(undo)
            self._err, err_end = _open_pipe(undo)
            self.their_fds = (self.their_channel.fileno(), out_end, err_end)
            self._undo = undo.pop_all()

    def worker(self, rank: int, pid: int, reaper: Callable[[int], int] = reap_child) -> Worker:
        """The handle on the worker that has been started; its ends are closed on this side."""
        self.their_channel.close()
        for fd in self.their_fds[1:]:
            os.close(fd)
        return Worker(
            rank=rank,
            pid=pid,
            pidfd=os.pidfd_open(pid),
            channel=self._channel,
            stdout_fd=self._out,
            stderr_fd=self._err,
            reaper=reaper,
        )

    def close(self) -> None:
        """Give all back: no worker was started."""
        self._undo.close()


def _open_pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose read end does not block."""
    read_end, write_end = os.pipe()
    undo.callback(os.close, read_end)
    undo.callback(os.close, write_end)
    os.set_blocking(read_end, False)
    return read_end, write_end


def end_workers(workers: Sequence[Worker]) -> None:
    """End workers of a start that failed, and give back what they hold."""
    for worker in workers:
        worker.kill()
        worker.reap()
        worker.close()
