"""A batch, whatever it is made of, to a device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch


def to_device(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Move every tensor in ``batch`` to ``device``.

    Looks into dicts and other mappings, lists, tuples, named tuples and dataclasses, at any depth,
    and calls ``.to(device)`` of objects that have it. A container is rebuilt, as its own type, only
    where something in it moved; everything else is passed on as it is.

    Args:
        batch: what a loader yields.
        device: where to.
        non_blocking: do not wait for the copy of tensors in pinned memory.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, (str, bytes, int, float, type(None), type)):
        return batch

    def move(item: Any) -> Any:
        return to_device(item, device, non_blocking=non_blocking)

    # Before the containers: BatchEncoding is a mapping and PackedSequence a tuple, and both know better.
    if callable(getattr(batch, "to", None)):
        moved = batch.to(device)
        return batch if moved is None else moved
    if isinstance(batch, Mapping):
        return _moved_mapping(batch, move)
    if isinstance(batch, (list, tuple)):
        return _moved_sequence(batch, move)
    if dataclasses.is_dataclass(batch):
        return _moved_dataclass(batch, move)
    return batch


def _moved_mapping(batch: Mapping[Any, Any], move: Callable[[Any], Any]) -> Mapping[Any, Any]:
    moved = {key: move(item) for key, item in batch.items()}
    if all(moved[key] is item for key, item in batch.items()):
        return batch
    if not isinstance(batch, MutableMapping):
        return moved
    # A copy, not a call of the type: a defaultdict's first argument is its factory.
    clone = copy.copy(batch)
    for key, item in moved.items():
        clone[key] = item
    return clone


def _moved_sequence(batch: list[Any] | tuple[Any, ...], move: Callable[[Any], Any]) -> Any:
    moved = [move(item) for item in batch]
    if all(new is old for new, old in zip(moved, batch, strict=True)):
        return batch
    if isinstance(batch, list):
        clone = copy.copy(batch)
        clone[:] = moved
        return clone
    if hasattr(batch, "_make"):  # a named tuple takes its fields one by one
        return type(batch)(*moved)
    return type(batch)(moved)


def _moved_dataclass(batch: Any, move: Callable[[Any], Any]) -> Any:
    moved = {}
    for field in dataclasses.fields(batch):
        old = getattr(batch, field.name, None)
        new = move(old)
        if new is not old:
            moved[field.name] = new
    if not moved:
        return batch
    clone = copy.copy(batch)
    for name, value in moved.items():
        object.__setattr__(clone, name, value)  # frozen ones too
    return clone
