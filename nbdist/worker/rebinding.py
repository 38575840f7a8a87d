"""Models of DistributedDataParallel that were made before a failure, in the fresh process group after it.

Their reducer belongs to the group of then, and may have been stopped in the middle of a backward, on each
rank at another place. So it is made anew, as torch does with a model that it has unpickled. And the ranks may
have been stopped before an optimizer's step or after it: where they differ, rank 0's state counts for all.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from nbdist.values.models import BETWEEN_RANKS
from nbdist.worker.hints import FORMER_GROUP

_DDP = "torch.nn.parallel.distributed"


def rebind_models(defaults: Collection[Any], namespace: Mapping[str, Any]) -> None:
    """Let all models that average over a default process group of before do so over that of now.

    Every rank must call it: models and optimizers with names in `namespace` are compared over all ranks.
    Models of another group, which only the user can make again, say so when they are called.

    Args:
        defaults: all default groups that there have been.
    """
    wrapper: Any = getattr(sys.modules.get(_DDP), "DistributedDataParallel", None)
    if wrapper is None:
        return
    known = sys.modules["torch.distributed"].distributed_c10d._world.pg_map
    for model in [obj for obj in gc.get_objects() if issubclass(type(obj), wrapper)]:
        group = vars(model).get("process_group")
        if group in defaults:
            _rebind(model)
        elif group not in known and _refuse not in model._forward_pre_hooks.values():
            model.register_forward_pre_hook(_refuse)  # gloo would say that a peer is gone
    _agree(namespace, wrapper)


def _refuse(*_: Any) -> None:
    raise RuntimeError(FORMER_GROUP)


def _rebind(model: Any) -> None:
    import torch.distributed as dist

    former, hooks = model.process_group, model._comm_hooks
    state = {name: value for name, value in vars(model).items() if name not in BETWEEN_RANKS}
    model.__setstate__({**state, "_comm_hooks": []})
    for hook, given in hooks:
        if getattr(given, "process_group", None) is former:
            given.process_group = dist.group.WORLD
        model.register_comm_hook(dist.group.WORLD if given is former else given, hook)


def _agree(namespace: Mapping[str, Any], wrapper: Any) -> None:
    import torch.distributed as dist

    models = {name: value for name, value in namespace.items() if issubclass(type(value), wrapper)}
    models = {name: model for name, model in models.items() if model.process_group is dist.group.WORLD}
    optimizers = dict(_optimizers_of(models.values(), namespace))
    names = {id(holder): name for name, holder in {**optimizers, **models}.items()}  # one for each
    holders = {name: namespace[name] for name in names.values()}
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, {name: _digest(holder) for name, holder in holders.items()})
    differing = [
        name
        for name, first in everyones[0].items()
        if any(digests.get(name) != first for digests in everyones)
        and all(name in digests for digests in everyones)
    ]
    for name in differing:
        state = [holders[name].state_dict()]
        dist.broadcast_object_list(state, src=0)
        if dist.get_rank() != 0:
            _load(holders[name], state[0])
    if differing:
        print(
            f"nbdist: the ranks had been stopped at different steps: {', '.join(differing)} now "
            f"{'has' if len(differing) == 1 else 'have'} rank 0's state on all ranks",
            file=sys.stderr,
        )


def _load(holder: Any, state: Any) -> None:
    """Give a model or an optimizer another one's state. An optimizer would put new groups and states in the
    place of its own, which the notebook's changes go to, and which schedulers hold."""
    own = {name: vars(holder).get(name) for name in ("param_groups", "state")}
    holder.load_state_dict(state)
    for name, former in own.items():
        if former is not None:
            setattr(holder, name, _filled(former, getattr(holder, name)))


def _filled(former: Any, new: Any) -> Any:
    """`former` with the content of `new`, where it can hold that; else `new`."""
    import torch

    if type(former) is not type(new):
        return new
    if isinstance(former, dict):
        content = {key: _filled(former[key], value) if key in former else value for key, value in new.items()}
        former.clear()
        former.update(content)
        return former
    if isinstance(former, list):
        former[:] = [_filled(*pair) for pair in zip(former, new, strict=False)] + new[len(former) :]
        return former
    if isinstance(former, torch.nn.Parameter) or former is new:  # what is trained is no state
        return new
    if isinstance(former, torch.Tensor) and (former.shape, former.dtype) == (new.shape, new.dtype):
        return former.copy_(new)
    return new


def _optimizers_of(models: Iterable[Any], namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    import torch

    trained = {id(parameter) for model in models for parameter in model.parameters()}
    for name, value in namespace.items():
        if issubclass(type(value), torch.optim.Optimizer):
            own = (parameter for group in value.param_groups for parameter in group["params"])
            if any(id(parameter) in trained for parameter in own):
                yield name, value


def _digest(holder: Any) -> dict[str, str]:
    """What a model's or an optimizer's state amounts to; the same on ranks that hold the same."""
    return {place: _amount(value) for place, value in _leaves(holder.state_dict(), "")}


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{place}.{index}")
    else:
        yield place, value


def _amount(value: Any) -> str:
    import torch

    if not isinstance(value, torch.Tensor):
        return repr(value)
    flat = torch.view_as_real(value.detach()) if value.is_complex() else value.detach()
    # Two sums tell apart what differs by one step; no copy is made for them.
    whole = flat.sum(dtype=torch.float64).item()
    length = torch.linalg.vector_norm(flat, dtype=torch.float64).item() if flat.is_floating_point() else ""
    return f"{tuple(value.shape)} {value.dtype} {whole!r} {length!r}"
