"""The text of cells that defined what a rank is sent, for tracebacks and `inspect`."""

from __future__ import annotations

import linecache
import types
from collections.abc import Iterable, Mapping
from typing import Any

from nbdist.shell import current_shell

Sources = Mapping[str, tuple[Any, int | None]]
"""By file name `linecache`'s entry and the cell's number."""


def sources_of(objects: Iterable[Any]) -> Sources:
    """Of the functions among some objects."""
    shell = current_shell()
    if shell is None:
        return {}
    codes = (obj.__code__ for obj in objects if type(obj) is types.FunctionType)
    files = {code.co_filename for code in codes} & linecache.cache.keys()
    numbers = getattr(shell.compile, "_filename_map", {})  # IPython 8.1 and later
    return {file: (linecache.cache[file], numbers.get(file)) for file in files}


def learn_sources(sources: Sources) -> None:
    """Have them in this process, too."""
    shell = current_shell()
    for file, (entry, number) in sources.items():
        linecache.cache[file] = entry
        # IPython restores what it keeps there, whenever somebody clears the cache.
        vars(linecache).setdefault("_ipython_cache", {})[file] = entry
        if number is not None and shell is not None:
            shell.compile._filename_map[file] = number
