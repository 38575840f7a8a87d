"""The dashboard as a widget of the notebook: a picture now and then, and between them what changed.

Imported only where it is shown: it needs anywidget.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbdist.forksafety import fork_gate
from nbdist.views.dashboard.picture import Picture, patch_between
from nbdist.views.slot import Slot

_FOLDER = Path(__file__).parent
_KEYFRAME_EVERY_S = 5.0
_WORD_EVERY_S = 5.0  # so that a page can tell a run in which nothing changes from a kernel that is gone
_VIEW = "application/vnd.jupyter.widget-view+json"

_MOST_ENDED = 4

unanswered = 0
"""How many widgets were shown since a front end has last said that it shows one."""

_ended: deque[WidgetFace] = deque()
"""Those whose runs have ended last. A page that was loaded while one went on hears of widgets, but of no
updates of displays that it has not seen come: where the cell kept the kernel busy until now, it asks only now
what there is."""


def close_widgets() -> None:
    """Close all that stay for pages that come late."""
    while _ended:
        _ended.popleft().close_widget()


class DashboardWidget(anywidget.AnyWidget):
    """What lives in the page; `dashboard.js` says what goes between."""

    _esm = _FOLDER / "dashboard.js"
    _css = _FOLDER / "dashboard.css"
    keyframe = traitlets.Dict().tag(sync=True)


class WidgetFace:
    """Shows pictures in a widget.

    Args:
        slot: where.
        on_button: called when a button is clicked, with its name; None where no click can be heard.
    """

    every_s = 0.1

    def __init__(self, slot: Slot, on_button: Callable[[str], None] | None):
        self._slot = slot
        self._on_button = on_button
        self._widget: Any = None
        self._shown: Picture | None = None
        self._number = 0
        self._keyframe_s = self._word_s = 0.0
        self._pages = 0
        self._clicks: set[str] = set()

    def open(self, picture: Picture, text: str) -> None:
        """Show the first picture."""
        global unanswered
        unanswered += 1
        self._shown = picture
        with fork_gate:
            self._widget = DashboardWidget(keyframe=self._keyframe(picture))
            self._widget.on_msg(self._hear)
        view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        self._slot.show({_VIEW: view, "text/plain": text}, update=False)

    def update(self, picture: Picture) -> int:
        """Show the next one; how many bytes went."""
        assert self._shown is not None
        patch = patch_between(self._shown, picture)
        self._shown = picture
        if not patch and time.monotonic() - self._word_s < _WORD_EVERY_S:
            return 0
        self._word_s = time.monotonic()
        self._number += 1
        message = {"kind": "patch", "number": self._number, "now_ms": 1000 * time.time(), "patch": patch}
        with fork_gate:
            self._widget.send(message)
            if patch and time.monotonic() - self._keyframe_s >= _KEYFRAME_EVERY_S:
                self._widget.keyframe = self._keyframe(picture)
        return len(json.dumps(patch))

    def close(self, picture: Picture, still: Mapping[str, str] | None) -> None:
        """Show the last one.

        Args:
            still: what takes the widget's place; None where that is to stay.
        """
        self.update(picture)
        with fork_gate:
            self._widget.keyframe = self._keyframe(picture)
            if still is not None:
                self._slot.show(still, update=True)
                self._retire()

    def show_here(self) -> None:
        """Show it in the cell that runs, too."""
        self._slot.show_here()

    def _retire(self) -> None:
        """Stay for pages that come late; the oldest of those that stay has waited long enough."""
        self._on_button = None  # what it belongs to need not stay
        _ended.append(self)
        while len(_ended) > _MOST_ENDED:
            oldest = _ended.popleft()
            if oldest._pages < 2:  # a second page has the widget alone: it would be left with nothing
                oldest.close_widget()

    def close_widget(self) -> None:
        """No page needs it any more."""
        layout = self._widget.layout
        self._widget.close()
        layout.close()  # a widget of its own, which would stay

    def _keyframe(self, picture: Picture) -> dict[str, Any]:
        self._keyframe_s = self._word_s = time.monotonic()
        return {"number": self._number, "now_ms": 1000 * time.time(), "picture": picture}

    def _hear(self, _: object, content: Mapping[str, Any], __: object) -> None:
        """In the main thread when the kernel is free, or in a subshell's."""
        global unanswered
        unanswered = 0
        kind = content.get("kind")
        if kind == "hello":
            self._pages += 1
        elif kind == "picture" and self._shown is not None:
            with fork_gate:
                self._widget.keyframe = self._keyframe(self._shown)
        elif kind in ("interrupt", "stop") and self._on_button is not None:
            click = content.get("click", "")
            if click not in self._clicks:  # a page sends each again until it sees that it was heard
                self._clicks |= {click} - {""}
                self._on_button(kind)
