"""What a launch costs by each start method, however big the notebook is, and many times in a row."""

from __future__ import annotations

from collections.abc import Iterator

from harness import NOTE_START, NotebookKernel, Row, at_most, just, notebook

_LAUNCHES = 200
_ROUNDS = 3

_CELL = """\
%%distributed --devices {ranks} --accelerator cpu --start-method {method} --gather reduced_s
one = torch.ones(1)
dist.all_reduce(one)
reduced_s = time.monotonic()
"""

_SHIP = """\
%%distributed --devices 4 --accelerator cpu --start-method forkserver --gather rank_mb
total = data[::4096].sum()
dist.barrier()
for line in open("/proc/self/smaps_rollup"):
    if line.startswith("Pss:"):
        rank_mb = int(line.split()[1]) / 1000
dist.barrier()
"""


def measure() -> Iterator[Row]:
    """Marks: 0.6 s with 6 GB and 8 ranks, 1.5 s for 64 ranks, the slowest of 200 launches 0.6 s."""
    with notebook() as kernel:
        kernel.run(NOTE_START).check()
        for size_gb in (0, 2, 6):
            kernel.run(f"data = torch.ones({size_gb} * 2**28)").check()
            for ranks in (1, 4, 8, 32, 64):
                yield _row(kernel, "fork", ranks, size_gb)
        kernel.run("data = None").check()
        for method, counts in (("forkserver", (1, 4, 8, 32)), ("spawn", (1, 4))):
            for ranks in counts:
                yield _row(kernel, method, ranks, 0)
        yield from _ship(kernel)
        yield at_most(f"the slowest of {_LAUNCHES} launches of 4 ranks", [_slowest(kernel)], 0.6)


def _row(kernel: NotebookKernel, method: str, ranks: int, size_gb: int) -> Row:
    what = f"{method}, {size_gb} GB in the notebook, {ranks} ranks: start to first all_reduce on all"
    samples = [_first_s(kernel, method, ranks) for _ in range(_ROUNDS)]
    marks = {("fork", 6, 8): 0.6, ("fork", 0, 64): 1.5}
    mark = marks.get((method, size_gb, ranks))
    return just(what, samples) if mark is None else at_most(what, samples, mark)


def _first_s(kernel: NotebookKernel, method: str, ranks: int) -> float:
    kernel.run(_CELL.format(method=method, ranks=ranks)).check()
    return float(kernel.value("max(reduced_s) - started_s"))


def _ship(kernel: NotebookKernel) -> Iterator[Row]:
    """A tensor of 2 GB to four ranks that are no forks of the kernel: one copy for all."""
    kernel.run("data = torch.ones(1)").check()
    small_s = kernel.run(_SHIP).check().duration_s
    small_mb = float(kernel.value("sum(rank_mb)"))
    kernel.run("data = torch.ones(2**29)").check()
    whole_s = kernel.run(_SHIP).check().duration_s
    yield just("forkserver: sending 2 GB to 4 ranks takes longer by", [whole_s - small_s])
    yield just("its memory, ranks together", [float(kernel.value("sum(rank_mb)")) - small_mb], "MB")
    kernel.run("data = None").check()


def _slowest(kernel: NotebookKernel) -> float:
    return max(_first_s(kernel, "fork", 4) for _ in range(_LAUNCHES))
