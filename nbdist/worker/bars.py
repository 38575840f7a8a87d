"""Progress bars of a rank, from whatever library, on their way to the one bar of all ranks.

A library's bar is not shown: what it says is sent as `Progress`. How it is heard: tqdm's text bars and
rich's in `nbdist.worker.drawn`, widgets in `nbdist.worker.widgets`, bars in HTML in `nbdist.worker.markup`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import replace
from typing import NoReturn

from nbdist.messages import Progress, Stream
from nbdist.worker.capture import Outbox

_NUMBER = re.compile(r"\d+")


class Bars:
    """The bars of one rank."""

    def __init__(self, outbox: Outbox):
        self._outbox = outbox
        self._counts: Counter[str] = Counter()
        self._open: dict[str, Bar] = {}

    @property
    def in_rank(self) -> bool:
        """False in a child that the rank forked: its bars are text."""
        return self._outbox.in_owner

    def __reduce__(self) -> NoReturn:
        """What holds a bar stays on its rank."""
        raise TypeError("a progress bar works only on its own rank")

    def begin(self, label: str, stream: Stream = "stdout") -> Bar:
        """A new bar. Bars of other ranks whose label differs in its numbers alone are one with it."""
        name = _NUMBER.sub("#", label)
        self._counts[name] += 1
        number, order = self._counts[name], self._counts.total()
        bar = Bar(Progress(name=name, number=number, order=order, label=label, stream=stream), self)
        self._open[bar.key] = bar
        return bar

    def end_all(self) -> None:
        """The rank's work has ended: bars that are still open stay as they are."""
        for bar in list(self._open.values()):
            bar.end(kept=True)
        self._counts.clear()

    def send(self, progress: Progress) -> None:
        """Say how far a bar is."""
        if progress.phase != "open":
            self._open.pop(progress.key, None)
        if self.in_rank:
            self._outbox.progress(progress)


class Bar:
    """One bar, from its first draw to its end."""

    def __init__(self, progress: Progress, bars: Bars):
        self._progress = progress
        self._bars = bars
        self._begun_s = time.monotonic()
        self.key = progress.key

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self._progress.phase == "open"

    @property
    def is_full(self) -> bool:
        """Whether it has come to its total."""
        return self._progress.total is not None and self._progress.done >= self._progress.total

    @property
    def done(self) -> float:
        """How far it is."""
        return self._progress.done

    def show(
        self, *, label: str, done: float, total: float | None, detail: str = "", drawn: str = ""
    ) -> None:
        """It is so far now."""
        self._progress = replace(
            self._progress,
            label=label,
            done=done,
            total=total or None,
            detail=detail,
            drawn=drawn,
            elapsed_s=time.monotonic() - self._begun_s,
        )
        self._bars.send(self._progress)

    def end(self, *, kept: bool) -> None:
        """It is over.

        Args:
            kept: whether it stays in the cell's output.
        """
        if self.is_open:
            self._progress = replace(self._progress, phase="kept" if kept else "gone")
            self._bars.send(self._progress)
