"""What a cell costs in ranks that are up, and what a thousand of them leave behind."""

from __future__ import annotations

from collections.abc import Iterator

from harness import NotebookKernel, Row, at_most, exactly, just, notebook

_RANKS = 4
_STARTS = 15
_CELLS = 200
_MANY = 1000
_CELL = "%%distributed\ndist.all_reduce(one)"

_COUNT = """\
import gc, os, nbdist
def held(pid):
    fds = len(os.listdir(f"/proc/{pid}/fd"))
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("RssAnon:"):
            return fds, int(line.split()[1]) / 1000
def held_by_all(pids):
    gc.collect()
    of_all = [held(pid) for pid in [os.getpid(), *pids]]
    return tuple(map(sum, zip(*of_all[1:]))) + of_all[0]
"""
_PIDS = "%%distributed --gather pids\nimport os\npids = os.getpid()"


def measure() -> Iterator[Row]:
    """Marks: 0.2 s for the start of 4 ranks, 10 ms for a cell with one all_reduce, no growth."""
    with notebook() as kernel:
        starts = [_start(kernel) for _ in range(_STARTS)]
        yield at_most(f"%distributed start of {_RANKS} ranks: execute request to idle", starts, 0.2)
        _start(kernel)
        kernel.run("%%distributed\nimport torch, torch.distributed as dist\none = torch.ones(1)").check()
        plain = [kernel.run("pass").check().duration_s for _ in range(_CELLS)]
        yield just("an ordinary cell: execute request to idle", [1000 * s for s in plain], "ms")
        cells = [kernel.run(_CELL).check().duration_s for _ in range(_CELLS)]
        what = f"a cell with one all_reduce on {_RANKS} ranks: execute request to idle"
        yield at_most(what, [1000 * s for s in cells], 10, "ms")
        yield from _growth(kernel)


def _start(kernel: NotebookKernel) -> float:
    kernel.run("%distributed stop").check()
    return kernel.run(f"%distributed start --devices {_RANKS} --accelerator cpu").check().duration_s


def _growth(kernel: NotebookKernel) -> Iterator[Row]:
    kernel.run(_COUNT).check()
    kernel.run(_PIDS).check()
    _print(kernel, 0)  # what is opened once is open now
    before = kernel.value("held_by_all(pids)")
    for number in range(_MANY):
        _print(kernel, number)
    after = kernel.value("held_by_all(pids)")
    fds, memory_mb, kernel_fds, kernel_memory_mb = (
        late - early for early, late in zip(before, after, strict=True)
    )
    yield exactly(f"descriptors more in the kernel after {_MANY:,} cells", kernel_fds, 0)
    yield exactly(f"descriptors more in {_RANKS} ranks after {_MANY:,} cells", fds, 0)
    yield at_most(f"memory more in the kernel after {_MANY:,} cells", [kernel_memory_mb], 5, "MB")
    yield at_most(f"memory more in {_RANKS} ranks after {_MANY:,} cells", [memory_mb], 5, "MB")


def _print(kernel: NotebookKernel, number: int) -> None:
    kernel.run(f"%%distributed\nvalue = [{number}] * 100\nprint(value[0])\ndist.all_reduce(one)").check()
