"""What a Python process does at its end, for a process that ends by ``os._exit``."""

from __future__ import annotations

import atexit
import gc
import io
import os
import traceback
from collections.abc import Collection, Iterable
from multiprocessing import resource_tracker, util
from typing import Any, NoReturn

from nbdist.values.foreign import call_foreign
from nbdist.worker.work import Done

_BINARY = io.BufferedWriter.__mro__[1]  # of `io.BufferedIOBase`, without its slow look at each class


def forget_exit_handlers() -> None:
    """Drop the exit handlers that a fork inherits: they are the kernel's to run. (What multiprocessing
    needs of them, `leave` does.)"""
    atexit._clear()


def leave(inherited: Iterable[object]) -> None:
    """End multiprocessing's children, run the exit handlers of the rank's own, write what files hold.

    Args:
        inherited: objects from before the fork among which there may be open files.
    """
    util._exit_function()  # type: ignore[attr-defined]
    tracker: Any = resource_tracker._resource_tracker
    if tracker._pid is not None:  # it unlinks shared memory that was left; killed, it could not
        tracker._stop()
    atexit._run_exitfuncs()
    flush_files([*inherited, *gc.get_objects()])


def end_child(done: Done) -> NoReturn:
    """A process that the work forked, and that came out of the work: it is no rank, and ends as a Python
    process does that nobody catches an exception of."""
    error = done.error
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
    elif error is not None:
        text = "\n".join(done.traceback) or "".join(traceback.format_exception(error))
        os.write(2, f"{text}\n".encode(errors="replace"))
    os._exit(code)


def flush_files(objects: Collection[Any]) -> None:
    """Write what open files among `objects` still hold in memory."""
    # Asked of the type: an object such as a lazy proxy may lie about its class, or raise.
    classes = {cls for cls in set(map(type, objects)) if issubclass(cls, (io.TextIOWrapper, _BINARY))}
    files = [obj for obj in objects if type(obj) in classes]
    # Text before the binary buffer under it.
    for file in sorted(files, key=lambda file: not issubclass(type(file), io.TextIOWrapper)):
        if not file.closed and file.writable():
            call_foreign(file.flush)
