"""Which rank this process is, on which device, in which process group.

The process group is asked first, then torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE), and a
process with neither is the one rank of a world of one.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from nbdist.errors import OptionError
from nbdist.messages import DEVICE_VARIABLE


def group_is_up() -> bool:
    """Whether the default process group is initialised."""
    return dist.is_available() and dist.is_initialized()


def was_launched() -> bool:
    """Whether this process is one of a launcher's ranks, its process group up or not."""
    return group_is_up() or ("RANK" in os.environ and "WORLD_SIZE" in os.environ)


def current_rank() -> int:
    """This process's rank, 0 to world size - 1."""
    return dist.get_rank() if group_is_up() else _launched_number("RANK", 0)


def current_world_size() -> int:
    """How many ranks there are; 1 in a plain process."""
    return dist.get_world_size() if group_is_up() else _launched_number("WORLD_SIZE", 1)


def _launched_number(variable: str, alone: int) -> int:
    return int(os.environ[variable]) if was_launched() else alone


def current_device() -> torch.device:
    """The device on which this rank computes.

    What the launcher chose; otherwise the CPU for a gloo process group or a machine without CUDA,
    and ``cuda:LOCAL_RANK`` for all others.

    Raises:
        OptionError: this rank's GPU does not exist.
    """
    if chosen := os.environ.get(DEVICE_VARIABLE):
        return torch.device(chosen)
    if (group_is_up() and dist.get_backend() == "gloo") or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", _gpu_index())


def _gpu_index() -> int:
    gpus = torch.cuda.device_count()
    if "LOCAL_RANK" not in os.environ:
        # Ranks that the user's own code spawned have no local rank. All of them are on this machine,
        # or the machines are alike: either way the ranks of one machine get different GPUs.
        return current_rank() % gpus
    index = int(os.environ["LOCAL_RANK"])
    if index >= gpus:
        raise OptionError(
            f"LOCAL_RANK is {index}, but the GPUs that can be seen here are 0 to {gpus - 1}. "
            f"Start no more ranks than that, or set CUDA_VISIBLE_DEVICES='' for ranks on the CPU."
        )
    return index


def join_process_group() -> bool:
    """Initialise the process group where a launcher left that to us, as torchrun does.

    Returns:
        Whether there is a process group now: False only in a plain process.
    """
    if not was_launched() or group_is_up():
        return group_is_up()
    device = current_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return True


def is_rank_zero() -> bool:
    """Whether this is rank 0; True in a plain process.

    Example:
        >>> if nbdist.is_rank_zero():
        ...     torch.save(model.state_dict(), "model.pt")
    """
    return current_rank() == 0


def print_rank_zero(*values: Any, **print_options: Any) -> None:
    """``print`` on rank 0, nothing on the others.

    Args:
        *values: what to print.
        **print_options: ``print``'s own (``sep``, ``end``, ``file``, ``flush``).

    Example:
        >>> nbdist.print_rank_zero(f"epoch {epoch}: loss {loss:.3f}")
    """
    if is_rank_zero():
        print(*values, **print_options)
