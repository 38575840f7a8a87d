"""The IPython that this process runs in, if it does."""

from __future__ import annotations

import sys
from typing import Any

SHELLS_OWN = frozenset("_i _ii _iii _ih _oh _dh In Out exit quit get_ipython __builtins__".split())
"""Names of a namespace that belong to its IPython: a rank's history is not the notebook's."""


def current_shell() -> Any:
    """The running IPython shell, or None; IPython is never loaded for the question."""
    ipython = sys.modules.get("IPython")
    # While IPython is being imported the module is there and the function is not yet.
    ask = getattr(ipython, "get_ipython", None)
    return ask() if ask is not None else None


def namespace_of(shell: Any) -> dict[str, Any]:
    """The global names of a shell, or those of the running program."""
    namespace: dict[str, Any] = shell.user_ns if shell is not None else sys.modules["__main__"].__dict__
    return namespace


MODULE = "<module>"


def plain_name(function: str) -> str:
    """A function's name; IPython before 8.13 or so calls a cell's own code ``<cell line: 1>``."""
    return MODULE if function.startswith("<cell line") else function


def place_text(filename: str, line: int, function: str) -> str:
    """A stack's entry, as IPython writes it: ``Cell In[3], line 2, in train``, or with a file's name."""
    compiler = getattr(current_shell(), "compile", None)
    name = getattr(compiler, "format_code_name", lambda _: None)(filename)  # IPython 8.1 and later
    title = " ".join(name) if name is not None else f'File "{filename}"'
    return f"  {title}, line {line}, in {plain_name(function)}"
