"""The user's own modules: those beside the notebook, neither Python's nor installed ones. What a cell
sets in them is changed as the notebook's own data is."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from collections.abc import Mapping
from typing import Any

from nbdist.values.kind import Content, Kind

_INSTALLED = ("site-packages", "dist-packages")


class ModuleKind(Kind):
    """A module's names."""

    def content(self, obj: Any) -> Content:
        held = _names(obj)
        return Content((*held, *held.values()))

    def portable(self, obj: Any) -> Any:
        return _names(obj), ()

    def difference(self, obj: Any, before: Content) -> Any:
        half = len(before.parts) // 2
        old = dict(zip(before.parts[:half], before.parts[half:], strict=True))
        held = _names(obj)
        changed = {name: value for name, value in held.items() if name not in old or old[name] is not value}
        return changed, tuple(old.keys() - held.keys())

    def land(self, twin: Any, portable: Any) -> None:
        changed, gone = portable
        for name in gone:
            vars(twin).pop(name, None)
        vars(twin).update(changed)


def _names(module: types.ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("__")}


def users_module(name: object) -> types.ModuleType | None:
    """The module of this name if it is one of the user's own."""
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module if type(module) is types.ModuleType and is_users(module) else None


def is_users(module: types.ModuleType) -> bool:
    """Whether a module is one of the user's own, or was made in the notebook."""
    held = vars(module)
    name, file = held.get("__name__"), held.get("__file__")
    if name == "__main__" or not isinstance(name, str) or name.partition(".")[0] == "nbdist":
        return False
    if isinstance(file, str):
        return not _is_installed(os.path.dirname(file))
    return held.get("__spec__") is None and sys.modules.get(name) is not module


def is_library(names: Mapping[str, Any]) -> bool:
    """Whether global names are those of an installed module, which a file was read for."""
    if names.get("__name__") == "__main__":
        return False
    file = names.get("__file__")
    return isinstance(file, str) and _is_installed(os.path.dirname(file))


@functools.lru_cache(maxsize=1024)
def _is_installed(folder: str) -> bool:
    parts = os.path.normpath(folder).split(os.sep)
    if any(part in parts for part in _INSTALLED):
        return True
    pythons = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    here = os.path.join(os.path.realpath(folder), "")
    return any(here.startswith(os.path.join(os.path.realpath(root), "")) for root in pythons)
