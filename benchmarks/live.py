"""What a cell costs in ranks that are up, and what a thousand of them leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness import NotebookKernel, Row, at_most, exactly, just, notebook

_RANKS = 4
_STARTS = 15
_CELLS = 200
_MANY = 1024  # former values are looked at 256 at a time: as many are known at the end as at the start
_WARM = 300
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
    ranks = [held(pid) for pid in pids]
    return tuple(map(sum, zip((0, 0), *ranks))), held(os.getpid())
"""
_PIDS = "%%distributed --gather pids\nimport gc, os\npids = os.getpid()"
# torch itself keeps a record of the last 2,000 collectives (TORCH_FR_BUFFER_SIZE): it is full from the start.
_RECORD = "%%distributed\nfor _ in range(2100):\n    dist.all_reduce(one)"


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
    kernel.run(_RECORD).check()
    of_ranks, of_kernel = _held_after_many(kernel, "%%distributed", "dist.all_reduce(one)")
    with notebook() as ordinary:
        ordinary.run(f"{_COUNT}\nimport torch\none = torch.ones(1)\npids = []").check()
        _, usual = _held_after_many(ordinary, "# no magic", "one.add_(0)")
    yield exactly(f"descriptors more in the kernel after {_MANY:,} cells", of_kernel.fds, 0)
    yield exactly(f"descriptors more in {_RANKS} ranks after {_MANY:,} cells", of_ranks.fds, 0)
    what = f"memory more after {_MANY:,} cells, which IPython keeps the text of"
    yield just(f"{what}: in an ordinary kernel", [usual.memory_mb], "MB")
    kernels, ranks = of_kernel.memory_mb - usual.memory_mb, of_ranks.memory_mb / _RANKS - usual.memory_mb
    yield at_most(f"{what}: in the kernel, beyond an ordinary one's", [kernels], 1, "MB")
    yield at_most(f"{what}: in each rank, beyond an ordinary kernel's", [ranks], 0, "MB")


class _Held(NamedTuple):
    fds: float
    memory_mb: float


def _held_after_many(kernel: NotebookKernel, first_line: str, last_line: str) -> tuple[_Held, _Held]:
    """What the ranks together, and the kernel, hold more after many cells."""

    def run(number: int) -> None:
        kernel.run(f"{first_line}\nvalue = [{number}] * 100\nprint(value[0])\n{last_line}").check()

    def held() -> tuple[_Held, _Held]:
        """What stays after a collection of garbage."""
        kernel.run(f"{first_line}\ngc.collect()").check()
        ranks, own = kernel.value("held_by_all(pids)")
        return _Held(*ranks), _Held(*own)

    for number in range(_WARM):  # what is opened or kept once is there now
        run(number)
    before = held()
    for number in range(_MANY):
        run(number)
    ranks, own = (
        _Held(*(late - early for early, late in zip(*pair, strict=True)))
        for pair in zip(before, held(), strict=True)
    )
    return ranks, own
