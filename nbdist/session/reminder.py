"""Something that the main thread does while it waits for ranks: once, some time after it was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable


class Reminder:
    """At most one thing at a time. Cheaper than a thread that waits: most runs end before it is due.

    >>> reminder = Reminder()
    >>> reminder.set(0.0, lambda: print("done"))
    >>> reminder.answer()
    done
    >>> reminder.patience_s() is None
    True
    """

    def __init__(self) -> None:
        self._due: tuple[float, Callable[[], None]] | None = None

    def set(self, after_s: float, do: Callable[[], None]) -> None:
        """Do it after so many seconds."""
        self._due = time.monotonic() + after_s, do

    def drop(self) -> None:
        """Do not do it any more."""
        self._due = None

    def patience_s(self) -> float | None:
        """How long until it is due; None where there is nothing to do."""
        return max(0.0, self._due[0] - time.monotonic()) if self._due is not None else None

    def answer(self) -> None:
        """Do it if it is due."""
        if self._due is not None and self.patience_s() == 0.0:
            (_, do), self._due = self._due, None
            do()
