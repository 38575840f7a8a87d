"""Numbers over all ranks."""

from __future__ import annotations

import numbers
from typing import overload

import torch
import torch.distributed as dist

from nbdist.training.ranks import current_device, join_process_group


@overload
def mean(value: torch.Tensor) -> torch.Tensor: ...
@overload
def mean(value: float) -> float: ...
def mean(value: torch.Tensor | float) -> torch.Tensor | float:
    """The mean of ``value`` over ranks; every rank must call it, and every rank gets it.

    Args:
        value: a number, or a tensor of the same shape and dtype on every rank.

    Returns:
        A float for a number. For a tensor a new one without gradient, on the same device: of its
        own dtype if that is floating or complex, otherwise of torch's default dtype.

    Raises:
        TypeError: ``value`` is neither a number nor a tensor.

    Example:
        >>> nbdist.mean(float(rank))  # on 2 ranks
        0.5
    """
    if isinstance(value, torch.Tensor):
        return mean_of_tensor(value.detach())
    if isinstance(value, numbers.Real):
        return float(mean_of_tensor(torch.tensor(float(value), dtype=torch.float64)).item())
    raise TypeError(
        f"mean() takes a number or a tensor, not {type(value).__name__}. Pass each value of it by itself."
    )


def mean_of_tensor(value: torch.Tensor) -> torch.Tensor:
    """As `mean`, of a tensor without gradient."""
    has_fractions = value.is_floating_point() or value.is_complex()
    dtype = value.dtype if has_fractions else torch.get_default_dtype()
    if not join_process_group():
        return value.to(dtype, copy=True)
    # Sums overflow small integers and lose digits of half-precision numbers: both travel wider.
    wide = torch.promote_types(dtype, torch.float32) if has_fractions else torch.float64
    # NCCL reduces only what lies on its GPU, and the sum must not land in the caller's tensor.
    total = value.to(current_device(), wide, copy=True).contiguous()
    dist.all_reduce(total)
    return (total / dist.get_world_size()).to(value.device, dtype)
