"""The IPython side: ``%%distributed``, its help and its completion."""

from __future__ import annotations

import os
import re
from typing import Any

from IPython.core import completer
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from nbdist.cell import parse_cell
from nbdist.errors import OptionError
from nbdist.forksafety import ENVIRONMENT, this_process
from nbdist.help import help_text
from nbdist.options import complete, parse_magic
from nbdist.session import run_cell, where_ranks_stand
from nbdist.start.forkserver import shut_down, warm_up

_COMPLETED = "%%distributed"
_set_here: list[str] = []
_watches: list[_Watch] = []


@magics_class
class DistributedMagics(Magics):
    """nbdist's magics."""

    @cell_magic
    def distributed(self, line: str, cell: str) -> Any:
        shell: Any = self.shell
        options = parse_magic(line)
        parsed = parse_cell(cell, shell.transform_cell)
        return run_cell(shell, parsed, f"%%distributed {line}".rstrip(), options)

    distributed.__doc__ = help_text()

    @line_magic("distributed")  # type: ignore[arg-type]
    def distributed_line(self, line: str) -> None:
        if line.split() != ["stacks"]:
            raise OptionError(
                f"%distributed {line.strip()}: no such command. Allowed: stacks. "
                "To run a cell on ranks, write %%distributed, with two percent signs, as its first line."
            )
        print("\n".join(where_ranks_stand()) or "No ranks are up.")

    distributed_line.__doc__ = help_text()  # type: ignore[assignment]


def _complete(_shell: Any, event: Any) -> list[str]:
    """For IPython before 8.6, which adds its own guesses to these."""
    return complete(event.line)


def _match(context: Any) -> Any:
    """For IPython 8.6 and later: options alone, and nobody analyses the line as Python."""
    line = context.line_with_cursor[: context.cursor_position]
    line = line.rpartition("\n")[2]
    if not line.startswith(f"{_COMPLETED} "):
        return {"completions": []}
    fragment = re.split(r"[\s=]", line)[-1]
    found = [completer.SimpleCompletion(text=text, type="param") for text in complete(line)]
    return {"completions": found, "matched_fragment": fragment, "suppress": True}


def _has_matchers() -> bool:
    """Whether this IPython is 8.6 or later."""
    return hasattr(completer, "context_matcher")


class _Watch:
    """Looks after each cell whether the kernel has become unsafe to fork; then the fork server
    starts at once, so that the next launch need not wait for it."""

    def __init__(self, shell: Any):
        self._shell = shell
        self._kernel_pid = os.getpid()

    @property
    def _in_kernel(self) -> bool:
        """False in a rank, where the cell begins and ends too."""
        return os.getpid() == self._kernel_pid

    def before(self, _info: Any = None) -> None:
        if self._in_kernel:
            this_process.before_cell()

    def after(self, result: Any = None) -> None:
        if not self._in_kernel:
            return
        known = this_process.unsafe
        number = getattr(result, "execution_count", None) or self._shell.execution_count
        source = getattr(getattr(result, "info", None), "raw_cell", "") or ""
        if known is None and this_process.after_cell(f"In[{number}]", source) is not None:
            warm_up(with_ipython=True)


def load(shell: InteractiveShell) -> None:
    """What ``%load_ext nbdist`` does."""
    kernel: Any = shell
    for name, value in ENVIRONMENT.items():
        if name not in os.environ:
            os.environ[name] = value
            _set_here.append(name)
    watch = _Watch(shell)
    _watches.append(watch)
    kernel.events.register("pre_run_cell", watch.before)
    kernel.events.register("post_run_cell", watch.after)
    shell.register_magics(DistributedMagics)
    if _has_matchers():
        shell.Completer.custom_matchers.append(completer.context_matcher()(_match))
    else:
        shell.set_hook("complete_command", _complete, str_key=_COMPLETED)


def unload(shell: InteractiveShell) -> None:
    """What ``%unload_ext nbdist`` does: take all back."""
    kernel: Any = shell
    while _set_here:
        os.environ.pop(_set_here.pop(), None)
    while _watches:
        watch = _watches.pop()
        kernel.events.unregister("pre_run_cell", watch.before)
        kernel.events.unregister("post_run_cell", watch.after)
    shut_down()
    for kind in ("cell", "line"):
        shell.magics_manager.magics[kind].pop("distributed", None)
    if _has_matchers():
        matchers = shell.Completer.custom_matchers
        matchers[:] = [matcher for matcher in matchers if matcher is not _match]
    else:
        shell.strdispatchers["complete_command"].strs.pop(_COMPLETED, None)
