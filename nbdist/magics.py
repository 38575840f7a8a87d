"""The IPython side: ``%%distributed``, its help and its completion."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import replace
from functools import partial
from typing import Any

from IPython.core import completer, page
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from nbdist import defaults
from nbdist.auto import auto
from nbdist.cell import parse_cell
from nbdist.commands import check_no_command, complete, overview_of_commands, run_command
from nbdist.errors import NbdistError, RunInterrupted, SessionError, plainly_interrupted
from nbdist.forksafety import ENVIRONMENT, can_fork, this_process
from nbdist.help import help_text
from nbdist.lookup import lookup
from nbdist.options import given, split_line
from nbdist.role import only_notebook, rank_here
from nbdist.session import (
    anything_held,
    debug,
    held_back,
    live_runs,
    live_sessions,
    release,
    run_cell,
    shut_down,
    stop_runs,
    stop_sessions,
    warm_up,
)
from nbdist.views.dashboard.faces import close_pages
from nbdist.views.screen import is_watched

_NO_DEBUG = """\
What was raised on a rank was raised in a process of its own that has ended: no frames are here to look into.
With `%%distributed --hold` (or after `%pdb on`) the ranks of a failed cell are kept: `%debug` or
`%distributed debug` then opens pdb where the first of them failed, `%distributed debug 1` on rank 1.
`breakpoint()` under `if rank == 0:` opens it on the way, and `%distributed stacks` shows where ranks that are
up stand.
"""
_HELP = {"-h", "--help"}
_COMPLETED = ("%%distributed", "%distributed")
_set_here: list[str] = []
_watches: list[_Watch] = []


def _all_help() -> str:
    return f"{overview_of_commands()}\n{help_text()}"


def _lone_help(lines: list[str]) -> list[str]:
    """``%%distributed --help`` without a cell below it, which IPython would refuse."""
    words = "".join(lines).split()
    if words[:1] == ["%%distributed"] and words[1:] and set(words[1:]) <= _HELP:
        return ["%distributed --help\n"]
    return lines


@magics_class
class DistributedMagics(Magics):
    """nbdist's magics."""

    @cell_magic
    def distributed(self, line: str, cell: str) -> Any:
        shell: Any = self.shell
        if _HELP & set(line.split()):
            print(help_text())
            return None
        words = split_line(line)
        check_no_command(words)
        values = given(words)
        if shell.call_pdb and is_watched(shell) and "background" not in values:  # %pdb on
            values["hold"] = True
        first_line = f"%%distributed {line}".rstrip()
        options = replace(defaults.under(values), **values)
        with plainly_interrupted():
            return run_cell(shell, parse_cell(cell, shell.transform_cell), first_line, options, values.keys())

    distributed.__doc__ = help_text()

    @line_magic("distributed")  # type: ignore[arg-type]
    def distributed_line(self, line: str) -> None:
        if _HELP & set(line.split()):
            print(_all_help())
        else:
            with plainly_interrupted():
                run_command(line)

    distributed_line.__doc__ = _all_help()  # type: ignore[assignment]


def _look_into_failure(shell: Any, force: bool = False) -> Any:
    """IPython's post-mortem debugger, which serves ``%debug`` and ``%pdb``. After a failure on ranks it would
    open pdb in frames of nbdist's; now it opens on the rank that failed first, if that is kept."""
    if not isinstance(getattr(sys, "last_value", None), NbdistError):
        return type(shell).debugger(shell, force)
    if not (force or shell.call_pdb):
        return None
    if not anything_held():
        print(_NO_DEBUG)
        return None
    try:
        return debug()
    except SessionError as error:
        print(error, file=sys.stderr)


@magics_class
class RanksCellMagics(Magics):
    """What stands in cells while ``%distributed auto`` is on."""

    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """Run this cell in the notebook while ``%distributed auto`` is on; elsewhere it changes nothing."""
        auto.run_here(cell)  # only where the magic is called as a function: else `without_local` was there

    def run_next(self) -> Any:
        """Run the next cell on the ranks."""
        return auto.run_next()


@magics_class
class HelpMagics(Magics):
    """``obj?`` and ``obj??``, which also find what lives only on the ranks."""

    @line_magic
    def pinfo(self, line: str = "", namespaces: Any = None) -> None:
        """IPython's ``%pinfo``, which is ``obj?``."""
        self._show("pinfo", line, 0, namespaces)

    @line_magic
    def pinfo2(self, line: str = "", namespaces: Any = None) -> None:
        """IPython's ``%pinfo2``, which is ``obj??``."""
        self._show("pinfo2", line, 1, namespaces)

    def _show(self, magic: str, line: str, detail_level: int, namespaces: Any) -> None:
        shell: Any = self.shell
        found = lookup.help(line.strip(), {"detail_level": detail_level})
        if found is None:
            getattr(shell.magics_manager.registry["NamespaceMagics"], magic)(line, namespaces)
            return
        if not shell.enable_html_pager:
            found.pop("text/html", None)
        page.page(found)


def _complete(_shell: Any, event: Any) -> list[str]:
    """For IPython before 8.6, which adds its own guesses to these."""
    return complete(event.line)


def _match(context: Any) -> Any:
    """For IPython 8.6 and later: options alone, and nobody analyses the line as Python."""
    line = context.line_with_cursor[: context.cursor_position]
    line = line.rpartition("\n")[2]
    if not line.startswith(tuple(f"{magic} " for magic in _COMPLETED)):
        return {"completions": []}
    fragment = re.split(r"[\s=]", line)[-1]
    found = [completer.SimpleCompletion(text=text, type="param") for text in complete(line)]
    return {"completions": found, "matched_fragment": fragment, "suppress": True}


def _has_matchers() -> bool:
    """Whether this IPython is 8.6 or later."""
    return hasattr(completer, "context_matcher")


class _Watch:
    """Looks after each cell whether the kernel has become unsafe to fork; then the fork server
    starts at once, so that the next launch need not wait for it.

    IPython takes an interrupt for a fault of the callback that it strikes, and runs the cell all the same:
    one that comes in `before` is raised when IPython has parsed the cell.
    """

    def __init__(self, shell: Any):
        self._shell = shell
        self._interrupted = False
        self._kernel_pid = os.getpid()

    @property
    def _in_kernel(self) -> bool:
        """False in a rank, where the cell begins and ends too."""
        return os.getpid() == self._kernel_pid

    def before(self, _info: Any = None) -> None:
        try:
            self._interrupted = False
            if self._in_kernel:
                this_process.before_cell()
        except KeyboardInterrupt:
            self._interrupted = True

    def visit(self, tree: Any) -> Any:
        """As a transformer of IPython's, which leaves the cell as it is."""
        interrupted, self._interrupted = self._interrupted, False
        if interrupted:
            raise RunInterrupted("the cell had not begun")
        return tree

    def after(self, result: Any = None) -> None:
        if not self._in_kernel:
            return
        known = this_process.unsafe
        number = getattr(result, "execution_count", None) or self._shell.execution_count
        source = getattr(getattr(result, "info", None), "raw_cell", "") or ""
        if known is None and this_process.after_cell(f"In[{number}]", source) is not None:
            warm_up(with_ipython=True)


def load(shell: InteractiveShell) -> None:
    """What ``%load_ext nbdist`` does. In a rank nothing: it has what it needs."""
    if rank_here() is not None:
        return
    kernel: Any = shell
    for name, value in ENVIRONMENT.items():
        if name not in os.environ:
            os.environ[name] = value
            _set_here.append(name)
    if not can_fork():
        warm_up(with_ipython=True)
    watch = _Watch(shell)
    _watches.append(watch)
    kernel.events.register("pre_run_cell", watch.before)
    kernel.events.register("post_run_cell", watch.after)
    kernel.ast_transformers.append(watch)
    shell.register_magics(DistributedMagics)
    kernel.debugger = partial(_look_into_failure, shell)
    shell.register_magics(RanksCellMagics)
    shell.register_magics(HelpMagics)
    auto.load(shell)
    shell.input_transformers_cleanup.append(_lone_help)
    lookup.load(shell)
    if _has_matchers():
        shell.Completer.custom_matchers.append(completer.context_matcher()(_match))
    else:
        for magic in _COMPLETED:
            shell.set_hook("complete_command", _complete, str_key=magic)


def unload(shell: InteractiveShell) -> None:
    """What ``%unload_ext nbdist`` does: take all back.

    Raises:
        SessionError: this is a rank.
    """
    only_notebook("%unload_ext nbdist, or %reload_ext,")
    # IPython would take an extension that raises for one that is loaded.
    with contextlib.suppress(KeyboardInterrupt), held_back():
        _take_back(shell)


def _take_back(shell: InteractiveShell) -> None:
    kernel: Any = shell
    while _set_here:
        os.environ.pop(_set_here.pop(), None)
    while _watches:
        watch = _watches.pop()
        kernel.events.unregister("pre_run_cell", watch.before)
        kernel.events.unregister("post_run_cell", watch.after)
        kernel.ast_transformers.remove(watch)
    ended = [f"session {name}" for name in live_sessions()]
    ended += [f"background run {name}" for name in live_runs()]
    stop_runs()
    defaults.reset()
    stop_sessions()
    shut_down()
    if release():
        ended.append("the ranks that were kept after a failure")
    if ended:
        print(f"nbdist: ended, as the extension is unloaded: {', '.join(ended)}.")
    close_pages()
    auto.unload()
    if _lone_help in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(_lone_help)
    lookup.unload()
    shell.magics_manager.magics["cell"].pop("local", None)
    for name in ("pinfo", "pinfo2"):
        ipythons = getattr(shell.magics_manager.registry["NamespaceMagics"], name)
        shell.magics_manager.magics["line"][name] = ipythons
    for kind in ("cell", "line"):
        shell.magics_manager.magics[kind].pop("distributed", None)
    kernel.__dict__.pop("debugger", None)
    if _has_matchers():
        matchers = shell.Completer.custom_matchers
        matchers[:] = [matcher for matcher in matchers if matcher is not _match]
    else:
        for magic in _COMPLETED:
            shell.strdispatchers["complete_command"].strs.pop(magic, None)
