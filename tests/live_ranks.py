"""Cells in ranks that are up."""

from __future__ import annotations

from notebook_kernel import CellRun, NotebookKernel


def on_ranks(kernel: NotebookKernel, code: str) -> CellRun:
    return kernel.run(f"%%distributed\n{code}")


def shown(run: CellRun) -> str:
    """What a good cell shows of its result."""
    run.check()
    assert run.result is not None, run.describe()
    return str(run.result["text/plain"])
