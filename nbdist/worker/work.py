"""The two kinds of work: a cell's text in the notebook's namespace, and a call.

Work ends in a `Done`: what happened, the exception if there was one, and the value.
"""

from __future__ import annotations

import builtins
import os
import traceback
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from nbdist.cell import READY_MADE_NAMES, Cell, evaluated
from nbdist.messages import Outcome
from nbdist.shell import current_shell, namespace_of
from nbdist.values.foreign import Refusal, call_foreign

_MOST_FRAMES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a rank's work ended.

    Attributes:
        error: the exception, if there was one.
        traceback: its lines as IPython shows them.
        cell_line: the deepest line of the cell that was running.
        result: the last expression's value, or the call's return value.
        result_data: its rich display, for a value that cannot travel.
        untaken: whether it did not begin, because the rank could not take what the notebook had new for it.
        in_former_group: whether the exception is of a process group that had been left before the work.
    """

    error: BaseException | None = None
    traceback: tuple[str, ...] = ()
    cell_line: int | None = None
    result: Any = None
    result_data: Mapping[str, Any] | None = None
    untaken: bool = False
    in_former_group: bool = False

    @property
    def outcome(self) -> Outcome:
        if self.error is None:
            return "ok"
        return "interrupted" if isinstance(self.error, KeyboardInterrupt) else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which values come back to the kernel.

    Attributes:
        output: from rank 0 exactly these names, changes of the notebook's objects that they lead to
            included; None for all that it bound or changed.
        gather: names that every rank hands over.
        max_return: bytes of the largest new value that rank 0 hands over unasked; None for no bound.
        results: whether every rank hands over its result, or only rank 0.
        live: whether the rank lives on, and with it what it does not hand over.
        whole: keys of the notebook's objects that are handed over also where they are as they were: the
            notebook has changed its own.
        lead: the rank whose names, changes and result come back, where that is not rank 0.
    """

    output: tuple[str, ...] | None = None
    gather: tuple[str, ...] = ()
    max_return: int | None = None
    results: bool = False
    live: bool = False
    whole: frozenset[int] = frozenset()
    lead: int = 0


@dataclass(frozen=True, slots=True)
class NoWork:
    """Nothing is to be done: values are asked for, or sent."""

    reads: frozenset[str] = frozenset()
    assigns: frozenset[str] = frozenset()
    mentions: frozenset[str] = frozenset()
    objects: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> Done:
        return Done()


def bind_names(values: Mapping[str, Any]) -> None:
    """Bind names in this rank's namespace."""
    namespace_of(current_shell()).update(values)


def values_of(names: Collection[str], rank: int) -> dict[str, Any] | None:
    """One rank's values of names, without those that it has not; None on the others."""
    if int(os.environ["RANK"]) != rank:
        return None
    namespace = namespace_of(current_shell())
    return {name: namespace[name] for name in names if name in namespace}


class Work(Protocol):
    """What a rank does; it reads the names in `reads` and may bind any."""

    @property
    def reads(self) -> frozenset[str]:
        """Names of the notebook that the work may reach."""

    @property
    def mentions(self) -> frozenset[str]:
        """Names that text which it evaluates may read."""

    @property
    def objects(self) -> Mapping[str, Any]:
        """Objects other than names' values that it may reach and change."""

    @property
    def assigns(self) -> frozenset[str]:
        """Names that it assigns, as its text tells."""

    def run(self) -> Done:
        """Do it, in a rank."""


@dataclass(frozen=True, slots=True)
class CellWork:
    """A notebook cell, run by the rank's copy of the notebook's IPython.

    Args:
        cell: the cell below the magic's line.
        first_line: the magic's own line, which counts as the cell's first; empty where there is none.
        number: the notebook's number of the cell.
    """

    cell: Cell
    first_line: str
    number: int
    objects: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> frozenset[str]:
        # What is ready-made hides the notebook's own, which need not travel.
        return self.cell.reads.difference(READY_MADE_NAMES) | self.cell.binds | self.cell.deletes

    @property
    def assigns(self) -> frozenset[str]:
        return self.cell.binds

    @property
    def mentions(self) -> frozenset[str]:
        return evaluated(self.cell)

    @property
    def text(self) -> str:
        """The cell with its magic's line as a comment, so that line numbers are the notebook's."""
        source = self.cell.source
        if not self.first_line:  # `%distributed auto`: the whole cell is the ranks'
            return source
        # A cell magic must stand on the first line.
        if source.lstrip().startswith("%%"):
            return source
        code = source.lstrip("\n")
        indent = code[: len(code) - len(code.lstrip())]  # pasted code may be indented as a whole
        return f"{indent}# {self.first_line}\n{source}"

    def run(self) -> Done:
        from nbdist.worker.notebook import run_cell

        done = run_cell(self.text, self.number)
        return done if self.cell.has_result else replace(done, result=None)


@dataclass(frozen=True, slots=True)
class CallWork:
    """A call of a function."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()
    assigns: frozenset[str] = frozenset()
    mentions: frozenset[str] = frozenset()

    @property
    def objects(self) -> Mapping[str, Any]:
        return {"the call": (self.function, self.args, dict(self.kwargs))}

    @property
    def parts(self) -> Mapping[str, Any]:
        """What it is made of, as the user calls it."""
        if self.function is bind_names:
            (values,) = self.args
            return dict(values)
        name = getattr(self.function, "__name__", "the function")
        args = {f"args[{number}]": arg for number, arg in enumerate(self.args)}
        return {name: self.function, **args, **self.kwargs}

    def run(self) -> Done:
        return Done(result=self.function(*self.args, **self.kwargs))


def formatted(error: BaseException) -> list[str]:
    """An exception's traceback as IPython shows it where it runs, from the user's first frame on."""
    tail = users_traceback(error)
    shell = current_shell()
    if shell is not None and not is_group(error):
        show = partial(shell.InteractiveTB.structured_traceback, type(error), error, tail, tb_offset=0)
        shown = call_foreign(show)
        if not isinstance(shown, Refusal):
            return list(shown)
    text = call_foreign(partial(traceback.format_exception, type(error), error, tail))
    return "".join(text).splitlines() if not isinstance(text, Refusal) else []


def users_traceback(error: BaseException) -> types.TracebackType | None:
    """An exception's traceback from the user's first frame to the user's last."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_machinery(trace):
        trace = trace.tb_next
    return without_our_end(trace)


def is_good_exit(error: BaseException) -> bool:
    """``sys.exit()``: the work is done, says torchrun."""
    return isinstance(error, SystemExit) and not error.code


def is_group(error: BaseException) -> bool:
    """Whether it holds several exceptions (Python 3.11 and later), which IPython does not format."""
    return isinstance(error, getattr(builtins, "BaseExceptionGroup", ()))


def without_our_end(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames of nbdist's own in which the exception was raised in the end: a
    wrong argument is the caller's affair. Of a very long one the ends."""
    steps = []
    while trace is not None:
        steps.append(trace)
        trace = trace.tb_next
    users = list(steps)
    while users and _is_ours(users[-1]):
        users.pop()
    if len(users) > _MOST_FRAMES:  # a recursion without end: to format them all takes many seconds
        users = [*users[: _MOST_FRAMES // 2], *users[-_MOST_FRAMES // 2 :]]
    if len(users) == len(steps):
        return steps[0] if steps else None
    made = None
    for step in reversed(users):
        made = types.TracebackType(made, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return made


def _is_ours(step: types.TracebackType) -> bool:
    return _module(step) == "nbdist"


def _is_machinery(step: types.TracebackType) -> bool:
    return _module(step) in ("nbdist", "IPython", "ipykernel")


def _module(step: types.TracebackType) -> str:
    return str(step.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def line_in(error: BaseException, filename: str) -> int | None:
    """The deepest line of a file in an exception's traceback."""
    line, step = None, error.__traceback__
    while isinstance(step, types.TracebackType):
        if step.tb_frame.f_code.co_filename == filename:
            line = step.tb_lineno
        step = step.tb_next
    return line
