"""Memory files: what one process writes once and another maps. They have no name, only a descriptor.

On Linux they are ``memfd``s, elsewhere temporary files that have been unlinked.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Iterable

from nbdist.values.kind import Buffer

Pieces = Iterable[tuple[int, memoryview]]

_READ_BYTES = 1 << 20  # smaller files are read, larger ones mapped
_COMPARE_BYTES = 1 << 20
_MAP_FAILED = ctypes.c_void_p(-1).value


def write_memory(size_bytes: int, pieces: Pieces) -> int:
    """Make a memory file.

    Args:
        pieces: its content, each piece with where it begins.

    Returns:
        Its descriptor; the caller owns it.

    Raises:
        OSError: there is not that much memory, or room for temporary files.
    """
    if sys.platform == "linux":
        fd = os.memfd_create("nbdist-values")
        try:
            if size_bytes:
                os.posix_fallocate(fd, 0, size_bytes)  # raises now what would be SIGBUS later
                # Mapped at once as a whole it is written three times as fast as through `write`.
                populate = getattr(mmap, "MAP_POPULATE", 0)
                with mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED | populate) as memory:
                    for start, piece in pieces:
                        memory[start : start + piece.nbytes] = piece
        except BaseException:
            os.close(fd)
            raise
        return fd
    return _write_temporary(size_bytes, pieces)


def _write_temporary(size_bytes: int, pieces: Pieces) -> int:
    with tempfile.TemporaryFile(prefix="nbdist-") as file:
        for start, piece in pieces:
            file.seek(start)
            file.write(piece)
        file.truncate(size_bytes)
        file.flush()
        return os.dup(file.fileno())


def open_memory(fd: int, size_bytes: int) -> memoryview:
    """A memory file's content, writable and private to this process; it lasts while anybody uses it.

    Python's own `mmap` keeps a descriptor for each mapping, and a notebook that keeps results would
    run out of them.
    """
    if size_bytes < _READ_BYTES:
        return memoryview(bytearray(os.pread(fd, size_bytes, 0)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, fd, 0)
    if address in (None, _MAP_FAILED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    content_there = (ctypes.c_char * size_bytes).from_address(address)
    # Not at the interpreter's end: tensors may outlive it.
    weakref.finalize(content_there, libc.munmap, address, size_bytes).atexit = False
    return memoryview(content_there).cast("B")


def same_bytes(one: memoryview, other: memoryview) -> bool:
    """Compare a piece at a time: a memoryview's own comparison looks at each item singly."""
    pieces = [slice(at, at + _COMPARE_BYTES) for at in range(0, len(one), _COMPARE_BYTES)]
    return all(bytes(one[piece]) == bytes(other[piece]) for piece in pieces)


class Original:
    """A memory file as it was written, beside a private mapping of it that may have been changed.

    Args:
        fd: the file's; this object owns it.
        mapping: as `open_memory` gave it.
    """

    def __init__(self, fd: int, mapping: memoryview):
        self._fd = fd
        self._mapping = mapping
        weakref.finalize(self, _close, fd).atexit = False
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) if mapping else 0

    def covers(self, buffer: Buffer) -> bool:
        """Whether a stretch of memory lies on the mapping."""
        start = buffer.address - self._address
        return start >= 0 and start + buffer.size_bytes <= len(self._mapping)

    def equals(self, buffer: Buffer) -> bool:
        """Whether what lies there now is what was written."""
        if not self.covers(buffer):
            return False
        content, start = buffer.view(), buffer.address - self._address
        for at in range(0, buffer.size_bytes, _COMPARE_BYTES):
            piece = bytes(content[at : at + _COMPARE_BYTES])
            try:
                if os.pread(self._fd, len(piece), start + at) != piece:
                    return False
            except OSError:  # the work has closed descriptors that are not its own
                return False
        return True


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):  # the work has closed descriptors that are not its own
        os.close(fd)
