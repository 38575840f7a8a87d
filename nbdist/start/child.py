"""A spawned worker's process."""

from __future__ import annotations

from nbdist.channel import channel_of
from nbdist.start.arrival import arrive, make_main
from nbdist.start.fork import be_worker


def main(fds: tuple[int, int, int], kernel_pid: int, *, with_ipython: bool) -> None:
    """Be the worker whose descriptors these are."""

    def live() -> None:
        make_main(with_ipython)
        arrive(channel_of(fds[0]))

    be_worker(live, kernel_pid, fds)
