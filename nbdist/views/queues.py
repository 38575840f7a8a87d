"""One rank's lines that have not been given out yet."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import islice
from typing import Any, NamedTuple

from nbdist.views.lines import Run

_MOST_NUMBERS = 1_000


class _Block(NamedTuple):
    run: Run
    stamp_s: float


class RankQueue:
    """Lines in the order in which they came, numbered over the rank's whole life.

    Attributes:
        head: kind and line that is next.
        stamp_s: when the head came.
        first: the head's number.
        finished: nothing more comes.
        lapsed: the rank was passed over in a row and has not come back yet.
        meets: its head is known to wait in every other queue too.
        row: in which it last gave a line.
    """

    __slots__ = (
        *("_blocks", "_end", "_numbers", "_position"),
        *("finished", "first", "head", "lapsed", "meets", "row", "stamp_s"),
    )

    def __init__(self) -> None:
        self._blocks: deque[_Block] = deque()
        self._position = 0  # of the head in its block
        self._end = 0  # the number of the next line to come
        self._numbers: tuple[dict[str, list[int]], ...] = ({}, {}, {}, {})  # by kind, of each line
        self.head: tuple[int, str] | None = None
        self.stamp_s = 0.0
        self.first = 0
        self.finished = self.lapsed = self.meets = False
        self.row = 0

    @property
    def shown(self) -> Any:
        """What the head's run shows in its place."""
        return self._blocks[0].run.shown

    @property
    def is_open(self) -> bool:
        """Whether the head is a line without an end."""
        return self._blocks[0].run.is_open

    @property
    def patience_s(self) -> float:
        """How much later than usual other ranks may come with the head."""
        return self._blocks[0].run.patience_s

    def push(self, run: Run, stamp_s: float) -> None:
        """Add lines behind the others."""
        self._blocks.append(_Block(run, stamp_s))
        known = self._numbers[run.kind]
        for number, line in enumerate(run.lines, self._end):
            numbers = known.get(line)
            if numbers is None:
                known[line] = [number]
                continue
            numbers.append(number)
            if len(numbers) > _MOST_NUMBERS:
                del numbers[: bisect_left(numbers, self.first)]
        self._end += len(run.lines)
        if self.head is None:
            self.head, self.stamp_s = (run.kind, run.lines[0]), stamp_s

    def drop(self, count: int) -> None:
        """Take lines off the front, all of the head's block."""
        known = self._numbers[self._blocks[0].run.kind]
        for number, line in enumerate(self.block(count), self.first):
            if known[line][-1] == number:
                del known[line]
        self.first += count
        self._position += count
        if self._position == len(self._blocks[0].run.lines):
            self._blocks.popleft()
            self._position = 0
        self.head, self.meets = None, False
        if self._blocks:
            run, self.stamp_s = self._blocks[0]
            self.head = run.kind, run.lines[self._position]

    def has(self, line: tuple[int, str]) -> bool:
        """Whether such a line waits, anywhere in the queue."""
        return line[1] in self._numbers[line[0]]

    def distance(self, line: tuple[int, str]) -> int:
        """How many lines stand before the next such line, which waits here."""
        numbers = self._numbers[line[0]][line[1]]
        return numbers[bisect_left(numbers, self.first)] - self.first

    @property
    def together(self) -> int:
        """How many lines came together, the head and those behind it."""
        return len(self._blocks[0].run.lines) - self._position

    def block(self, most: int) -> list[str]:
        """The head and up to `most` lines in all that came along with it."""
        return self._blocks[0].run.lines[self._position : self._position + most]

    def stamp_of(self, number: int) -> float | None:
        """When a line came: the head or the one behind it. None if it has not come yet."""
        position = self._position + number - self.first
        for block in islice(self._blocks, 2):
            if position < len(block.run.lines):
                return block.stamp_s
            position -= len(block.run.lines)
        return None
