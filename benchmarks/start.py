"""How long until ranks compute: cell start to the first all_reduce, and the whole cell.

Each launch in a kernel stands beside one by `bare_fork.py`, the least that a launch takes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from harness import NOTE_START, NotebookKernel, Row, at_most, just, notebook

_ROUNDS = 15
_ROUNDS_MANY = 5

_CELL = """\
%%distributed --devices {ranks} --accelerator cpu --gather reduced_s
one = torch.ones(1)
dist.all_reduce(one)
reduced_s = time.monotonic()
"""


@dataclass(slots=True)
class _Times:
    """Seconds from the start to the first all_reduce done on all ranks, and to the end; by launch."""

    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)

    def add(self, first_s: float, whole_s: float) -> None:
        self.first_s.append(first_s)
        self.whole_s.append(whole_s)


class _Bare:
    """A process that forks ranks whenever asked."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process

    def launch(self) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        first_s, whole_s = self._process.stdout.readline().split()
        return float(first_s), float(whole_s)


@contextmanager
def _bare(ranks: int) -> Iterator[_Bare]:
    command = [sys.executable, str(Path(__file__).with_name("bare_fork.py")), str(ranks)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        bare = _Bare(process)
        bare.launch()
        yield bare


def _launch(kernel: NotebookKernel, ranks: int) -> tuple[float, float]:
    run = kernel.run(_CELL.format(ranks=ranks)).check()
    return float(kernel.value("max(reduced_s) - started_s")), run.duration_s


def measure() -> Iterator[Row]:
    """Marks: 0.12 s and 1.5 × bare, 0.2 s for the whole cell, 0.2 s more with 2 GB in the notebook."""
    empty, full, bare, many, many_bare = (_Times() for _ in range(5))
    with notebook() as kernel, notebook() as full_kernel, _bare(4) as bare_4, _bare(32) as bare_32:
        kernel.run(NOTE_START).check()
        full_kernel.run(NOTE_START).check()
        full_kernel.run("big = torch.ones(2**29)").check()
        for _ in range(_ROUNDS):  # in turns, so that all meet the same load
            bare.add(*bare_4.launch())
            empty.add(*_launch(kernel, 4))
            full.add(*_launch(full_kernel, 4))
        for _ in range(_ROUNDS_MANY):
            many_bare.add(*bare_32.launch())
            many.add(*_launch(kernel, 32))

    yield just("bare os.fork + gloo, 4 ranks: start to first all_reduce on all", bare.first_s)
    yield just("bare os.fork + gloo, 4 ranks: start to all reaped", bare.whole_s)
    yield at_most("4 ranks: cell start to first all_reduce on all", empty.first_s, 0.12)
    limit_s = 1.5 * median(bare.first_s)
    yield at_most("the same, against the bare script", empty.first_s, limit_s, why="1.5 × bare")
    yield at_most("4 ranks: execute request to idle", empty.whole_s, 0.2)
    later_s = [more - less for more, less in zip(full.first_s, empty.first_s, strict=True)]
    yield at_most("2 GB in the notebook: first all_reduce later by", later_s, 0.2)
    longer_s = [more - less for more, less in zip(full.whole_s, empty.whole_s, strict=True)]
    yield at_most("2 GB in the notebook: whole cell longer by", longer_s, 0.2)
    yield just("bare os.fork + gloo, 32 ranks: start to first all_reduce on all", many_bare.first_s)
    yield just("32 ranks: cell start to first all_reduce on all", many.first_s)
    yield just("32 ranks: execute request to idle", many.whole_s)
