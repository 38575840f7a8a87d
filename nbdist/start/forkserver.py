"""Start method ``forkserver``: workers are forked from a clean process that has torch loaded.

The server is started without a fork of the kernel, so what the kernel did to CUDA is not in it. It
starts once, ahead of need where the kernel is known to be unsafe, and serves every later launch.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

from nbdist.channel import channel_pair
from nbdist.errors import ChannelError, LaunchError
from nbdist.messages import Assignment, Ready
from nbdist.start.luggage import Luggage
from nbdist.start.orders import Answer, Begin, ForkOne
from nbdist.start.process import start_python
from nbdist.start.worker import Worker, end_workers, not_started, reported_worker


class ForkServer:
    """The kernel's handle on the server process.

    Args:
        with_ipython: whether ranks need an IPython.
    """

    def __init__(self, *, with_ipython: bool):
        self._lock = threading.Lock()
        self._channel, theirs = channel_pair()
        fd = theirs.fileno()
        code = f"from nbdist.start.server import main; main({fd}, {os.getpid()}, with_ipython={with_ipython})"
        self.pid = start_python(code, [fd])
        theirs.close()

    def fork(self, rank: int) -> Worker:
        """Have a worker forked.

        Raises:
            ChannelError: the server has ended.
        """
        return reported_worker(rank, self._ask_for_one)

    def _ask_for_one(self, fds: Sequence[int], report_fd: int) -> int:
        with self._lock:
            self._channel.send(ForkOne(), fds=(*fds, report_fd))
            while not isinstance(answer := self._channel.receive(), Answer):
                assert isinstance(answer, Ready)
            return answer.pid

    @property
    def ended(self) -> bool:
        """Whether somebody has ended its process."""
        try:
            return os.waitpid(self.pid, os.WNOHANG) != (0, 0)
        except ChildProcessError:  # it has been waited for
            return True

    def stop(self) -> None:
        """End the server, and with it the workers that it still has."""
        self._channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


_servers: dict[str, ForkServer] = {}


def warm_up(*, with_ipython: bool) -> ForkServer:
    """The server of this process, started now if there is none; it loads torch by itself."""
    if "server" in _servers and _servers["server"].ended:
        shut_down()
    if "server" not in _servers:
        _servers["server"] = ForkServer(with_ipython=with_ipython)
    return _servers["server"]


def shut_down() -> None:
    """End this process's server, if there is one."""
    if "server" in _servers:
        _servers.pop("server").stop()


def forkserver_workers(
    assignments: Sequence[Assignment], luggage: Luggage, *, with_ipython: bool
) -> list[Worker]:
    """Start one worker per assignment.

    Raises:
        LaunchError: the server does not serve.
    """
    workers: list[Worker] = []
    try:
        server = warm_up(with_ipython=with_ipython)
        for assignment in assignments:
            worker = server.fork(assignment.rank)
            workers.append(worker)
            worker.channel.send(Begin(assignment=assignment, parcel=luggage.parcel), fds=[luggage.fd])
    except ChannelError as error:
        shut_down()
        for worker in workers:
            worker.close()
        raise LaunchError(
            f"The fork server has ended: {error}. Run the cell again: it is started anew."
        ) from error
    except OSError as error:
        end_workers(workers)
        raise not_started(len(workers), len(assignments), error) from error
    return workers
