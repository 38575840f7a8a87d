"""What stands below the text of a terminal and is written anew, such as a table of ranks.

The cursor stays where the text has left it, whatever is drawn below: text goes on there as if there were
nothing else, with its returns, its colours and its unfinished lines. So nothing has to be put right when a
run or this process ends, and a terminal that changes its size moves text and cursor together.
(`rich.live.Live` leaves the cursor behind what it draws and takes whole lines alone above it.)
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from nbdist.forksafety import fork_gate
from nbdist.views.cursor import is_open, place_after

Drawn = Callable[[int, int], Sequence[str]]
"""Gives the lines that stand there in a terminal of so many columns and rows, none wider than that."""

_MOST_CHARS = 10_000  # of the line that has no end
_FALLBACK = os.terminal_size((80, 24))

_SAVE, _RESTORE = "\x1b7", "\x1b8"  # the cursor's place and colours
_PLAIN = "\x1b[m"
_DOWN, _UP = "\x1bD", "\x1b[{}A"  # in the same column; down makes room at the bottom
_NEXT_LINE = "\x1b[E"
_ERASE_BELOW, _ERASE_LINE = "\x1b[J", "\x1b[K"
_CUT_AT_EDGE, _WRAP_AT_EDGE = "\x1b[?7l", "\x1b[?7h"


class Footer:
    """All text for the cell's streams goes through here, from any thread."""

    def __init__(self) -> None:
        self._drawn: Drawn | None = None
        self._stands = False
        self._asides = 0
        self._line = ""  # what stands on the line where the cursor is

    def show(self, drawn: Drawn) -> None:
        """Let this stand below the text from now on."""
        with fork_gate:
            erased = self._erased()
            self._drawn = drawn
            if not self._asides:
                self._put(erased + self._below())

    def leave(self, drawn: Drawn) -> None:
        """Let this be text where the footer was, which ends."""
        with fork_gate:
            erased = "" if self._asides else self._erased()
            self._drawn, self._stands, self._asides = None, False, 0
            # What stands there and is not known of was typed, such as ^C.
            begin = "\n" if is_open(self._line) else f"\r{_ERASE_LINE}"
            size = terminal_size()
            lines = "".join(f"{line}\n" for line in drawn(size.columns, size.lines))
            self._put(f"{erased}{begin}{lines}")
            self._line = ""

    def write(self, name: str, text: str) -> None:
        """Write text to a stream of ours, by its name in `sys`."""
        with self.aside():
            stream = getattr(sys, name)
            if stream is not None:  # a process without a terminal may have none
                stream.write(text)
                stream.flush()
            self.follow(text)

    def follow(self, text: str) -> None:
        """Text was written by others, in a block of `aside`."""
        *complete, rest = text.rsplit("\n", 1)
        self._line = (rest if complete else self._line + rest)[-_MOST_CHARS:]

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """In this block nothing stands below the text."""
        with fork_gate:
            if not self._asides:
                self._put(self._erased())
                self._stands = False
            self._asides += 1
        try:
            yield
        finally:
            with fork_gate:
                self._asides = max(self._asides - 1, 0)
                if not self._asides:
                    self._put(self._below())

    def _put(self, codes: str) -> None:
        if codes and sys.stdout is not None:
            encoding = sys.stdout.encoding or "utf-8"
            sys.stdout.write(codes.encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()

    def _erased(self) -> str:
        if not self._stands:
            return ""
        place = place_after(self._line, terminal_size().columns)
        if place.column == place.furthest:
            # What stands to its right is of the footer, too: somebody has pressed Enter.
            return f"{_SAVE}{_PLAIN}{_ERASE_BELOW}{_RESTORE}"
        return f"{_room(1)}{_SAVE}{_PLAIN}{_NEXT_LINE}{_ERASE_BELOW}{_RESTORE}"

    def _below(self) -> str:
        if self._drawn is None:
            return ""
        columns, rows = terminal_size()
        lines = self._drawn(columns, rows)[: rows - 1]
        # A cursor that waits at the edge would forget it and go on over the line's last character.
        self._stands = bool(lines) and place_after(self._line, columns).column < columns
        if not self._stands:
            return ""
        drawn = "".join(f"{_NEXT_LINE}{_ERASE_LINE}{line}{_PLAIN}" for line in lines)
        return f"{_room(len(lines))}{_SAVE}{_CUT_AT_EDGE}{_PLAIN}{drawn}{_WRAP_AT_EDGE}{_RESTORE}"


footer = Footer()
"""A process has one terminal."""


def _room(lines: int) -> str:
    """So many lines below the cursor."""
    return _DOWN * lines + _UP.format(lines)


def terminal_size() -> os.terminal_size:
    """Of the terminal that standard output goes to."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (AttributeError, OSError, ValueError):  # it is no terminal
        return _FALLBACK
    return size if size.columns > 0 and size.lines > 0 else _FALLBACK
