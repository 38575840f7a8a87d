"""Where a dashboard can be shown, and how: as a widget, as static HTML that is written anew, at the end only,
or in a terminal."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from nbdist.forksafety import fork_gate
from nbdist.options import Options
from nbdist.views.dashboard.picture import Picture
from nbdist.views.dashboard.static import picture_html
from nbdist.views.dashboard.terminal_face import TerminalPlace, is_live_terminal
from nbdist.views.dashboard.words import picture_text
from nbdist.views.screen import is_watched
from nbdist.views.slot import Slot

CHOICE = "NBDIST_DASHBOARD"
"""In the environment: one of `CHOICES`, where what nbdist takes by itself is not right."""
CHOICES = ("widget", "html", "none")
KEEP_WIDGET = "NBDIST_KEEP_WIDGET"
"""In the environment: 1 leaves the widget in the page when the run has ended."""

_MOST_UNANSWERED = 2

_told = ""  # of the choice that was told to be none


def unknown_choice() -> str:
    """A word on a choice that is none of `CHOICES`, the first time that it is asked for; else empty."""
    global _told
    former, _told = _told, os.environ.get(CHOICE, "")
    if not _told or _told in CHOICES or _told == former:
        return ""
    return f"{CHOICE}={_told}: no such dashboard. Allowed: {', '.join(CHOICES)}. What fits is taken."


class Face(Protocol):
    """What shows pictures of a run.

    Attributes:
        every_s: how often it bears a new one.
    """

    every_s: float

    def open(self, picture: Picture, text: str) -> None:
        """Show the first one.

        Args:
            text: where nothing but text can be shown.
        """

    def update(self, picture: Picture) -> int:
        """Show the next one; how many bytes went to the front end."""

    def close(self, picture: Picture, still: Mapping[str, str] | None) -> None:
        """Show the last one.

        Args:
            still: it as static HTML and text; None where a widget is to stay.
        """


class HtmlFace:
    """Static HTML in a display, where widgets cannot show."""

    every_s = 0.5

    def __init__(self, slot: Slot):
        self._slot = slot

    def open(self, picture: Picture, text: str) -> None:
        """See `Face`."""
        self._slot.show(self._data(picture), update=False)

    def update(self, picture: Picture) -> int:
        """See `Face`."""
        data = self._data(picture)
        self._slot.show(data, update=True)
        return len(data["text/html"])

    def close(self, picture: Picture, still: Mapping[str, str] | None) -> None:
        """See `Face`."""
        self._slot.show(still or self._data(picture), update=True)

    def _data(self, picture: Picture) -> dict[str, str]:
        html = picture_html(picture, live=True, now_ms=1000 * time.time())
        return {"text/html": html, "text/plain": picture_text(picture)}


def close_pages() -> None:
    """Take back what stays of dashboards whose runs have ended."""
    widget = sys.modules.get("nbdist.views.dashboard.widget")
    if widget is not None:
        widget.close_widgets()


def can_show(shell: Any, *, in_background: bool = False) -> bool:
    """Whether there is a place for the dashboard of a run at all.

    Args:
        shell: the notebook's IPython, or None in a plain Python process.
        in_background: whether nobody waits for the run: in a terminal one types where it would stand.
    """
    if os.environ.get(CHOICE) == "none":
        return False
    return _is_notebook(shell) or (not in_background and is_live_terminal(shell))


def has_dashboard(shell: Any, options: Options) -> bool:
    """Whether somebody may look at one while the run goes on."""
    is_possible = can_show(shell, in_background=options.background is not None)
    return options.dashboard and is_possible and is_watched(shell)


class Place(Protocol):
    """Where the dashboard of one run is shown.

    What shows it is made late: most runs end before there is anything to see, and need not wait for imports.

    Attributes:
        is_watched: whether somebody looks on while the run lasts.
    """

    is_watched: bool

    def face(self) -> Face:
        """What shows the run while it goes on."""

    def show_still(self, still: Mapping[str, str]) -> None:
        """Show a run that has ended unseen."""


class NotebookPlace:
    """Under the cell that runs now.

    Args:
        shell: the notebook's IPython; its front end can show a dashboard.
        on_button: see `WidgetFace`.

    Attributes:
        is_watched: see `Place`.
    """

    def __init__(self, shell: Any, on_button: Callable[[str], None] | None = None):
        self._slot = Slot(shell)
        self._on_button = on_button
        self.is_watched = is_watched(shell)

    def face(self) -> Face:
        """See `Place`."""
        choice = os.environ.get(CHOICE, "")
        if choice != "html" and (choice == "widget" or _shows_widgets()):
            with fork_gate:
                from nbdist.views.dashboard.widget import WidgetFace
            return WidgetFace(self._slot, self._on_button)
        return HtmlFace(self._slot)

    def show_still(self, still: Mapping[str, str]) -> None:
        """See `Place`."""
        if not self.is_watched:
            # Its text comes first and by itself: tests of notebooks compare that, and it is the same on every
            # run, which the times and sizes of the HTML are not.
            self._slot.show({"text/plain": still["text/plain"]}, update=False)
        self._slot.show(still, update=not self.is_watched)

    def show_here(self) -> None:
        """Show it in the cell that runs, too, if it does not stand there."""
        self._slot.show_here()


def place_for(shell: Any) -> Place:
    """The place of a run that is waited for; `can_show` has said that there is one."""
    return NotebookPlace(shell) if _is_notebook(shell) else TerminalPlace()


def _is_notebook(shell: Any) -> bool:
    return getattr(shell, "kernel", None) is not None


def _shows_widgets() -> bool:
    """Whether the page can show our widget, as far as that can be told from here."""
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ:  # it loads no widgets' code but its own
        return False
    if importlib.util.find_spec("anywidget") is None or not _same_version():
        return False
    widget = sys.modules.get("nbdist.views.dashboard.widget")
    return widget is None or widget.unanswered < _MOST_UNANSWERED


def _same_version() -> bool:
    """Whether the front end's part of anywidget, where it is beside the kernel's, fits that: their minor
    versions are the same."""
    from importlib.metadata import version

    package = Path(sys.prefix, "share", "jupyter", "labextensions", "anywidget", "package.json")
    if not package.exists():
        return True  # the server lives elsewhere: nobody knows
    theirs = str(json.loads(package.read_text()).get("version", "")).split(".")[:2]
    return theirs == version("anywidget").split(".")[:2]
