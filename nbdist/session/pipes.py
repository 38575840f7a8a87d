"""What a rank's descriptors 1 and 2 carry, and its place among the rank's messages.

Text of Python code comes as messages, what writes to a descriptor comes through a pipe. Before each
batch of messages a rank puts the batch's `Mark` into both pipes: what lies before it there is older than
the batch, what lies behind it younger.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator

from nbdist.messages import MARK, MARK_BYTES, Stream
from nbdist.start.worker import Worker

_READ_BYTES = 1 << 18  # more than a pipe holds: one read takes all that lies in it


class MarkedBytes:
    """Bytes with marks among them.

    >>> data = MarkedBytes()
    >>> data.feed(b"before\\0nbdist-mark-000000000001\\0behind"), data.reach(1)
    (b'before', b'behind')
    """

    def __init__(self) -> None:
        self._held = b""
        self._reached = 0

    def feed(self, data: bytes) -> bytes:
        """Take what came; give what is older than the next batch."""
        self._held += data
        return self._released()

    def reach(self, number: int) -> bytes:
        """Everything of a batch has been taken: what lies behind its mark."""
        self._reached = number
        return self._released()

    def rest(self) -> bytes:
        """All that is left, whatever batch it was to wait for."""
        rest, self._held = MARK.sub(b"", self._held), b""
        return rest

    def _released(self) -> bytes:
        released = b""
        while (mark := MARK.search(self._held)) is not None:
            released += self._held[: mark.start()]
            if int(mark[1], 16) > self._reached:
                self._held = self._held[mark.start() :]
                return released
            self._held = self._held[mark.end() :]
        # A read may end inside a mark.
        cut = self._held.find(b"\0", max(0, len(self._held) - MARK_BYTES + 1))
        cut = len(self._held) if cut < 0 else cut
        released, self._held = released + self._held[:cut], self._held[cut:]
        return released


class _Pipe:
    def __init__(self, stream: Stream, fd: int):
        self.stream, self.fd = stream, fd
        self._bytes = MarkedBytes()
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self.ended = False

    def read(self) -> str:
        """Read once what lies there now, no more: a child of the rank may write for ever."""
        try:
            data = os.read(self.fd, _READ_BYTES) if not self.ended else b""
        except BlockingIOError:
            return ""
        self.ended = not data
        return self._decoder.decode(self._bytes.rest() if self.ended else self._bytes.feed(data), self.ended)

    def reach(self, number: int) -> str:
        return self._decoder.decode(self._bytes.reach(number))

    def rest(self) -> str:
        return self._decoder.decode(self._bytes.rest(), True)


class Pipes:
    """Both pipes of a rank."""

    def __init__(self, worker: Worker):
        self._pipes = (_Pipe("stdout", worker.stdout_fd), _Pipe("stderr", worker.stderr_fd))
        self._batch = 0

    @property
    def batch(self) -> int:
        """The number of the last batch of messages that came."""
        return self._batch

    def read(self) -> Iterator[tuple[Stream, str]]:
        """Read once what lies in them; text that may be taken now."""
        return self._texts([pipe.read() for pipe in self._pipes])

    def begin(self, batch: int) -> Iterator[tuple[Stream, str]]:
        """A batch of messages is going to be taken, and those before it have been: text older than it."""
        texts = self._texts([pipe.reach(self._batch) + pipe.read() for pipe in self._pipes])
        self._batch = batch
        return texts

    def end(self) -> Iterator[tuple[Stream, str]]:
        """The last batch has been taken: text that has waited for that."""
        return self._texts([pipe.reach(self._batch) for pipe in self._pipes])

    def rest(self) -> Iterator[tuple[Stream, str]]:
        """The rank has ended: all that is left."""
        return self._texts([pipe.rest() for pipe in self._pipes])

    def ended(self) -> list[int]:
        """Descriptors at whose other end nobody is left."""
        return [pipe.fd for pipe in self._pipes if pipe.ended]

    def _texts(self, texts: list[str]) -> Iterator[tuple[Stream, str]]:
        for pipe, text in zip(self._pipes, texts, strict=True):
            if text:
                yield pipe.stream, text
