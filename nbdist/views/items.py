"""What a view gives to the cell's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from nbdist import messages
from nbdist.views.lines import DISPLAY, STDERR, STDOUT

_NAMES: dict[int, messages.Stream] = {STDOUT: "stdout", STDERR: "stderr"}


@dataclass(frozen=True, slots=True)
class Stream:
    """Text for one of the cell's streams."""

    stream: messages.Stream
    text: str


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


def as_items(entries: Sequence[tuple[int, Any]]) -> list[Item]:
    """Entries, kind and content each, as items: consecutive text of one stream is one."""
    items: list[Item] = []
    pieces: list[str] = []
    for n, (kind, content) in enumerate(entries):
        if kind == DISPLAY:
            items.append(content)
            continue
        pieces.append(content)
        if n + 1 == len(entries) or entries[n + 1][0] != kind:
            items.append(Stream(_NAMES[kind], "".join(pieces)))
            pieces.clear()
    return items


def with_few_turns(entries: list[tuple[int, Any]], most: int) -> list[tuple[int, Any]]:
    """Entries, sorted by stream between displays where the streams take turns more than `most` times.

    >>> with_few_turns([(0, "a"), (1, "x"), (0, "b"), (1, "y")], most=2)
    [(0, 'a'), (0, 'b'), (1, 'x'), (1, 'y')]
    """
    kinds = [kind for kind, _ in entries]
    turns = sum(a != b and DISPLAY not in (a, b) for a, b in pairwise(kinds))
    if turns <= most:
        return entries
    parts = [list(part) for _, part in groupby(entries, key=lambda entry: entry[0] == DISPLAY)]
    return [entry for part in parts for entry in _sorted_by_kind(part)]


def _sorted_by_kind(part: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    first_kind = part[0][0]
    return sorted(part, key=lambda entry: entry[0] != first_kind)
