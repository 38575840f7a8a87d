"""What a dashboard shows, as JSON data, and what changes from one moment to the next.

A `Picture` holds no markup: every text in it may contain anything, and whoever shows it escapes it. Times are
milliseconds since 1970 by the kernel's clock, so that a page can count seconds by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from nbdist.metrics import Chart, Shown

ChartPicture = Chart

RunWord = Literal["starting", "running", "finished", "failed", "interrupted", "stopped"]
RankWord = Literal[
    "starting",
    "running",  # moves on
    "waiting",  # in a collective
    "asking",  # for a line from the user
    "finishing",  # its values are being packed
    "finished",
    "failed",
    "interrupted",
    "dead",
    "idle",  # takes no part
]


class Heading(TypedDict):
    """The run as a whole.

    Attributes:
        title: what it is called: ``train``.
        state: what it does.
        told: the state in words: ``failed on rank 1``.
        begun_ms, ended_ms: when; None while it goes on.
        world_size: how many ranks.
        devices: on what: ``4 × NVIDIA H200``, ``CPU``.
        button: what a click may do: None where the notebook's own stop button is the way.
        hint: what to do where there is no button, or how the run's results wait.
        logs: the folder in which all text is whole.
        log_is_open: whether log and tracebacks are seen here alone, and so what one wants to see first.
    """

    title: str
    state: RunWord
    told: str
    begun_ms: float
    ended_ms: float | None
    world_size: int
    devices: str
    button: Literal["interrupt", "stop"] | None
    hint: str
    logs: str
    log_is_open: bool


class Gpu(TypedDict):
    """`nbdist.figures.GpuUsage`, with its attributes."""

    use: float | None
    memory_bytes: int | None
    used_bytes: int | None
    total_bytes: int | None
    power_w: float | None
    temperature_c: float | None


class RankPicture(TypedDict):
    """One rank.

    Attributes:
        state: what it does.
        told: the state in words: ``waits in all_reduce``.
        device: ``cuda:2``.
        pid: its process; 0 before that is known.
        line: number of the cell's line where it is, and the text of that line.
        function: the innermost Python function, where that is not the cell itself.
        since_ms: since when it has been at this line, or has logged or moved its bar there.
        cpu: cores in use: 1.0 is one core. None before the first measurement; so the others.
        memory_bytes: its process's memory.
        gpu: None on a CPU.
        metrics: the last value of each, finite or not.
        rate: ``12.5 steps/s``.
        share: how much of its work is done, 0 to 1; None where nobody says.
        straggler: why it is thought to hold up others; empty where it does not.
    """

    state: RankWord
    told: str
    device: str
    pid: int
    line: int | None
    text: str
    function: str
    since_ms: float | None
    cpu: float | None
    memory_bytes: int | None
    gpu: Gpu | None
    metrics: dict[str, Shown]
    rate: str
    share: float | None
    straggler: str


class BarPicture(TypedDict):
    """A progress bar of several ranks: of the rank that is least far.

    Attributes:
        label: what it stands for.
        text: the whole bar as text.
        done, total: steps; total None where it is not known.
        left_s: seconds to its end; None where nobody knows.
        rate: ``12.5 it/s``.
        ranks: whose it is: ``0-3``.
        by_rank: steps done, by rank.
    """

    label: str
    text: str
    done: float
    total: float | None
    left_s: float | None
    rate: str
    ranks: str
    by_rank: dict[str, float]


class LogLine(TypedDict):
    """A line of text, or a display.

    Attributes:
        ranks: who printed it: ``0-3``; empty for all.
        of: those ranks as numbers; empty for all.
        kind: a stream's name; ``html`` for a display, whose `text` is markup that the user's code made and
            that Jupyter shows as it is; ``gap`` for a word on what was left out.
        text: with a terminal's colours (ANSI), if the rank wrote such.
    """

    ranks: str
    of: list[int]
    kind: Literal["stdout", "stderr", "html", "gap"]
    text: str


class FailurePicture(TypedDict):
    """Why ranks failed.

    Attributes:
        ranks: whose it is: ``1``, ``0-3``.
        line: number of the cell's line that failed; None where nobody knows.
        title: the exception and its text, or how the process died.
        traceback: as lines, with a terminal's colours.
        consequence: whether another one led to it.
    """

    ranks: str
    line: int | None
    title: str
    traceback: str
    consequence: bool


class Log(TypedDict):
    """The last of what was printed and shown.

    Attributes:
        first: number of the first line that is kept.
        lines: by number, as text.
        left_out: how many lines are in the files alone.
    """

    first: int
    lines: dict[str, LogLine]
    left_out: int


class Picture(TypedDict):
    """All of it. What is keyed by rank is keyed by its number as text, as JSON wants it."""

    heading: Heading
    ranks: dict[str, RankPicture]
    bars: dict[str, BarPicture]
    charts: dict[str, ChartPicture]
    log: Log
    failures: list[FailurePicture]


def patch_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What turns one into the other: a JSON Merge Patch (RFC 7396).

    A key whose value is None and one that is not there are the same to whoever applies it.

    >>> patch_between({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2, "d": 4}})
    {'b': {'d': 4}, 'a': None}
    """
    patch: dict[str, Any] = {}
    for key, value in after.items():
        if key not in before:
            patch[key] = value
            continue
        former = before[key]
        if former is value:
            continue
        if isinstance(value, dict) and isinstance(former, dict):
            if inner := patch_between(former, value):
                patch[key] = inner
        elif former != value:
            patch[key] = value
    patch |= {key: None for key in before if key not in after}
    return patch
