"""What a terminal shows of what is written to it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pyte


class TerminalScreen:
    """A terminal's screen and what has been scrolled out of it.

    Args:
        answer: takes what the terminal says, when it is asked where its cursor is.
    """

    def __init__(
        self, columns: int = 80, rows: int = 24, *, answer: Callable[[str], object] = lambda _: None
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._screen.write_process_input = answer
        self._stream = pyte.ByteStream(self._screen)

    def feed(self, data: bytes) -> None:
        """Take what a process writes; line ends are as they leave the terminal's driver."""
        self._stream.feed(data)

    def resize(self, columns: int, rows: int) -> None:
        """Change its size. Of fewer rows the upper ones are scrolled out."""
        gone = max(self._screen.lines - rows, 0)
        self._screen.history.top.extend(copy.copy(self._screen.buffer[row]) for row in range(gone))
        self._screen.resize(rows, columns)
        self._screen.cursor.y = max(self._screen.cursor.y - gone, 0)

    @property
    def screen(self) -> list[str]:
        """The lines that are to be seen now."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """All lines, those that have been scrolled out included."""
        gone = (
            "".join(line[x].data for x in range(self._screen.columns)) for line in self._screen.history.top
        )
        return "\n".join(line.rstrip() for line in (*gone, *self._screen.display)).rstrip()

    @property
    def cursor(self) -> tuple[int, int]:
        """Its line, those that have been scrolled out included, and its column."""
        return len(self._screen.history.top) + self._screen.cursor.y, self._screen.cursor.x

    @property
    def cursor_is_seen(self) -> bool:
        """Whether it is not hidden."""
        return not self._screen.cursor.hidden

    def colours_at_cursor(self) -> tuple[str, str, bool]:
        """The colours that the next character gets: its own, the ground's, and whether it is bold."""
        attributes = self._screen.cursor.attrs
        return attributes.fg, attributes.bg, attributes.bold
