"""The one line of a live cell that updates in place: a progress bar, or a line that has no end yet."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from nbdist.views.ansi import RESET
from nbdist.views.cursor import width_of

MOST_CHARS = 200
"""Of a longer line its end is shown. A terminal may have less room: what goes on in its next row cannot be
written anew."""

_ANSI = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_MOVES = re.compile(r"\x1b\[[0-9;:?]*[A-Za-ln-z]")  # all but colours


class Status(NamedTuple):
    """What the line says.

    Attributes:
        place: whose unfinished line it is: the how manieth rank's of those that are shown.
        kind: the stream it is on.
    """

    place: int
    kind: int
    text: str


class StatusLine:
    """What stands on the line, and the text that changes it.

    >>> line = StatusLine()
    >>> line.around([], Status(0, 1, "100%")), line.around([], Status(0, 1, "2%"))
    ([(1, '\\r100%')], [(1, '\\r2%  ')])
    >>> line.around([(1, "done\\n")], None)
    [(1, '\\r    \\r'), (1, 'done\\n')]
    """

    def __init__(self) -> None:
        self.shown: Status | None = None
        self._width = 0  # of what stands there, blanks included

    def around(self, entries: list[tuple[int, Any]], status: Status | None) -> list[tuple[int, Any]]:
        """Entries with what takes the status away before them, and puts a new one behind them."""
        if status == self.shown and not entries:
            return entries
        if self.shown is not None and (entries or status is None or status.kind != self.shown.kind):
            entries = [self._erase(self.shown.kind), *entries]
        self.shown = status
        return entries if status is None else [*entries, self._draw(status)]

    def _draw(self, status: Status) -> tuple[int, str]:
        width = width_of(_ANSI.sub("", status.text))
        padding = " " * (self._width - width)
        self._width = width + len(padding)
        return status.kind, f"\r{status.text}{RESET if chr(27) in status.text else ''}{padding}"

    def _erase(self, kind: int) -> tuple[int, str]:
        blanks, self._width = " " * self._width, 0
        return kind, f"\r{blanks}\r"


def fitting(text: str, most_chars: int = MOST_CHARS) -> str:
    """A text that stays on the line: short enough, and without codes that move the cursor.

    >>> fitting("epoch 1 数据", 12), fitting("epoch 1 数据", 11)
    ('epoch 1 数据', '…och 1 数据')
    """
    text = _MOVES.sub("", text)
    bare = _ANSI.sub("", text)
    if width_of(bare) <= most_chars:
        return text
    bare = bare[-most_chars:]
    while width_of(bare) >= most_chars:
        bare = bare[1:]
    return f"…{bare}"
