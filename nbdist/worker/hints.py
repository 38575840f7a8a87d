"""What helps against errors that users of DistributedDataParallel often meet."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

_UNUSED = "Expected to have finished reduction in the prior iteration"
_WHICH = re.compile(r"Parameter indices which did not receive grad for rank \d+: ((?:\d+ ?)+)")


def hint_for(error: BaseException, text: str) -> str:
    """A next step for an error, empty where we know none.

    Args:
        text: the error's message.
    """
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
