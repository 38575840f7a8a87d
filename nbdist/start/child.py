"""A spawned worker's process: ``python -m nbdist.start.child CHANNEL OUT ERR KERNEL_PID WITH_IPYTHON``."""

from __future__ import annotations

import sys

from nbdist.channel import channel_of
from nbdist.start.arrival import arrive, make_main
from nbdist.start.fork import be_worker


def main(words: list[str]) -> None:
    """Be the worker whose descriptors these are."""
    channel_fd, stdout_fd, stderr_fd, kernel_pid = map(int, words[:4])

    def live() -> None:
        make_main(words[4] == "1")
        arrive(channel_of(channel_fd))

    be_worker(live, kernel_pid, stdout_fd=stdout_fd, stderr_fd=stderr_fd, keep=[channel_fd])


if __name__ == "__main__":
    main(sys.argv[1:])
