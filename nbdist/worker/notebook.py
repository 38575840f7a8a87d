"""The rank's copy of the notebook's IPython: same machinery, other ends.

The forked shell runs the cell; what it would show goes to the rank's outbox.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from nbdist.messages import Display, Raised
from nbdist.worker import interrupts
from nbdist.worker.capture import Outbox
from nbdist.worker.work import Done, formatted, is_good_exit, is_group, line_in, without_our_end

_WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


class RankDisplayPublisher(DisplayPublisher):
    """Sends ``display(...)``, updates and ``clear_output`` as messages."""

    def __init__(self, shell: InteractiveShell, outbox: Outbox):
        super().__init__(shell=shell)
        self._outbox = outbox

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
        # A widget lives in the kernel it was made in; a front end could only say "model not found".
        shown = {mime: content for mime, content in data.items() if mime != _WIDGET_MIME}
        self._outbox.post(
            Display(
                kind="update" if update else "display",
                data=shown,
                metadata=dict(metadata or {}),
                display_id=(transient or {}).get("display_id"),
            )
        )

    def clear_output(self, wait: bool = False) -> None:
        self._outbox.post(Display(kind="clear", wait=wait))


class RankDisplayHook(DisplayHook):
    """Keeps the last expression's value; earlier ones, where IPython shows them too, are displayed."""

    def __init__(self, shell: InteractiveShell, outbox: Outbox):
        last_outputs = {name: shell.user_ns[name] for name in ("_", "__", "___") if name in shell.user_ns}
        super().__init__(shell=shell, cache_size=0)
        for name in ("_", "__", "___"):  # a new hook begins with empty ones
            shell.user_ns.pop(name, None)
        shell.user_ns.update(last_outputs)
        self.outbox = outbox
        self.value: Any = None

    def __call__(self, result: Any = None) -> None:
        if result is None:
            return
        if self.value is not None:
            data, metadata = self.compute_format_data(self.value)
            self.outbox.post(Display(kind="display", data=data, metadata=metadata))
        self.value = result
        self.fill_exec_result(result)

    def quiet(self) -> bool:
        return False


def take_over(shell: InteractiveShell, outbox: Outbox) -> None:
    """Turn the forked shell into the rank's."""
    asyncio._set_running_loop(None)
    log = logging.getLogger("asyncio")
    log.disabled, disabled = True, log.disabled  # the user may listen at DEBUG: this is no news
    asyncio.set_event_loop(asyncio.new_event_loop())
    log.disabled = disabled
    _name_cells_as_the_kernel_does()
    # The running cell's number: tracebacks name the cell by it.
    shell.execution_count = shell.displayhook.prompt_count
    shell.display_pub = RankDisplayPublisher(shell, outbox)
    hook = RankDisplayHook(shell, outbox)
    shell.displayhook = shell.display_trap.hook = sys.displayhook = hook
    scripts = shell.magics_manager.registry.get("ScriptMagics")
    if scripts is not None:
        scripts.event_loop = None  # its thread is not in this process; the next %%bash makes another
    shell.call_pdb = False  # `%pdb on` is for the notebook's own cells
    warnings.filterwarnings("ignore", message="To exit: use", category=UserWarning)  # advice for a terminal
    _keep_comms_here()


def _name_cells_as_the_kernel_does() -> None:
    """ipykernel puts its own pid into the file name of a cell: warnings of all ranks shall be alike."""
    compiler: Any = sys.modules.get("ipykernel.compiler")
    if compiler is not None:
        folder = f"{tempfile.gettempdir()}{os.sep}ipykernel_{os.getppid()}"
        compiler.get_tmp_directory = lambda: folder


def _text_bars(text: str) -> None:
    """tqdm's notebook bar is a widget, which a rank cannot show: without what it overrides, it is the
    text bar that it is made from."""
    if "tqdm.notebook" not in sys.modules and "tqdm" not in text:  # its import takes 50 ms
        return
    try:
        from tqdm.notebook import tqdm_notebook
    except ImportError:  # no ipywidgets: tqdm.auto has taken the text bar by itself
        return
    for name in [name for name in vars(tqdm_notebook) if name not in ("__module__", "__doc__", "__dict__")]:
        if not name.startswith("__") or name in ("__init__", "__iter__"):
            delattr(tqdm_notebook, name)


def _keep_comms_here() -> None:
    """A widget made in a rank has no front end: its messages go nowhere instead of into dead sockets."""
    try:
        import comm
    except ImportError:  # ipykernel before 6.18
        return
    comm.create_comm = comm.DummyComm


def know_source(shell: Any, text: str) -> None:
    """In the kernel: what the cell defines will have this source, in tracebacks and for `inspect`."""
    shell.compile.cache(shell.transform_cell(text), shell.displayhook.prompt_count, raw_code=text)


def run_cell(text: str) -> Done:
    """Run a cell in the rank."""
    shell: Any = InteractiveShell.instance()
    hook = shell.displayhook
    tracebacks = _Tracebacks(shell, hook.outbox)
    hook.value = None
    _text_bars(text)
    outcome = shell.run_cell(text, store_history=False)
    error = outcome.error_before_exec or outcome.error_in_exec
    shown = tracebacks.end(error)
    if error is None or is_good_exit(error):
        return Done(result=hook.value)
    return Done(error=error, traceback=shown, cell_line=_cell_line(error, shell.user_ns))


class _Tracebacks:
    """Takes what the shell would show of exceptions. That of the one which ends the cell goes into the
    report of the run; others are text, as they come."""

    def __init__(self, shell: Any, outbox: Outbox):
        self._shell = shell
        self._outbox = outbox
        self._last: tuple[str, ...] = ()
        self._depth = 0  # a cell may run others, whose exceptions do not end it
        self._events = (("pre_execute", self._begin), ("post_execute", self._leave))
        for name, callback in self._events:
            shell.events.register(name, callback)
        shell._showtraceback = self._note
        shell.showtraceback = self._show

    def _begin(self) -> None:
        self._depth += 1

    def _leave(self) -> None:
        self._depth -= 1

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
