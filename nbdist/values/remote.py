"""Memory of another process, read straight into this one's: for a tensor that a rank has changed in place, no
copy is made on the way."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass

from nbdist.values.kind import Buffer

_AT_ONCE_BYTES = 1 << 30  # one call reads a little less than 2 GB


class _Piece(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size_bytes", ctypes.c_size_t))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where it lies; valid while that process waits.

    Attributes:
        pid: the other process's.
        address: in there.
    """

    pid: int
    address: int
    size_bytes: int

    def __len__(self) -> int:
        return self.size_bytes

    def read_into(self, mine: Buffer) -> None:
        """Copy it over memory of this process of the same size.

        Raises:
            OSError: the system does not allow it, or the other process has ended.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        libc.process_vm_readv.restype = ctypes.c_ssize_t
        done = 0
        while done < self.size_bytes:
            size = min(_AT_ONCE_BYTES, self.size_bytes - done)
            here, there = _Piece(mine.address + done, size), _Piece(self.address + done, size)
            read = libc.process_vm_readv(self.pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
            if read <= 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            done += read

    def is_readable(self) -> bool:
        """Whether the system allows it, as its first byte tells."""
        byte = ctypes.c_char()
        first = Remote(pid=self.pid, address=self.address, size_bytes=1)
        try:
            first.read_into(Buffer(ctypes.addressof(byte), 1))
        except OSError:
            return False
        return True


def can_be_remote() -> bool:
    """Whether this system has such a thing at all."""
    return sys.platform == "linux"
