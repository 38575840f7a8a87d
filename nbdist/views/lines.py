"""Pieces of text become whole lines: overwritten parts (``\\r``) drop out, a finished bar is recognised."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

STDOUT, STDERR, DISPLAY, GAP = range(4)
"""What a run of lines is: text of a stream, a rich display, or the place where lines were left out."""

LINE_BYTES = 1_250_000
"""A longer line is cut: Jupyter's server drops an output that brings more than 3 MB within 3 s."""

CUT_MARK = "…[line goes on in the log]"

_MOST_PIECES = 1_000
_ANSI = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_WORD = re.compile(r"[^\W\d_]{4,}")


class Run(NamedTuple):
    """Consecutive lines of one rank and kind.

    Attributes:
        kind: `STDOUT`, `STDERR`, `DISPLAY` or `GAP`.
        lines: without line ends; what ranks are compared by.
        shown: of a run of one line, what is shown in the line's place: a bar's own text, a display,
            a gap's number of lines.
        is_open: of a run of one line: the rank has given it no end.
        patience_s: how much later than usual other ranks may come with the same.
    """

    kind: int
    lines: list[str]
    shown: Any = None
    is_open: bool = False
    patience_s: float = 0.0


class LineAssembler:
    """One stream of one rank.

    Args:
        kind: `STDOUT` or `STDERR`.

    >>> assembler = LineAssembler(STDOUT)
    >>> assembler.feed("one\\ntw", now_s=0.0)
    [Run(kind=0, lines=['one'], shown=None)]
    >>> assembler.feed("o\\n", now_s=0.1)
    [Run(kind=0, lines=['two'], shown=None)]
    """

    def __init__(self, kind: int):
        self.kind = kind
        self.since_s = 0.0  # when the unfinished line began
        self._skipping = False  # the rest of a line that was cut
        self._reset()

    def _reset(self) -> None:
        self._pieces: list[str] = []
        self._length = 0
        self._overwritten = False  # returns have taken the unfinished line back to its begin
        self._drawn_before = ""  # what the unfinished line's text has overwritten

    def feed(self, text: str, now_s: float) -> list[Run]:
        """Add a piece of any form; returns the lines that it completes."""
        if self._skipping:
            _, newline, text = text.partition("\n")
            self._skipping = not newline
        lines = text.split("\n")
        rest = lines.pop()
        runs = self._complete(lines, "\r" in text) if lines else []
        return runs + self._extend(rest, now_s) if rest else runs

    @property
    def unfinished(self) -> str:
        """What stands on the line that has no end yet."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return "".join(self._pieces).rstrip("\r")

    def finish(self) -> list[Run]:
        """Give out the unfinished line, if there is one."""
        runs = self._complete([""], self._overwritten) if self.unfinished else []
        return [run._replace(is_open=True) for run in runs]

    def _extend(self, rest: str, now_s: float) -> list[Run]:
        if not self._length:
            self.since_s = now_s
        came_back = bool(self._pieces) and self._pieces[-1].endswith("\r")
        self._pieces.append(rest)
        self._length += len(rest)
        if came_back or "\r" in rest:
            self._overwrite()
        elif len(self._pieces) > _MOST_PIECES:
            self._pieces = ["".join(self._pieces)]
        if self._length <= LINE_BYTES:
            return []
        self._skipping = True
        return self._complete([""], self._overwritten)

    def _overwrite(self) -> None:
        raw = "".join(self._pieces)
        text, self._drawn_before = _visible(raw, self._drawn_before)
        # A return at the very end is kept: a line end may follow it, in the next piece.
        self._pieces = [text + "\r" if raw.endswith("\r") else text]
        self._length = len(text)
        self._overwritten = True

    def _complete(self, lines: list[str], returns: bool) -> list[Run]:
        lines[0] = "".join((*self._pieces, lines[0]))
        drawn_before, plain = self._drawn_before, not (returns or self._overwritten)
        self._reset()
        if plain and sum(map(len, lines)) <= LINE_BYTES // 4:
            return [Run(self.kind, lines)]
        runs: list[Run] = []
        for line in lines:
            text, before = _visible(line, drawn_before)
            drawn_before = ""
            if before and _words(before) == _words(text):
                runs.append(Run(self.kind, ["\r" + " ".join(_words(text))], clipped(text)))
            elif runs and runs[-1].shown is None:
                runs[-1].lines.append(clipped(text))
            else:
                runs.append(Run(self.kind, [clipped(text)]))
        return runs


def _visible(raw: str, drawn_before: str) -> tuple[str, str]:
    """What stays of a line after its returns, and what that has overwritten last.

    A line that was wiped with blanks has overwritten nothing: what follows is no bar.
    """
    former, returned, text = raw.rstrip("\r").rpartition("\r")
    if not returned:
        return text, drawn_before
    if not text.strip():
        return "", ""
    former = former.rpartition("\r")[2]
    if former:
        drawn_before = former if former.strip() else ""
    return text, drawn_before


def _words(text: str) -> list[str]:
    """What stays the same while a bar advances: its words, but not its numbers, blocks and units."""
    return _WORD.findall(_ANSI.sub("", text))


def clipped(text: str) -> str:
    """A line, cut with a mark where it is longer than `LINE_BYTES`."""
    if len(text) <= LINE_BYTES // 4:
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= LINE_BYTES:
        return text
    return data[:LINE_BYTES].decode("utf-8", "ignore") + CUT_MARK
