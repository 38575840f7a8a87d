"""The one line of a live cell that updates in place: a progress bar, or a line that has no end yet."""

from __future__ import annotations

import re
from typing import NamedTuple

from nbdist.views.ansi import RESET
from nbdist.views.cursor import width_of
from nbdist.views.items import Entry, label_text

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
        ranks: as of `Stream`.
    """

    place: int
    kind: int
    text: str
    ranks: tuple[int, ...] = ()


class StatusLine:
    """What stands on the line, and the text that changes it.

    >>> line = StatusLine()
    >>> [entry.content for entry in line.around([], Status(0, 1, "100%"))]
    ['\\r', '100%']
    >>> [entry.content for entry in line.around([], Status(0, 1, "2%"))]
    ['\\r', '2%  ']
    >>> [entry.content for entry in line.around([Entry(1, "done\\n")], None)]
    ['\\r    \\r', 'done\\n']
    """

    def __init__(self) -> None:
        self.shown: Status | None = None
        self._width = 0  # of what stands there, blanks included

    def around(self, entries: list[Entry], status: Status | None) -> list[Entry]:
        """Entries with what takes the status away before them, and puts a new one behind them."""
        if status == self.shown and not entries:
            return entries
        if self.shown is not None and (entries or status is None or status.kind != self.shown.kind):
            entries = [self._erase(self.shown.kind), *entries]
        self.shown = status
        return entries if status is None else [*entries, *self._draw(status)]

    def _draw(self, status: Status) -> list[Entry]:
        width = _label_width(status.ranks) + width_of(_ANSI.sub("", status.text))
        padding = " " * (self._width - width)
        self._width = width + len(padding)
        text = f"{status.text}{RESET if chr(27) in status.text else ''}{padding}"
        return [Entry(status.kind, "\r"), Entry(status.kind, text, status.ranks)]

    def _erase(self, kind: int) -> Entry:
        blanks, self._width = " " * self._width, 0
        return Entry(kind, f"\r{blanks}\r")


def fitted(place: int, kind: int, text: str, ranks: tuple[int, ...], most_chars: int = MOST_CHARS) -> Status:
    """A status that stays on the line: with its label short enough; a label that leaves no room is left out.

    >>> fitted(1, 0, "epoch 1", (1,), 9).text, fitted(1, 0, "epoch 1", (1, 3, 5, 7), 12).ranks
    ('…ch 1', ())
    """
    if _label_width(ranks) > most_chars // 2:
        ranks = ()
    return Status(place, kind, fitting(text, most_chars - _label_width(ranks)), ranks)


def _label_width(ranks: tuple[int, ...]) -> int:
    return len(label_text(ranks)) + 1 if ranks else 0


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
