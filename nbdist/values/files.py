"""Open files: both sides go on from the same place.

A forked rank has descriptors of its own on the notebook's files. Whatever holds such a file, a name or only a
logging handler, a `csv.writer` or a bound method: all file objects of the process are found.
"""

from __future__ import annotations

import codecs
import gc
import io
import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

from nbdist.shell import current_shell
from nbdist.values.foreign import call_foreign
from nbdist.values.kind import Content, Kind

LAYERS = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)
"""Classes of what `open` gives, and of what that is made of."""

COMPRESSED = (("gzip", "GzipFile"), ("bz2", "BZ2File"), ("lzma", "LZMAFile"))
"""Modules that may not be loaded, and their classes of files."""

_NOT_USERS = ("/memfd:", "/dev/shm/")
_TAIL_BYTES = 1 << 16  # more than a text file reads at once
_LONGEST_CHARACTER_BYTES = 4
# Modules through whose objects, and their attributes, a layer of a file is reached.
_IN_BETWEEN = frozenset("io _io gzip bz2 lzma _compression compression zipfile tarfile".split())


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a file stands.

    Attributes:
        told: as `tell` says it; None where it cannot be told.
        below: then where the binary file below stands, which is read in large pieces.
    """

    closed: bool
    told: int | None = None
    below: int | None = None


class FileKind(Kind):
    """Open files: where they stand. The file itself is the same for all processes."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return ()

    def content(self, obj: Any) -> Content:
        place = _place(obj)
        unsure = place.below is not None
        return Content((object(),) if unsure else (), (place,))  # a new object: never the same as before

    def portable(self, obj: Any) -> Any:
        return _place_for_others(obj, None), None

    def difference(self, obj: Any, before: Content) -> Any:
        return _place_for_others(obj, before.facts[0]), before.facts[0]

    def land(self, twin: Any, portable: Any) -> None:
        there, before = portable
        if before is not None and _place(twin) != before:
            if not there.closed and _appends(twin):  # whoever writes, it goes behind what is there
                return
            raise RuntimeError("the notebook itself has gone on with the file meanwhile")
        self._go_on(twin, there)

    def _go_on(self, twin: Any, there: _Place) -> None:
        if there.closed:
            twin.close()
        elif there.told is not None:
            twin.seek(there.told)


class HeldFileKind(FileKind):
    """Files that no name of the notebook leads to: who holds one here goes on using it."""

    def _go_on(self, twin: Any, there: _Place) -> None:
        if not there.closed:
            super()._go_on(twin, there)
        elif twin.writable():
            twin.seek(0, os.SEEK_END)


def _appends(file: Any) -> bool:
    return "a" in str(getattr(file, "mode", ""))


def _file_classes() -> tuple[type, ...]:
    return (*LAYERS, *_compressed_classes())


def _compressed_classes() -> tuple[type, ...]:
    loaded = ((sys.modules[module], name) for module, name in COMPRESSED if module in sys.modules)
    return tuple(getattr(module, name) for module, name in loaded)


def files_among(objects: Collection[Any]) -> list[Any]:
    """The files among some objects, which may be very many."""
    bases, classes = _file_classes(), set(map(type, objects))
    files = {cls for cls in classes if issubclass(cls, bases)}
    return list(compress(objects, map(files.__contains__, map(type, objects)))) if files else []


def layers_below(files: Iterable[Any]) -> list[Any]:
    """What some files are made of: it goes where they go."""
    found = {id(layer): layer for file in files for layer in _inside(file)}
    return list(found.values())


def _inside(file: Any) -> Iterator[Any]:
    seen, todo, bases = {id(file)}, [file], _file_classes()
    while todo:
        for obj in gc.get_referents(todo.pop()):
            cls = type(obj)
            if id(obj) not in seen and (cls is dict or cls.__module__.partition(".")[0] in _IN_BETWEEN):
                seen.add(id(obj))
                todo.append(obj)
                if issubclass(cls, bases):
                    yield obj


our_folders: set[str] = set()
"""Folders, without symbolic links, whose open files are nbdist's own and no affair of the ranks."""


def users_files() -> list[Any]:
    """All file objects of this process over regular files, but for what belongs to a kernel anyway."""
    descriptors = set(_users_descriptors()) if sys.platform == "linux" else set()
    if not descriptors:
        return []
    return [file for file in files_among(gc.get_objects()) if call_foreign(file.fileno) in descriptors]


def _users_descriptors() -> Iterator[int]:
    manager = getattr(current_shell(), "history_manager", None)
    history = str(getattr(manager, "hist_file", ""))
    not_users = (*_NOT_USERS, *our_folders, *filter(None, [history]))
    # An ipykernel puts pipes in the place of its standard descriptors, and keeps copies of them.
    copies = (getattr(stream, "_original_stdstream_copy", None) for stream in (sys.stdout, sys.stderr))
    standard = {_regular_path(fd) for fd in (0, 1, 2, *copies) if fd is not None}
    for fd in map(int, os.listdir("/proc/self/fd")):
        path = _regular_path(fd)
        if path is not None and path not in standard and not path.startswith(not_users):
            yield fd


def _regular_path(fd: int) -> str | None:
    """The path of the regular file behind a descriptor; None for anything else."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}") if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:  # closed by now
        return None


def forget_pending(files: Iterable[Any]) -> None:
    """What files hold in memory, from a thread that wrote while this process was forked, is the other one's
    to write."""
    for file in files:
        call_foreign(partial(_flush_to_nowhere, file))


def _flush_to_nowhere(file: Any) -> None:
    if type(file) not in LAYERS or file.closed or not file.writable():
        return
    _renew_lock(getattr(file, "buffer", file))
    own = os.dup(file.fileno())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, file.fileno(), inheritable=False)
        file.flush()
    finally:
        os.dup2(own, file.fileno(), inheritable=False)
        os.close(own)
        os.close(nowhere)


def _renew_lock(buffer: Any) -> None:
    """A thread that wrote at the moment of the fork held the buffer's lock: here nobody would release it."""
    if type(buffer) is io.BufferedWriter:
        buffer.__init__(buffer.raw)  # type: ignore[misc]  # it makes its lock and its buffer anew


def name_of(file: Any) -> str:
    """How a message names a file that no name leads to."""
    return f"the file {os.path.basename(str(getattr(file, 'name', '')))}"


def _place(file: Any) -> _Place:
    """Where a file stands; what it holds in memory is written before it is told."""
    if file.closed or not file.seekable():
        return _Place(file.closed)
    if file.writable() and not _compresses(file):
        file.flush()
    try:
        return _Place(False, file.tell())
    except OSError:
        if not isinstance(file, io.TextIOWrapper) or file.writable():
            raise
        return _Place(False, below=file.buffer.tell())  # `next` has switched it off


def _compresses(file: Any) -> bool:
    binary = file.buffer if isinstance(file, io.TextIOWrapper) else file
    return issubclass(type(binary), _compressed_classes()) and binary.writable()


def _place_for_others(file: Any, before: _Place | None) -> _Place:
    """A place to which the same file of another process can go.

    Raises:
        TypeError: there is none.
    """
    if not file.closed and _compresses(file):
        raise TypeError(
            "what packs its content cannot go on in another process. Open it in the cell, or close it before"
        )
    place = _place(file)
    if place.below is None:
        return place
    told = _told_after_next(file, place.below)
    if told is None and before != place:
        raise TypeError("where `next` has left it cannot be told. Read it by readline(), or in one cell")
    return replace(place, told=told, below=None)


def _told_after_next(file: io.TextIOWrapper, below: int) -> int | None:
    """Where a text file stands that `next` has read, by what it has decoded and not given out yet. It is
    there afterwards; None where that cannot be told."""
    binary: Any = file.buffer
    binary.seek(0, os.SEEK_END)
    rest = "".join(_characters(file))
    start = max(0, below - _TAIL_BYTES)
    binary.seek(start)
    tail = binary.read(below - start)
    for size in _sizes(rest, file):
        if size <= len(tail) and rest in _readings(tail[len(tail) - size :], file):
            file.seek(below - size)
            return below - size
    binary.seek(below)
    return None


def _characters(file: io.TextIOWrapper) -> Iterator[str]:
    """Those that have been decoded: below there are no more."""
    try:
        while character := file.read(1):
            yield character
    except UnicodeError:  # half a character at the end of what was read
        return


def _sizes(text: str, file: io.TextIOWrapper) -> Iterator[int]:
    """How many bytes a text may have had."""
    encoding = file.encoding.lower().replace("_", "-").removesuffix("-sig")
    size = len(text.encode(encoding, file.errors or "strict"))
    for ends in (0, text.count("\n")):
        yield from range(size + ends, size + ends + _LONGEST_CHARACTER_BYTES)


def _readings(data: bytes, file: io.TextIOWrapper) -> tuple[str, ...]:
    """The text of some bytes, with line ends as they are and as `open` gives them."""
    decoder = codecs.getincrementaldecoder(file.encoding)(file.errors or "strict")
    try:
        text = decoder.decode(data)
    except UnicodeError:
        return ()
    return text, re.sub("\r\n?", "\n", text)
