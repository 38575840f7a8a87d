"""`setup`: a model and its optimizers, made ready for this rank."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from itertools import chain
from typing import Any, overload

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from nbdist.errors import OptionError
from nbdist.messages import PRECISION_VARIABLE, STRATEGY_VARIABLE
from nbdist.training.ranks import current_device, join_process_group
from nbdist.training.transfer import to_device

# Strategy: the options of DistributedDataParallel that it stands for.
_STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "ddp": {},
    "ddp_find_unused_parameters_true": {"find_unused_parameters": True},
    "ddp_static_graph": {"static_graph": True},
}
_PRECISIONS = ("32-true",)
# What setup() decides by itself.
_OURS = frozenset({"self", "module", "device_ids", "output_device"})


@overload
def setup(
    model: nn.Module,
    optimizer: None = None,
    *,
    strategy: str | None = None,
    precision: str | None = None,
    **ddp_options: Any,
) -> nn.Module: ...
@overload
def setup(
    model: nn.Module,
    optimizer: Optimizer,
    *optimizers: Optimizer,
    strategy: str | None = None,
    precision: str | None = None,
    **ddp_options: Any,
) -> tuple[Any, ...]: ...
def setup(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *optimizers: Optimizer,
    strategy: str | None = None,
    precision: str | None = None,
    **ddp_options: Any,
) -> Any:
    """Make a model and its optimizers ready for training on this rank.

    Moves the model to the rank's device, in place, with what its optimizers already hold, and wraps
    it in `DistributedDataParallel`, which starts all ranks from rank 0's weights and averages their
    gradients. A model without trainable parameters, or in a plain process, is moved but not wrapped.
    Every rank must call it. Under torchrun the process group is initialised if it is not yet.

    Args:
        model: the model, not wrapped yet.
        optimizer: its optimizer, if any; it goes on with the same parameters.
        *optimizers: further ones.
        strategy: ``"ddp"``, ``"ddp_find_unused_parameters_true"`` or ``"ddp_static_graph"``. Default:
            the run's ``--strategy``, ``"ddp"`` if it has none.
        precision: ``"32-true"``. Default: the run's ``--precision``, ``"32-true"`` if it has none.
        **ddp_options: `DistributedDataParallel`'s own, such as ``gradient_as_bucket_view=True``.

    Returns:
        The model; with optimizers, a tuple of the model and them.

    Raises:
        OptionError: an unknown strategy, precision or option; a model that is wrapped already; an
            optimizer of another model.
        TypeError: ``model`` is not a module, or an optimizer is not an optimizer.

    Example:
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model, optimizer = nbdist.setup(model, optimizer)
    """
    options = _ddp_options(strategy, ddp_options)
    _checked_choice("precision", precision, PRECISION_VARIABLE, _PRECISIONS)
    _check_model(model)
    given = () if optimizer is None and not optimizers else (optimizer, *optimizers)
    checked = [_checked_optimizer(one, model) for one in given]

    grouped = join_process_group()
    device = current_device()
    before = list(model.parameters())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    model.to(device)
    if checked:
        _check_same(before, model, device)
    for one in checked:
        _move_optimizer(one, device)
    if grouped:
        _own_memory(model, checked)
        model = _wrapped(model, device, options)
    return (model, *checked) if checked else model


def _ddp_options(strategy: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    name = _checked_choice("strategy", strategy, STRATEGY_VARIABLE, tuple(_STRATEGIES))
    allowed = sorted(inspect.signature(DistributedDataParallel.__init__).parameters.keys() - _OURS)
    for option in given:
        if option in _OURS:
            raise OptionError(f"{option} is what setup() chooses by itself for each rank. Leave it out.")
        if option not in allowed:
            raise OptionError(
                f"setup() has no option {option}={given[option]!r}; allowed are DistributedDataParallel's: "
                f"{', '.join(allowed)}. Pass one of these, or leave it out."
            )
    return {**_STRATEGIES[name], **given}


def _checked_choice(option: str, given: str | None, variable: str, allowed: tuple[str, ...]) -> str:
    chosen = given if given is not None else os.environ.get(variable) or allowed[0]
    if chosen in allowed:
        return chosen
    origin = f"{option}={chosen!r}" if given is not None else f"{option}={chosen!r} (the run's --{option})"
    raise OptionError(
        f"setup() does not know {origin}; allowed: {', '.join(map(repr, allowed))}. "
        f"Pass one of these, or leave {option} out for {allowed[0]!r}."
    )


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"setup() takes a torch.nn.Module first, not {type(model).__name__}.")
    wrapper = type(model).__name__
    # FSDP by name: importing it costs a second, and a model in it was imported with it.
    is_fsdp = wrapper.startswith(("FSDP", "FullyShardedDataParallel"))
    if is_fsdp or isinstance(model, (DistributedDataParallel, DataParallel)):
        raise OptionError(
            f"the model is already wrapped, in {wrapper}; setup() wraps it itself. Pass the model as it was "
            "before that."
        )


def _checked_optimizer(optimizer: object, model: nn.Module) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"setup() takes optimizers after the model, one by one, not {type(optimizer).__name__}. "
            "Schedulers need no setup: make them after it, from the optimizer that it returns."
        )
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise OptionError(
            f"the {type(optimizer).__name__} optimizer holds none of the model's parameters, so it would "
            "train nothing. Make it from this model: for example SGD(model.parameters(), lr=0.1)."
        )
    return optimizer


def _check_same(before: list[nn.Parameter], model: nn.Module, device: torch.device) -> None:
    # Not on CUDA and CPU, unless torch.__future__.set_overwrite_module_params_on_conversion is on.
    if any(new is not old for new, old in zip(model.parameters(), before, strict=True)):
        raise OptionError(
            f"moving the model to {device} made new parameters, so optimizers made before would train "
            "nothing. Call setup(model) first, and make the optimizers from what it returns."
        )


def _move_optimizer(optimizer: Optimizer, device: torch.device) -> None:
    for group in optimizer.param_groups:
        # The step counter stays on the CPU, where reading it costs nothing, unless a kernel reads it.
        step_moves = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                if name != "step" or step_moves:
                    state[name] = to_device(value, device)


def _own_memory(model: nn.Module, optimizers: list[Optimizer]) -> None:
    """Copy what lies in memory that ranks share.

    torch.multiprocessing hands a model to the ranks that it spawns in shared memory: each rank's
    optimizer step would change the weights of all.
    """
    states = (state for optimizer in optimizers for state in optimizer.state.values())
    for tensor in chain(model.parameters(), model.buffers(), *(state.values() for state in states)):
        if isinstance(tensor, torch.Tensor) and _is_shared(tensor):
            tensor.data = tensor.data.clone()


def _is_shared(tensor: torch.Tensor) -> bool:
    # A CUDA tensor always says that it is shared; sparse and lazy ones have no storage to ask.
    plain = tensor.layout is torch.strided and not is_lazy(tensor)
    return plain and tensor.device.type == "cpu" and tensor.untyped_storage().is_shared()


def _wrapped(model: nn.Module, device: torch.device, options: Mapping[str, Any]) -> nn.Module:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model  # nothing to average; DistributedDataParallel refuses it
    device_ids = [device] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=device_ids, **options)
