"""`setup_loader`: this rank's share of the data, on this rank's device."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from nbdist.training.ranks import (
    current_device,
    current_rank,
    current_world_size,
    is_rank_zero,
    was_launched,
)
from nbdist.training.samplers import agreed_seed, drawing_sampler, share_batch_sampler, share_sampler
from nbdist.training.transfer import to_device


class RankLoader:
    """A `DataLoader` that yields this rank's share of the batches, on this rank's device.

    It has the loader's attributes (``dataset``, ``batch_size``, ``sampler``, ...) and its length, in
    batches of this rank. The order of a shuffling loader changes with each iteration over it.
    Pickled and loaded elsewhere, it serves the share of the rank that it is in by then: in a plain
    process all of the data, and there on the device where the loader makes it.
    """

    def __init__(self, given: DataLoader[Any], *, shares: bool, moves: bool) -> None:
        self._given = given
        self._shares = shares
        self._moves = moves
        self._made_in_pid = os.getpid()
        self._served: tuple[tuple[int, int], DataLoader[Any]] | None = None
        # The epoch of the next iteration, and the one that the sampler was last told.
        self._epoch = self._told_epoch = _epoch_of(given) or 0
        self._serve()  # what cannot be shared out is refused now, not at the first batch

    @property
    def given(self) -> DataLoader[Any]:
        """The loader that was given to `setup_loader`, unchanged."""
        return self._given

    @property
    def loader(self) -> DataLoader[Any]:
        """The loader that serves this rank."""
        return self._serve()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is; those after it count on from there.

        Args:
            epoch: 0 or more, the same on every rank.

        Example:
            >>> loader.set_epoch(checkpoint["epoch"])
        """
        self._epoch = epoch
        self._tell_epoch(self._serve())

    def __iter__(self) -> Iterator[Any]:
        loader = self._serve()
        by_hand = _epoch_of(loader)  # as tutorials do: loader.sampler.set_epoch(epoch)
        if by_hand is not None and by_hand != self._told_epoch:
            self._epoch = by_hand
        self._tell_epoch(loader)
        self._epoch += 1
        # Here, not in the generator: the iteration starts now.
        batches = iter(loader)
        return self._moved(batches) if self._moves else batches

    def _serve(self) -> DataLoader[Any]:
        place = (current_rank(), current_world_size())
        if self._served is None or self._served[0] != place:
            share = _share_of(self._given, *place) if self._shares else _fresh_copy(self._given)
            self._served = (place, share)
            self._tell_epoch(share)
        return self._served[1]

    def _tell_epoch(self, loader: DataLoader[Any]) -> None:
        for drawing in (loader.batch_sampler, drawing_sampler(loader)):
            if callable(getattr(drawing, "set_epoch", None)):
                drawing.set_epoch(self._epoch)  # type: ignore[union-attr]
        self._told_epoch = self._epoch

    def _moved(self, batches: Iterator[Any]) -> Iterator[Any]:
        # Brought back from ranks into a plain process, where the model is on the CPU: so is the data.
        if self._made_in_pid != os.getpid() and not was_launched():
            yield from batches
            return
        device = current_device()
        non_blocking = bool(self._given.pin_memory) and device.type == "cuda"
        for batch in batches:
            yield to_device(batch, device, non_blocking=non_blocking)

    def __len__(self) -> int:
        return len(self._serve())

    def __getattr__(self, name: str) -> Any:
        # Also asked while a copy is being built and has no attribute yet.
        if name.startswith("__") or "_given" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._serve(), name)

    def __getstate__(self) -> dict[str, Any]:
        # Running workers stay where they are; without any, the given loader itself travels.
        given = self._given if self._given._iterator is None else _fresh_copy(self._given)
        return {**self.__dict__, "_given": given, "_served": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def setup_loader(
    loader: DataLoader[Any] | RankLoader, *, use_distributed_sampler: bool = True, move_to_device: bool = True
) -> RankLoader:
    """Give each rank its share of a loader's data, on the rank's device.

    With several ranks the loader's sampler becomes a `DistributedSampler` that shuffles if the loader
    did; all other settings stay, ``batch_size`` too, which is then the batch of one rank. The order
    follows from the epoch and a seed: 0, or the first seed of the loader's ``generator``, which must
    be the same on every rank. Where the data cannot be divided evenly the first examples are seen
    twice, so that all ranks take equally many steps. A `DistributedSampler` that is there is kept. An
    `IterableDataset` is kept, too: it must share itself out. One rank gets all of the data.

    Args:
        loader: a `DataLoader`, or what `setup_loader` made of one, which is then set up anew.
        use_distributed_sampler: False if the loader's sampler gives each rank its share already.
        move_to_device: False to leave the batches on the CPU.

    Raises:
        OptionError: a sampler that cannot be shared out over ranks.
        TypeError: ``loader`` is not a `DataLoader`.

    Example:
        >>> loader = nbdist.setup_loader(DataLoader(dataset, batch_size=32, shuffle=True))
        >>> for images, labels in loader:
        ...     loss = loss_function(model(images), labels)
    """
    given = loader.given if isinstance(loader, RankLoader) else loader
    if not isinstance(given, DataLoader):
        raise TypeError(
            f"setup_loader() takes a torch.utils.data.DataLoader, not {type(given).__name__}. "
            "Wrap a dataset first: DataLoader(dataset, batch_size=32)."
        )
    prepared = RankLoader(given, shares=use_distributed_sampler, moves=move_to_device)
    if use_distributed_sampler and isinstance(given.dataset, IterableDataset) and current_world_size() > 1:
        _warn_of_iterable(given.dataset)
    return prepared


def _share_of(loader: DataLoader[Any], rank: int, world_size: int) -> DataLoader[Any]:
    share = _fresh_copy(loader)
    whole = world_size == 1 or isinstance(loader.dataset, IterableDataset)
    if whole or isinstance(drawing_sampler(loader), DistributedSampler):
        return share
    seed = agreed_seed(loader)
    # A loader refuses new samplers after its making, hence the plain object.__setattr__.
    if loader.batch_sampler is None:
        object.__setattr__(share, "sampler", share_sampler(loader.sampler, world_size, rank, seed))
        return share
    batch_sampler = share_batch_sampler(loader.batch_sampler, world_size, rank, seed)
    object.__setattr__(share, "batch_sampler", batch_sampler)
    object.__setattr__(share, "sampler", batch_sampler.sampler)
    return share


def _fresh_copy(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader with every setting of ``loader``, but none of its workers.

    Copied, not made anew: so the settings of subclasses and of later torch versions stay, too.
    """
    fresh = copy.copy(loader)
    fresh._iterator = None
    return fresh


def _epoch_of(loader: DataLoader[Any]) -> int | None:
    epoch = getattr(drawing_sampler(loader), "epoch", None)
    return epoch if isinstance(epoch, int) else None


def _warn_of_iterable(dataset: IterableDataset[Any]) -> None:
    if is_rank_zero():
        warnings.warn(
            f"setup_loader() leaves an IterableDataset as it is: unless {type(dataset).__name__} itself "
            "yields a different part on each rank, every rank sees all of the data. If it does, pass "
            "use_distributed_sampler=False to say so.",
            UserWarning,
            stacklevel=3,
        )
