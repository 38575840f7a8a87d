"""Whose ranks are: one process's, and in it one thread's at a time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nbdist.errors import RunInterrupted, SessionError
from nbdist.session.interrupts import Interrupts

_END_S = 2.0
_TELL_S = 1.0


class _Work(NamedTuple):
    """What the ranks do, and the thread that has asked for it."""

    what: str
    thread: threading.Thread

    def __str__(self) -> str:
        return f"{self.what} of thread {self.thread.name}"


class Owner:
    """Of the ranks of one session: the process that made them, and in it the thread that they work for now.

    A thread whose turn has not come waits. The stop button ends that wait and not the other thread's work.

    Args:
        interrupts: of the ranks.
        tell: whoever looks at the main thread is told of a wait that lasts.
    """

    def __init__(self, interrupts: Interrupts, tell: Callable[[str], None]):
        self._interrupts = interrupts
        self._tell = tell
        self._pid = os.getpid()
        self._turn = threading.RLock()  # refuses to be released by a thread that does not hold it
        self._work: _Work | None = None

    @property
    def is_here(self) -> bool:
        """False in a process that was forked from the ranks' own."""
        return os.getpid() == self._pid

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        """The ranks work for this thread alone while the block runs, and SIGINT is theirs.

        Args:
            what: they do, as the user would call it.

        Raises:
            SessionError: this is called in the midst of such a block of the same thread.
            RunInterrupted: the wait for this thread's turn was interrupted.
        """
        before = self._work
        if before is not None and before.thread is threading.current_thread():
            raise SessionError(
                f"{what}: the ranks are busy with {before.what}, in this same thread. "
                "Call it when that has returned."
            )
        try:
            self._wait()
            with self._interrupts.answered():
                self._work = _Work(what, threading.current_thread())
                try:
                    yield
                finally:
                    self._work = None
                    self._turn.release()
        finally:
            with contextlib.suppress(RuntimeError):  # released, unless an interrupt came before `answered`
                self._turn.release()

    def _wait(self) -> None:
        try:
            if threading.current_thread() is threading.main_thread():
                if self._turn.acquire(timeout=_TELL_S):
                    return
                self._tell(f"waits: the ranks are {self._busy()}")
            self._turn.acquire()
        except KeyboardInterrupt:
            raise RunInterrupted(
                f"nothing was sent: the ranks are {self._busy()}, which goes on. "
                "%distributed stop (in Python: stop()) ends them at once"
            ) from None

    def _busy(self) -> str:
        return "busy" if self._work is None else f"busy with {self._work}"

    def evict(self) -> None:
        """End the work of another thread, if there is any: it is over when this returns, unless its own code
        takes long to see that."""
        work = self._work
        if work is None or work.thread is threading.current_thread():
            return
        self._interrupts.press()
        self._interrupts.press()
        if self._turn.acquire(timeout=_END_S):
            self._turn.release()
