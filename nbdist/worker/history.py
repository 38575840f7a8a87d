"""The notebook's history in a rank: it is read there, and never written.

SQLite does not bear a fork: locks that the kernel's saving thread held stay held in the copy, and a
connection that the copy used or closed would spoil the kernel's database. So the kernel writes all out
before the fork, and a rank lays its copies aside and opens the file anew, for reading, when it needs it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from IPython.core.history import DummyDB

from nbdist.values.foreign import call_foreign

_kernels: list[object] = []
"""Connections, and what holds them: they must not even be closed."""


def write_out(shell: Any) -> None:
    """In the kernel: leave nothing to its saving thread. (A database that cannot be written ends no cell.)"""
    history = shell.history_manager
    if history is not None and history.enabled:
        call_foreign(history.writeout_cache)


def only_read(shell: Any) -> None:
    """In the rank: keep its hands off the kernel's database."""
    history = shell.history_manager
    if history is None or not history.enabled:
        return
    _kernels.extend((history.db, history.save_thread))
    history.db = _LateConnection(history.hist_file, history.connection_options)
    history.hist_file = ":memory:"  # so that nobody moves a file away which cannot be read
    history.save_thread = None
    history.using_thread = False  # IPython 8 and later would start another
    if history.has_trait("save_flag"):
        history.save_flag = threading.Event()
    history.db_input_cache_lock, history.db_output_cache_lock = threading.Lock(), threading.Lock()
    history.db_input_cache, history.db_output_cache = [], []
    for name in ("writeout_cache", "new_session", "end_session", "name_session"):
        setattr(history, name, _write_nothing)


def _write_nothing(*_: Any) -> None:
    """The history is the kernel's to write."""


class _LateConnection(DummyDB):
    """A connection of the rank's own, made when something is read."""

    def __init__(self, file: object, options: dict[str, Any]):
        self._file, self._options = file, options
        self._connection: Any = None

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        if self._connection is None:
            self._connection = _opened(self._file, self._options)
        return self._connection.execute(*args, **kwargs)


def _opened(file: object, options: dict[str, Any]) -> Any:
    import sqlite3

    if str(file) == ":memory:":  # the kernel's memory: what this notebook ran is in `In`, all the same
        return DummyDB()
    uri = f"{Path(str(file)).absolute().as_uri()}?mode=ro"
    kinds = sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES
    return sqlite3.connect(uri, uri=True, **{"detect_types": kinds, **options})
