"""SIGINT in a rank: it stops the user's work, and nothing else.

Front ends may signal the ranks directly, and the kernel does too: between works, while a traceback
is made and while values are handed over, an interrupt does no harm, however often it comes. A signal does not
say what it is for: the kernel notes that on a board, so that one which comes before its work has begun
counts, and one which comes after its end does not.

Python answers a signal only when its main thread comes back to Python code. A rank that waits in a
collective does not: then, after a moment, a thread breaks the collective off. Nor does one that was just
about to sleep when the signal came: a second signal, which means nothing, ends that sleep. Where Python drops
exceptions, in a hook of a fork or in ``__del__``, KeyboardInterrupt is dropped, too: it comes again then.

A rank that lives on comes out of the import of a library when it is done: torch's, say, cannot be imported a
second time once they have been broken off half-way.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from nbdist.values.modules import is_library

# How long the main thread may take to come back by itself, and how long once it has been woken.
_PATIENCE_S = 0.05
_WOKEN_S = 0.02
_AGAIN_S = 0.02  # after one was dropped: not before its hook has returned
_IMPORT_S = 8.0  # that an import may take: the kernel waits longer than that before it ends a rank

_WAKING = signal.SIGURG  # ignored by whoever does not ask for it

_ENTRY = struct.Struct("=Q")


class Board:
    """On which the kernel notes, for each rank, the run that it is to stop: a file.

    Args:
        folder: of the session's temporary files.
        create: how many ranks it has room for, for who makes it.
    """

    def __init__(self, folder: str, *, create: int = 0):
        path = os.path.join(folder, "stops")
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        if create:
            os.write(self._fd, bytes(_ENTRY.size * create))

    def stop(self, rank: int, run: int) -> None:
        """A rank is to stop a run: a signal follows."""
        os.pwrite(self._fd, _ENTRY.pack(run), rank * _ENTRY.size)

    def stopped(self, rank: int) -> int:
        """The last run that a rank was told to stop."""
        try:
            return int(_ENTRY.unpack(os.pread(self._fd, _ENTRY.size, rank * _ENTRY.size))[0])
        except (OSError, struct.error):  # the user's code closed what it did not open
            return 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


_listening = False
_came = False
_unheard = False  # one has come while nobody listened
_run = 0
_aiming = threading.Lock()
_answered = threading.Event()
_wake_up = -1
_stopped: Callable[[], int] = int
_background = False
_lives_on = False
_spared_s: float | None = None  # since when an import is let finish


def install(
    aim: Callable[[], Callable[[], None]],
    stopped: Callable[[], int],
    *,
    background: bool = False,
    lives_on: bool = False,
) -> None:
    """Take SIGINT over. Call in the main thread.

    Args:
        stopped: the last run that the kernel wants stopped.
        background: whether only what stands on the board counts: cells of the notebook run beside this rank,
            and some front ends signal whatever the kernel has started when they stop a cell.
        lives_on: whether there will be other work after the one that is stopped.
        aim: called in another thread at an interrupt; what it gives frees a main thread that waits in a
            collective, and does nothing if that has come out and moved on meanwhile.
    """
    global _wake_up, _stopped, _background, _lives_on
    _stopped, _background, _lives_on = stopped, background, lives_on
    _wake_up, wake = os.pipe()
    for end in (_wake_up, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGINT, _on_interrupt)
    signal.signal(_WAKING, lambda *_: None)
    # The C handler writes here at once, wherever the main thread is.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    sys.unraisablehook = partial(_come_again, os.getpid(), sys.unraisablehook)
    # A signal to a child of the rank is none to the rank.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    watch = threading.Thread(target=_watch, args=(aim,), name="nbdist-interrupts", daemon=True)
    watch.start()


def begin(run: int) -> None:
    """A new work begins, of this number: interrupts that came before it were for another, unless the board
    says that they were for this one."""
    global _came, _run, _answered, _spared_s
    with _aiming:
        _signals()
        _run, _spared_s = run, None
        before, _answered = _answered, threading.Event()
    before.set()  # whoever waits for an answer in the work before has had it
    _came = False
    if _stopped() == run:  # asked last: a signal that comes meanwhile has said it itself
        _came = True


def _counts() -> bool:
    """Whether a SIGINT that has come is to be answered."""
    return not _background or _stopped() == _run


def _on_interrupt(_: int, frame: types.FrameType | None) -> None:
    global _came, _unheard
    if not _counts():
        return
    _came = True
    _answered.set()
    if not _listening:
        _unheard = True
        return
    if _lives_on and _is_importing(frame) and _may_go_on():
        _strike_again(os.getpid())
    else:
        raise KeyboardInterrupt


def _is_importing(frame: types.FrameType | None) -> bool:
    """Whether a library is being imported. The user's own modules may work for hours when they are."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and is_library(frame.f_globals):
            return True
        frame = frame.f_back
    return False


def _may_go_on() -> bool:
    global _spared_s
    now_s = time.monotonic()
    _spared_s = now_s if _spared_s is None else _spared_s
    return now_s - _spared_s < _IMPORT_S


def _come_again(pid: int, tell: Callable[[Any], None], dropped: Any) -> None:
    """Python has dropped an exception: an interrupt is not lost for it."""
    if not issubclass(dropped.exc_type, KeyboardInterrupt) or not _came or os.getpid() != pid:
        tell(dropped)
        return
    _strike_again(pid)


def _strike_again(pid: int) -> None:
    """Another interrupt for the same work, a moment later."""
    run = _run

    def strike() -> None:
        if _run == run and _listening:
            os.kill(pid, signal.SIGINT)

    timer = threading.Timer(_AGAIN_S, strike)
    timer.daemon = True
    timer.start()


def _signals() -> bytes:
    """Numbers of the signals that have come since the last call."""
    try:
        return os.read(_wake_up, 1024)
    except BlockingIOError:
        return b""


def _watch(aim: Callable[[], Callable[[], None]]) -> None:
    while True:
        try:
            select.select([_wake_up], [], [])
            with _aiming:
                run, answered = _run, _answered
                wanted = signal.SIGINT in _signals() and _listening and _counts()
        except OSError:  # the work has closed it: this process is about to be ended
            return
        if not wanted:
            continue
        free = aim()
        if not _comes_back(answered):
            with _aiming:
                if _run == run:  # else it came back after all, and works on something else
                    free()
            answered.wait()  # or this answer would count for the next interrupt
        answered.clear()


def _comes_back(answered: threading.Event) -> bool:
    if answered.wait(_PATIENCE_S):
        return True
    signal.pthread_kill(threading.main_thread().ident or 0, _WAKING)
    return answered.wait(_WOKEN_S)


def came() -> bool:
    """Whether this rank has been interrupted: what it raises now is a consequence, and nobody reads it."""
    return _came


@contextlib.contextmanager
def listening(now: bool) -> Iterator[None]:
    """Whether SIGINT raises KeyboardInterrupt inside this block."""
    global _listening
    before, _listening = _listening, now
    try:
        yield
    finally:
        _listening = before


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """An interrupt of this block is raised at its end: what is done in it is done whole."""
    global _unheard
    if threading.current_thread() is not threading.main_thread():  # where no signal strikes
        yield
        return
    if _listening:  # else this is for the block around it to raise
        _unheard = False
    with listening(False):
        yield
    if _unheard and _listening:
        raise KeyboardInterrupt
