"""The numbers that a run logs: kept within bounds, drawn as charts, given as a table.

One thread adds and others read. `Metrics` holds a lock for as long as it takes to copy what is new.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from nbdist.figures import Logged

Floats = npt.NDArray[np.float64]

MOST_NUMBERS = 2_000_000
_MOST_NAMES = 1_000
_MOST_LINES = 8
_RATE_S = 10.0
_SAMPLE_EVERY_S = 0.5
_REST = 20  # times as long as a chart took it is good enough for a live view


Shown: TypeAlias = "float | Literal['nan', 'inf', '-inf']"
"""A number as JSON bears it: one that is not finite is the word for it."""


class Chart(TypedDict):
    """A metric over steps, decimated: one entry per place on the x axis, None where there is no number.

    Attributes:
        x: steps, ascending; at most some hundred.
        mean: over ranks, and over all the steps that one entry stands for; not finite if one of these is not.
        low, high: of those that are finite, if any is.
        lines: each rank's own mean, by rank; empty where there are too many ranks.
        points: how many numbers were given.
        x_label: ``step``, or ``call`` where no step was given.
    """

    x: list[float]
    mean: list[Shown | None]
    low: list[Shown | None]
    high: list[Shown | None]
    lines: dict[str, list[Shown | None]]
    points: int
    x_label: str


class Metrics:
    """All numbers of one run.

    Attributes:
        thinned: whether numbers have been dropped for memory's sake: of four that follow each other the
            smallest and the largest stay.
        points: how many numbers were given.

    Example:
        >>> metrics = Metrics()
        >>> metrics.add(0, Logged(by_step={"loss": array("d", [1, 0.0, 0.5]).tobytes()}))
        >>> metrics.last(0)
        {'loss': 0.5}
    """

    def __init__(self, most: int = MOST_NUMBERS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._tables: dict[str, _Table] = {}
        self._last: dict[int, dict[str, float]] = {}
        self._beats: dict[int, dict[str, _Beat]] = {}
        self._given: Counter[int] = Counter()  # by rank
        self._kept = 0
        self._charts: dict[tuple[str, int], _Known] = {}
        self._good_until_s = 0.0
        self._begun_s = time.time()
        self.thinned = False
        self.points = 0

    def add(self, rank: int, logged: Logged) -> None:
        """Take what a rank has logged."""
        with self._lock:
            for name, packed, by_step in _columns(logged):
                table = self._tables.get(name)
                if table is None:
                    if len(self._tables) >= _MOST_NAMES:  # names with a number in them, say
                        self.thinned = True
                        continue
                    table = self._tables[name] = _Table()
                numbers = array("d", packed)
                table.add(rank, numbers, by_step=by_step)
                self._last.setdefault(rank, {})[name] = numbers[-1]
                beat = self._beats.setdefault(rank, {}).setdefault(name, _Beat())
                beat.add(numbers[-2], numbers[-3], len(numbers) // 3)
                self.points += len(numbers) // 3
                self._given[rank] += len(numbers) // 3
                self._kept += len(numbers) // 3
            if self._kept > self._most:
                self._thin()

    def _thin(self) -> None:
        self.thinned = True
        for table in self._tables.values():
            table.thin()
        self._kept = sum(len(table.ranks) for table in self._tables.values())

    def names(self) -> list[str]:
        """All metrics, in the order in which they came."""
        with self._lock:
            return list(self._tables)

    def last(self, rank: int) -> dict[str, float]:
        """A rank's latest number of each metric."""
        with self._lock:
            return dict(self._last.get(rank, {}))

    def given(self, rank: int) -> int:
        """How many numbers a rank has given."""
        with self._lock:
            return self._given[rank]

    def rate(self, rank: int, now_s: float | None = None) -> float | None:
        """Steps a second of a rank over its last ten seconds, or its last two numbers; None where it has not
        logged twice, or no longer does.

        Args:
            now_s: seconds since 1970; None is now.
        """
        now_s = time.time() if now_s is None else now_s
        with self._lock:
            beats = [beat for beat in self._beats.get(rank, {}).values() if beat.is_alive(now_s)]
            return max(beats, key=_Beat.count, default=_Beat()).rate()

    def charts(self, most: int, width: int = 300, *, live: bool = False) -> dict[str, Chart]:
        """The first metrics over steps, all of the same moment. See `chart`.

        Args:
            most: how many.
            live: whether the former ones do where drawing takes more than a twentieth of the time.
        """
        begun_s = time.monotonic()
        with self._lock:
            names = list(self._tables)[:most]
            if live and begun_s < self._good_until_s:
                known = {name: self._charts.get((name, width)) for name in names}
                return {name: one.chart for name, one in known.items() if one is not None}
            until = {name: (self._tables[name].points, len(self._tables[name].ranks)) for name in names}
        charts = {name: self._chart(name, width, *until[name]) for name in names}
        now_s = time.monotonic()
        self._good_until_s = now_s + _REST * (now_s - begun_s)
        return charts

    def chart(self, name: str, width: int = 300) -> Chart:
        """A metric over steps, with `width` places on the x axis at most. The same object as before where
        nothing has come since.

        Raises:
            KeyError: there is no such metric.
        """
        with self._lock:
            table = self._tables[name]
            until = table.points, len(table.ranks)
        return self._chart(name, width, *until)

    def _chart(self, name: str, width: int, points: int, kept: int) -> Chart:
        """Of the first `points` numbers, of which `kept` are there."""
        with self._lock:
            known = self._charts.get((name, width))
            if known is not None and known.points == points:
                return known.chart
            table = self._tables[name]
            label = "step" if table.has_steps else "call"
            ranks, steps, _, values = table.columns()
        chart = _drawn(ranks[:kept], steps[:kept], values[:kept], width)
        chart["points"], chart["x_label"] = points, label
        with self._lock:
            self._charts[name, width] = _Known(points, chart)
        return chart

    def rows(self) -> list[dict[str, float]]:
        """A row for each step of each rank, by step: step, rank, time_s since the run began, the metrics."""
        rows: dict[tuple[float, float, int], dict[str, float]] = {}
        with self._lock:
            columns = {name: table.columns() for name, table in self._tables.items()}
        for name, (ranks, steps, times, values) in columns.items():
            seen: dict[tuple[float, float], int] = {}  # of a step that was logged several times each is a row
            listed = zip(ranks.tolist(), steps.tolist(), times.tolist(), values.tolist(), strict=True)
            for rank, step, time_s, value in listed:
                number = seen[step, rank] = seen.get((step, rank), -1) + 1
                row = rows.setdefault((step, rank, number), {"step": step, "rank": int(rank)})
                row.setdefault("time_s", time_s - self._begun_s)
                row[name] = value
        return [_with_whole_step(rows[key]) for key in sorted(rows)]

    def history(self) -> Any:
        """`rows` as a DataFrame, if pandas is installed; else as they are."""
        rows = self.rows()
        if importlib.util.find_spec("pandas") is None:
            return rows
        import pandas

        return pandas.DataFrame(rows, columns=["step", "rank", "time_s", *self.names()])


def _columns(logged: Logged) -> Iterator[tuple[str, bytes, bool]]:
    for own, by_step in ((logged.by_step, True), (logged.by_call, False)):
        for name, packed in own.items():
            yield name, packed, by_step


def _with_whole_step(row: dict[str, float]) -> dict[str, float]:
    if row["step"].is_integer():
        row["step"] = int(row["step"])
    return row


class _Known(NamedTuple):
    """A chart that has been drawn, of so many numbers."""

    points: int
    chart: Chart


class _Table:
    """One metric's numbers of all ranks, in the order in which they came."""

    def __init__(self) -> None:
        self.ranks = array("i")
        self.numbers = array("d")  # step, time, value
        self.has_steps = False
        self.points = 0

    def add(self, rank: int, numbers: array[float], *, by_step: bool) -> None:
        self.numbers.extend(numbers)
        self.ranks.extend(array("i", [rank]) * (len(numbers) // 3))
        self.has_steps |= by_step
        self.points += len(numbers) // 3

    def columns(self) -> tuple[npt.NDArray[np.intc], Floats, Floats, Floats]:
        """Copies of: ranks, steps, times, values."""
        # Not from the arrays' own memory: who lists all objects of the process (a cell that is forked does)
        # would keep that view for a moment, and an array that is viewed cannot grow.
        numbers = np.frombuffer(self.numbers.tobytes()).reshape(-1, 3)
        return np.frombuffer(self.ranks.tobytes(), np.intc), numbers[:, 0], numbers[:, 1], numbers[:, 2]

    def thin(self) -> None:
        """Of four numbers of a rank that follow each other keep the smallest and the largest."""
        ranks, steps, times, values = self.columns()
        numbers = np.stack([steps, times, values], axis=1)
        order = np.argsort(ranks, kind="stable")
        keep = []
        for own in np.split(order, np.flatnonzero(np.diff(ranks[order])) + 1):
            whole = own[: len(own) - len(own) % 4].reshape(-1, 4)
            by_size = np.argsort(values[whole], axis=1)[:, [0, 3]]
            keep += [np.take_along_axis(whole, by_size, axis=1).ravel(), own[len(whole) * 4 :]]
        kept = np.sort(np.concatenate(keep))
        self.ranks = array("i", ranks[kept].tobytes())
        self.numbers = array("d", numbers[kept].tobytes())


class _Beat:
    """How fast a rank goes through its steps, by one metric."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float, int]] = deque()  # time, step, numbers until then
        self._numbers = 0

    def add(self, time_s: float, step: float, numbers: int) -> None:
        self._numbers += numbers
        samples = self._samples
        if len(samples) >= 2 and time_s - samples[-2][0] < _SAMPLE_EVERY_S:
            samples.pop()
        samples.append((time_s, step, self._numbers))
        while len(samples) > 2 and time_s - samples[1][0] > _RATE_S:
            samples.popleft()

    def count(self) -> int:
        """Numbers in the time that it looks at."""
        return self._samples[-1][2] - self._samples[0][2] if self._samples else 0

    def is_alive(self, now_s: float) -> bool:
        """Whether the next number is not long overdue."""
        passed_s = self._samples[-1][0] - self._samples[0][0]
        usual_s = passed_s / max(1, self.count())
        return now_s - self._samples[-1][0] <= max(_RATE_S, 3 * usual_s)

    def rate(self) -> float | None:
        if len(self._samples) < 2:
            return None
        (begun_s, first, _), (ended_s, last, _) = self._samples[0], self._samples[-1]
        steps = last - first if last > first else float(self.count())  # steps that begin anew with each epoch
        return steps / (ended_s - begun_s) if ended_s > begun_s else None


def _drawn(ranks: npt.NDArray[np.intc], steps: Floats, values: Floats, width: int) -> Chart:
    """A chart of all numbers: of each rank's in one place of the x axis the mean."""
    place, count = _places(steps, width)
    x = np.full(count, -np.inf)
    np.maximum.at(x, place, steps)
    finite = np.isfinite(values)
    some = np.bincount(place[finite], minlength=count) > 0
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, place[finite], values[finite])
    np.maximum.at(high, place[finite], values[finite])
    lines: dict[str, list[Shown | None]] = {}
    there = np.unique(ranks).tolist()
    if len(there) <= _MOST_LINES:
        own = {rank: ranks == rank for rank in there}
        lines = {str(rank): _means(place[mine], values[mine], count) for rank, mine in own.items()}
    mean = _means(place, values, count)
    return Chart(
        x=[int(step) if step.is_integer() else step for step in x.tolist()],
        mean=mean,
        low=[own if any_ else word for own, any_, word in zip(low.tolist(), some, mean, strict=True)],
        high=[own if any_ else word for own, any_, word in zip(high.tolist(), some, mean, strict=True)],
        lines=lines,
        points=len(values),
        x_label="step",
    )


def _places(steps: Floats, width: int) -> tuple[npt.NDArray[np.intp], int]:
    """For each step its place on the x axis, and how many there are: one for each, if they are few."""
    first, last = float(steps.min()), float(steps.max())
    # Places of equal width, and then those alone that have a number.
    rough = np.minimum((steps / 2 - first / 2) / max(last / 2 - first / 2, 1e-300) * width, width - 1)
    rough = rough.astype(np.intp)
    taken = np.bincount(rough, minlength=width) > 0
    places = (np.cumsum(taken) - 1)[rough]
    few = np.unique(steps[:: max(1, len(steps) // (4 * width))])
    if len(few) <= width:
        exact = np.unique(steps)
        if len(exact) <= width:
            return np.searchsorted(exact, steps), len(exact)
    return places, int(taken.sum())


def _means(place: npt.NDArray[np.intp], values: Floats, count: int) -> list[Shown | None]:
    """Of each place; None where there is no number."""
    numbers = np.bincount(place, minlength=count)
    with np.errstate(all="ignore"):
        means = np.bincount(place, values, minlength=count) / numbers
        if not np.isfinite(means).all():  # sums of large numbers are too large for one
            means = np.where(np.isinf(means), np.bincount(place, values / numbers[place], count), means)
    return [shown(mean) if any_ else None for mean, any_ in zip(means.tolist(), numbers, strict=True)]


def shown(number: float) -> Shown:
    """A number as JSON bears it.

    >>> shown(0.5), shown(float("nan")), shown(float("-inf"))
    (0.5, 'nan', '-inf')
    """
    if math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"


def as_json(rows: list[dict[str, float]]) -> list[Mapping[str, float | None]]:
    """Rows without what JSON does not know: not a number and infinity become null."""
    return [{name: value if np.isfinite(value) else None for name, value in row.items()} for row in rows]


def iso_time(seconds: float) -> str:
    """A moment in seconds since 1970 as ISO 8601 writes it, in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a JSON file that is whole or not there."""
    target = Path(path)
    text = json.dumps(content, indent=1, allow_nan=False)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
