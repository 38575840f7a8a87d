"""Where a run in the background is seen: a display of its own under the cell that began it.

What a thread prints or displays lands in whatever cell ran last. An update of a display goes to where that
stands. So all that comes of the run is one display, written anew; a thread of its own does that, at most some
times a second, and nobody else waits for a front end.
"""

from __future__ import annotations

import contextlib
import html
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from nbdist.errors import RankFailedError
from nbdist.messages import Asking, Reply
from nbdist.views.colours import text_html
from nbdist.views.dashboard.faces import NotebookPlace, can_show, place_for, unknown_choice
from nbdist.views.dashboard.live import Dashboard, Source
from nbdist.views.dashboard.picture import RunWord
from nbdist.views.html import tail_html
from nbdist.views.items import Item, Stream
from nbdist.views.screen import Output, Screen
from nbdist.views.slot import Slot
from nbdist.views.tail import Tail

Buttons = Mapping[str, Callable[[], None]]

_EVERY_S = 0.25
_BYTES_PER_S = 1_000_000  # of a panel with many figures
_FRAME = "border-left:3px solid rgba(128,128,128,0.5);padding-left:8px"
# Not too high, and scrolled to its end: in a column that goes upwards that is where one begins.
_SCROLLED = "max-height:36em;overflow-y:auto;display:flex;flex-direction:column-reverse"


class Panel(Output, Protocol):
    """The output of a run that cells run beside."""

    @property
    def tail(self) -> Tail:
        """The last of the run's text."""

    def open(self, title: str, source: Source, buttons: Buttons) -> None:
        """The run has begun.

        Args:
            title: what it is called, the same at each repetition.
            source: where its dashboard looks.
            buttons: what a click does, by the button's name.
        """

    def tell(self, state: str, more: str = "") -> None:
        """What the run does now, in a word or two, and what is to be done, until the next word."""

    def fail(self, error: RankFailedError) -> None:
        """The run has failed."""

    def close(self, state: RunWord) -> None:
        """The run has ended so, and the last word has been said; returns when it is seen."""

    def show_here(self) -> bool:
        """Show it in the cell that runs, where it does not stand already; False where it cannot be shown."""


def panel_for(shell: Any, *, waits: bool, dashboard: bool) -> Panel:
    """The panel that this front end can show.

    Args:
        waits: whether the cell waits for the run: then it is the panel.
        dashboard: whether more than text is wanted.
    """
    if dashboard and (told := unknown_choice()):
        Screen(shell).note(told)
    if waits:
        return CellPanel(shell, dashboard=dashboard)
    if dashboard and can_show(shell, in_background=True):
        return DashboardPanel(shell)
    return DisplayPanel(shell) if hasattr(shell, "kernel") else TerminalPanel(None)


class _OwnPanel:
    """A panel that is none of the cell's output: it keeps the last of the text, and nobody is asked there."""

    def __init__(self) -> None:
        self.tail = Tail()

    def show(self, items: Sequence[Item]) -> None:
        """See `Output`."""
        self.tail.add(items)

    def note(self, text: str) -> None:
        """See `Output`."""
        self.show([Stream("stderr", f"nbdist: {text}\n")])

    def ask(self, question: Asking) -> Reply:
        """See `Output`: nobody is asked."""
        return _refusal(question)


class DisplayPanel(_OwnPanel):
    """A notebook's, of text alone: one display, updated."""

    def __init__(self, shell: Any):
        super().__init__()
        self._title = self._where = self._more = ""
        self._state = "running"
        self._slot = Slot(shell)
        self._changed = threading.Condition()
        self._is_due = self._is_closed = False
        self._writer = threading.Thread(target=self._write_all, name="nbdist-panel", daemon=True)

    def open(self, title: str, source: Source, buttons: Buttons) -> None:
        """See `Panel`."""
        self._title, self._where = title, source.facts.logs
        self._publish(update=False)
        self._writer.start()

    def show(self, items: Sequence[Item]) -> None:
        """See `Output`."""
        with self._change():
            super().show(items)

    def tell(self, state: str, more: str = "") -> None:
        """See `Panel`."""
        with self._change():
            self._state, self._more = state, more

    def fail(self, error: RankFailedError) -> None:
        """See `Panel`: as a cell would show it."""
        self.show([Stream("stderr", "\n".join([*error._render_traceback_(), ""]))])

    def show_here(self) -> bool:
        """See `Panel`."""
        if not self._slot.is_here:
            self._publish(update=False)
        return True

    def close(self, state: RunWord) -> None:
        """See `Panel`."""
        with self._change():
            self._state, self._more, self._is_closed = state, "", True
        self._writer.join()

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._is_due = True
            self._changed.notify_all()

    def _write_all(self) -> None:
        with self._slot.in_its_cell():
            is_closed = False
            while not is_closed:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_due)
                    self._is_due, is_closed = False, self._is_closed
                size = self._publish(update=True)
                if not is_closed:
                    with self._changed:
                        pause_s = max(_EVERY_S, size / _BYTES_PER_S)
                        self._changed.wait_for(lambda: self._is_closed, pause_s)

    def _publish(self, *, update: bool) -> int:
        """Show what there is now; its size in bytes."""
        with self._changed:
            data = self._data()
        self._slot.show(data, update=update)
        return len(data["text/html"])

    def _data(self) -> dict[str, str]:
        more = f"<div>{text_html(self._more)}</div>" if self._more else ""
        head = f"<b>{html.escape(self._title)}</b>: {text_html(self._state)}{more}"
        body = f'<div style="{_SCROLLED}"><div>\n{tail_html(self.tail, self._where)}\n</div></div>'
        return {
            "text/html": f'<div style="{_FRAME}">\n<div>{head}</div>\n{body}\n</div>',
            "text/plain": f"{self._title}: {self._state}",
        }


class DashboardPanel(_OwnPanel):
    """A notebook's, where more than text can be shown.

    Args:
        shell: the notebook's IPython.
    """

    def __init__(self, shell: Any):
        super().__init__()
        self._place = NotebookPlace(shell, self._press)
        self._buttons: Buttons = {}

    def open(self, title: str, source: Source, buttons: Buttons) -> None:
        """See `Panel`."""
        self._buttons = buttons
        self._dashboard = Dashboard(source, self._place)
        self._dashboard.open()

    def tell(self, state: str, more: str = "") -> None:
        """See `Panel`."""
        self._dashboard.tell(state, more)

    def fail(self, error: RankFailedError) -> None:
        """See `Panel`: the dashboard knows it already."""

    def show_here(self) -> bool:
        """See `Panel`."""
        self._place.show_here()
        return True

    def close(self, state: RunWord) -> None:
        """See `Panel`."""
        self._dashboard.end(state)

    def _press(self, button: str) -> None:
        self._buttons[button]()


class CellPanel(Screen):
    """The cell itself, which shows the run as any other."""

    def __init__(self, shell: Any, *, dashboard: bool = False):
        super().__init__(shell)
        self.tail = Tail()
        self._place = place_for(shell) if dashboard and can_show(shell) else None

    def open(self, title: str, source: Source, buttons: Buttons) -> None:
        """See `Panel`."""
        self._dashboard = Dashboard(source, self._place) if self._place is not None else None

    def show(self, items: Sequence[Item]) -> None:
        """See `Output`."""
        self.tail.add(items)
        super().show(items)

    def tell(self, state: str, more: str = "") -> None:
        """See `Panel`: text has one place for it."""
        if more:
            self.note(more)

    def fail(self, error: RankFailedError) -> None:
        """See `Panel`: it is raised."""

    def show_here(self) -> bool:
        """See `Panel`."""
        return False

    def close(self, state: RunWord) -> None:
        """See `Panel`."""
        if self._dashboard is not None:
            self._dashboard.end(state)

    def ask(self, question: Asking) -> Reply:
        """See `Output`: nobody is asked."""
        return _refusal(question)


class TerminalPanel(CellPanel):
    """Where there is no notebook: text, printed by another thread as it comes."""

    def fail(self, error: RankFailedError) -> None:
        """See `Panel`: who waits for the run is told all."""
        self.note(f"the run in the background has failed: {error.failures[0].summary}")


def _refusal(question: Asking) -> Reply:
    call = "getpass" if question.secret else "input"
    return Reply(
        error=RuntimeError(
            f"{call}(): a run in the background cannot ask. Ask before it begins, in a cell of the notebook, "
            "or run it without --background."
        )
    )
