"""A run's dashboard while it goes on: a thread looks at the run some times a second and shows what is new.

It looks at what others keep anyway (`RunState`, metrics, the last lines) and nobody waits for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nbdist.metrics import Metrics
from nbdist.state import RunState
from nbdist.views.dashboard.composing import Composer, Ending, Facts
from nbdist.views.dashboard.faces import KEEP_WIDGET, Face, Place
from nbdist.views.dashboard.picture import Picture, RunWord
from nbdist.views.dashboard.static import picture_html
from nbdist.views.dashboard.words import picture_text
from nbdist.views.tail import Tail

APPEARS_S = 1.0
"""A run that takes less has no dashboard, unless it has logged numbers."""
_BYTES_PER_S = 200_000  # a server drops what is beyond its limits, and pages are slow before that


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a dashboard looks.

    Attributes:
        facts: what does not change.
        metrics: the run's.
        tail: the last of its text.
        state, pids, interrupts: read what is so now.
    """

    facts: Facts
    metrics: Metrics
    tail: Tail
    state: Callable[[], RunState]
    pids: Callable[[], Sequence[int]]
    interrupts: Callable[[], int]


class Dashboard:
    """One run's.

    Args:
        place: where it is shown.
    """

    def __init__(self, source: Source, place: Place):
        self._source = source
        self._place = place
        self._face: Face | None = None
        self._composer = Composer(source.facts, source.metrics)
        self._told = self._hint = ""
        self._has_ended = threading.Event()

    def open(self) -> None:
        """Show the run from now on."""
        picture = self._picture()
        self._face = self._place.face()
        self._face.open(picture, picture_text(picture))
        self._thread = threading.Thread(
            target=self._show_all, args=(self._face,), name="nbdist-dashboard", daemon=True
        )
        self._thread.start()

    def tell(self, told: str, hint: str = "") -> None:
        """Say what the run does, where that is more than its state says, and what is to be done."""
        self._told, self._hint = told, hint

    def end(self, state: RunWord) -> None:
        """The run has ended so; returns when the last picture is shown. One that was not open and has logged
        nothing stays unseen."""
        if self._face is None and self._source.metrics.points == 0:
            return
        self._has_ended.set()
        if self._face is not None:
            self._thread.join()
        self._told = self._hint = ""
        picture = self._picture(Ending(state=state, at_s=time.time()))
        still = {"text/html": picture_html(picture, live=False), "text/plain": picture_text(picture)}
        if self._face is None:
            self._place.show_still(still)
        else:
            self._face.close(picture, None if os.environ.get(KEEP_WIDGET) == "1" else still)

    def _show_all(self, face: Face) -> None:
        pause_s = face.every_s
        while not self._has_ended.wait(pause_s):
            size = face.update(self._picture())
            pause_s = max(face.every_s, size / _BYTES_PER_S)

    def _picture(self, ending: Ending | None = None) -> Picture:
        source = self._source
        return self._composer.picture(
            source.state(),
            source.tail,
            pids=source.pids(),
            told=self._told,
            hint=self._hint,
            interrupts=source.interrupts(),
            ending=ending,
        )
