"""Threads of a rank: its share of the machine's cores, and those that the work has started."""

from __future__ import annotations

import os
import threading

from nbdist.devices import usable_cpu_count

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""The environment's word for it, which torchrun and Lightning set in a rank for that rank alone."""


def threads_of_work() -> list[str]:
    """Names of threads that the user's code has started, that go on, and that a program's end waits for."""
    main = threading.main_thread()
    return [thread.name for thread in threading.enumerate() if thread is not main and not thread.daemon]


def share_cores(world_size: int) -> None:
    """Let torch use this rank's share of the cores for one operation: at least one.

    Ranks that each start a thread per core slow one another down many times over. A user's own word
    counts: OMP_NUM_THREADS in the environment, a smaller `torch.set_num_threads` in the notebook,
    or any in the cell.
    """
    import torch

    if THREADS_VARIABLE in os.environ:
        return
    share = max(1, usable_cpu_count() // world_size)
    if share < torch.get_num_threads():
        torch.set_num_threads(share)
