"""The fork server's process."""

from __future__ import annotations

import os
import signal

from nbdist.channel import Channel, channel_of
from nbdist.errors import ChannelEnded
from nbdist.messages import Ready
from nbdist.start.arrival import arrive, make_main
from nbdist.start.fork import be_worker, quiet_fork_warning
from nbdist.start.orders import Answer, ForkOne
from nbdist.start.process import report_end
from nbdist.worker.afterfork import end_with
from nbdist.worker.work import formatted


def main(fd: int, kernel_pid: int, *, with_ipython: bool) -> None:
    """Serve until the kernel is gone."""
    import torch.distributed  # noqa: F401  what every rank needs, loaded once for all

    end_with(kernel_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    make_main(with_ipython)
    _warm_up()
    channel = channel_of(fd)
    channel.send(Ready(pid=os.getpid()))
    try:
        while True:
            question = channel.receive()
            assert isinstance(question, ForkOne)
            channel.send(Answer(pid=_fork(channel)))
    except ChannelEnded:
        return


def _warm_up() -> None:
    """Load once what every rank would load at its first exception."""
    try:
        raise RuntimeError
    except RuntimeError as error:
        formatted(error)


def _fork(channel: Channel) -> int:
    fds = (channel.take_fd(), channel.take_fd(), channel.take_fd())
    report_fd = channel.take_fd()
    server_pid = os.getpid()
    with quiet_fork_warning():
        pid = os.fork()
    if pid == 0:
        be_worker(lambda: arrive(channel_of(fds[0])), server_pid, fds)
    for fd in fds:
        os.close(fd)
    report_end(pid, report_fd)
    return pid
