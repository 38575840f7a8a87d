"""What a view gives to the cell's output, and how lines say whose they are."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from nbdist import messages
from nbdist.errors import ranks_text
from nbdist.views.lines import DISPLAY, STDERR, STDOUT

_NAMES: dict[int, messages.Stream] = {STDOUT: "stdout", STDERR: "stderr"}


@dataclass(slots=True)  # each line that waits is one: a tuple takes half as much again, and frozen, time
class Entry:
    """A piece of output on its way to the items.

    Attributes:
        content: text of a stream, a display, or (inside an outlet) a gap's number of lines.
        ranks: as of `Stream`.
    """

    kind: int
    content: Any
    ranks: tuple[int, ...] = ()


class Notice(str):
    """A line that stands for lines that are not shown."""

    lines: int

    @classmethod
    def of(cls, text: str, lines: int) -> Notice:
        """A line, and for how many it stands."""
        notice = cls(text)
        notice.lines = lines
        return notice


@dataclass(frozen=True, slots=True)
class Stream:
    """Text for one of the cell's streams.

    Attributes:
        text: as the ranks wrote it.
        ranks: who wrote its lines. Empty where they need no label: everybody's, or nbdist's own.
        left_out: how many lines it stands for that are not shown.
    """

    stream: messages.Stream
    text: str
    ranks: tuple[int, ...] = ()
    left_out: int = 0

    @property
    def labelled(self) -> str:
        """The text as the cell shows it."""
        return labelled(self.text, self.ranks)


@dataclass(frozen=True, slots=True)
class Shown:
    """A display.

    Attributes:
        ranks: the label: who showed it. Empty where it needs none: rank 0's, or everybody's.
        display: as the view got it.
    """

    ranks: tuple[int, ...]
    display: object


Item = Stream | Shown


@functools.lru_cache(maxsize=4096)  # the same few ranks print over and over
def label_text(ranks: tuple[int, ...]) -> str:
    """What says whose something is.

    >>> label_text((1, 2, 3)), label_text(())
    ('[1-3]', '')
    """
    return f"[{ranks_text(ranks)}]" if ranks else ""


def labelled(text: str, ranks: tuple[int, ...]) -> str:
    """Lines with their label before each.

    >>> labelled("one\\ntwo\\n", (0, 2))
    '[0,2] one\\n[0,2] two\\n'
    """
    if not ranks or not text:
        return text
    *lines, rest = text.split("\n")
    label = label_text(ranks)
    return "".join([*(f"{label} {line}\n" for line in lines), f"{label} {rest}" if rest else ""])


def as_items(entries: Sequence[Entry]) -> list[Item]:
    """Entries as items: consecutive text of one stream and of the same ranks is one."""
    items: list[Item] = []
    for (kind, ranks, left_out), run in groupby(entries, key=_item_of):
        contents = [entry.content for entry in run]
        items += contents if kind == DISPLAY else [Stream(_NAMES[kind], "".join(contents), ranks, left_out)]
    return items


def _item_of(entry: Entry) -> tuple[int, tuple[int, ...], int]:
    return entry.kind, entry.ranks, entry.content.lines if isinstance(entry.content, Notice) else 0


def with_few_turns(entries: list[Entry], most: int) -> list[Entry]:
    """Entries, sorted by stream between displays where the streams take turns more than `most` times.

    >>> entries = [Entry(0, "a"), Entry(1, "x"), Entry(0, "b"), Entry(1, "y")]
    >>> [entry.content for entry in with_few_turns(entries, most=2)]
    ['a', 'b', 'x', 'y']
    """
    kinds = [entry.kind for entry in entries]
    turns = sum(a != b and DISPLAY not in (a, b) for a, b in pairwise(kinds))
    if turns <= most:
        return entries
    parts = [list(part) for _, part in groupby(entries, key=lambda entry: entry.kind == DISPLAY)]
    return [entry for part in parts for entry in _sorted_by_kind(part)]


def _sorted_by_kind(part: list[Entry]) -> list[Entry]:
    first_kind = part[0].kind
    return sorted(part, key=lambda entry: entry.kind != first_kind)
