"""The last of what a run has printed and shown, as it stands on the page: pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nbdist import messages
from nbdist.messages import Display
from nbdist.views.flood import LATEST_CHARS, LATEST_LINES
from nbdist.views.items import Item, Shown, Stream, labelled

LATEST_DISPLAYS = 12
"""What is kept beside the last lines; of a longer line its end."""


@dataclass(slots=True)
class Line:
    """A line of text.

    Attributes:
        text: without a label.
        is_open: it has no end yet: what comes next on its stream goes on with it.
        ranks: whose it is, as of `Stream`.
    """

    stream: messages.Stream
    text: str
    is_open: bool = False
    ranks: tuple[int, ...] = ()

    @property
    def labelled(self) -> str:
        """The line as a cell shows it."""
        return labelled(self.text, self.ranks)


@dataclass(frozen=True, slots=True)
class Figure:
    """A display.

    Attributes:
        ranks: as of `Shown`.
    """

    display: Display
    ranks: tuple[int, ...] = ()


Entry = Line | Figure


class Tail:
    """Takes a run's items; keeps the last of them.

    >>> tail = Tail()
    >>> tail.add([Stream("stdout", "one\\n50%"), Stream("stdout", "\\r60%")])
    >>> [line.text for line in tail.entries]
    ['one', '60%']
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._raw = ""  # of the open line, with what it has overwritten
        self._lines = self._chars = self._displays = 0
        self._clear_next = False
        self.left_out = 0
        """Lines that are not kept, or that never came here: with those that are kept, all that was printed.
        A line that stands for such as did not come is one of them."""

    @property
    def entries(self) -> Sequence[Entry]:
        """What is kept, in its order."""
        return list(self._entries)

    def add(self, items: Sequence[Item]) -> None:
        """Take what the run has printed and shown."""
        for item in items:
            if isinstance(item, Shown):
                self._show(item)
            else:
                self._write(item)
        self._trim()

    def _write(self, item: Stream) -> None:
        self.left_out += max(0, item.left_out - 1)
        if item.text.strip("\r "):
            self._clear_if_due()
        *complete, rest = item.text.split("\n")
        for piece in complete:
            self._extend(item, piece)
            self._end_line()
        if rest:
            self._extend(item, rest)

    def _extend(self, item: Stream, piece: str) -> None:
        last = self._entries[-1] if self._entries else None
        if not isinstance(last, Line) or not last.is_open or last.stream != item.stream:
            self._drop_wiped()
            self._end_line()
            last, self._raw = Line(item.stream, "", is_open=True), ""
            self._entries.append(last)
            self._lines += 1
        self._chars -= len(last.text)
        last.text, last.ranks = _visible(self._raw + piece), item.ranks
        self._raw = last.text + ("\r" if (self._raw + piece).endswith("\r") else "")
        self._chars += len(last.text)

    def _end_line(self) -> None:
        last = self._entries[-1] if self._entries else None
        if isinstance(last, Line) and last.is_open:
            last.is_open = False

    def _show(self, item: Shown) -> None:
        display = item.display
        assert isinstance(display, Display)
        if display.kind == "clear":
            self._clear_next = True
            if not display.wait:
                self._clear_if_due()
            return
        if display.kind == "update":
            self._update(display)
            return
        self._clear_if_due()
        self._drop_wiped()
        self._end_line()
        self._entries.append(Figure(display, item.ranks))
        self._displays += 1

    def _update(self, update: Display) -> None:
        for place, entry in enumerate(self._entries):
            if isinstance(entry, Figure) and entry.display.display_id == update.display_id:
                display = replace(entry.display, data=update.data, metadata=update.metadata)
                self._entries[place] = replace(entry, display=display)

    def _clear_if_due(self) -> None:
        if self._clear_next:
            self._entries.clear()
            self._clear_next = False
            self._lines = self._chars = self._displays = self.left_out = 0

    def _drop_wiped(self) -> None:
        last = self._entries[-1] if self._entries else None
        if isinstance(last, Line) and last.is_open and not last.text:
            self._entries.pop()
            self._lines -= 1

    def _trim(self) -> None:
        while self._lines > LATEST_LINES or (self._chars > LATEST_CHARS and self._lines > 1):
            self._remove(next(entry for entry in self._entries if isinstance(entry, Line)))
        while self._displays > LATEST_DISPLAYS:
            self._remove(next(entry for entry in self._entries if isinstance(entry, Figure)))

    def _remove(self, entry: Entry) -> None:
        self._entries.remove(entry)
        if isinstance(entry, Line):
            self._lines -= 1
            self._chars -= len(entry.text)
            self.left_out += 1
        else:
            self._displays -= 1

    def blocks(self) -> Iterator[list[Line] | Figure]:
        """Entries with neighbouring lines together."""
        lines: list[Line] = []
        for entry in self._entries:
            if isinstance(entry, Line):
                lines.append(entry)
                continue
            if lines:
                yield lines
                lines = []
            yield entry
        if any(line.text for line in lines):
            yield lines


def _visible(raw: str) -> str:
    """What stands on a line that returns have written over: each draw covers the one before."""
    if "\r" not in raw:
        return raw
    return next((draw.rstrip(" ") for draw in reversed(raw.split("\r")) if draw), "")
