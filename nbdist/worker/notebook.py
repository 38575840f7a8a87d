"""The rank's copy of the notebook's IPython: same machinery, other ends.

The forked shell runs the cell; what it would show goes to the rank's outbox.
"""

from __future__ import annotations

import asyncio
import builtins
import getpass
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NoReturn

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from nbdist.messages import Display, Raised
from nbdist.worker import interrupts
from nbdist.worker.capture import Outbox
from nbdist.worker.work import Done, line_in

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
        shell.user_ns.update(last_outputs)  # a new hook begins with empty ones
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
    builtins.input = _no_input
    getpass.getpass = _no_input
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


def _no_input(prompt: object = "", *_: Any, **__: Any) -> NoReturn:
    raise EOFError(
        f"input({str(prompt)!r}): a rank cannot ask. Ask in an ordinary cell and use the answer here."
    )


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
    tracebacks: list[str] = []
    hook = shell.displayhook
    _divert_tracebacks(shell, tracebacks, hook.outbox)
    hook.value = None
    _text_bars(text)
    outcome = shell.run_cell(text, store_history=False)
    error = outcome.error_before_exec or outcome.error_in_exec
    if error is None or (isinstance(error, SystemExit) and not error.code):  # sys.exit(): done, says torchrun
        return Done(result=hook.value)
    return Done(error=error, traceback=tuple(tracebacks), cell_line=_cell_line(error, shell.user_ns))


def _divert_tracebacks(shell: Any, tracebacks: list[str], outbox: Outbox) -> None:
    """What the shell would show of an exception goes into a list; an interrupt cannot tear it."""

    def note_traceback(*shown: Any) -> None:
        tracebacks[:] = shown[-1]

    def show_traceback(*args: Any, **kwargs: Any) -> Any:
        if interrupts.came():  # it takes time, and the rank is expected to hand over what it has
            return None
        outbox.post(Raised())  # before the traceback, which may take a while
        with interrupts.listening(False):
            return type(shell).showtraceback(shell, *args, **kwargs)

    shell._showtraceback = note_traceback
    shell.showtraceback = show_traceback


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
