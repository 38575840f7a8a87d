"""Which memory has been written since the ranks began.

Large memory is not copied: after a fork all private pages are shared between parent and child, and
the first write gives the writer a page of its own. Bit 56 of a page's entry in
``/proc/self/pagemap`` says "mapped by one process alone", so a single written byte is found
exactly, for about 10 ms per GB; for a private mapping of a shared file it is the same. A page that
other processes let go looks written too: that costs a needless copy and is never wrong. Small memory
shares its pages with other objects, so its bytes are kept and compared.

A rank that was sent its memory in a file has the original to compare with: that settles what the page map
leaves open, and serves where there is none (macOS). Only a fork where there is none has nothing: all its
large memory counts as written.
"""

from __future__ import annotations

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
_WRITTEN = frozenset(b for b in range(256) if (b & _EXCLUSIVE and not b & _FILE) or b & _SWAPPED)


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
        self._large: set[Buffer] = set()
        self._written: set[Buffer] = set()

    def add(self, buffer: Buffer) -> None:
        """Watch from now on."""
        small = buffer.size_bytes <= _SMALL_BYTES and self._kept_bytes < _SMALL_TOGETHER_BYTES
        if small or self._was_copied_here(buffer):
            self._kept_bytes += buffer.size_bytes
            self._kept[buffer] = bytes(buffer.view())
        else:
            self._large.add(buffer)

    def _was_copied_here(self, buffer: Buffer) -> bool:
        """Whether neither the pages nor the original can tell."""
        return not self._pages_tell and self._original is not None and not self._original.covers(buffer)

    def note_written(self) -> None:
        """Look now; call it before the process forks children of its own.

        A child such as a DataLoader worker maps the pages too, which hides from then on that this
        process alone had written them.
        """
        self._written |= written(self._large - self._written)

    def changed(self, buffer: Buffer) -> bool:
        """Whether watched memory, which must still exist, has been written; call `note_written` before."""
        if buffer in self._kept:
            return self._kept[buffer] != bytes(buffer.view())
        return buffer in self._written and not (self._original and self._original.equals(buffer))


def written(buffers: Iterable[Buffer]) -> set[Buffer]:
    """Those of `buffers` with a page that this process has written since it was forked.

    Where the page map cannot be read, all of them.
    """
    wanted = set(buffers)
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
    length = (last - first + 1) * _ENTRY_BYTES
    entries = os.pread(pagemap, length, first * _ENTRY_BYTES)
    if len(entries) < length:
        return True
    return not _WRITTEN.isdisjoint(entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES])
