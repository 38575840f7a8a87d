"""Models that torch's FSDP has wrapped, at a hand-over: as they would be without it."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nbdist.values.flat import take_apart
from nbdist.values.models import flat_wrapper_class
from nbdist.values.shards import Flat

_ATTRIBUTES = ("__composable_api", "_is_fsdp", "_fsdp")
_FSDP = ("torch.distributed.fsdp", "torch.distributed._composable")


class Unwrapped:
    """All models of this process, and what was sharded of them.

    Args:
        others: objects to look at beside those that this process has made, such as the notebook's.
    """

    def __init__(self, others: Iterable[Any]):
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        objects: list[Any] = [*gc.get_objects(), *others] if fsdp is not None else []
        torch: Any = sys.modules.get("torch")
        modules = _of_class(objects, torch.nn.Module) if objects else []
        self.modules = [module for module in modules if _is_whole(module)]
        self.optimizers = _of_class(objects, torch.optim.Optimizer) if objects else []
        self.flat = Flat()

    def holding_flat(self, objects: Mapping[int, Any]) -> dict[int, Any]:
        """The modules among some objects that hold, by themselves, a parameter which was flat."""
        if not self.flat.parts:
            return {}
        modules = {key: obj for key, obj in objects.items() if hasattr(type(obj), "named_modules")}
        return {
            key: module
            for key, module in modules.items()
            if any(id(value) in self.flat.parts for value in module._parameters.values())
        }


def _is_whole(module: Any) -> bool:
    """Whether a module has been made to the end: a failed one may still be held by a traceback."""
    inside = vars(module).get("_modules")
    if inside is None:
        return False
    flat = flat_wrapper_class()
    return flat is None or not issubclass(type(module), flat) or "_fsdp_wrapped_module" in inside


def _of_class(objects: list[Any], cls: Any) -> list[Any]:
    # Asked of the class: an object may lie about its own.
    classes = {own for own in set(map(type, objects)) if issubclass(own, cls)}
    return list({id(obj): obj for obj in objects if type(obj) in classes}.values())


@contextlib.contextmanager
def without_fsdp(others: Iterable[Any]) -> Iterator[Unwrapped]:
    """While this lasts, modules have their own class and no hooks of FSDP's; they and optimizers have each
    parameter by itself, sharded or standing for what is sharded.

    Args:
        others: as `Unwrapped` takes them.
    """
    found = Unwrapped(others)
    sharded: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None) or ()
    flat = flat_wrapper_class() or ()
    wrapped = [module for module in found.modules if issubclass(type(module), sharded)]
    wrappers = [module for module in found.modules if issubclass(type(module), flat)]
    with contextlib.ExitStack() as again:
        for module in wrapped:
            module.reshard()
        inside = {inner: None for root in (*wrapped, *wrappers) for inner in root.modules()}
        for module in inside:
            if not issubclass(type(module), flat):
                _without_notes(module, again)
        for module in wrapped:
            again.callback(setattr, module, "__class__", type(module))
            module.__class__ = type(module).__bases__[1]  # after FSDP's own
        found.flat = take_apart(wrappers, found.optimizers, again)
        yield found


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


def gone_with(lost: Mapping[int, str], found: Unwrapped) -> dict[int, str]:
    """What cannot come back without some tensors or optimizers: the models that hold them and the optimizers
    that have one of their parameters come together or not at all.

    Args:
        lost: their ids, with the reason.

    Returns:
        The ids of those and of all that they consist of, with the reason.
    """
    inner = {id(held) for module in found.modules for held in module._modules.values()}
    roots = [module for module in found.modules if id(module) not in inner]
    units = [*map(_consist_of, roots), *map(_consist_of_optimizer, found.optimizers)]
    gone = dict(lost)
    while True:
        hit = [unit for unit in units if not gone.keys().isdisjoint(unit)]
        if not hit:
            return gone
        units = [unit for unit in units if gone.keys().isdisjoint(unit)]
        for unit in hit:
            reason = next(gone[id_] for id_ in unit if id_ in gone)
            gone |= {id_: reason for id_ in unit if id_ not in gone}


def _consist_of(root: Any) -> set[int]:
    found: set[int] = set()
    for module in root.modules():
        dicts = [value for value in vars(module).values() if isinstance(value, dict)]
        tensors = [value for held in dicts for value in held.values() if hasattr(value, "data_ptr")]
        found |= {id(obj) for obj in (module, *dicts, *tensors)}
    return found


def _consist_of_optimizer(optimizer: Any) -> set[int]:
    groups = optimizer.param_groups
    lists = [group["params"] for group in groups]
    tensors = [tensor for tensors in lists for tensor in tensors]
    return set(map(id, (optimizer, vars(optimizer), optimizer.state, groups, *groups, *lists, *tensors)))
