"""What errors of several ranks mean, and what helps against those that users often meet."""

from __future__ import annotations

import errno
import os
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

_UNUSED = "Expected to have finished reduction in the prior iteration"
_WRAPPED = "'DistributedDataParallel' object has no attribute"
_WHICH = re.compile(r"Parameter indices which did not receive grad for rank \d+: ((?:\d+ ?)+)")


# What torch says where the fault is another rank's, which left the conversation.
_LEFT = re.compile(
    r"gloo/transport/.*(Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed)"
    r"|Application timeout caused pair closure|recvValue failed|sendBytes failed"
    r"|NCCL communicator was aborted|remote process exited|successfully reached monitoredBarrier",
    re.IGNORECASE | re.DOTALL,
)
FORMER_GROUP = (
    "This process group was left: destroyed, or broken off with all others when an earlier cell failed or "
    "was interrupted. Make it anew, and what was made with it: dist.new_group(...), init_device_mesh(...), "
    "fully_shard(...) on the model as it was, nbdist.setup(model.module, ...)."
)
_UNRESOLVED = "Could not resolve the process group"
_SMALL_SHM = re.compile(r"unable to (allocate|open|write to|resize) shared memory|out of shared memory")
_SHM = "/dev/shm"


def is_consequence(error: BaseException | None) -> bool:
    """Whether an exception, or one that it was raised for, only says that another rank left."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        # torch's own: RuntimeError and its subclasses for distributed errors.
        if isinstance(error, RuntimeError) and _LEFT.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def former_group_in(error: BaseException | None) -> Any:
    """The process group that torch was called with, if that has been left since."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        return None
    known = dist.distributed_c10d._world.pg_map
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for given in _given_to_torch(error.__traceback__):
            for value in given.values():
                if isinstance(value, dist.ProcessGroup) and value not in known:
                    return value
        error = error.__cause__ or error.__context__
    return None


def _given_to_torch(step: types.TracebackType | None) -> Iterator[dict[str, Any]]:
    """The local names of torch.distributed's functions in a traceback."""
    while step is not None:
        if str(step.tb_frame.f_globals.get("__name__", "")).startswith("torch.distributed"):
            yield step.tb_frame.f_locals
        step = step.tb_next


def hint_for(error: BaseException, text: str) -> str:
    """A next step for an error, empty where we know none.

    Args:
        text: the error's message.
    """
    if _SMALL_SHM.search(text):
        return f"{_size_of_shm()}Enlarge it (docker run --shm-size=8g), or use DataLoader(num_workers=0)."
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return "This process may open no more files. Ask for fewer ranks (--devices), or raise `ulimit -n`."
    if isinstance(error, AttributeError) and _WRAPPED in text:
        return "The model is wrapped by DistributedDataParallel; what is the model's own is under `.module`."
    if _UNRESOLVED in text:
        return FORMER_GROUP
    if _UNUSED not in text:
        return ""
    which = _WHICH.search(text)
    names = _names(error, [int(index) for index in which[1].split()]) if which else []
    found = f"These parameters got no gradient: {', '.join(names)}. " if names else ""
    return (
        f"{found}If that is meant, use nbdist.setup(model) with "
        "%%distributed --strategy ddp_find_unused_parameters_true, or pass find_unused_parameters=True to "
        "DistributedDataParallel."
    )


def _size_of_shm() -> str:
    try:
        size = os.statvfs(_SHM)
    except OSError:  # not on macOS
        return ""
    mebibytes = size.f_frsize * size.f_blocks / 2**20
    return f"{_SHM}, through which worker processes send their batches, holds {mebibytes:,.0f} MiB. "


def _names(error: BaseException, indices: list[int]) -> list[str]:
    """Names of parameters by their numbers in the wrapped model that the traceback leads through."""
    for model in _wrapped_models(error):
        trained = [name for name, parameter in model.module.named_parameters() if parameter.requires_grad]
        return [trained[index] for index in indices if index < len(trained)]
    return []


def _wrapped_models(error: BaseException) -> Iterator[Any]:
    wrapper: Any = sys.modules["torch"].nn.parallel.DistributedDataParallel
    step = error.__traceback__
    while step is not None:
        candidate = step.tb_frame.f_locals.get("self")
        if isinstance(candidate, wrapper):
            yield candidate
        step = step.tb_next
