"""How a loader's order is shared out over ranks.

torch's samplers become a `DistributedSampler`: each rank takes every n-th index of one order that
all ranks agree on. It is agreed without a word between them, from a seed and the epoch; so a sampler
that draws in a way of its own cannot be shared out from here, and is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from nbdist.errors import OptionError

# By exact type: a subclass may draw in a way of its own.
_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_FIXED = (list, tuple, range)


class DrawnSampler(DistributedSampler[int]):
    """Shares out what another of torch's samplers draws, drawing it alike on every rank."""

    def __init__(self, sampler: Any, num_replicas: int, rank: int, seed: int) -> None:
        super().__init__(sampler, num_replicas=num_replicas, rank=rank, shuffle=False, seed=seed)
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        drawn = list(self._drawing())
        return (drawn[place] for place in super().__iter__())

    def _drawing(self) -> Any:
        if isinstance(self.sampler, _FIXED):
            return self.sampler
        drawing = copy.copy(self.sampler)
        drawing.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return drawing


def share_sampler(sampler: Any, num_replicas: int, rank: int, seed: int) -> DistributedSampler[int]:
    """The sampler that gives this rank its share of ``sampler``'s indices.

    The last indices are filled up with the first ones, so that all ranks draw equally many.

    Raises:
        OptionError: ``sampler`` is not one of torch's.
    """
    if type(sampler) is SequentialSampler:
        return DistributedSampler(sampler.data_source, num_replicas, rank, shuffle=False)  # type: ignore[arg-type]
    if type(sampler) is RandomSampler and _draws_each_once(sampler):
        return DistributedSampler(sampler.data_source, num_replicas, rank, shuffle=True, seed=seed)  # type: ignore[arg-type]
    if type(sampler) in _DRAWING + _FIXED:
        return DrawnSampler(sampler, num_replicas, rank, seed)
    raise OptionError(_refusal("sampler", sampler))


def share_batch_sampler(batch_sampler: Any, num_replicas: int, rank: int, seed: int) -> BatchSampler:
    """The batch sampler that gives this rank its share, in batches of the same size.

    Raises:
        OptionError: ``batch_sampler``, or the sampler in it, is not one of torch's.
    """
    if type(batch_sampler) is not BatchSampler:
        raise OptionError(_refusal("batch_sampler", batch_sampler))
    shared = share_sampler(batch_sampler.sampler, num_replicas, rank, seed)
    return BatchSampler(shared, batch_sampler.batch_size, batch_sampler.drop_last)


def drawing_sampler(loader: DataLoader[Any]) -> Any:
    """The sampler that decides a loader's order: its own, or the one inside its batch sampler."""
    return loader.sampler if loader.batch_sampler is None else getattr(loader.batch_sampler, "sampler", None)


def agreed_seed(loader: DataLoader[Any]) -> int:
    """The seed of the generator that the user gave the loader or its sampler; otherwise 0."""
    for generator in (getattr(drawing_sampler(loader), "generator", None), loader.generator):
        if isinstance(generator, torch.Generator):
            return generator.initial_seed() % 2**62  # it may fill all 64 bits; the epoch is added to it
    return 0


def _draws_each_once(sampler: RandomSampler) -> bool:
    return not sampler.replacement and sampler.num_samples == len(sampler.data_source)


def _refusal(kind: str, sampler: Any) -> str:
    return (
        f"{kind}={type(sampler).__name__} cannot be shared out over ranks: setup_loader() knows torch's "
        "SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, lists of indices, "
        "DistributedSampler, and BatchSampler over one of these. Give each rank its share in your own "
        "sampler and pass setup_loader(loader, use_distributed_sampler=False)."
    )
