"""A failed run as an exception: the cause first, its consequences in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from nbdist.errors import Failure, RankFailedError, ranks_phrase
from nbdist.state import RankState, RunState

# What a message may name and is each rank's own: its process, an object's address, a peer's.
_EACH_RANKS_OWN = r"\(pid \d+\)|\b0x[0-9a-f]+\b|\[[0-9a-f.:]+\]:\d+"


def failure_of(state: RunState, logs: str, *, whole: bool) -> RankFailedError:
    """The exception that tells why a run failed.

    Args:
        logs: the folder of the run's logs, empty when there are none.
        whole: whether the exception's text holds the tracebacks, for a Python without IPython.
    """
    failures = (*state.failures, *(_stopped(rank) for rank in state.ranks if _was_stopped(rank)))
    groups = fold_same([failure for failure in failures if not failure.consequence] or list(failures))
    report: list[str] = []
    for group in groups:
        if group[0].traceback:
            report += [_title(group, len(state.ranks)), *group[0].traceback, ""]
        if group[0].hint:
            report += [group[0].hint, ""]
    report += _consequences(failures)
    if logs:
        report.append(f"Each rank's whole output is in {logs}")
    message = _message(groups, len(state.ranks))
    text = "\n".join([*report, message]) if whole else message
    return RankFailedError(text, failures, len(state.ranks), report)


def _was_stopped(rank: RankState) -> bool:
    return rank.stopped and rank.failure is None and rank.outcome == "interrupted"


def _stopped(rank: RankState) -> Failure:
    """A rank that nbdist has freed because of another."""
    standing = rank.standing
    collective = standing.collective.name if standing and standing.collective else ""
    return Failure(
        rank=rank.rank,
        time_s=rank.finished_s or math.inf,
        type_name="Stopped",
        message=f"stopped while waiting in {collective}" if collective else "stopped",
        cell_line=standing.cell_line if standing else None,
        consequence=True,
    )


def _consequences(failures: Sequence[Failure]) -> list[str]:
    """One line for all of them. Where ranks stood still, those that moved may be the cause."""
    consequences = [failure for failure in failures if failure.consequence]
    if not consequences or len(consequences) == len(failures):
        return []
    stuck = any(failure.type_name == "Stuck" for failure in failures)
    ways: dict[str, list[int]] = {}
    for failure in consequences:
        way = failure.message if failure.type_name == "Stopped" else "lost the connection to a failed rank"
        at = f" at line {failure.cell_line}" if stuck and failure.cell_line is not None else ""
        ways.setdefault(f"{way}{at}", []).append(failure.rank)
    told = "; ".join(f"{ranks_phrase(ranks)}: {way}" for way, ranks in ways.items())
    return [f"{told}." if stuck else f"{told}, a consequence."]


def fold_same(failures: Sequence[Failure]) -> list[list[Failure]]:
    """Failures of the same kind at the same line together, in order of the first of each."""
    groups: dict[tuple[object, ...], list[Failure]] = {}
    for failure in failures:
        message = re.sub(rf"\brank {failure.rank}\b|{_EACH_RANKS_OWN}", "", failure.message)
        place = (failure.type_name, message, failure.cell_line)
        groups.setdefault(place, []).append(failure)
    return list(groups.values())


def _title(group: Sequence[Failure], world_size: int) -> str:
    line = group[0].cell_line
    where = f", line {line} of the cell" if line is not None else ""
    return f"{ranks_phrase([failure.rank for failure in group])} of {world_size}{where}:"


def _message(groups: Sequence[Sequence[Failure]], world_size: int) -> str:
    first = groups[0]
    line = f" at line {first[0].cell_line}" if first[0].cell_line is not None else ""
    others = (
        f" (and {len(groups) - 1} other failure{'s' if len(groups) > 2 else ''}, above)"
        if len(groups) > 1
        else ""
    )
    return f"{ranks_phrase([f.rank for f in first])} of {world_size} failed{line}: {first[0].summary}{others}"
