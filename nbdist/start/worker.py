"""The kernel's handle on one worker process, however it was started."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

from nbdist.channel import Channel

_GONE_WITHOUT_TRACE = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker process, a direct child of this one.

    Attributes:
        pidfd: readable once the process has ended.
        channel: this side's end of its messages.
        stdout_fd: read end of the pipe on its descriptor 1; non-blocking.
        stderr_fd: the same for descriptor 2.
    """

    rank: int
    pid: int
    pidfd: int
    channel: Channel
    stdout_fd: int
    stderr_fd: int

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
        """Collect the ended process, and end what it left running in its session's process group.

        Returns:
            Its exit code; minus the signal's number for a signal.
        """
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            # Not reaped yet, so the number cannot be anybody else's.
            with contextlib.suppress(ProcessLookupError):  # it ended before it had a session
                os.killpg(self.pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # the notebook's own code waited for all children
            return _GONE_WITHOUT_TRACE

    def close(self) -> None:
        """Give back the descriptors of a worker that has been reaped."""
        self.channel.close()
        for fd in (self.pidfd, self.stdout_fd, self.stderr_fd):
            os.close(fd)
