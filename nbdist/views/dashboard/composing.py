"""What is known of a run becomes a `Picture`: pure, but for the metrics, which are read where they lie."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple, cast

from nbdist.errors import Failure, ranks_phrase, ranks_text
from nbdist.messages import Standing
from nbdist.metrics import Metrics, shown
from nbdist.shell import MODULE
from nbdist.state import Bar, RankState, RunState
from nbdist.views.bars import bar_line, rate_of
from nbdist.views.dashboard.picture import (
    BarPicture,
    ChartPicture,
    FailurePicture,
    Gpu,
    Heading,
    Log,
    LogLine,
    Picture,
    RankPicture,
    RunWord,
)
from nbdist.views.doing import in_the_run
from nbdist.views.failure import fold_same
from nbdist.views.html import display_html
from nbdist.views.tail import Entry, Figure, Line, Tail

_STRAGGLES_S = 1.0
_MOST_CHARTS = 40
_LINE_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What of a run is known before it begins.

    Attributes:
        title: what it is called.
        devices: of each rank, as torch in the notebook would name them.
        models: what these are, in words: ``4 × NVIDIA H200``.
        cell: lines of the cell's text; empty for a call.
        logs: the folder of the run's logs.
        runs_on: the ranks that take part.
        in_background: whether a button can reach it, and its text is to be seen first.
        begun_s: when it began, by the same clock as Python's `time.time`.
    """

    title: str
    devices: Sequence[str]
    models: str
    cell: Sequence[str] = ()
    logs: str = ""
    runs_on: Sequence[int]
    in_background: bool = False
    begun_s: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended.

    Attributes:
        state: the run's last word.
        at_s: when, as `Facts.begun_s`.
    """

    state: RunWord
    at_s: float


class _Listed(NamedTuple):
    """An entry of the log as pictures have it.

    Attributes:
        is_whole: nothing is added to it any more.
    """

    entry: Entry
    number: int
    line: LogLine
    is_whole: bool


class _Steps(NamedTuple):
    """How far a rank was when it was last seen to go on, and when that was, monotonic."""

    made: tuple[object, ...]
    at_s: float


class Composer:
    """Makes pictures of one run."""

    def __init__(self, facts: Facts, metrics: Metrics):
        self._facts = facts
        self._metrics = metrics
        self._wall_s = time.time() - time.monotonic()  # what turns a rank's clock into one that pages know
        self._listed: dict[int, _Listed] = {}  # by the entry's id
        self._next_number = 0
        self._steps: dict[int, _Steps] = {}

    def picture(
        self,
        state: RunState,
        tail: Tail,
        *,
        pids: Sequence[int] = (),
        told: str = "",
        hint: str = "",
        interrupts: int = 0,
        ending: Ending | None = None,
    ) -> Picture:
        """The run now.

        Args:
            told: what the run does, where that is more than its state says.
            hint: what is to be done.
            interrupts: how often it has been asked to stop.
            ending: how it ended, once it did.
        """
        return Picture(
            heading=self._heading(state, told, hint, interrupts, ending),
            ranks=self._ranks(state, pids),
            bars={bar.progress.key: _bar(bar) for bar in state.bars},
            charts=self._charts(live=ending is None),
            log=self._log(tail, bars=bool(state.bars)),
            failures=_failures(state.failures),
        )

    def _heading(
        self, state: RunState, told: str, hint: str, interrupts: int, ending: Ending | None
    ) -> Heading:
        facts = self._facts
        word = ending.state if ending is not None else _word_of(state, interrupts)
        causes = [failure.rank for failure in state.failures if not failure.consequence]
        if not told and word == "failed" and causes:
            told = f"failed on {ranks_phrase(causes)}"
        button: Literal["interrupt", "stop"] | None = None
        if facts.in_background and ending is None and not state.settled:
            button = "stop" if interrupts else "interrupt"
        if not facts.in_background and ending is None:
            hint = hint or "The notebook's stop button interrupts it."
        ended_s = self._ended_s(state, ending)
        return Heading(
            title=facts.title,
            state=word,
            told=told or word,
            begun_ms=1000 * facts.begun_s,
            ended_ms=None if ended_s is None else 1000 * ended_s,
            world_size=len(facts.runs_on),
            devices=facts.models,
            button=button,
            hint=hint,
            logs=facts.logs,
            log_is_open=facts.in_background,
        )

    def _ended_s(self, state: RunState, ending: Ending | None) -> float | None:
        """When the last rank ended its work: what is done with the results then is not the run's time."""
        ranks = [state.ranks[rank] for rank in self._facts.runs_on]
        ends_s = [rank.finished_s for rank in ranks if rank.finished_s is not None]
        if state.settled and len(ends_s) == len(ranks) > 0:
            return max(self._wall_s + max(ends_s), self._facts.begun_s)
        return ending.at_s if ending is not None else None

    def _ranks(self, state: RunState, pids: Sequence[int]) -> dict[str, RankPicture]:
        late = _stragglers(state)
        shares = _shares(state.bars)
        self._look_for_steps(state)
        return {
            str(rank.rank): self._rank(rank, pids, late.get(rank.rank, ""), shares.get(rank.rank))
            for rank in state.ranks
            if rank.rank in self._facts.runs_on
        }

    def _rank(self, rank: RankState, pids: Sequence[int], straggler: str, share: float | None) -> RankPicture:
        word, told = in_the_run(rank)
        standing = rank.standing if word not in ("finished", "idle") else None
        if rank.failure is not None and rank.failure.cell_line is not None:
            line: int | None = rank.failure.cell_line
        else:
            line = standing.cell_line if standing is not None else None
        since_s = self._since_s(rank.rank, standing) if standing is not None else None
        rate = self._metrics.rate(rank.rank) if word not in _AT_REST else None
        usage = rank.usage
        cell = self._facts.cell
        return RankPicture(
            state=word,
            told=told,
            device=self._facts.devices[rank.rank],
            pid=pids[rank.rank] if rank.rank < len(pids) else 0,
            line=line,
            text=cell[line - 1].strip()[:_LINE_CHARS] if line is not None and 0 < line <= len(cell) else "",
            function=standing.function if standing is not None and standing.function != MODULE else "",
            since_ms=None if since_s is None else round(1000 * (since_s + self._wall_s)),
            cpu=None if usage is None else round(usage.cpu, 2),
            memory_bytes=None if usage is None else usage.memory_bytes,
            gpu=None if usage is None or usage.gpu is None else cast(Gpu, asdict(usage.gpu)),
            metrics={name: shown(value) for name, value in self._metrics.last(rank.rank).items()},
            rate=_rate_text(rate, "steps/s"),
            share=share,
            straggler=straggler,
        )

    def _look_for_steps(self, state: RunState) -> None:
        """A loop comes to the same line again and again: a rank that logs or whose bar moves is not at its
        line for as long as it has been seen there."""
        bars = state.bars
        for rank in self._facts.runs_on:
            done = (bar.parts[rank].done for bar in bars if rank in bar.parts)
            made = (self._metrics.given(rank), *done)
            known = self._steps.get(rank)
            if known is None or known.made != made:
                self._steps[rank] = _Steps(made, time.monotonic() if known is not None else 0.0)

    def _since_s(self, rank: int, standing: Standing) -> float | None:
        """Since when a rank is where it stands."""
        if standing.since_s is not None or standing.came_s is None:
            return standing.since_s
        return max(standing.came_s, self._steps[rank].at_s)

    def _charts(self, *, live: bool) -> dict[str, ChartPicture]:
        return self._metrics.charts(_MOST_CHARTS, live=live)

    def _log(self, tail: Tail, *, bars: bool) -> Log:
        entries = tail.entries
        if bars and entries and isinstance(entries[-1], Line) and entries[-1].is_open:
            entries = entries[:-1]  # the bars as text
        self._listed = {id(entry): self._list(entry) for entry in entries}
        listed = self._listed.values()
        return Log(
            first=min((each.number for each in listed), default=self._next_number),
            lines={str(each.number): each.line for each in listed},
            left_out=tail.left_out,
        )

    def _list(self, entry: Entry) -> _Listed:
        known = self._listed.get(id(entry))
        if known is None or known.entry is not entry:
            number = self._next_number
            self._next_number += 1
        elif known.is_whole:
            return known
        else:
            number = known.number
        is_whole = not (isinstance(entry, Line) and entry.is_open)  # asked before its text is read
        return _Listed(entry, number, _log_line(entry), is_whole)


def _log_line(entry: Entry) -> LogLine:
    ranks, of = ranks_text(entry.ranks), list(entry.ranks)
    if isinstance(entry, Figure):
        return LogLine(ranks=ranks, of=of, kind="html", text=display_html(entry.display))
    return LogLine(ranks=ranks, of=of, kind=entry.stream, text=entry.text[-_LINE_CHARS:])


_AT_REST = ("finished", "failed", "interrupted", "dead", "idle")


def _word_of(state: RunState, interrupts: int) -> RunWord:
    if state.failures:
        return "failed"
    if state.settled:
        was_stopped = interrupts or any(rank.outcome == "interrupted" for rank in state.ranks)
        return "interrupted" if was_stopped else "finished"
    if any(rank.phase == "starting" for rank in state.ranks):
        return "starting"
    return "running"


def _stragglers(state: RunState) -> dict[int, str]:
    """Ranks for which all others have waited for a while, with what is to be said of them."""
    waiting: dict[int, float] = {}
    for rank in state.ranks:
        standing = rank.standing
        if rank.phase == "running" and standing is not None and standing.collective is not None:
            waiting[rank.rank] = standing.since_s or 0.0
    late = set(state.working) - waiting.keys()
    if not waiting or time.monotonic() - max(waiting.values()) < _STRAGGLES_S:
        return {}
    verb = "waits" if len(waiting) == 1 else "wait"
    return dict.fromkeys(late, f"{ranks_phrase(sorted(waiting))} {verb} for it")


def _shares(bars: Sequence[Bar]) -> dict[int, float]:
    """How much of the outermost bar each rank has done."""
    shares: dict[int, float] = {}
    for bar in bars:
        for rank, part in bar.parts.items():
            if part.total and rank not in shares:
                shares[rank] = min(part.done / part.total, 1.0)
    return shares


def _bar(bar: Bar) -> BarPicture:
    progress = bar.progress
    rate = rate_of(progress)
    left_s = (progress.total - progress.done) / rate if rate and progress.total else None
    return BarPicture(
        label=progress.label,
        text=bar_line(progress),
        done=progress.done,
        total=progress.total,
        left_s=None if left_s is None else round(max(left_s, 0.0)),
        rate=_rate_text(rate, "it/s"),
        ranks=ranks_text(tuple(sorted(bar.parts))),
        by_rank={str(rank): part.done for rank, part in sorted(bar.parts.items())},
    )


def _rate_text(rate: float | None, unit: str) -> str:
    """Three digits, or all that are before the point."""
    if not rate:
        return ""
    return f"{rate:,.0f} {unit}" if rate >= 999.5 else f"{rate:.3g} {unit}"


def _failures(failures: Sequence[Failure]) -> list[FailurePicture]:
    """Those that are alike as one."""
    causes = [failure for failure in failures if not failure.consequence]
    consequences = [failure for failure in failures if failure.consequence]
    return [
        FailurePicture(
            ranks=ranks_text(sorted(failure.rank for failure in group)),
            line=group[0].cell_line,
            title=group[0].summary,
            traceback="\n".join(group[0].traceback),
            consequence=group[0].consequence,
        )
        for group in (*fold_same(causes), *fold_same(consequences))
    ]


def models_text(models: Sequence[str]) -> str:
    """Devices in words.

    >>> models_text(["NVIDIA H200", "NVIDIA H200"])
    '2 × NVIDIA H200'
    """
    counts = Counter(models)
    told = (
        f"{count} × {model}" if count > 1 and model != "CPU" else model for model, count in counts.items()
    )
    return ", ".join(told)
