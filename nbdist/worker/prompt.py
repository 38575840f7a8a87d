"""A rank has no prompt.

Libraries that see one take the process for a notebook's kernel, which has its ranks still to start: Lightning
would fork some in every rank, or refuse to train. Under torchrun, whose environment a rank has, there is
none.
"""

from __future__ import annotations

import sys
from typing import Any

_LIGHTNING = ("lightning", "lightning_fabric", "pytorch_lightning")


def lose_prompt() -> None:
    """Make this process, a copy of the notebook's, one without a prompt."""
    for name in ("ps1", "ps2"):
        vars(sys).pop(name, None)
    # Lightning has looked when it was imported, perhaps in the notebook; many of its modules have the answer.
    loaded: list[tuple[str, Any]] = list(sys.modules.items())
    for name, module in loaded:
        if name.partition(".")[0] in _LIGHTNING and getattr(module, "_IS_INTERACTIVE", False):
            module._IS_INTERACTIVE = False
