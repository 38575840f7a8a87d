"""What comes after a run: what the user is told, and what is raised."""

from __future__ import annotations

from typing import Any

from nbdist.errors import RankFailedError, RunInterrupted, ranks_phrase
from nbdist.session.ranks import Ranks
from nbdist.shell import current_shell
from nbdist.state import RunState
from nbdist.values.graph import load_error
from nbdist.values.landing import Landed
from nbdist.values.twins import Twins
from nbdist.views.failure import failure_of
from nbdist.views.screen import Output


class RichValue:
    """Stands for a value that stayed on rank 0: shows as that value does."""

    def __init__(self, data: Any):
        self._data = dict(data)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return self._data

    def __repr__(self) -> str:
        return str(self._data.get("text/plain", ""))


def report(landed: Landed, ranks: Ranks, screen: Output) -> None:
    """Say what stays behind."""
    for name, reason in landed.lost.items():
        screen.note(f"{name} stays behind: {reason}")
    if ranks.logs.trouble is not None:
        screen.note(
            f"the log files in {ranks.logs.folder} are not complete: {ranks.logs.trouble}. "
            "NBDIST_LOG_DIR in the environment names another place."
        )


def check_interrupt(ranks: Ranks, what: str) -> None:
    """Raise the user's interrupt, if there was one, with what it meant."""
    if ranks.interrupted:
        raise RunInterrupted(what)


def raise_failure(state: RunState, ranks: Ranks, twins: Twins) -> None:
    """Raise what a run ended with, if it did not end well."""
    if ranks.interrupted or (state.broken_off and not state.failures):
        count = len(ranks.runs_on)
        who = f"all {count} ranks" if 1 < count == len(state.ranks) else ranks_phrase(ranks.runs_on)
        raise RunInterrupted(f"{who} {'were' if count > 1 else 'was'} stopped")
    if state.failures:
        error = failure_in(state, ranks)
        pickled = error.failures[0].pickled
        raise error from (load_error(pickled, twins) if pickled is not None else None)


def failure_in(state: RunState, ranks: Ranks) -> RankFailedError:
    """What tells of a run's failures."""
    logs = ranks.logs
    folder = str(logs.folder) if logs.folder.exists() and logs.trouble is None else ""
    return failure_of(state, folder, whole=current_shell() is None)
