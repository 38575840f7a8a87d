"""Which memory has been written since the ranks began.

Large memory is not copied: after a fork all private pages are shared between parent and child, and
the first write gives the writer a page of its own. Bit 56 of a page's entry in
``/proc/self/pagemap`` says "mapped by one process alone", so a single written byte is found
exactly, for about 2 ms per GB of huge pages and 20 ms per GB of small ones; for a private mapping of a
shared file it is the same. A page that other processes let go looks written too: that costs a needless copy
and is never wrong. Small memory shares its pages with other objects, so its bytes are kept and compared.

A rank that was sent its memory in a file has the original to compare with: that settles what the page map
leaves open, and serves where there is none (macOS). Only a fork where there is none has nothing: all its
large memory counts as written.

Of large memory that is no longer, or never was, shared page by page, a digest is kept (0.6 s per GB).
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable

from nbdist.values.kind import Buffer
from nbdist.values.memory import Original

_SMALL_BYTES = 1 << 16
_SMALL_TOGETHER_BYTES = 1 << 26
_PAGE_BYTES = mmap.PAGESIZE
_ENTRY_BYTES = 8
_PAGEMAP = "/proc/self/pagemap"
# The entry's last byte: bit 63 present, 62 swapped, 61 file page or shared memory, 56 exclusive.
_SWAPPED, _FILE, _EXCLUSIVE = 0x40, 0x20, 0x01
_NOT_WRITTEN = bytes(b for b in range(256) if (not b & _EXCLUSIVE or b & _FILE) and not b & _SWAPPED)
_ENTRIES_AT_ONCE = 1 << 14  # as many as processor caches hold


class MemoryWatch:
    """Watches stretches of this process's memory from the moment they are added.

    Args:
        original: of the file in which the memory came here, if it did.
    """

    def __init__(self, original: Original | None = None) -> None:
        self._original = original
        self._pages_tell = os.path.exists(_PAGEMAP)
        self._kept: dict[Buffer, bytes] = {}
        self._kept_bytes = 0
        self._digests: dict[Buffer, bytes] = {}
        self._large: dict[Buffer, Original | None] = {}
        self._written: set[Buffer] = set()

    def add(self, buffer: Buffer) -> None:
        """Watch from now on; its pages are shared with another process, or lie on the original."""
        original = self._original if self._original and self._original.covers(buffer) else None
        told_by_neither = self._original is not None and original is None and not self._pages_tell
        if self._is_small(buffer) or told_by_neither:
            self._keep(buffer)
        else:
            self._large[buffer] = original

    def add_own(self, buffer: Buffer, original: Original | None = None) -> None:
        """Watch from now on memory whose pages are this process's own, unless they lie on an original."""
        if self._is_small(buffer):
            self._keep(buffer)
        elif original is not None and original.covers(buffer):
            self._large[buffer] = original
        else:
            self._digests[buffer] = _digest(buffer)

    def renew(self, buffer: Buffer) -> None:
        """What it holds now is what counts from now on."""
        self.drop(buffer)
        self.add_own(buffer)

    def drop(self, buffer: Buffer) -> None:
        """Watch it no longer."""
        self._kept_bytes -= len(self._kept.pop(buffer, b""))
        self._digests.pop(buffer, None)
        self._large.pop(buffer, None)
        self._written.discard(buffer)

    def _is_small(self, buffer: Buffer) -> bool:
        return buffer.size_bytes <= _SMALL_BYTES and self._kept_bytes < _SMALL_TOGETHER_BYTES

    def _keep(self, buffer: Buffer) -> None:
        self._kept_bytes += buffer.size_bytes
        self._kept[buffer] = bytes(buffer.view())

    def note_written(self) -> None:
        """Look now; call it before the process forks children of its own.

        A child such as a DataLoader worker maps the pages too, which hides from then on that this
        process alone had written them.
        """
        self._written |= written(self._large.keys() - self._written)

    def changed(self, buffer: Buffer) -> bool:
        """Whether watched memory, which must still exist, has been written; call `note_written` before."""
        if buffer in self._kept:
            return self._kept[buffer] != bytes(buffer.view())
        if buffer in self._digests:
            return self._digests[buffer] != _digest(buffer)
        original = self._large[buffer]
        return buffer in self._written and not (original is not None and original.equals(buffer))


def _digest(buffer: Buffer) -> bytes:
    return hashlib.sha256(buffer.view()).digest()


def written(buffers: Iterable[Buffer]) -> set[Buffer]:
    """Those of `buffers` with a page that this process has written since it was forked.

    Where the page map cannot be read, all of them.
    """
    wanted = set(buffers)
    if not wanted:
        return wanted
    try:
        pagemap = os.open(_PAGEMAP, os.O_RDONLY)
    except OSError:
        return wanted
    try:
        return {buffer for buffer in wanted if _is_written(pagemap, buffer)}
    finally:
        os.close(pagemap)


def _is_written(pagemap: int, buffer: Buffer) -> bool:
    first = buffer.address // _PAGE_BYTES
    last = (buffer.address + buffer.size_bytes - 1) // _PAGE_BYTES
    for page in range(first, last + 1, _ENTRIES_AT_ONCE):
        length = min(_ENTRIES_AT_ONCE, last + 1 - page) * _ENTRY_BYTES
        entries = os.pread(pagemap, length, page * _ENTRY_BYTES)
        if len(entries) < length or entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES].translate(None, _NOT_WRITTEN):
            return True
    return False
