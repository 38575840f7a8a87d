"""The rank's copy of the notebook's IPython: same machinery, other ends.

The forked shell runs the cell; what it would show goes to the rank's outbox.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from IPython.core import page
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from nbdist.cell import NO_PYTHON
from nbdist.errors import CellSyntaxError
from nbdist.messages import Display, Raised
from nbdist.role import only_notebook
from nbdist.worker import interrupts, reserve
from nbdist.worker.bars import Bars
from nbdist.worker.capture import Outbox
from nbdist.worker.history import only_read
from nbdist.worker.markup import MarkupBars
from nbdist.worker.prompt import lose_prompt
from nbdist.worker.widgets import WIDGET_MIME, Widgets
from nbdist.worker.work import Done, formatted, is_good_exit, is_group, line_in, without_our_end

_NO_EXIT = (
    "nbdist: exit() and quit() end nothing here: `%distributed stop` ends the ranks, and exit() in a cell "
    "that runs in the notebook ends its kernel.\n"
)


class RankDisplayPublisher(DisplayPublisher):
    """Sends ``display(...)``, updates and ``clear_output`` as messages; takes the bars out of them."""

    def __init__(self, shell: InteractiveShell, outbox: Outbox, bars: Bars):
        super().__init__(shell=shell)
        self.at_end = False  # the cell's code has ended
        self._outbox = outbox
        self._widgets = Widgets(bars, outbox)
        self._markup = MarkupBars(bars)

    def publish(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        source: Any = None,
        *,
        transient: Mapping[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        if WIDGET_MIME in data:
            self._widgets.show(data[WIDGET_MIME]["model_id"], str(data.get("text/plain", "")))
            return
        display_id = (transient or {}).get("display_id")
        if display_id is not None:
            if self._markup.take(display_id, str(data.get("text/html", "")), update=update):
                return
            update = update and not self._markup.was_hidden(display_id)
        self._outbox.post(
            Display(
                kind="update" if update else "display",
                data=dict(data),
                metadata=dict(metadata or {}),
                display_id=display_id,
                at_end=self.at_end,
            )
        )

    def clear_output(self, wait: bool = False) -> None:
        if not self._widgets.is_capturing():  # an `Output` widget's own text is cleared, not the cell's
            self._outbox.post(Display(kind="clear", wait=wait))

    def set_parent(self, parent: object) -> None:
        """`Output` widgets say again whose output this is: the cell's, as before."""


class RankDisplayHook(DisplayHook):
    """Keeps the last expression's value; earlier ones, where IPython shows them too, are shown at once.

    Attributes:
        last_lines: where the last expression stands in a cell of which all are shown; None for other cells.
    """

    def __init__(self, shell: InteractiveShell, outbox: Outbox):
        last_outputs = {name: shell.user_ns[name] for name in ("_", "__", "___") if name in shell.user_ns}
        super().__init__(shell=shell, cache_size=0)
        for name in ("_", "__", "___"):  # a new hook begins with empty ones
            shell.user_ns.pop(name, None)
        shell.user_ns.update(last_outputs)
        self.outbox = outbox
        self.value: Any = None
        self.last_lines: Collection[int] | None = None

    def __call__(self, result: Any = None) -> None:
        if result is None:
            return
        if self.value is not None:
            self._show(self.value)
            self.value = None
        if self.last_lines is None or sys._getframe(1).f_lineno in self.last_lines:
            self.value = result
        else:
            self._show(result)
        self.fill_exec_result(result)

    def _show(self, value: Any) -> None:
        data, metadata = self.compute_format_data(value)
        if data:  # else it has shown itself
            self.outbox.post(Display(kind="result", data=data, metadata=metadata))

    def quiet(self) -> bool:
        return False

    def set_parent(self, parent: object) -> None:
        """As the publisher's."""


def take_over(shell: InteractiveShell, outbox: Outbox, bars: Bars, *, has_pager: bool) -> None:
    """Turn the forked shell into the rank's.

    Args:
        has_pager: whether ``obj?`` shows anything: on one rank, since all say the same.
    """
    asyncio._set_running_loop(None)
    log = logging.getLogger("asyncio")
    log.disabled, disabled = True, log.disabled  # the user may listen at DEBUG: this is no news
    asyncio.set_event_loop(asyncio.new_event_loop())
    log.disabled = disabled
    _name_cells_as_the_kernel_does()
    lose_prompt()
    # The running cell's number: tracebacks name the cell by it.
    shell.execution_count = shell.displayhook.prompt_count
    shell.display_pub = RankDisplayPublisher(shell, outbox, bars)
    hook = RankDisplayHook(shell, outbox)
    shell.displayhook = shell.display_trap.hook = sys.displayhook = hook
    scripts = shell.magics_manager.registry.get("ScriptMagics")
    if scripts is not None:
        scripts.event_loop = None  # its thread is not in this process; the next %%bash makes another
    events: Any = shell.events
    events.trigger = partial(_trigger, events)
    setattr(shell, "ask_exit", partial(outbox.text, "stderr", _NO_EXIT))  # noqa: B010  a front end's own
    shell.set_hook("show_in_pager", page.as_hook(page.display_page if has_pager else _show_nothing), 0)
    magics: Any = shell.magics_manager
    for kind, sign in (("line", "%"), ("cell", "%%")):  # whether or not this shell knew them
        magics.register_function(partial(_refuse, sign), kind, "distributed")
    shell.call_pdb = False  # `%pdb on` is for the notebook's own cells
    warnings.filterwarnings("ignore", message="To exit: use", category=UserWarning)  # advice for a terminal
    only_read(shell)
    _keep_messages_here(getattr(shell, "kernel", None), outbox)


def _trigger(events: Any, event: str, *args: Any, **kwargs: Any) -> None:
    """As IPython's, which takes an interrupt for a fault of the callback that it strikes, and goes on: what
    comes before the user's code begins is as if it came then."""
    before_code = event in ("pre_execute", "pre_run_cell")
    with contextlib.ExitStack() as quiet:
        if before_code:
            quiet.enter_context(interrupts.listening(False))
        type(events).trigger(events, event, *args, **kwargs)
    if before_code and interrupts.came():
        raise KeyboardInterrupt


def _refuse(sign: str, line: str, _cell: str = "") -> None:
    """Commands of the notebook's, in a rank."""
    only_notebook(f"{sign}distributed {line}".rstrip())


def _show_nothing(*_: Any, **__: Any) -> None:
    """Another rank does."""


def _name_cells_as_the_kernel_does() -> None:
    """ipykernel puts its own pid into the file name of a cell: warnings of all ranks shall be alike."""
    compiler: Any = sys.modules.get("ipykernel.compiler")
    if compiler is not None:
        folder = f"{tempfile.gettempdir()}{os.sep}ipykernel_{os.getppid()}"
        compiler.get_tmp_directory = lambda: folder


def _keep_messages_here(kernel: Any, outbox: Outbox) -> None:
    """What the copy of the kernel would send goes nowhere instead of into its dead sockets, or, as
    ipykernel does with a forked child's text, through the kernel and past the other ranks: messages of
    widgets. Text (of a ``write`` that was bound before the fork) takes the rank's way."""

    def send(_: Any, what: Any, content: Mapping[str, Any] | None = None, *__: Any, **___: Any) -> None:
        if isinstance(what, dict):  # a whole message
            what, content = what["msg_type"], what["content"]
        if what == "stream" and content is not None and outbox.in_owner:
            outbox.text(content["name"], content["text"])

    if kernel is not None:
        kernel.session.send = send


def know_cell(shell: Any, text: str) -> None:
    """In the kernel: what the cell defines will have this source, in tracebacks and for `inspect`.

    Raises:
        CellSyntaxError: it is no Python.
    """
    try:
        code = shell.transform_cell(text)
        file = shell.compile.cache(code, shell.displayhook.prompt_count, raw_code=text)
        shell.compile.ast_parse(code, file)
    except NO_PYTHON as error:
        shown = shell.SyntaxTB.structured_traceback(type(error), error, [])
        raise CellSyntaxError(error, shown) from error.with_traceback(None)


def run_cell(text: str, number: int) -> Done:
    """Run a cell in the rank.

    Args:
        number: the notebook's number of the cell: tracebacks name the cell by it.
    """
    shell: Any = InteractiveShell.instance()
    shell.execution_count = number
    hook = shell.displayhook
    tracebacks = _Tracebacks(shell, hook.outbox)
    hook.value, hook.last_lines = None, _lines_of_last(text, shell)
    outcome = shell.run_cell(text, store_history=False)
    error = outcome.error_before_exec or outcome.error_in_exec
    shown = tracebacks.end(error)
    # IPython 9 keeps all that was printed, for saving a history as a notebook; no rank does that.
    getattr(shell.history_manager, "outputs", {}).clear()
    if error is None or is_good_exit(error):
        return Done(result=hook.value)
    return Done(error=error, traceback=shown, cell_line=_cell_line(error, shell.user_ns))


def _lines_of_last(text: str, shell: Any) -> Collection[int] | None:
    """The lines of a cell's last expression, where IPython shows not just that one."""
    if shell.ast_node_interactivity != "all":
        return None
    try:
        body = ast.parse(shell.transform_cell(text)).body
    except NO_PYTHON:
        return None
    last = body[-1] if body else None
    return range(last.lineno, (last.end_lineno or 0) + 1) if isinstance(last, ast.Expr) else ()


class _Tracebacks:
    """Takes what the shell would show of exceptions. That of the one which ends the cell goes into the
    report of the run; others are text, as they come."""

    def __init__(self, shell: Any, outbox: Outbox):
        self._shell = shell
        self._outbox = outbox
        self._last: tuple[str, ...] = ()
        self._depth = 0  # a cell may run others, whose exceptions do not end it
        self._events: tuple[tuple[str, Callable[[], None]], ...] = (
            ("pre_execute", self._begin),
            ("post_execute", self._leave),
        )
        for name, callback in self._events:
            shell.events.callbacks[name].insert(0, callback)  # before those that show open figures
        shell._showtraceback = self._note
        shell.showtraceback = self._show

    def _begin(self) -> None:
        self._depth += 1

    def _leave(self) -> None:
        self._depth -= 1
        self._shell.display_pub.at_end = self._depth == 0

    def _note(self, *shown: Any) -> None:
        self._say_last()
        self._last = tuple(shown[-1])

    def _show(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        kind, error, trace = exc_tuple if exc_tuple is not None else sys.exc_info()
        if interrupts.came() or error is None:  # the rank is expected to hand over what it has
            return
        ends_cell = self._depth == 1 and (kwargs.get("running_compiled_code") or kwargs.get("exception_only"))
        if ends_cell and not is_good_exit(error):
            self._outbox.post(Raised(type_name=type(error).__name__))  # its traceback may take a while
            reserve.give_back()
        with interrupts.listening(False):
            if isinstance(error, SystemExit) or is_group(error):  # IPython would print of them itself
                self._note(formatted(error))
            else:
                show = type(self._shell).showtraceback
                show(self._shell, (kind, error, without_our_end(trace)), *args, **kwargs)
        if not ends_cell:
            self._say_last()

    def _say_last(self) -> None:
        if self._last:
            self._outbox.text("stderr", "\n".join([*self._last, ""]))
        self._last = ()

    def end(self, error: BaseException | None) -> tuple[str, ...]:
        """The cell has ended, with an exception or without; that one's traceback."""
        for name, callback in self._events:
            self._shell.events.unregister(name, callback)
        self._events = ()  # they lead back here: without them this is freed at once
        self._shell.display_pub.at_end = False
        del self._shell.showtraceback, self._shell._showtraceback
        if error is None:
            self._say_last()
        elif not self._last and not interrupts.came():  # somebody else has taken it
            return tuple(formatted(error))
        return self._last


def _cell_line(error: BaseException, namespace: dict[str, Any]) -> int | None:
    """The line of the cell: its file is that of the outermost frame on the notebook's globals."""
    if isinstance(error, SyntaxError):
        return error.lineno
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_globals is namespace:
            return line_in(error, step.tb_frame.f_code.co_filename)
        step = step.tb_next
    return None
