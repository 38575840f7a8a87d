"""Framed messages between the kernel and a rank, with file descriptors beside them.

A frame is a fixed header (magic, payload length) and a pickle of a list of messages. Pickle is
read here only because the other side is our own forked process on an unnamed socket pair.
"""

from __future__ import annotations

import array
import errno
import os
import pickle
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from multiprocessing.reduction import ACKNOWLEDGE
from typing import Any

from nbdist.errors import ChannelBroken, ChannelClosed, ChannelEnded

_HEADER = struct.Struct("!4sI")
_MAGIC = b"nbd1"
_MAX_FRAME_BYTES = 1 << 30
_MAX_FDS = 8
_READ_BYTES = 1 << 18


class Channel:
    """One end of a bidirectional message pipe. `send` is thread-safe; one thread receives."""

    def __init__(self, sock: socket.socket):
        sock.settimeout(None)  # whatever socket.setdefaulttimeout says
        self._socket = sock
        self._send_lock = threading.Lock()
        self._buffer = bytearray()
        self._ready: deque[Any] = deque()
        self._fds: deque[int] = deque()
        self._held: deque[int] = deque()

    def fileno(self) -> int:
        """The socket's descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, *messages: object, fds: Sequence[int] = ()) -> None:
        """Send messages in one frame; blocks while the other side does not read.

        Raises:
            ChannelClosed: this side closed it.
            ChannelEnded: the other side is gone.
        """
        payload = pickle.dumps(messages, protocol=5)
        frame = memoryview(_HEADER.pack(_MAGIC, len(payload)) + payload)
        with self._send_lock:
            try:
                sent = self._send_first(frame, fds)
                self._socket.sendall(frame[sent:])
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ChannelEnded("the other side of the channel is gone") from error
            except OSError as error:
                if self._socket.fileno() < 0 or error.errno == errno.EBADF:  # os.closerange(), say
                    raise ChannelClosed("the channel was closed on this side") from error
                raise

    def _send_first(self, frame: memoryview, fds: Sequence[int]) -> int:
        if not fds:
            return 0
        if ACKNOWLEDGE:  # macOS may lose one that the sender closes before it has been received
            self._held.extend(os.dup(fd) for fd in fds)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        return self._socket.sendmsg([frame], [rights])

    def receive(self) -> Any:
        """Wait for the next message.

        Raises:
            ChannelEnded: the other side ended between two messages.
            ChannelBroken: it ended inside a message.
        """
        while not self._ready:
            self._read()
        return self._ready.popleft()

    def receive_available(self) -> list[Any]:
        """Read once without waiting, and give the messages that are whole by now.

        Raises:
            BlockingIOError: nothing lies there.
            ChannelEnded, ChannelBroken: as `receive`.
        """
        self._read(socket.MSG_DONTWAIT)
        messages = list(self._ready)
        self._ready.clear()
        return messages

    def take_fd(self) -> int:
        """The next descriptor that travelled beside a message; the caller owns it."""
        return self._fds.popleft()

    def _read(self, flags: int = 0) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                _READ_BYTES, socket.CMSG_SPACE(_MAX_FDS * 4), flags | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            )
        except ConnectionResetError as error:
            raise ChannelEnded("the other side of the channel is gone") from error
        for level, kind, packed in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(packed[: len(packed) - len(packed) % numbers.itemsize])
                for fd in numbers:
                    os.set_inheritable(fd, False)  # where there is no MSG_CMSG_CLOEXEC
                self._fds.extend(numbers)
        if not data:
            if self._buffer:
                raise ChannelBroken(f"the channel ended inside a message ({len(self._buffer)} bytes came)")
            raise ChannelEnded("the other side of the channel ended")
        self._buffer += data
        _close_all(self._held)  # in every exchange of ours who was sent one speaks next
        self._split()

    def _split(self) -> None:
        start = 0
        with memoryview(self._buffer) as view:
            while len(view) - start >= _HEADER.size:
                magic, length = _HEADER.unpack_from(view, start)
                if magic != _MAGIC or length > _MAX_FRAME_BYTES:
                    raise ChannelBroken(f"no message starts with {bytes(view[start : start + 8])!r}")
                end = start + _HEADER.size + length
                if end > len(view):
                    break
                # Given back at once: who lists all objects of the process would keep it from going by itself.
                with view[start + _HEADER.size : end] as frame:
                    self._ready.extend(pickle.loads(frame))
                start = end
        del self._buffer[:start]

    def close(self) -> None:
        """Close this end, and descriptors that nobody took."""
        self._socket.close()
        _close_all(self._fds)
        _close_all(self._held)


def _close_all(fds: deque[int]) -> None:
    while fds:
        os.close(fds.popleft())


def channel_pair() -> tuple[Channel, Channel]:
    """Two connected ends, for a fork or, in tests, for one process."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(left), Channel(right)


def channel_of(fd: int) -> Channel:
    """The channel on an inherited descriptor."""
    return Channel(socket.socket(fileno=fd))
