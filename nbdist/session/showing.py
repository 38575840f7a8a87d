"""The dashboard of a run that is waited for."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from nbdist.devices import this_machine
from nbdist.options import Options
from nbdist.session.fitting import devices_of
from nbdist.session.ranks import Ranks
from nbdist.views.dashboard.composing import Facts, models_text
from nbdist.views.dashboard.faces import can_show, place_for, unknown_choice
from nbdist.views.dashboard.live import APPEARS_S, Dashboard, Source
from nbdist.views.dashboard.picture import RunWord
from nbdist.views.screen import Screen
from nbdist.views.tail import Tail
from nbdist.worker.work import CallWork, CellWork, Work


@contextlib.contextmanager
def shown(ranks: Ranks, work: Work, options: Options, shell: Any) -> Iterator[None]:
    """While this block follows the run its dashboard is to be seen, if there is a place for one and the run
    lasts long enough."""
    if not (options.dashboard and can_show(shell) and isinstance(work, (CellWork, CallWork))):
        yield
        return
    if told := unknown_choice():
        Screen(shell).note(told)
    place = place_for(shell)
    dashboard = Dashboard(source_of(ranks, work, ranks.tail), place)
    if place.is_watched:
        ranks.reminder.set(APPEARS_S, dashboard.open)
    try:
        yield
    finally:
        ranks.reminder.drop()
        dashboard.end(_word_of(ranks))


def source_of(ranks: Ranks, work: Work, tail: Tail, *, name: str = "", in_background: bool = False) -> Source:
    """Where the dashboard of a run looks.

    Args:
        tail: has its text.
        name: what it is called, if it was given a name.
    """
    devices = devices_of(ranks)
    return Source(
        facts=Facts(
            title=name or title_of(work),
            devices=devices,
            models=models_text([_model_of(device) for device in devices]),
            cell=work.text.splitlines() if isinstance(work, CellWork) else (),
            logs=str(ranks.logs.folder),
            runs_on=ranks.runs_on,
            in_background=in_background,
        ),
        metrics=ranks.metrics,
        tail=tail,
        state=lambda: ranks.state,
        pids=lambda: _pids(ranks),
        interrupts=lambda: ranks.interrupts.count,
    )


def title_of(work: Work) -> str:
    """What a run is called that was given no name."""
    if isinstance(work, CallWork):
        return str(getattr(work.function, "__name__", type(work.function).__name__))
    return "cell"


def _word_of(ranks: Ranks) -> RunWord:
    if ranks.interrupted:
        return "interrupted"
    return "failed" if ranks.state.failures else "finished"


def _pids(ranks: Ranks) -> Sequence[int]:
    return [ranks.pid(assignment.rank) for assignment in ranks.assignments]


def _model_of(device: str) -> str:
    """A device in words."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number:
        return "CPU"
    names = _gpu_names()
    return names[int(number)] if int(number) < len(names) else "GPU"


@functools.cache
def _gpu_names() -> Sequence[str]:
    """Asked for once: the driver takes its time, and a cell in ranks that are up takes none."""
    return [gpu.name for gpu in this_machine().gpus]
