"""``%distributed auto on``: every cell of the notebook runs on the ranks of a live session.

The cell stays the user's own in history, ``In`` and tracebacks: IPython parses it as ever, and what it would
then run is exchanged for a call that hands the cell's text to the ranks. Cells that a front end runs for
itself, silently, are left alone.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Sequence
from typing import Any

from nbdist import defaults
from nbdist.cell import READY_MADE_NAMES, parse_cell
from nbdist.errors import OptionError, SessionError, plainly_interrupted
from nbdist.options import Options, given, name_flag, parse_words
from nbdist.role import is_notebooks_own
from nbdist.session import run_cell, session_named

LOCAL = "%%local"
_CALL = 'get_ipython().magics_manager.registry["RanksCellMagics"].run_next()'
_HERE = (
    "a cell that starts with %%local, one of magics and !commands alone, and one that reads a run or a "
    "session by its name run in the notebook."
)
# Magics that run the cell's own Python. All others are the notebook's affair.
_PYTHON_MAGICS = frozenset("capture lprun memit mprun prun run time timeit".split())


class Auto:
    """Whether cells run on ranks, and on which; of the kernel that has loaded nbdist."""

    def __init__(self) -> None:
        self._shell: Any = None
        self._kernel_pid = 0
        self._options: Options | None = None
        self._given: Collection[str] = ()
        self._coming: str | None = None
        self._next = ""

    def load(self, shell: Any) -> None:
        """Begin, switched off."""
        self._shell, self._kernel_pid = shell, os.getpid()
        shell.events.register("pre_run_cell", self._before_cell)
        shell.events.register("post_run_cell", self._after_cell)
        shell.ast_transformers.append(self)
        shell.input_transformers_cleanup.insert(0, without_local)

    def unload(self) -> None:
        """Take all back."""
        shell, self._shell, self._options = self._shell, None, None
        if shell is not None:
            shell.events.unregister("pre_run_cell", self._before_cell)
            shell.events.unregister("post_run_cell", self._after_cell)
            shell.ast_transformers.remove(self)
            shell.input_transformers_cleanup.remove(without_local)

    @property
    def options(self) -> Options | None:
        """Those of every cell; None while it is off."""
        return self._options

    def command(self, words: Sequence[str]) -> str:
        """Do what follows ``%distributed auto``; what is so now.

        Raises:
            OptionError: the words are wrong.
            SessionError: no ranks are up.
        """
        switch, *rest = words or [""]
        if switch == "on":
            self._switch_on(parse_words(rest, defaults.current()), given(rest).keys())
        elif switch == "off" and not rest:
            self._options = None
        elif words:
            raise OptionError(
                f"%distributed auto {' '.join(words)}: no such switch. Allowed: %distributed auto on, with "
                "options of %%distributed behind it, %distributed auto off, and %distributed auto alone."
            )
        if self._options is None:
            return "auto is off: cells run in the notebook."
        return f"auto is on: cells run on the ranks of the session {self._options.name!r}; {_HERE}"

    def _switch_on(self, options: Options, words: Collection[str]) -> None:
        session = session_named(options.name)
        if session is None:
            raise SessionError(
                f"%distributed auto on: no session {options.name!r} is up. Start its ranks first: "
                f"%distributed start{name_flag(options.name)}"
            )
        if not session.deaths:
            session.options_for(options, words)  # else each cell would be refused
        self._options, self._given = options, words

    def _before_cell(self, info: Any = None) -> None:
        """In a rank too, where cells begin and end as well."""
        self._coming = None
        if self._options is not None and os.getpid() == self._kernel_pid:
            self._coming = getattr(info, "raw_cell", None)

    def visit(self, tree: ast.Module) -> ast.Module:
        """What IPython runs of a cell. (As a transformer of IPython's: magics ask it of their text too.)"""
        cell, self._coming = self._coming, None
        if cell is None or _is_local(cell) or _runs_here(tree) or self._asks_notebook(cell, tree):
            return tree
        self._next = cell
        call = ast.parse(_CALL)
        for node in ast.walk(call):
            if hasattr(node, "lineno"):
                ast.copy_location(node, tree.body[0])
        return call

    def _asks_notebook(self, cell: str, tree: ast.Module) -> bool:
        """Whether a cell reads what lives in the notebook alone: a run in the background, a session."""
        here = self._shell.user_ns
        own = {name for name in here.keys() - set(READY_MADE_NAMES) if is_notebooks_own(here[name])}
        if not own:
            return False
        parsed = parse_cell(cell, self._shell.transform_cell)
        in_magics = any(_magic_of(statement) in _PYTHON_MAGICS for statement in tree.body)
        return not own.isdisjoint(parsed.reads - parsed.binds if in_magics else parsed.needs)

    def run_next(self) -> Any:
        """Run the cell that IPython has parsed on the ranks.

        Raises:
            SessionError: they have ended.
        """
        cell, options = self._next, self._options
        if options is None or session_named(options.name) is None:
            raise SessionError(
                "The cell was not run: its ranks have ended. Start others (%distributed start, then "
                "%distributed auto on), or run it again to run it in the notebook."
            )
        with plainly_interrupted():
            parsed = parse_cell(cell, self._shell.transform_cell)
            return run_cell(self._shell, parsed, "", options, self._given)

    def _after_cell(self, _: Any = None) -> None:
        self._coming = None
        options = self._options
        if options is not None and os.getpid() == self._kernel_pid and session_named(options.name) is None:
            self._options = None
            print(
                f"auto is off: the session {options.name!r} has ended, and cells run in the notebook again."
            )

    def run_here(self, cell: str) -> None:
        """Run a text in the notebook, whatever is switched on."""
        options, self._options = self._options, None
        try:
            self._shell.run_cell(cell)
        finally:
            self._options = options


auto = Auto()
"""The notebook's."""


def without_local(lines: list[str]) -> list[str]:
    """A cell whose ``%%local`` is a comment: all else of it is as in any cell."""
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None or lines[first].strip() != LOCAL:
        return lines
    code = next((line for line in lines[first + 1 :] if line.strip()), "")
    indent = code[: len(code) - len(code.lstrip())]  # pasted code may be indented as a whole
    return [*lines[:first], f"{indent}# {LOCAL}\n", *lines[first + 1 :]]


def _is_local(cell: str) -> bool:
    return cell.lstrip().partition("\n")[0].strip() == LOCAL


def _runs_here(tree: ast.Module) -> bool:
    """Whether a cell is the notebook's affair: of magics and commands alone, or one that commands nbdist."""
    magics = [_magic_of(statement) for statement in tree.body]
    return "distributed" in magics or all(magic and magic not in _PYTHON_MAGICS for magic in magics)


def _magic_of(statement: ast.stmt) -> str | None:
    """The magic that a statement is, ``!`` for a command, None for Python."""
    match statement:
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=called),
                args=[ast.Constant(value=first), *_],
            )
        ):
            if called in ("run_line_magic", "run_cell_magic"):
                return str(first)
            return "!" if called in ("system", "getoutput") else None
    return None
