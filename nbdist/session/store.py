"""The store at which a run's ranks meet, hosted by the kernel on the loopback interface."""

from __future__ import annotations

import socket
from typing import Any

_BACKLOG_PER_RANK = 4


class Meeting:
    """A listening socket now, a store later.

    It listens before the first fork, so that no rank is ever refused; the store's own thread
    starts after the last, so that no fork copies it.
    """

    def __init__(self, world_size: int):
        self._world_size = world_size
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(_BACKLOG_PER_RANK * world_size)
        self.port: int = self._socket.getsockname()[1]
        self._store: Any = None

    def open(self) -> None:
        """Begin to serve."""
        import torch.distributed as dist

        self._store = dist.TCPStore(
            "127.0.0.1",
            self.port,
            world_size=None,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self._socket.detach(),
        )

    def close(self) -> None:
        """Stop serving; the ranks must have ended."""
        self._socket.close()
        self._store = None
