"""MASTER_PORT of a run: a port of the loopback interface that nobody else is given while it lasts."""

from __future__ import annotations

import socket


class ReservedPort:
    """Bound and not listening: a rank may listen there, as scripts do that host a store of their own.

    Attributes:
        number: the port.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give it back; the ranks must have ended."""
        self._socket.close()
