"""A run as a file: what it was, how it ended, and its numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from nbdist.errors import Failure
from nbdist.metrics import Metrics, as_json, iso_time, write_json


def write_record(
    path: str | os.PathLike[str],
    *,
    title: str,
    outcome: str,
    begun_s: float,
    ended_s: float | None,
    ranks: Sequence[Mapping[str, Any]],
    metrics: Metrics,
    failures: Sequence[Failure],
) -> None:
    """Write what is known of a run as JSON; the file is whole or not there.

    Args:
        begun_s, ended_s: as `time.time` tells; None while it goes on.
        ranks: of each its number, device and process.
    """
    write_json(
        path,
        {
            "title": title,
            "outcome": outcome,
            "begun": iso_time(begun_s),
            "ended": None if ended_s is None else iso_time(ended_s),
            "ranks": list(ranks),
            "metrics": as_json(metrics.rows()),
            "failures": [_as_json(failure) for failure in failures],
        },
    )


def _as_json(failure: Failure) -> dict[str, Any]:
    return {
        "rank": failure.rank,
        "type": failure.type_name,
        "message": failure.message,
        "cell_line": failure.cell_line,
        "traceback": list(failure.traceback),
        "consequence": failure.consequence,
    }
