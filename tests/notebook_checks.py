"""What several test modules ask of a notebook."""

from __future__ import annotations

from notebook_kernel import NotebookKernel

DROP_RIGHT_TO_TRACE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
CAP_SYS_PTRACE = 19
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
caps = (ctypes.c_uint32 * 6)()
assert libc.capget(header, caps) == 0
caps[0] &= ~(1 << CAP_SYS_PTRACE)
assert libc.capset(header, caps) == 0
"""
"""For a cell: the kernel may read only processes that let themselves be read."""

NOT_TO_BE_READ = """
import ctypes
PR_SET_DUMPABLE = 4
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
"""
"""For a cell on ranks: this one does not let itself be read."""


def assert_all(kernel: NotebookKernel, *checks: str) -> None:
    """Each of these expressions must be true in the notebook; those that are not are named."""
    wrong = [check for check in checks if kernel.value(f"bool({check})") is not True]
    assert not wrong, "\n".join(wrong)
