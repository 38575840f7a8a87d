"""Models in `FullyShardedDataParallel`, which makes of their parameters one flat one and shards that.

For a hand-over they are taken apart: modules and optimizers hold again what an unwrapped model has, each
parameter by itself. Not its values, only this rank's part of them (`FlatPart`); the kernel puts it together.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from nbdist.values.pieces import FlatPart
from nbdist.values.shards import Flat, FlatState


def take_apart(wrappers: Collection[Any], optimizers: Iterable[Any], again: contextlib.ExitStack) -> Flat:
    """Take models apart, until `again` is closed.

    Args:
        wrappers: all modules in `FullyShardedDataParallel`, also those inside others.
        optimizers: all that there are.
    """
    flat = Flat()
    originals: dict[int, list[Any]] = {}
    for wrapper in wrappers:
        _restore_buffers(wrapper, again)
        handle = wrapper._handle
        if handle is not None:
            parameters = _stand_ins(handle.flat_param)
            originals[id(handle.flat_param)] = parameters
            _put_back(handle, parameters, again)
            _note_parts(handle, wrapper, parameters, flat)
    order = _model_order(wrappers)
    for optimizer in optimizers:
        _take_optimizer_apart(optimizer, originals, order, flat, again)
    return flat


def _model_order(wrappers: Collection[Any]) -> dict[int, int]:
    """By a parameter's id where it comes among those of its whole model."""
    inner = {id(module) for wrapper in wrappers for module in wrapper.modules() if module is not wrapper}
    roots = [wrapper for wrapper in wrappers if id(wrapper) not in inner]
    return {id(each): at for root in roots for at, each in enumerate(root.parameters())}


# ── Parameters ──────────────────────────────────────────────────────────────────────────────────────────────


def _stand_ins(flat_param: Any) -> list[Any]:
    """A parameter for each: the original one where FSDP has kept it (`use_orig_params`)."""
    import torch

    if flat_param._params is not None:
        return list(flat_param._params)
    empty = partial(torch.empty, 0, dtype=flat_param.dtype)
    return [torch.nn.Parameter(empty(), flat_param.requires_grad) for _ in flat_param._param_infos]


def _put_back(handle: Any, parameters: list[Any], again: contextlib.ExitStack) -> None:
    """Have modules hold these parameters, and nothing that FSDP has put in their place."""
    flat_param = handle.flat_param
    at = {
        (id(info.module), info.param_name): parameter
        for info, parameter in zip(flat_param._param_infos, parameters, strict=True)
    }
    held: dict[Any, dict[str, Any]] = {handle._fully_sharded_module: {}}  # which may hold the flat one
    for info, parameter in zip(flat_param._param_infos, parameters, strict=True):
        held.setdefault(info.module, {})[info.param_name] = parameter
    for info in flat_param._shared_param_infos:
        shared = at[id(info.prim_module), info.prim_param_name]
        held.setdefault(info.module, {})[info.param_name] = shared
    for module, own in held.items():
        others = {name: value for name, value in module._parameters.items() if value is not flat_param}
        _replace_content(
            module._parameters, {**own, **{n: v for n, v in others.items() if n not in own}}, again
        )
        views = {name: vars(module)[name] for name in own if name in vars(module)}
        again.callback(vars(module).update, views)
        for name in views:
            del vars(module)[name]


def _replace_content(held: dict[Any, Any], content: dict[Any, Any], again: contextlib.ExitStack) -> None:
    again.callback(held.update, held.copy())
    again.callback(held.clear)
    held.clear()
    held.update(content)


def _note_parts(handle: Any, wrapper: Any, parameters: list[Any], flat: Flat) -> None:
    flat_param, sharded = handle.flat_param, handle.uses_sharded_strategy
    shard = getattr(flat_param, "_local_shard", flat_param.data).detach()
    replicas = getattr(wrapper, "_inter_node_pg", None)
    first = replicas is None or replicas.rank() == 0
    kept = flat_param._params is not None
    contiguous = getattr(flat_param, "_contiguities", (True,) * len(parameters))  # before torch 2.4
    for at, (parameter, start) in enumerate(zip(parameters, _starts(flat_param), strict=True)):
        if flat_param._param_extensions[at] is not None:
            flat.refused[id(parameter)] = "it is sharded by FullyShardedDataParallel and in another way too"
        size, shape, here = flat_param._numels[at], flat_param._shapes[at], flat_param._shard_param_infos[at]
        spread = sharded and size > 0
        last = (start + size - 1) // shard.numel() if spread else 0
        flat.parts[id(parameter)] = FlatPart(
            parameter=parameter,
            layout=(tuple(shape), _in_order(shape) if contiguous[at] else tuple(flat_param._strides[at])),
            size=size,
            length=(here.numel_in_shard or 0) if spread else size,
            start=(here.intra_param_start_idx or 0) if spread else 0,
            place=(here.offset_in_shard or 0) if spread else start,
            shard=shard,
            grad=parameter.grad if kept else flat_param.grad,
            kept=kept,
            parts=last - start // shard.numel() + 1 if spread else 1,
            wanted=first and (spread or handle.rank == 0),
        )


def _in_order(shape: Iterable[int]) -> tuple[int, ...]:
    """The stride of a contiguous tensor."""
    strides, stride = [], 1
    for size in reversed(tuple(shape)):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))


def _starts(flat_param: Any) -> list[int]:
    """Where each parameter begins in the whole flat one, in which there is padding."""
    starts, start = [], 0
    for size, padding in zip(flat_param._numels_with_padding, flat_param._is_padding_mask, strict=True):
        if not padding:
            starts.append(start)
        start += size
    return starts


def _restore_buffers(wrapper: Any, again: contextlib.ExitStack) -> None:
    """Give buffers, which FSDP casts where precision is mixed, the type that they had."""
    types = getattr(wrapper, "_buffer_name_to_orig_dtype", {})
    clean: Any = sys.modules["torch.distributed.fsdp._common_utils"].clean_tensor_name
    for name, buffer in wrapper.named_buffers() if types else ():
        dtype = types.get(clean(name), buffer.dtype)
        if dtype != buffer.dtype:
            again.callback(setattr, buffer, "data", buffer.data)
            buffer.data = buffer.data.to(dtype)


# ── Optimizers ──────────────────────────────────────────────────────────────────────────────────────────────


def _take_optimizer_apart(
    optimizer: Any,
    originals: dict[int, list[Any]],
    order: dict[int, int],
    flat: Flat,
    again: contextlib.ExitStack,
) -> None:
    sources: list[tuple[Any, Any]] = []  # a parameter, and the one that the optimizer knows
    for group in optimizer.param_groups:
        known = group["params"]
        pairs = [(each, one) for one in known for each in originals.get(id(one), [one])]
        if any(each is not one for each, one in pairs):
            # FSDP has another order: that of the flat parameters.
            pairs.sort(key=lambda pair: order.get(id(pair[0]), len(order)))
            again.callback(known.__setitem__, slice(None), known.copy())
            known[:] = [each for each, _ in pairs]
        sources += pairs
    sources = [(each, one) for each, one in sources if id(each) in flat.parts]
    if not sources:
        return
    former = optimizer.state
    flat_ones = {id(one) for _, one in sources}
    state = FlatState(
        rest={key: value for key, value in former.items() if id(key) not in flat_ones},
        parameters=[each for each, _ in sources],
        entries=[],
    )
    for each, one in sources:
        entries, odd = flat.parts[id(each)].entries(former.get(one, {}))
        state.entries.append(entries)
        if odd:
            flat.refused[id(each)] = (
                f"{type(optimizer).__name__} keeps {odd} of a whole shard, which cannot be told apart"
            )
    again.callback(setattr, optimizer, "state", former)
    optimizer.state = state
    flat.states[id(optimizer)] = state
