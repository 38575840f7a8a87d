"""What several test modules ask of a notebook."""

from __future__ import annotations

from notebook_kernel import NotebookKernel


def assert_all(kernel: NotebookKernel, *checks: str) -> None:
    """Each of these expressions must be true in the notebook; those that are not are named."""
    assert [check for check in checks if kernel.value(f"bool({check})") is not True] == []
