"""The user's own modules that the notebook has executed anew, by ``importlib.reload``, ``%autoreload`` or
another import after they were taken out of `sys.modules`: the ranks do the same.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from nbdist.values.modules import users_module


class Reloads:
    """What the ranks of one session have not executed anew yet.

    Args:
        shell: IPython's, or None.
    """

    def __init__(self, shell: Any):
        self._shell = shell
        self._count = 0
        self._seen: dict[str, _Stamp] = {}
        self.taken()

    def taken(self) -> Sequence[str]:
        """Names of modules that were executed anew since the last call, those first that others import."""
        if len(sys.modules) != self._count:
            self._count = len(sys.modules)
            new = [name for name in [*sys.modules] if name not in self._seen and users_module(name)]
            self._seen |= {name: self._stamp(name) for name in new}
        now = {name: self._stamp(name) for name in self._seen}
        anew = [name for name, stamp in now.items() if stamp.is_after(self._seen[name])]
        self._seen = now
        return anew[::-1]

    def _stamp(self, name: str) -> _Stamp:
        module, reloader = sys.modules.get(name), _autoreload(self._shell)
        patched_s = None if reloader is None else reloader.modules_mtimes.get(name)
        changed_s = _changed_s(module) if patched_s is None else patched_s
        return _Stamp(getattr(module, "__spec__", None), changed_s, patched_s is not None)


class _Stamp(NamedTuple):
    """How a module was executed last: each execution gives it a spec anew, but ``%autoreload`` may execute
    parts of it alone.

    Attributes:
        changed_s: when its file was changed: as ``%autoreload`` has read it, or else until now.
        is_read: whether ``%autoreload`` has said so.
    """

    spec: Any
    changed_s: float
    is_read: bool

    def is_after(self, before: _Stamp) -> bool:
        if self.spec is not before.spec:
            return self.spec is not None
        return self.is_read and self.changed_s != before.changed_s


def _changed_s(module: Any) -> float:
    try:
        return os.stat(getattr(module, "__file__", None) or "").st_mtime
    except OSError:  # it was made without one
        return 0.0


def patches_objects(shell: Any) -> bool:
    """Whether this IPython's ``%autoreload`` is on, which also changes what was made of a module before."""
    reloader = _autoreload(shell)
    return bool(reloader is not None and reloader.enabled)


def _autoreload(shell: Any) -> Any:
    magics = None if shell is None else shell.magics_manager.registry.get("AutoreloadMagics")
    return getattr(magics, "_reloader", None)


def execute_anew(names: Sequence[str], patch: bool) -> list[str]:
    """On a rank: execute modules anew that it has.

    Args:
        patch: whether objects that were made of them before change, too.
    """
    there = [name for name in names if name in sys.modules]
    for name in there:
        if patch:
            from IPython.extensions.autoreload import superreload

            superreload(sys.modules[name], old_objects={})
        else:
            importlib.reload(sys.modules[name])
    return there
