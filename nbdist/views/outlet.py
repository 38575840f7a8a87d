"""Too much text of a cell: what of it is shown.

`LiveOutlet` holds the rate that a Jupyter server bears. `BatchOutlet` holds a total, by count
alone, so that a batch run shows the same each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from nbdist.views.flood import (
    BURST_BYTES,
    LATEST_CHARS,
    LATEST_LINES,
    PERIOD_S,
    RATE_BYTES_PER_S,
    TOTAL_BYTES,
    latest,
)
from nbdist.views.items import Entry, Notice, label_text
from nbdist.views.lines import DISPLAY, GAP, LINE_BYTES, STDOUT, clipped

_MOST_WAITING_BYTES = 10 * BURST_BYTES
_MOST_WAITING_LINES = 50_000
"""More waits at no time, not even until the next `take`."""

_MANY_DRAWS_CHARS = 10_000

_ENOUGH_BYTES = BURST_BYTES // 2
"""A longer line goes out once there is room for this much: what it takes beyond is missing afterwards."""


class Outlet(Protocol):
    """The gate between merged text and the cell's output."""

    def put(self, kind: int, text: str, ranks: tuple[int, ...] = ()) -> None:
        """A line for a stream, with its end, of `ranks`, if it is to say so."""

    def show(self, display: object) -> None:
        """A display."""

    def gap(self, lines: int) -> None:
        """Lines have been left out here."""

    def take(self, now_s: float) -> list[Entry]:
        """What may be shown now."""

    def close(self) -> list[Entry]:
        """All that is left."""

    def due_s(self) -> float | None:
        """When `take` will give something; None while it has nothing."""


class LiveOutlet:
    """Shows text as it comes, up to a rate; in a flood, at most once a second, its latest lines.

    Args:
        where: what the notice names as the place of the whole text.
    """

    def __init__(self, where: str):
        self._where = where
        self._waiting: deque[Entry] = deque()
        self._waiting_bytes = self._waiting_lines = 0
        self._room_bytes: float = BURST_BYTES
        self._room_s = 0.0  # when there was so much room
        self._next_notice_s = 0.0
        self._line_is_open = False
        self._skipping: set[int] = set()  # the streams on which the rest of a line that was cut may come

    def put(self, kind: int, text: str, ranks: tuple[int, ...] = ()) -> None:
        """See `Outlet`."""
        entry = Entry(kind, text, ranks)
        self._waiting.append(entry)
        self._waiting_bytes += _size(entry)
        self._waiting_lines += 1
        if self._waiting_bytes > _MOST_WAITING_BYTES or self._waiting_lines > _MOST_WAITING_LINES:
            self._shorten()

    def pass_on(self, kind: int, text: str) -> None:
        """Text for a stream as it comes, for a cell that shows one rank: parts of lines, returns."""
        if kind in self._skipping:
            _, newline, text = text.partition("\n")
            if not newline:
                return
            self._skipping.remove(kind)
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.kind == kind and not last.content.endswith("\n"):
            self._waiting.pop()
            self._waiting_bytes -= _size(last)
            self._waiting_lines -= 1
            text = last.content + text
        for line in text.split("\n")[:-1]:
            self.put(kind, clipped(_last_draw(line)) + "\n")
        rest = _last_draw(text[text.rfind("\n") + 1 :])
        if len(rest) > LINE_BYTES:
            self._skipping.add(kind)
            self.put(kind, clipped(rest) + "\n")
        elif rest:
            self.put(kind, rest)

    @property
    def line_is_open(self) -> bool:
        """Whether what comes next stands on a line that has text already."""
        if not self._waiting or self._waiting[-1].kind == GAP:
            return self._line_is_open and not self._waiting
        last = self._waiting[-1]
        return last.kind != DISPLAY and not last.content.endswith("\n")

    def show(self, display: object) -> None:
        """See `Outlet`."""
        self._waiting.append(Entry(DISPLAY, display))

    def gap(self, lines: int) -> None:
        """See `Outlet`."""
        self._waiting.append(Entry(GAP, lines))

    def take(self, now_s: float) -> list[Entry]:
        """See `Outlet`."""
        room_bytes = self._room_bytes + (now_s - self._room_s) * RATE_BYTES_PER_S
        self._room_bytes, self._room_s = min(room_bytes, BURST_BYTES), now_s
        ready: list[Entry] = []
        while self._waiting and self._first_due_s() <= now_s:
            if self._waiting[0].kind == GAP:
                self._next_notice_s = now_s + PERIOD_S
            ready.append(self._next())
        if self._waiting_bytes > BURST_BYTES:
            self._shorten()
        return ready

    def close(self) -> list[Entry]:
        """See `Outlet`."""
        gaps = sum(entry.kind == GAP for entry in self._waiting)
        if self._waiting_bytes > BURST_BYTES or gaps > 1:  # one notice is enough
            self._shorten()
        return [self._next() for _ in range(len(self._waiting))]

    def due_s(self) -> float | None:
        """See `Outlet`."""
        return self._first_due_s() if self._waiting else None

    def _first_due_s(self) -> float:
        first = self._waiting[0]
        if first.kind == GAP:
            return self._next_notice_s
        wanted = 0 if first.kind == DISPLAY else min(_size(first), _ENOUGH_BYTES)
        return self._room_s + max(0.0, wanted - self._room_bytes) / RATE_BYTES_PER_S

    def _next(self) -> Entry:
        entry = self._waiting.popleft()
        if entry.kind == DISPLAY:
            return entry
        if entry.kind == GAP:
            kind = next((each.kind for each in self._waiting if each.kind not in (GAP, DISPLAY)), STDOUT)
            begin = "\n" if self._line_is_open else ""
            entry = Entry(kind, notice(entry.content, self._where, begin))
        else:
            size = _size(entry)
            self._waiting_bytes -= size
            self._waiting_lines -= 1
            self._room_bytes = max(self._room_bytes - size, -_ENOUGH_BYTES)
        self._line_is_open = not entry.content.endswith("\n")
        return entry

    def _shorten(self) -> None:
        """Leave out all but the latest lines; displays stay."""
        entries = list(self._waiting)
        texts = [n for n, entry in enumerate(entries) if entry.kind not in (DISPLAY, GAP)]
        first = len(texts) - latest(_size(entries[n]) for n in reversed(texts))
        begin = texts[first] if texts else len(entries)
        left_out = _lines(entries[:begin])
        displays = [entry for entry in entries[:begin] if entry.kind == DISPLAY]
        gap = [Entry(GAP, left_out)] if left_out else []
        self._waiting = deque([*displays, *gap, *entries[begin:]])
        self._waiting_bytes = sum(_size(entries[n]) for n in texts[first:])
        self._waiting_lines = len(texts) - first


class BatchOutlet:
    """Shows the first text of a cell and, at its end, the last lines.

    Args:
        where: what the notice names as the place of the whole text.
    """

    def __init__(self, where: str):
        self._where = where
        self._ready: list[Entry] = []
        self._room_bytes = TOTAL_BYTES
        self._is_full = False
        self._left_out = 0
        self._last: list[Entry] = []
        self._last_bytes = 0

    def put(self, kind: int, text: str, ranks: tuple[int, ...] = ()) -> None:
        """See `Outlet`."""
        entry = Entry(kind, text, ranks)
        size = _size(entry)
        self._is_full = self._is_full or self._room_bytes <= 0
        if not self._is_full:
            self._room_bytes -= size
            self._ready.append(entry)
            return
        self._last.append(entry)
        self._last_bytes += size
        if len(self._last) > 2 * LATEST_LINES or self._last_bytes > 2 * LATEST_CHARS:
            self._trim()

    def show(self, display: object) -> None:
        """See `Outlet`. Nobody waits for a display: what was to be kept before it is left out."""
        if self._last:
            self.gap(0)
        self._ready.append(Entry(DISPLAY, display))

    def gap(self, lines: int) -> None:
        """See `Outlet`."""
        self._is_full = True
        self._left_out += lines + _lines(self._last)
        self._last, self._last_bytes = [], 0

    def take(self, now_s: float) -> list[Entry]:
        """See `Outlet`."""
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> list[Entry]:
        """See `Outlet`."""
        self._trim()
        if self._left_out:
            kind = self._last[0].kind if self._last else STDOUT
            self._ready.append(Entry(kind, notice(self._left_out, self._where)))
        self._ready += self._last
        self._last, self._last_bytes = [], 0
        return self.take(0.0)

    def due_s(self) -> float | None:
        """See `Outlet`."""
        return 0.0 if self._ready else None

    def _trim(self) -> None:
        kept = latest(map(_size, reversed(self._last)))
        begin = len(self._last) - kept
        self._left_out += _lines(self._last[:begin])
        del self._last[:begin]
        self._last_bytes = sum(map(_size, self._last))


def notice(lines: int, where: str, begin: str = "") -> Notice:
    """The line that stands for lines that are not shown, behind what ends the line before.

    >>> notice(183220, "/logs/7")
    '… 183,220 lines not shown here: they are whole in /logs/7\\n'
    """
    where = where or "the log files"
    told = "1 line not shown here: it is" if lines == 1 else f"{lines:,} lines not shown here: they are"
    return Notice.of(f"{begin}… {told} whole in {where}\n", lines)


def _last_draw(line: str) -> str:
    """A line without what it has written over, where that is much."""
    if len(line) <= _MANY_DRAWS_CHARS:
        return line
    begin = line.rstrip("\r").rfind("\r")
    return line[max(0, begin) :]


def _size(entry: Entry) -> int:
    """Bytes of a line with its label."""
    text = f"{label_text(entry.ranks)} {entry.content}" if entry.ranks else entry.content
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _lines(entries: Iterable[Entry]) -> int:
    """How many lines go with these entries."""
    return sum(
        entry.content if entry.kind == GAP else entry.content.count("\n")
        for entry in entries
        if entry.kind != DISPLAY
    )
