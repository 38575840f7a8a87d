"""The kernel's handle on one worker process, however it was started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nbdist.channel import Channel, channel_pair
from nbdist.errors import LaunchError
from nbdist.start.process import Process, ReportedProcess

_LAST_STANDARD_FD = 2


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
        channel: this side's end of its messages.
        stdout_fd: read end of the pipe on its descriptor 1; non-blocking.
        stderr_fd: the same for descriptor 2.
    """

    rank: int
    process: Process
    channel: Channel
    stdout_fd: int
    stderr_fd: int

    @property
    def pid(self) -> int:
        """The process's number."""
        return self.process.pid

    def interrupt(self) -> None:
        """Send SIGINT to the worker alone."""
        self.process.signal(signal.SIGINT)

    def kill(self) -> None:
        """End the worker at once."""
        self.process.signal(signal.SIGKILL)

    def close(self) -> None:
        """Give back the descriptors of a worker that has been reaped."""
        self.channel.close()
        self.process.close()
        for fd in (self.stdout_fd, self.stderr_fd):
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

    def worker(self, rank: int, process: Process) -> Worker:
        """The handle on the worker that has been started; its ends are closed on this side."""
        self.their_channel.close()
        for fd in self.their_fds[1:]:
            os.close(fd)
        return Worker(
            rank=rank,
            process=process,
            channel=self._channel,
            stdout_fd=self._out,
            stderr_fd=self._err,
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


def reported_worker(rank: int, start: Callable[[tuple[int, int, int], int], int]) -> Worker:
    """Start a worker whose parent reports its end.

    Args:
        start: called with the worker's descriptors and the one that the report goes to (valid during the
            call alone); gives the pid.
    """
    with contextlib.ExitStack() as undo:
        ends = Ends()
        undo.callback(ends.close)
        end_fd, report_fd = os.pipe()
        undo.callback(os.close, end_fd)
        try:
            pid = start(ends.their_fds, report_fd)
        finally:
            os.close(report_fd)
        undo.pop_all()
    return ends.worker(rank, ReportedProcess(pid, end_fd))


def not_started(rank: int, world_size: int, error: OSError) -> LaunchError:
    """What to raise where the system refuses another process or descriptor."""
    return LaunchError(
        f"rank {rank} of {world_size} could not be started: {error}. "
        "Ask for fewer ranks (--devices), or raise the limit that it names (ulimit -u, ulimit -n)."
    )


def end_workers(workers: Sequence[Worker]) -> None:
    """End workers of a start that failed, and give back what they hold."""
    for worker in workers:
        worker.kill()
        worker.process.reap()
        worker.close()
