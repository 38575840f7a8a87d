"""What happens when ranks print a lot: 4 ranks, 200,000 lines each, all of them different."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from harness import CellRun, NotebookKernel, Row, at_most, exactly, notebook

_RANKS = 4
_LINES = 200_000

_CELL = f"""\
%%distributed --devices {_RANKS} --accelerator cpu
for line in range({_LINES}):
    """

_ONE_WRITE = 'print(f"rank {rank} line {line}")'
_MANY_WRITES = 'print("rank", rank, "line", line)'  # each word and each space by itself


@dataclass(frozen=True, slots=True)
class _Flood:
    duration_s: float
    growth_mb: float
    lines_in_place: int
    most_messages: int


def measure() -> Iterator[Row]:
    """Marks: 15 s, 100 MB of kernel memory, every line in the logs, 20 messages a second."""
    with notebook() as kernel:
        floods = {statement: _flood(kernel, statement) for statement in (_ONE_WRITE, _MANY_WRITES)}
    lines = f"{_RANKS} ranks × {_LINES:,} lines"
    for statement, flood in floods.items():
        yield at_most(f"{lines} of {statement}: execute request to idle", [flood.duration_s], 15)
    for statement, flood in floods.items():
        yield exactly(f"{statement}: lines in place in the log files", flood.lines_in_place, _RANKS * _LINES)
    growth_mb = [flood.growth_mb for flood in floods.values()]
    yield at_most("kernel memory at its peak: more than before by", growth_mb, 100, "MB")
    most = [flood.most_messages for flood in floods.values()]
    yield at_most("messages to the front end: most in one second", most, 20, "messages")


def _flood(kernel: NotebookKernel, statement: str) -> _Flood:
    shutil.rmtree(_logs(kernel), ignore_errors=True)
    before_mb = _resident_mb(kernel, "VmRSS")
    Path(f"/proc/{kernel.pid}/clear_refs").write_text("5")  # the peak starts anew
    run = kernel.start_run(_CELL + statement, allow_stdin=True).finish(300).check()  # somebody watches
    growth_mb = _resident_mb(kernel, "VmHWM") - before_mb
    return _Flood(run.duration_s, growth_mb, _lines_in_place(kernel), _most_in_one_second(run))


def _logs(kernel: NotebookKernel) -> Path:
    return kernel.folder / "home/.cache/nbdist/logs"


def _resident_mb(kernel: NotebookKernel, field: str) -> float:
    """A memory figure of the kernel process: resident now (VmRSS) or at most (VmHWM)."""
    for line in Path(f"/proc/{kernel.pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1000
    raise LookupError(f"/proc/{kernel.pid}/status has no {field}")


def _lines_in_place(kernel: NotebookKernel) -> int:
    """Lines that stand in a log file where they belong; less for each that stands there too much."""
    right = 0
    for rank in range(_RANKS):
        (log,) = _logs(kernel).glob(f"*/rank-{rank}.log")
        expected = (f"rank {rank} line {line}\n" for line in range(_LINES))
        with log.open() as lines:
            right += sum(1 if line == wanted else -1 for line, wanted in zip_longest(lines, expected))
    return right


def _most_in_one_second(run: CellRun) -> int:
    times_s = [message.time_s for message in run.messages]
    return max(sum(begin_s <= time_s < begin_s + 1 for time_s in times_s) for begin_s in times_s)
