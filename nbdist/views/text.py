"""Text and displays of all ranks become the output of one cell.

A piece of text goes through these rooms: `lines` (whole lines), `flood` (not too many of one
rank), `merge` (one order for all ranks, common lines once), `outlet` (not too many for the cell),
`items` (as few messages as can be). All is pure: time is told, nothing is read or written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from nbdist import messages
from nbdist.state import Bar
from nbdist.views.ansi import Painter
from nbdist.views.bars import bar_line, bars_in_view, may_still_come, status_of
from nbdist.views.displays import Displays
from nbdist.views.flood import Intake, allowance
from nbdist.views.items import Entry, Item, Shown, Stream, as_items, with_few_turns
from nbdist.views.lines import DISPLAY, GAP, STDERR, STDOUT, LineAssembler, Run
from nbdist.views.merge import Merged, Merger
from nbdist.views.outlet import BatchOutlet, LiveOutlet, Outlet
from nbdist.views.status import MOST_CHARS, Status, StatusLine, fitted

__all__ = ["Item", "Shown", "Stream", "TextView"]

LIVE_WINDOW_S = 0.1
BATCH_WINDOW_S = 2.0

# How often the streams may take turns in one `take`: each turn is a message to the front end.
_LIVE_TURNS = 4
_BATCH_TURNS = 100
_MOST_NAMED = 1_000

_KINDS: dict[messages.Stream, int] = {"stdout": STDOUT, "stderr": STDERR}


class TextView:
    """Takes what ranks print and show; gives out what the cell shows of it.

    A line that all ranks printed appears once and bare, any other with its ranks before it. Lines
    are never torn and each rank's order is kept.

    Args:
        world_size: the number of ranks.
        ranks: what they are called, where that is not 0 to `world_size` - 1.
        batch: nobody watches: no status line, and the same output whenever ranks print the same.
        logs: whose text and displays are shown.
        log_dir: where all text is whole: named when lines are left out.
        bars: whether progress bars that go on have a line; if something else shows them, only those that
            have ended do.
        window_s: how far apart in time ranks may print a line and still have it in common; None
            is 0.1, and 2.0 for batch.
        status_chars: how long the line that updates in place may be.

    Raises:
        ValueError: `world_size` is less than 1, or `logs` is not one of the three.

    >>> view = TextView(2, batch=False)
    >>> for rank in (0, 1):
    ...     view.text(rank, "stdout", f"loading\\nloss 0.{rank}\\n", now_s=0.0)
    >>> view.take(now_s=0.0)
    [Stream(stream='stdout', text='loading\\n', ranks=())]
    >>> [item.labelled for item in view.take(now_s=0.1)]
    ['[0] loss 0.0\\n', '[1] loss 0.1\\n']
    """

    def __init__(
        self,
        world_size: int,
        *,
        ranks: Sequence[int] | None = None,
        batch: bool,
        logs: Literal["all", "rank0", "none"] = "all",
        log_dir: str = "",
        bars: bool = True,
        window_s: float | None = None,
        status_chars: int = MOST_CHARS,
    ):
        if world_size < 1:
            raise ValueError(f"world_size is {world_size}: pass 1 or more")
        shown = {"all": world_size, "rank0": 1, "none": 0}.get(logs)
        if shown is None:
            raise ValueError(f"logs is {logs!r}: pass 'all', 'rank0' or 'none'")
        if window_s is None:
            window_s = BATCH_WINDOW_S if batch else LIVE_WINDOW_S
        # Inside, ranks are counted: the how manieth of those that are shown.
        self._called = list(range(world_size) if ranks is None else ranks)[:shown]
        self._place = {rank: place for place, rank in enumerate(self._called)}
        self._batch = batch
        self._window_s = window_s
        self._allowance = allowance(world_size, batch=batch)
        self._assemblers = [(LineAssembler(STDOUT), LineAssembler(STDERR)) for _ in range(shown)]
        self._intakes = [Intake(self._allowance) for _ in range(shown)]
        self._named: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._merger = Merger(shown, window_s)
        live = LiveOutlet(log_dir)
        self._outlet: Outlet = BatchOutlet(log_dir) if batch else live
        self._direct = live if shown == 1 and not batch else None  # one rank's text goes through as it comes
        self._painter = Painter()
        self._coloured = False  # until then the painter has nothing to do
        self._status = StatusLine()
        self._displays = Displays()
        self._open_line: Merged | None = None  # it gets an end unless a display does that
        self._bars: Sequence[Bar] = ()
        self._draws_bars = bars
        self._status_chars = status_chars
        self._ended_bars: dict[str, dict[int, messages.Progress]] = {}  # that other ranks still have open
        self._queued_bars: Counter[str] = Counter()  # ends that the merger has
        self._now_s = float("-inf")
        self._period_end_s = float("-inf")

    def text(self, rank: int, stream: messages.Stream, text: str, now_s: float) -> None:
        """Take a piece of text, of any form: parts of lines, many lines, returns, colours.

        Args:
            now_s: the time, on any clock that does not go back; the same for all methods.
        """
        place = self._place.get(rank)
        if place is None or not text:
            return
        self._tick(now_s)
        kind, intake = _KINDS[stream], self._intakes[place]
        if self._direct is not None:
            self._direct.pass_on(kind, text)
            return
        self._coloured |= "\x1b" in text and len(self._called) > 1
        for run in self._assemblers[place][kind].feed(text, self._now_s):
            admitted = intake.admit(run)
            if admitted is not None:
                self._merger.push(place, admitted, self._now_s)
        self._write_merged()

    def display(self, rank: int, display: object, now_s: float) -> None:
        """Take a display: it keeps its place among the rank's lines, and equal ones are shown once."""
        place = self._place.get(rank)
        if place is None:
            return
        self._tick(now_s)
        if self._direct is not None:
            self._direct.show(Shown((), display))
            return
        if isinstance(display, messages.Display) and display.kind == "update":  # it has its place already
            if self._intakes[place].flooded:
                self._release(place)
        else:
            self._complete(place)
        patience_s = 0.0 if self._batch else self._displays.patience_s(place, display)
        run = Run(DISPLAY, [self._displays.name(place, display)], display, patience_s=patience_s)
        self._merger.push(place, run, self._now_s)
        self._write_merged()

    def bars(self, bars: Sequence[Bar], now_s: float) -> None:
        """Take the progress bars that are open now: they stand on the line that updates in place."""
        self._tick(now_s)
        shown = (bar.among(self._place) for bar in bars)
        self._bars = [bar for bar in shown if bar is not None]
        self._write_ended_bars()

    def bar_ended(self, rank: int, progress: messages.Progress, now_s: float) -> None:
        """Take a bar that has ended and stays: a line, in its place among the rank's, and the same one
        for all ranks that have it, shown when the last of them has come to its end."""
        place = self._place.get(rank)
        if place is None:
            return
        self._tick(now_s)
        kind = _KINDS[progress.stream]
        if self._direct is not None:
            begin = "\n" if self._direct.line_is_open else ""
            self._direct.pass_on(kind, f"{begin}{bar_line(progress)}\n")
            return
        if self._intakes[place].flooded:
            self._release(place)
        self._queued_bars[progress.key] += 1
        self._merger.push(place, Run(kind, ["\r" + progress.key], progress), self._now_s)
        self._write_merged()

    def finished(self, rank: int) -> None:
        """The rank prints nothing more: nobody waits for it. (If it does print, that is shown.)"""
        if rank in self._place:
            self._merger.finish(self._place[rank], self._now_s)
            self._write_merged()

    def take(self, now_s: float) -> list[Item]:
        """What may be shown now."""
        self._tick(now_s)
        entries = self._outlet.take(self._now_s)
        return self._items(entries, self._wanted_status(beside=entries))

    def close(self, now_s: float) -> list[Item]:
        """All that is left, lines without an end included.

        When the very last line is everybody's and has no end, it is given out without one.
        """
        self._tick(now_s)
        self._merger.reopen()  # nothing is decided before every rank is complete
        for place in self._place.values():
            self._complete(place)
        for place in self._place.values():
            self._merger.finish(place, self._now_s)
        self._write_merged()
        self._bars = ()
        self._write_ended_bars()
        for shown in self._displays.left():
            self._outlet.show(Shown(self._names(tuple(shown.ranks)), shown.display))
        self._write_open_line(end="")
        return self._items(self._outlet.close(), None)

    def next_due_s(self) -> float | None:
        """When `take` will give something though nothing more comes; None when it never will."""
        times = [self._merger.due_s, self._outlet.due_s(), self._status_due_s()]
        if not self._batch and any(intake.flooded for intake in self._intakes):
            times.append(self._period_end_s)
        return min((time_s for time_s in times if time_s is not None), default=None)

    def _tick(self, now_s: float) -> None:
        """Do what has become due by itself, before anything that comes later is looked at."""
        self._now_s = max(self._now_s, now_s)
        if self._merger.due_s is not None and self._merger.due_s <= self._now_s:
            self._merger.advance(self._now_s)
            self._write_merged()
        if self._now_s >= self._period_end_s:
            self._period_end_s = self._now_s + self._allowance.period_s
            for place, intake in enumerate(self._intakes):
                was_flooded = intake.flooded
                intake.begin_period()
                if was_flooded:
                    self._release(place)

    def _release(self, place: int) -> None:
        """Put in line what was kept of a rank's flood."""
        for run in self._intakes[place].release():
            self._merger.push(place, run, self._now_s)
        self._write_merged()

    def _complete(self, place: int) -> None:
        """Put in line all that is left of a rank, lines without an end included."""
        if self._intakes[place].flooded:
            self._release(place)
        assemblers = sorted(self._assemblers[place], key=lambda assembler: assembler.since_s)
        for run in [run for assembler in assemblers for run in assembler.finish()]:
            self._merger.push(place, run, self._now_s)

    def _write_merged(self) -> None:
        """Send merged lines on to the outlet."""
        for merged in self._merger.take():
            self._write_open_line(end="" if merged.kind == DISPLAY else "\n")
            if merged.kind == GAP:
                self._outlet.gap(sum(merged.shown))
            elif merged.kind == DISPLAY:
                for shown in self._displays.merged(merged.ranks, merged.shown):
                    self._outlet.show(Shown(self._names(tuple(shown.ranks)), shown.display))
            elif merged.shown and isinstance(merged.shown[0], messages.Progress):
                key = merged.shown[0].key
                self._ended_bars.setdefault(key, {}).update(
                    zip(self._names(merged.ranks), merged.shown, strict=True)
                )
                self._queued_bars[key] -= len(merged.ranks)
                self._write_ended_bars()
            elif merged.is_open:
                self._open_line = merged
            else:
                self._write_lines(merged)

    def _write_ended_bars(self) -> None:
        """Bars that no other rank has open any more."""
        for key, parts in list(self._ended_bars.items()):
            bar = Bar(parts=parts)
            if self._queued_bars[key] or may_still_come(bar.progress, self._bars):
                continue
            del self._ended_bars[key], self._queued_bars[key]
            kind, ranks = _KINDS[bar.progress.stream], self._worth_a_label(sorted(bar.parts))
            self._outlet.put(kind, f"{bar_line(bar.progress)}\n", ranks)

    def _names(self, places: tuple[int, ...]) -> tuple[int, ...]:
        named = self._named.get(places)  # asked for each line, of the same few places
        if named is None:
            if len(self._named) > _MOST_NAMED:
                self._named.clear()
            named = self._named[places] = tuple([self._called[place] for place in places])
        return named

    def _worth_a_label(self, ranks: Sequence[int]) -> tuple[int, ...]:
        return () if len(ranks) == len(self._called) else tuple(ranks)

    def _write_open_line(self, end: str) -> None:
        merged, self._open_line = self._open_line, None
        if merged is not None:
            self._write_lines(merged, end)

    def _write_lines(self, merged: Merged, end: str = "\n") -> None:
        ranks = self._worth_a_label(self._names(merged.ranks))
        for line in merged.shown[:1] or merged.lines:
            if self._coloured:
                line = self._painter.line(merged.ranks, merged.kind, line)
            self._outlet.put(merged.kind, f"{line}{end}", ranks)

    def _items(self, entries: list[Entry], status: Status | None) -> list[Item]:
        entries = with_few_turns(entries, _BATCH_TURNS if self._batch else _LIVE_TURNS)
        return as_items(self._status.around(entries, status))

    def _wanted_status(self, beside: Sequence[Entry]) -> Status | None:
        """Bars that are open; else the unfinished line of the lowest rank that has one for longer than
        the window."""
        if self._batch:
            return None
        if self._bars and self._draws_bars and not (self._direct is not None and self._direct.line_is_open):
            bars = bars_in_view(self._bars)
            kind = _KINDS[bars[0].progress.stream]
            text, ranks = status_of(bars)
            return fitted(self._place[min(bars[0].parts)], kind, text, ranks, self._status_chars)
        if self._direct is not None:
            return None
        shown = self._status.shown
        for place, assemblers in enumerate(self._assemblers):
            for assembler in assemblers:
                text = assembler.unfinished if assembler.since_s + self._window_s <= self._now_s else ""
                if text.strip():
                    ranks = (self._called[place],) if place else ()
                    return fitted(place, assembler.kind, text, ranks, self._status_chars)
            if shown is not None and shown.place == place and self._merger.waits(place) and not beside:
                return shown  # the line has got its end, and stays until it comes as a line
        return None

    def _status_due_s(self) -> float | None:
        if self._batch:
            return None
        if self._wanted_status(beside=()) != self._status.shown:
            return self._now_s
        if self._direct is not None:
            return None
        begun = [a.since_s for pair in self._assemblers for a in pair if a.unfinished.strip()]
        return min((s + self._window_s for s in begun if s + self._window_s > self._now_s), default=None)
