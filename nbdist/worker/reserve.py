"""Descriptors that a rank holds while it works, for what comes after: a work that has used up all that the
system allows fails, is told, and hands over what it has done."""

from __future__ import annotations

import contextlib
import os

_COUNT = 8  # for a memory file and its mapping, the page map, sources and modules that a traceback needs

_held: list[int] = []
_pipe = (0, 0)


def take() -> None:
    """A work begins: hold them, as far as there are any."""
    global _pipe
    with contextlib.suppress(OSError):
        reader, writer = os.pipe()  # an inode of its own tells them from what the user opens
        _held.extend((reader, writer))
        _pipe = _identity(reader)
        while len(_held) < _COUNT:
            _held.append(os.dup(reader))


def give_back() -> None:
    """The work is over, or has raised: whoever needs some may open them."""
    while _held:
        fd = _held.pop()
        with contextlib.suppress(OSError):  # the user's code has closed it
            if _identity(fd) == _pipe:  # and may have opened something else in its place
                os.close(fd)


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
