"""SIGINT in the kernel while ranks are up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


class Interrupts:
    """SIGINT becomes a note, so that KeyboardInterrupt never strikes our own code midway.

    Args:
        note: told of each interrupt.

    Attributes:
        count: how many there were in this block of `answered`, or in the last one.
    """

    def __init__(self, note: Callable[[], None]):
        self._note = note
        self._raised_from: int | None = None
        self._lock = threading.Lock()
        self._asking = False
        self._withdrawn = False
        self.count = 0

    @contextlib.contextmanager
    def answered(self) -> Iterator[None]:
        """Take SIGINT in this block. Off the main thread there are no signals."""
        self.count = 0
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def press(self) -> None:
        """An interrupt that is no signal; from any thread."""
        self.count += 1
        self._note()

    def _on_interrupt(self, *_: object) -> None:
        withdrawn, self._withdrawn = self._withdrawn, False
        if not withdrawn:
            self.press()
        if self._asking or (self._raised_from is not None and self.count >= self._raised_from):
            self._asking, self._raised_from = False, None
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def raised(self, number: int) -> Iterator[None]:
        """The interrupt of that number is raised in this block as usual, or at its beginning if it has come
        before: a way out of code that takes long, or does not return."""
        self._raised_from = number
        try:
            if self.count >= number:
                raise KeyboardInterrupt
            yield
        finally:
            self._raised_from = None

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """The user is being asked in this block: an interrupt is raised, and so is `withdraw`.

        Off the main thread there are no signals, and nothing can end the question.
        """
        self._asking = threading.current_thread() is threading.main_thread()
        try:
            yield
        finally:
            with self._lock:
                self._asking = False

    def withdraw(self) -> None:
        """Take the main thread out of its block of `asking`, if it is in one, from another thread."""
        with self._lock:
            if self._asking and not self._withdrawn:
                self._withdrawn = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
