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

RATE_BYTES_PER_S = 100_000
"""What a live cell may show in the long run: Jupyter's server drops output above 1 MB/s, and a front end is
slow long before that."""

_BURST_LINES, _RATE_LINES_PER_S = 10_000, 2_500  # of one rank, in a live cell

TOTAL_BYTES = 1_000_000
"""What a batch cell shows, its last lines apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one rank may put in line.

    Attributes:
        lines, chars: at once.
        more_lines, more_chars: after each period, up to as many as at once.
        period_s: how long that is.
    """

    lines: int
    chars: int
    more_lines: int = 0
    more_chars: int = 0
    period_s: float = inf


def allowance(world_size: int, *, batch: bool) -> Allowance:
    """The allowance of each rank. That of many ranks is smaller: merging them costs more."""
    share = min(1.0, 8 / world_size)
    if batch:
        return Allowance(lines=int(20_000 * share), chars=TOTAL_BYTES)
    return Allowance(
        lines=int(_BURST_LINES * share),
        chars=int(BURST_BYTES * share),
        more_lines=int(_RATE_LINES_PER_S * PERIOD_S * share),
        more_chars=int(RATE_BYTES_PER_S * PERIOD_S * share),
        period_s=PERIOD_S,
    )


class Intake:
    """The gate of one rank."""

    def __init__(self, allowance: Allowance):
        self._allowance = allowance
        self._came_lines = self._came_chars = 0  # in this period
        self._spent_lines = self._spent_chars = 0  # of the allowance
        self._left_out = 0
        self._latest: list[Run] = []
        self._latest_lines = self._latest_chars = 0
        self.flooded = False
        """Only the latest lines are kept."""

    def admit(self, run: Run) -> Run | None:
        """The part of a run that may be put in line; the rest is kept or left out."""
        chars = sum(map(len, run.lines)) + len(run.lines)
        self._came_lines += len(run.lines)
        self._came_chars += chars
        if self.flooded:
            self._keep(run)
            return None
        lines_left = self._allowance.lines - self._spent_lines
        chars_left = self._allowance.chars - self._spent_chars
        self._spent_lines += len(run.lines)
        self._spent_chars += chars
        if len(run.lines) <= lines_left and chars <= chars_left:
            return run
        admitted = self._room(run.lines, lines_left, chars_left)
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
        """Some of the allowance is there again; a rank that printed more than that goes on being in flood."""
        more_lines, more_chars = self._allowance.more_lines, self._allowance.more_chars
        self.flooded = self.flooded and (self._came_lines > more_lines or self._came_chars > more_chars)
        self._spent_lines = max(0, min(self._spent_lines, self._allowance.lines) - more_lines)
        self._spent_chars = max(0, min(self._spent_chars, self._allowance.chars) - more_chars)
        self._came_lines = self._came_chars = 0

    @staticmethod
    def _room(lines: Sequence[str], lines_left: int, chars_left: int) -> int:
        """How many lines the allowance has room for; the one that uses it up still passes."""
        admitted = 0
        for line in lines[: max(0, lines_left)]:
            if chars_left <= 0:
                break
            chars_left -= len(line) + 1
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
