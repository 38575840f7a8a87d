"""Reproducible randomness in python, numpy and torch."""

from __future__ import annotations

import importlib.util
import operator
import random

import torch

from nbdist.errors import OptionError
from nbdist.training.ranks import current_rank, current_world_size

_LARGEST_SEED = 2**32 - 1  # numpy takes no larger one


def seed_everything(seed: int, *, per_rank: bool = True) -> int:
    """Seed python's, numpy's and torch's (CPU and CUDA) global random numbers.

    Args:
        seed: 0 to 2**32 - 1, less the number of other ranks when ``per_rank``.
        per_rank: add the rank, so that dropout and augmentation differ from rank to rank. Pass
            False where ranks must draw the same, as for weights without DDP.

    Returns:
        The seed that this rank used: ``seed + rank``, or ``seed`` when ``per_rank`` is False.

    Raises:
        OptionError: the seed is not a whole number in that range.

    Example:
        >>> nbdist.seed_everything(42)  # on rank 1
        43
    """
    used = _checked(seed, spread=current_world_size() - 1 if per_rank else 0)
    if per_rank:
        used += current_rank()
    random.seed(used)
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        numpy.random.seed(used)
    torch.manual_seed(used)
    return used


def _checked(seed: int, spread: int) -> int:
    largest = _LARGEST_SEED - spread
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if isinstance(seed, bool) or not 0 <= number <= largest:
        raise OptionError(
            f"seed={seed!r} is no seed: allowed are whole numbers from 0 to {largest}. Pass one, such as 42."
        )
    return number
