"""What a large tensor of the notebook costs ranks that read it.

PSS counts a page that n processes share as 1/n in each, so the sum over kernel and ranks is what
they take of the machine together.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import NotebookKernel, Row, at_most, just, notebook

_ROUNDS = 3

_READ_PSS = """\
def pss_mb_of(process):
    for line in open(f"/proc/{process}/smaps_rollup"):
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1000
"""

_CELL = """\
%%distributed --devices 4 --accelerator cpu --gather rank_mb
assert data.sum() == data.numel()
dist.barrier()
rank_mb = pss_mb_of("self")
kernel_mb = pss_mb_of(os.getppid()) if rank == 0 else None
dist.barrier()
"""


def measure() -> Iterator[Row]:
    """Mark: 40 MB more than with a tensor of next to nothing."""
    with notebook() as kernel:
        kernel.run(_READ_PSS).check()
        kernel.run("data = torch.ones(1)").check()
        small = [_ranks_cost_mb(kernel) for _ in range(_ROUNDS)]
        kernel.run("data = torch.ones(2**29)").check()
        large = [_ranks_cost_mb(kernel) for _ in range(_ROUNDS)]
    yield just("4 ranks that read a tensor of 4 bytes: memory together", small, "MB")
    yield just("4 ranks that read a tensor of 2 GB: memory together", large, "MB")
    more = [mb - min(small) for mb in large]
    yield at_most("2 GB in the notebook cost four ranks that read them", more, 40, "MB")


def _ranks_cost_mb(kernel: NotebookKernel) -> float:
    """What kernel and ranks take together, beyond what the kernel took alone."""
    alone_mb = float(kernel.value("pss_mb_of('self')"))
    kernel.run(_CELL).check()
    return float(kernel.value("sum(rank_mb) + kernel_mb")) - alone_mb
