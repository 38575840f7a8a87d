"""What is done again and again while a rank works."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Regularly:
    """A thread that looks at something while the rank works, and sleeps at all other times.

    Args:
        look: called in the thread.
        name: of the thread.
        every_s: how often; first when the rank has worked for so long.
        begin: called in the thread before that, each time that the rank begins to work after a rest of that
            length. Shorter works and rests do not wake the thread: many a cell is over in milliseconds.
    """

    def __init__(
        self, look: Callable[[], None], *, name: str, every_s: float, begin: Callable[[], None] | None = None
    ):
        self._look, self._begin = look, begin
        self._name, self._every_s = name, every_s
        self._at_work = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Look while this block runs, in the main thread."""
        self._at_work.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look_on, name=self._name, daemon=True)
            self._thread.start()
        try:
            yield
        finally:
            self._at_work.clear()

    def _look_on(self) -> None:
        pause = threading.Event()
        while True:
            self._at_work.wait()
            if self._begin is not None:
                self._begin()
            while not pause.wait(self._every_s) and self._at_work.is_set():
                self._look()
