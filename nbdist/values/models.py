"""How torch's modules, optimizers and compiled functions are rebuilt."""

from __future__ import annotations

import io
import sys
from typing import Any

from nbdist.values.rebuild import Reduce, itself, make_empty, set_vars

BETWEEN_RANKS = ("process_group", "reducer", "logger")
"""Attributes of DistributedDataParallel's that are made anew with a process group, and leave no process."""


def model_reducer_of(cls: type) -> Reduce | None:
    """What says how objects of a class are rebuilt; None for classes that have nothing to do with torch."""
    import torch

    script: Any = torch.jit
    optimizer: Any = torch.optim.Optimizer
    if issubclass(cls, (script.ScriptModule, script.ScriptFunction)):
        return _reduce_script
    if issubclass(cls, (torch.nn.parallel.DistributedDataParallel, flat_wrapper_class() or ())):
        return _reduce_wrapper
    if issubclass(cls, torch.nn.Module) and _is_parametrized(cls):
        return _reduce_parametrized
    if issubclass(cls, optimizer):
        own: Any = cls
        plain = own.__getstate__ is optimizer.__getstate__ and own.__reduce_ex__ is object.__reduce_ex__
        return _reduce_optimizer if plain else None
    if issubclass(cls, type):
        return _reduce_class
    return None


def reduce_compiled(function: Any) -> Any:
    """A function that `torch.compile` made: the original, to be compiled anew when it is first called."""
    original = vars(function).get("_torchdynamo_orig_callable")
    config = vars(function).get("get_compiler_config")
    if original is None or config is None:
        return None
    cells = dict(zip(config.__code__.co_freevars, config.__closure__ or (), strict=True))
    return (_compile_again, (cells["self"].cell_contents, original)) if "self" in cells else None


def _compile_again(context: Any, function: Any) -> Any:
    return context(function)


def _reduce_script(obj: Any) -> Any:
    import torch

    buffer = io.BytesIO()
    torch.jit.save(obj, buffer)
    training = getattr(obj, "training", None)  # a function has none, nor has a frozen module
    return _load_script, (buffer.getvalue(), training, _traced(obj))


def _load_script(data: bytes, training: bool | None, traced: Any) -> Any:
    import torch

    loaded = torch.jit.load(io.BytesIO(data), map_location="cpu")
    if training is not None:
        loaded.train(training)
    return loaded if traced is None else _make_traced(loaded, *traced)


def _traced(obj: Any) -> Any:
    """The shells around scripted modules of which a traced module is made; torch's own way gives back what
    is in them."""
    from torch.jit._trace import TracedModule

    if not isinstance(obj, TracedModule):
        return None
    inside: Any = obj._modules
    return type(obj), obj._name, {name: _traced(module) for name, module in inside.items()}


def _make_traced(scripted: Any, cls: Any, name: str, inside: dict[str, Any]) -> Any:
    """As `TracedModule.__init__` does it, without tracing."""
    import torch

    script: Any = torch.jit.ScriptModule
    made = cls.__new__(cls)
    script.__init__(made)
    set_vars(made, {"_name": name, "_actual_script_module": scripted})
    for attribute in ("_parameters", "_buffers", "_modules", "training"):  # those inside count
        vars(made).pop(attribute, None)
    modules = scripted._modules._python_modules
    for child, traced in inside.items():
        if traced is not None:
            modules[child] = _make_traced(modules[child], *traced)
    return made


def flat_wrapper_class() -> Any:
    """torch's `FullyShardedDataParallel`, if it is loaded."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)


def inside_wrapper(wrapper: Any) -> Any:
    """The model in DDP's or FSDP's wrapper."""
    inside = wrapper._modules
    return inside["module"] if "module" in inside else inside["_fsdp_wrapped_module"]


def is_wrapper(obj: Any) -> bool:
    """Whether an object is DDP's or FSDP's wrapper of a model."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    wrappers = (torch.nn.parallel.DistributedDataParallel, flat_wrapper_class() or ())
    return issubclass(type(obj), wrappers)


def tie_to_group(obj: Any) -> str:
    """What makes a model one that ranks train together, for a message; empty for a model of one process."""
    sharded: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None) or ()
    if is_wrapper(obj):
        return "wrapped"
    return "sharded" if issubclass(type(obj), sharded) else ""


def is_flattened(obj: Any) -> bool:
    """Whether FSDP has made a parameter a part of a flat one: it is FSDP's alone to write."""
    return flat_wrapper_class() is not None and "_fsdp_flattened" in getattr(obj, "__dict__", ())


def is_wrapper_of(obj: Any, model: Any) -> bool:
    """Whether it is that of this very model."""
    return is_wrapper(obj) and inside_wrapper(obj) is model


def _reduce_wrapper(obj: Any) -> Any:
    return itself, (inside_wrapper(obj),)


def _reduce_optimizer(optimizer: Any) -> Any:
    """All that it holds: torch's own way leaves out hooks, what LBFGS needs, and what schedulers note."""
    return make_empty, (type(optimizer),), vars(optimizer), None, None, _fill_optimizer


def _fill_optimizer(optimizer: Any, attributes: dict[str, Any]) -> None:
    set_vars(optimizer, attributes)
    optimizer._patch_step_function()


# ── Parametrized modules ────────────────────────────────────────────────────────────────────────────────────


def _is_parametrized(cls: type) -> bool:
    """Whether a module's class is one of those that `torch.nn.utils.parametrize` makes, one a module."""
    return cls.__module__ == "torch.nn.utils.parametrize" and cls.__name__.startswith("Parametrized")


def _reduce_parametrized(model: Any) -> Any:
    return make_empty, (type(model),), vars(model), None, None, set_vars


def _reduce_class(cls: Any) -> Any:
    import torch

    if not issubclass(cls, torch.nn.Module) or not _is_parametrized(cls):
        return None
    properties = tuple(name for name, value in vars(cls).items() if isinstance(value, property))
    return _make_parametrized, (cls.__bases__[0], properties)


def _make_parametrized(base: Any, properties: tuple[str, ...]) -> Any:
    from torch.nn.utils import parametrize

    model = base.__new__(base)
    parametrize._inject_new_class(model)
    for name in properties:
        parametrize._inject_property(model, name)
    return type(model)
