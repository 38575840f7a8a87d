"""Which operation of several ranks a stack is inside of, read from its frames."""

from __future__ import annotations

import linecache
import re
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nbdist.messages import Collective
from nbdist.worker.scope import Scope

_C10D = "torch.distributed.distributed_c10d"
_DDP = "torch.nn.parallel.distributed"
_OURS = "nbdist.worker.group"
_ALIKE = ("all_reduce", "broadcast", "reduce", "all_gather")  # whose `tensor` is alike on all ranks
_WAIT = re.compile(r"(\w+|\))\s*\.wait\(")


def module_of(frame: types.FrameType) -> str:
    """The name of the module whose code a frame runs."""
    return str(frame.f_globals.get("__name__", ""))


def line_of(frame: types.FrameType) -> int:
    """The line that a frame is at; of code that belongs to no line, the function's first."""
    return frame.f_lineno or frame.f_code.co_firstlineno  # None there, whatever the type says


def collective_in(frames: Sequence[types.FrameType], scope: Scope) -> Collective | None:
    """What the innermost frames wait in, if that is an operation of several ranks.

    Args:
        frames: the innermost first.
        scope: of this rank.
    """
    if not frames:
        return None
    if frames[0].f_code.co_name == "_engine_run_backward":
        return _described("backward", None, scope)
    if _waits_for_work(frames[0]):
        return _described("an asynchronous operation", None, scope)
    asked = None
    for frame in frames:
        module = module_of(frame)
        if not module.startswith(("torch.distributed", _DDP, _OURS)):
            break
        if module == _DDP:
            return _described("DistributedDataParallel", _group_of_model(frame.f_locals), scope)
        if module == _C10D and not frame.f_code.co_name.startswith("_"):
            asked = frame
    return None if asked is None else _of_call(asked, scope)


def _of_call(frame: types.FrameType, scope: Scope) -> Collective:
    """A call of torch.distributed by its name and the ranks that must take part in it."""
    name, given = frame.f_code.co_name, frame.f_locals
    if name == "init_process_group":
        return Collective(name=name, ranks=scope.ranks)
    if name == "new_group" and given.get("use_local_synchronization") and given.get("ranks"):
        return Collective(name=name, ranks=scope.in_session(given["ranks"]))
    described = _described(name, given.get("group"), scope)
    here, there = scope.session_rank, given.get({"send": "dst", "recv": "src"}.get(name, ""))
    if isinstance(there, int):
        (other,) = scope.in_session([there], given.get("group"))
        pair = (here, other) if name == "send" else (other, here)
        return Collective(name=name, ranks=pair, group=described.group)
    return replace(described, data=_data(given.get("tensor"))) if name in _ALIKE else described


def _data(tensor: Any) -> str:
    """A tensor's dtype and shape; empty for anything else."""
    dtype, shape = getattr(tensor, "dtype", None), getattr(tensor, "shape", None)
    if dtype is None or shape is None:
        return ""
    return f"{str(dtype).removeprefix('torch.')} of shape {tuple(shape)}"


def _described(name: str, group: Any, scope: Scope) -> Collective:
    """An operation on a group; None is the default one."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        return Collective(name=name, ranks=())
    group = group or dist.group.WORLD
    try:
        ranks = scope.in_session(dist.get_process_group_ranks(group), group)
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError):  # no group of this rank's
        return Collective(name=name, ranks=())
    return Collective(name=name, ranks=ranks, group=str(getattr(group, "group_name", "")))


def _group_of_model(given: dict[str, Any]) -> Any:
    return given.get("process_group") or getattr(given.get("self"), "process_group", None)


def _waits_for_work(frame: types.FrameType) -> bool:
    """Whether a frame's line waits for what torch gave back for an asynchronous operation."""
    if module_of(frame).startswith("torch"):
        return False
    line = linecache.getline(frame.f_code.co_filename, line_of(frame), frame.f_globals)
    for name in _WAIT.findall(line):
        value = frame.f_locals.get(name, frame.f_globals.get(name))
        if name == ")" or type(value).__module__.startswith("torch"):
            return True
    return False
