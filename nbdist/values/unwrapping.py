"""Models that torch's FSDP has wrapped, at a hand-over."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_ATTRIBUTES = ("__composable_api", "_is_fsdp", "_fsdp")
_FSDP = ("torch.distributed.fsdp", "torch.distributed._composable")


@contextlib.contextmanager
def without_fsdp(others: Iterable[Any]) -> Iterator[None]:
    """All modules that `fully_shard` wrapped have their own class and hooks, and sharded parameters.

    Args:
        others: objects to look at beside those that this process has made, such as the notebook's.
    """
    wrapper: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    objects = () if wrapper is None else (*gc.get_objects(), *others)
    wrapped = list({id(obj): obj for obj in objects if issubclass(type(obj), wrapper)}.values())
    with contextlib.ExitStack() as again:
        for module in wrapped:
            module.reshard()
        for module in {inner: None for root in wrapped for inner in root.modules()}:
            _without_notes(module, again)
        for module in wrapped:
            again.callback(setattr, module, "__class__", type(module))
            module.__class__ = type(module).__bases__[1]  # after FSDP's own
        yield


def _without_notes(module: Any, again: contextlib.ExitStack) -> None:
    """Take away the hooks and the attributes that FSDP has given a module."""
    held = vars(module)
    for name in [name for name in held if name.startswith(_ATTRIBUTES)]:
        again.callback(held.__setitem__, name, held.pop(name))
    dicts = [value for name, value in held.items() if isinstance(value, dict) and "hooks" in name]
    gone = {key for hooks in dicts for key, hook in hooks.items() if _is_fsdps(hook)}
    for hooks in dicts:
        before = hooks.copy()
        for key in gone & hooks.keys():
            del hooks[key]
        again.callback(hooks.update, before)


def _is_fsdps(obj: Any) -> bool:
    function = getattr(obj, "hook", obj)
    owner = getattr(function, "__self__", function)
    places = (getattr(function, "__module__", None), type(owner).__module__)
    return any(isinstance(place, str) and place.startswith(_FSDP) for place in places)


FLAT = (
    "its parameters are FullyShardedDataParallel's flat shards. Shard the model by fully_shard, or bind what "
    "FullyShardedDataParallel.state_dict_type gives of it to a name"
)
"""Why such a model stays behind."""


def flat_sharded() -> frozenset[int]:
    """The ids of models in `FullyShardedDataParallel`, with all that they consist of."""
    wrapper = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    roots = [] if wrapper is None else [obj for obj in gc.get_objects() if issubclass(type(obj), wrapper)]
    found: set[int] = set()
    for root in roots:
        for module in root.modules():
            held = vars(module)
            dicts = [value for value in held.values() if isinstance(value, dict)]
            tensors = [value for held_in in dicts for value in held_in.values() if hasattr(value, "data_ptr")]
            found |= {id(obj) for obj in (module, *dicts, *tensors)}
    return frozenset(found)
