"""Memory of another process, read straight into this one's: of a tensor that a rank has changed or made, no
copy is made on the way."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from nbdist.devices import usable_cpu_count
from nbdist.values.kind import Buffer

LEAST_BYTES = 1 << 16
"""Less than this is sent sooner than it is read."""
# Threads take turns, a chunk each: new memory is made page by page while it is written, which one processor
# does more slowly than it copies. A whole number of huge pages, and below the 2 GB that one call reads.
_CHUNK_BYTES = 1 << 24
_MOST_THREADS = 4
# From here on numpy too asks for huge pages: then reading takes less than half the time.
_HUGE_BYTES = 1 << 22


class Unreadable(OSError):
    """The system does not let this process read the other's memory, or that has ended."""


class _Piece(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size_bytes", ctypes.c_size_t))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where it lies; valid while that process waits and holds what the memory belongs to.

    Attributes:
        pid: the other process's.
        address: in there.
    """

    pid: int
    address: int
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes

    def read_into(self, mine: Buffer, owner: Any) -> None:
        """Copy it over memory of this process of the same size.

        Args:
            owner: whom that belongs to.

        Raises:
            Unreadable: the system does not allow it, or the other process has ended.
        """
        read = partial(self._read_chunk, mine, owner)
        starts = range(0, self.size_bytes, _CHUNK_BYTES)
        threads = min(len(starts), _MOST_THREADS, usable_cpu_count())
        try:
            if threads > 1:
                with ThreadPoolExecutor(threads, "nbdist-read") as pool:
                    all(pool.map(read, starts))
                return
        except RuntimeError:  # no more threads
            pass
        all(map(read, starts))

    def fill(self, mine: Buffer, owner: Any) -> None:
        """As `read_into`, for memory that is new and has no content yet."""
        if sys.platform == "linux" and mine.size_bytes >= _HUGE_BYTES:
            start = -(-mine.address // mmap.PAGESIZE) * mmap.PAGESIZE
            # Where the system has none of them, it stays as it is.
            _libc().madvise(start, mine.address + mine.size_bytes - start, mmap.MADV_HUGEPAGE)
        self.read_into(mine, owner)

    def _read_chunk(self, mine: Buffer, owner: Any, start: int) -> bool:
        """Copy one; `owner` lives for as long as that takes, even if nobody waits any more."""
        end = min(start + _CHUNK_BYTES, self.size_bytes)
        while start < end:
            here = _Piece(mine.address + start, end - start)
            there = _Piece(self.address + start, end - start)
            read = _libc().process_vm_readv(self.pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
            if read <= 0:
                number = ctypes.get_errno() or errno.EFAULT
                raise Unreadable(number, os.strerror(number))
            start += read
        return True

    def is_readable(self) -> bool:
        """Whether the system allows it, as its first byte tells."""
        byte = ctypes.c_char()
        first = Remote(pid=self.pid, address=self.address, size_bytes=1)
        try:
            first.read_into(Buffer(ctypes.addressof(byte), 1), byte)
        except Unreadable:
            return False
        return True


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def can_be_remote() -> bool:
    """Whether this system has such a thing at all."""
    return sys.platform == "linux"
