"""The IPython that this process runs in, if it does."""

from __future__ import annotations

import sys
from typing import Any


def current_shell() -> Any:
    """The running IPython shell, or None; IPython is never loaded for the question."""
    ipython = sys.modules.get("IPython")
    # While IPython is being imported the module is there and the function is not yet.
    ask = getattr(ipython, "get_ipython", None)
    return ask() if ask is not None else None
