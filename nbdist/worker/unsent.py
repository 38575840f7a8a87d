"""Text of a rank that has not been sent yet, in a file that outlives the rank.

The last lines before a crash are the ones that are wanted, and they are those that were about to be sent.
So they lie in a small mapped file, where the kernel finds them when the rank has died. It has two pages: one
for the batch that is being sent, one for the batch that is being filled.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import sys
from collections.abc import Iterator

from nbdist.messages import Stream, Text

PAGE_BYTES = 1 << 20
_PAGE = struct.Struct("=QQ")  # the number of its batch, and how many bytes of it are used
_WORD_BYTES = 8
# No byte of UTF-8: what follows went to this stream.
_SWITCH: dict[Stream, bytes] = {"stdout": b"\xfe", "stderr": b"\xff"}
_STREAMS: dict[bytes, Stream] = {switch: stream for stream, switch in _SWITCH.items()}


class Unsent:
    """The rank's side.

    Args:
        path: of the file, which is made.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, path: str):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if sys.platform == "linux":
                # Now: where the disk is full, a write into the mapping would end the process.
                os.posix_fallocate(fd, 0, 2 * PAGE_BYTES)
            else:
                os.write(fd, bytes(2 * PAGE_BYTES))
            self._memory = memoryview(mmap.mmap(fd, 2 * PAGE_BYTES))
        finally:
            os.close(fd)
        self._words = self._memory.cast("Q")
        self.begin(1)

    def begin(self, number: int) -> None:
        """What comes now belongs to the batch of that number; the last but one has been sent."""
        start = number % 2 * PAGE_BYTES
        self._used, self._at, self._end = start // _WORD_BYTES + 1, start + _PAGE.size, start + PAGE_BYTES
        self._stream: Stream | None = None
        _PAGE.pack_into(self._memory, start, number, self._at)

    def add(self, stream: Stream, text: str) -> None:
        """Keep a text; one for which there is no room is so long that it is being sent by now."""
        data = text.encode("utf-8", "backslashreplace")
        if stream != self._stream:
            data = _SWITCH[stream] + data
        at = self._at
        end = at + len(data)
        if end <= self._end:
            self._stream = stream
            self._memory[at:end] = data
            self._words[self._used] = self._at = end  # last: what counts is whole


def unsent_path(scratch: str, rank: int) -> str:
    """The file of a rank."""
    return os.path.join(scratch, f"rank-{rank}.unsent")


def read_unsent(path: str, received: int) -> Iterator[Text]:
    """What a rank that has ended had not sent.

    Args:
        received: the number of the last batch that came.
    """
    try:
        with open(path, "rb") as file:
            memory = file.read()
    except OSError:  # it had not begun
        return
    pages = [_PAGE.unpack_from(memory, start) for start in (0, PAGE_BYTES) if len(memory) == 2 * PAGE_BYTES]
    for number, end in sorted(pages):
        if number > received:
            yield from _texts_in(memory[number % 2 * PAGE_BYTES + _PAGE.size : end])


def _texts_in(content: bytes) -> Iterator[Text]:
    parts = re.split(b"([\xfe\xff])", content)
    for switch, data in zip(parts[1::2], parts[2::2], strict=True):
        yield Text(stream=_STREAMS[switch], text=data.decode("utf-8", "replace"))
