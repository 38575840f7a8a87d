"""A rank's text: what Python code writes leaves as messages, in the order in which it was made.

One sender thread alone writes to the channel: a Python signal handler runs in the main thread
and could otherwise raise in the middle of a frame and tear it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from nbdist.channel import Channel
from nbdist.errors import ChannelError
from nbdist.messages import Mark, Progress, Stream, Text
from nbdist.worker.unsent import Unsent

_BATCH_BYTES = 64_000
_BATCH_AGE_S = 0.05
_SOURCE_AGE_S = 0.1
_MOST_WAITING_BYTES = 1_000_000
_LINE_BUFFERED = 1  # setvbuf's _IOLBF, on Linux and macOS


class Outbox:
    """Messages on their way to the kernel, batched (50 ms or 64 kB).

    A writer blocks while more than 1 MB waits: a rank cannot outrun the kernel. The text among them also lies
    where the kernel finds it if the rank dies.

    Before a batch goes, its `Mark` is put behind what lies in the rank's own pipes, so that the kernel knows
    which text came first. (Of descriptors of ours: 1 and 2 may lead elsewhere by then.)

    Args:
        unsent: path of the file for text that has not been sent.
    """

    def __init__(self, channel: Channel, unsent: str):
        self._channel = channel
        self._unsent: Unsent | None = None
        with contextlib.suppress(OSError):  # no room: a rank that dies takes its last words with it
            self._unsent = Unsent(unsent)
        self._lock = threading.RLock()  # to be taken by itself where it is taken for each piece of text
        self._changed = threading.Condition(self._lock)
        self._waiting: list[tuple[Any, Sequence[int]]] = []
        self._waiting_bytes = 0
        self._waiting_bars: dict[str, int] = {}  # where in `_waiting` the latest of a bar is
        self._first_s = 0.0
        self._source_due_s: float | None = None
        self._urgent = False
        self._sending = False
        self._ended = False
        self._owner = os.getpid()
        self.source: Callable[[], object | None] = lambda: None
        """Gives a message when one is due, see `remind`; called in the sender's thread."""
        self._pipes = (os.dup(1), os.dup(2))
        self._batch = 0
        threading.Thread(target=self._send_all, name="nbdist-outbox", daemon=True).start()

    @property
    def in_owner(self) -> bool:
        """False in a child that the rank forked: it has no sender thread."""
        return os.getpid() == self._owner

    def text(self, stream: Stream, text: str) -> None:
        """Add text; consecutive pieces of one stream travel as one."""
        with self._lock:
            if self._waiting_bytes >= _MOST_WAITING_BYTES:
                self._wait_for_room()
            last = self._waiting[-1][0] if self._waiting else None
            if isinstance(last, _Pieces) and last.stream == stream:
                last.pieces.append(text)
            else:
                self._add(_Pieces(stream, [text]), ())
            self._waiting_bytes += len(text)
            if self._unsent is not None:
                self._unsent.add(stream, text)
            if self._waiting_bytes >= _BATCH_BYTES:
                self._changed.notify_all()

    def _wait_for_room(self) -> None:
        self._changed.wait_for(lambda: self._waiting_bytes < _MOST_WAITING_BYTES or self._ended)

    def progress(self, message: Progress) -> None:
        """Add how far a bar is; of what has not been sent yet, only the latest goes. A bar's end is
        behind all that was added before."""
        with self._changed:
            place = self._waiting_bars.get(message.key)
            if place is None or message.phase != "open":
                self._waiting_bars[message.key] = len(self._waiting)
                self._add(message, ())
            else:
                self._waiting[place] = (message, ())

    def add(self, message: object) -> None:
        """Add a message that may wait for the next one, for the age of a batch at most."""
        with self._changed:
            self._add(message, ())

    def add_large(self, message: object, size_bytes: int) -> None:
        """As `add`; it blocks as `text` does while too much waits."""
        with self._changed:
            self._wait_for_room()
            self._add(message, ())
            self._waiting_bytes += size_bytes

    def remind(self) -> None:
        """Ask the source for a message, 0.1 s from now."""
        with self._changed:
            self._source_due_s = time.monotonic() + _SOURCE_AGE_S
            self._changed.notify_all()

    def post(self, message: object, fds: Sequence[int] = ()) -> None:
        """Add a message and send all that waits, without delay. Descriptors are closed once sent."""
        with self._changed:
            self._add(message, fds)
            self._urgent = True
            self._changed.notify_all()

    def _add(self, message: object, fds: Sequence[int]) -> None:
        if not self._waiting:
            self._first_s = time.monotonic()
            self._changed.notify_all()
        self._waiting.append((message, fds))

    def flush(self) -> None:
        """Wait until all that was added before has been sent; nothing in a child that the rank forked."""
        if not self.in_owner:
            return
        with self._changed:
            if not self._waiting and not self._sending:
                return
            self._urgent = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: (not self._waiting and not self._sending) or self._ended)

    def _patience_s(self) -> float | None:
        if self._waiting:
            return _BATCH_AGE_S
        return None if self._source_due_s is None else max(0.0, self._source_due_s - time.monotonic())

    def _is_source_due(self) -> bool:
        return self._source_due_s is not None and time.monotonic() >= self._source_due_s

    def _due(self) -> bool:
        if self._is_source_due():
            return True
        if not self._waiting:
            return False
        full = self._urgent or self._waiting_bytes >= _BATCH_BYTES
        return full or time.monotonic() - self._first_s >= _BATCH_AGE_S

    def _send_all(self) -> None:
        while not self._ended:
            with self._changed:
                while not self._due():
                    self._changed.wait(self._patience_s())
                ask = self._is_source_due()
                if ask:
                    self._source_due_s = None
                batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
                self._waiting_bars.clear()
                self._urgent, self._sending = False, True
                self._batch += 1
                if self._unsent is not None:
                    self._unsent.begin(self._batch + 1)
            own = self.source() if ask else None
            if own is not None:
                batch.append((own, ()))
            try:
                if batch:
                    self._send(batch)
            except ChannelError:  # the kernel is gone, and soon this process with it
                self._ended = True
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _send(self, batch: list[tuple[Any, Sequence[int]]]) -> None:
        mark = Mark(number=self._batch)
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # the work has closed it: its text has no place, then
                _write_whole(pipe, mark.in_pipe)
        messages = [mark, *(m.joined() if isinstance(m, _Pieces) else m for m, _ in batch)]
        fds = [fd for _, fds in batch for fd in fds]
        self._channel.send(*messages, fds=fds)
        for fd in fds:
            os.close(fd)


class _Pieces:
    """Text of one stream that has not been sent yet."""

    def __init__(self, stream: Stream, pieces: list[str]):
        self.stream, self.pieces = stream, pieces

    def joined(self) -> Text:
        return Text(stream=self.stream, text="".join(self.pieces))


class RankStream(io.TextIOBase):
    """A rank's ``sys.stdout`` or ``sys.stderr``."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None

    def __init__(self, name: Stream, fd: int, outbox: Outbox):
        super().__init__()
        self.name, self._fd, self._outbox = f"<{name}>", fd, outbox
        self.stream: Stream = name
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not text.isascii():
            text = text.encode(self.encoding, self.errors).decode(self.encoding)
        if self._outbox.in_owner:
            self._outbox.text(self.stream, text)
        else:
            _write_whole(self._fd, text.encode(self.encoding, self.errors))
        return len(text)

    def flush(self) -> None:
        """Wait until the kernel has what was written: a rank that dies now has said it."""
        self._outbox.flush()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Elsewhere it is the stream of that process."""
        return _stream_here, (self.stream,)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        """Like a terminal's: closing it does not take it away from others."""


def _stream_here(name: Stream) -> Any:
    return getattr(sys, name)


class _Bytes(io.RawIOBase):
    """``sys.stdout.buffer``: bytes that take the same way as text."""

    def __init__(self, stream: RankStream):
        super().__init__()
        self._text_stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._text_stream.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)


def _write_whole(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def stream_of(file: object) -> Stream | None:
    """Which of the rank's streams a file is, or writes to."""
    if isinstance(file, RankStream):
        return file.stream
    write = getattr(file, "write", None)  # of the kernel's, from before the fork: see `replace_streams`
    owner = getattr(write, "__self__", None)
    return owner.stream if isinstance(owner, RankStream) else None


def replace_streams(outbox: Outbox) -> None:
    """Make this rank's streams ``sys.stdout`` and ``sys.stderr``.

    Whoever holds the kernel's streams from before the fork, a logging handler say, writes to the
    rank's from now on.
    """
    streams: tuple[tuple[Stream, int], ...] = (("stdout", 1), ("stderr", 2))
    for name, fd in streams:
        own = RankStream(name, fd, outbox)
        inherited = getattr(sys, name)
        if "ipykernel" in type(inherited).__module__:
            inherited.write, inherited.flush, inherited.writelines = own.write, own.flush, own.writelines
        setattr(sys, name, own)


def keep_order(outbox: Outbox) -> None:
    """Send what the rank has printed before others write to its descriptors: programs, forked children,
    ``os.write``. C code's text goes line by line."""
    os.register_at_fork(before=outbox.flush)
    for name in ("system", "posix_spawn", "posix_spawnp", "execv", "execve"):
        setattr(os, name, _after(outbox.flush, getattr(os, name)))
    starts: Any = subprocess.Popen
    starts._execute_child = _after(outbox.flush, starts._execute_child)
    write = os.write

    @functools.wraps(write)
    def write_in_order(fd: int, data: Any, /) -> int:
        if fd in (1, 2):
            outbox.flush()
        return write(fd, data)

    os.write = write_in_order
    libc = _libc()
    for name in ("stdout", "__stdoutp"):  # on Linux, on macOS
        with contextlib.suppress(ValueError):  # no such symbol
            libc.setvbuf(ctypes.c_void_p.in_dll(libc, name), None, _LINE_BUFFERED, 0)


def flush_c_streams() -> None:
    """Write out what C libraries have printed and their buffers still hold."""
    _libc().fflush(None)


@functools.cache
def _libc() -> ctypes.CDLL:
    """Opened once: each opening makes a class, which only the garbage collector frees."""
    return ctypes.CDLL(None)


def _after(flush: Callable[[], None], start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def flush_and_start(*args: Any, **kwargs: Any) -> Any:
        flush()
        return start(*args, **kwargs)

    return flush_and_start
