"""Too much text of one rank: what it may put in line, and what is kept of the rest.

This gate comes before merging, so that a flood costs little: lines are counted, and the latest
kept. The gate for the cell as a whole comes last, in `nbdist.views.outlet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from nbdist.views.lines import GAP, Run

LATEST_LINES = 200
LATEST_CHARS = 100_000
"""What is kept of a flood; of longer lines the last one alone."""

PERIOD_S = 1.0
"""How often a flooded live cell shows the latest lines."""

BURST_BYTES = 200_000
"""What a live cell may show at once."""

TOTAL_BYTES = 1_000_000
"""What a batch cell shows, its last lines apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one rank may put in line.

    Attributes:
        period_s: after which it starts anew.
    """

    lines: int
    chars: int
    period_s: float


def allowance(world_size: int, *, batch: bool) -> Allowance:
    """The allowance of each rank. That of many ranks is smaller: merging them costs more."""
    share = min(1.0, 8 / world_size)
    if batch:
        return Allowance(lines=int(20_000 * share), chars=TOTAL_BYTES, period_s=inf)
    return Allowance(lines=int(10_000 * share), chars=int(BURST_BYTES * share), period_s=PERIOD_S)


class Intake:
    """The gate of one rank."""

    def __init__(self, allowance: Allowance):
        self._allowance = allowance
        self._came_lines = self._came_chars = 0  # in this period
        self._left_out = 0
        self._latest: list[Run] = []
        self._latest_lines = self._latest_chars = 0
        self.flooded = False
        """Only the latest lines are kept."""

    def admit(self, run: Run) -> Run | None:
        """The part of a run that may be put in line; the rest is kept or left out."""
        lines, chars = self._came_lines, self._came_chars
        self._came_lines += len(run.lines)
        self._came_chars += sum(map(len, run.lines)) + len(run.lines)
        covered = self._came_lines <= self._allowance.lines and self._came_chars <= self._allowance.chars
        if covered and not self.flooded:
            return run
        admitted = 0 if self.flooded else self._room(run.lines, lines, chars)
        self.flooded = True
        self._keep(run._replace(lines=run.lines[admitted:]))
        return run._replace(lines=run.lines[:admitted]) if admitted else None

    def release(self) -> list[Run]:
        """What was kept, behind the gap that its loss left."""
        runs = self._latest = self._trimmed()
        if self._left_out:
            runs = [Run(GAP, ["gap"], self._left_out), *runs]
        self._left_out, self._latest, self._latest_lines, self._latest_chars = 0, [], 0, 0
        return runs

    def begin_period(self) -> None:
        """Start anew; a rank that printed more than half of its allowance is still in flood."""
        half_lines, half_chars = self._allowance.lines // 2, self._allowance.chars // 2
        self.flooded = self.flooded and (self._came_lines > half_lines or self._came_chars > half_chars)
        self._came_lines = self._came_chars = 0

    def _room(self, lines: Sequence[str], came_lines: int, came_chars: int) -> int:
        """How many lines the allowance has room for; the one that uses it up still passes."""
        admitted = 0
        for line in lines[: self._allowance.lines - came_lines]:
            if came_chars >= self._allowance.chars:
                break
            came_chars += len(line) + 1
            admitted += 1
        return admitted

    def _keep(self, run: Run) -> None:
        self._left_out += max(0, len(run.lines) - LATEST_LINES)
        run = run._replace(lines=run.lines[-LATEST_LINES:])
        self._latest.append(run)
        self._latest_lines += len(run.lines)
        self._latest_chars += sum(map(len, run.lines))
        if self._latest_lines > 2 * LATEST_LINES or self._latest_chars > 2 * LATEST_CHARS:
            self._latest = self._trimmed()
            self._latest_lines = sum(len(run.lines) for run in self._latest)
            self._latest_chars = sum(len(line) for run in self._latest for line in run.lines)

    def _trimmed(self) -> list[Run]:
        kept = latest(len(line) for run in reversed(self._latest) for line in reversed(run.lines))
        self._left_out += sum(len(run.lines) for run in self._latest) - kept
        runs: list[Run] = []
        for run in reversed(self._latest):
            if kept > 0:
                runs.insert(0, run._replace(lines=run.lines[-kept:]))
            kept -= len(run.lines)
        return runs


def latest(sizes: Iterable[int]) -> int:
    """How many of the latest lines are kept, given their sizes, the last line's first; at least one."""
    kept = chars = 0
    for size in sizes:
        chars += size
        if kept and (kept == LATEST_LINES or chars > LATEST_CHARS):
            break
        kept += 1
    return kept
