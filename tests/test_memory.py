"""What the notebook's data cost the ranks."""

from __future__ import annotations

from notebook_kernel import NotebookKernel

MEGABYTE = 1 << 20

READ_AND_WEIGH = """
        %%distributed --devices 4 --gather memory_bytes
        import os, torch.distributed as dist

        def proportional_bytes(pid):
            # Of a page that N processes share, each one's part.
            with open(f"/proc/{pid}/smaps_rollup") as rollup:
                return next(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) * 1024

        checksum = data.sum().item() + data[::4096].max().item()
        dist.barrier()
        memory_bytes = proportional_bytes("self"), proportional_bytes(os.getppid())
        dist.barrier()
        """


def bytes_with(kernel: NotebookKernel, data: str) -> int:
    """What kernel and ranks use together while four ranks have read `data`."""
    kernel.run(f"import torch\ndata = {data}").check()
    kernel.run(READ_AND_WEIGH).check()
    weighed = kernel.value("memory_bytes")
    return sum(rank for rank, _ in weighed) + max(kernel for _, kernel in weighed)


def test_ranks_that_read_the_notebooks_data_share_it(kernel: NotebookKernel) -> None:
    bytes_with(kernel, "torch.ones(1)")  # what a process allocates once
    little = bytes_with(kernel, "torch.ones(4096)")
    much = bytes_with(kernel, f"torch.ones({256 * MEGABYTE // 4})")
    assert kernel.value("data.nbytes") == 256 * MEGABYTE
    extra = much - little - 256 * MEGABYTE
    assert extra < 40 * MEGABYTE
