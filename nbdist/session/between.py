"""What only the main thread may do, done when no cell runs on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


class BetweenCells:
    """Calls a step on the main thread, between two cells, once that is asked for.

    Made while a cell runs. Where IPython is not, nobody calls it.

    Args:
        shell: IPython's, or None.
        step: what to do; it may be called more than once.
    """

    def __init__(self, shell: Any, step: Callable[[], None]):
        self._shell = shell
        self._step = step
        self._is_asked = False
        self._depth = 1  # a cell may run another one
        self._pid = os.getpid()
        if shell is not None:
            shell.events.register("pre_execute", self._before)
            shell.events.register("post_execute", self._after)

    def ask(self) -> None:
        """Have the step called; from any thread."""
        self._is_asked = True
        loop = getattr(getattr(self._shell, "kernel", None), "io_loop", None)
        if loop is not None:
            loop.add_callback(self._do)  # where a cell awaits something, the loop runs in the midst of it

    def close(self) -> None:
        """The step is not called any more."""
        self._is_asked = False
        if self._shell is not None:
            self._shell.events.unregister("pre_execute", self._before)
            self._shell.events.unregister("post_execute", self._after)

    @property
    def _is_here(self) -> bool:
        """False in a rank, and in a thread that runs a cell beside the main one."""
        return os.getpid() == self._pid and threading.current_thread() is threading.main_thread()

    def _before(self) -> None:
        if self._is_here:
            self._do()
            self._depth += 1

    def _after(self) -> None:
        if self._is_here:
            self._depth = max(0, self._depth - 1)
            self._do()

    def _do(self) -> None:
        if self._is_asked and self._depth == 0:
            self._is_asked = False
            self._step()
