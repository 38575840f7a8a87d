"""Widgets that are shown in a rank: progress bars become the one bar of all ranks, others stay behind.

A widget lives in the process in which it was made, and a front end talks to the kernel alone.
Progress bars only tell: what they tell is heard through traitlets' own `observe`. ipywidgets is never
imported here: where a widget is shown, the user has it.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet

from nbdist.worker.bars import Bars
from nbdist.worker.capture import Outbox

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"

_TAG = re.compile(r"<[^>]*>")
_PERCENT_AT_END = re.compile(r":?\s*\d+%\s*$")
_BARS = ("IntProgress", "FloatProgress")
_TEXTS = ("HTML", "HTMLMath", "Label")
_PLAIN = (*_BARS, *_TEXTS, "Box")
"""What needs no answer from a front end, with all that is made from it."""


class Widgets:
    """The widgets that a rank shows."""

    def __init__(self, bars: Bars, outbox: Outbox):
        self._bars = bars
        self._outbox = outbox
        self._heard: WeakSet[Any] = WeakSet()
        self._told: set[str] = set()

    def show(self, model_id: str, text: str) -> None:
        """A widget was displayed.

        Args:
            text: its `repr`, which tells its class where the widget itself cannot be found.
        """
        widget = _registry().get(model_id)
        name = text.partition("(")[0] or "widget"
        if widget is None:
            self._stays_behind(name)
            return
        parts = list(_within(widget))
        strangers = [part for part in parts if not _is_one_of(part, _PLAIN)]
        bars = [part for part in parts if _is_one_of(part, _BARS)]
        if strangers or not bars:
            self._stays_behind(type(strangers[0] if strangers else widget).__name__)
        for bar in bars:
            if bar not in self._heard:
                self._heard.add(bar)
                _HeardBar(bar, widget, _box_of(bar, parts), self._bars)

    @staticmethod
    def is_capturing() -> bool:
        """Whether the code that runs is inside of an `Output` widget."""
        return any(getattr(widget, "msg_id", "") for widget in _registry().values())

    def _stays_behind(self, name: str) -> None:
        if name in self._told:
            return
        self._told.add(name)
        what = (
            "what is printed in it is shown in the cell"
            if name == "Output"
            else "make it in a cell without %%distributed, or print what it is to show"
        )
        why = "a widget works only in the notebook's own process"
        self._outbox.text("stderr", f"nbdist: {name} is not shown: {why}; {what}\n")


class _HeardBar:
    """A progress widget, told on as it changes."""

    def __init__(self, widget: Any, shown: Any, box: Sequence[Any], bars: Bars):
        self._widget = widget
        self._bars = bars
        place = box.index(widget)
        self._before = [part for part in box[:place] if _is_one_of(part, _TEXTS)]
        self._behind = [part for part in box[place + 1 :] if _is_one_of(part, _TEXTS)]
        self._is_endless = widget.bar_style == "info"  # as tqdm marks a bar without a total
        self._bar = bars.begin(self._label)
        self._tell()
        widget.observe(self._changed, ["value", "max", "description", "bar_style"])
        for part in (*self._before, *self._behind):
            part.observe(self._changed, ["value"])
        for part in {id(part): part for part in (widget, shown)}.values():
            part.observe(self._closed, ["comm"])

    @property
    def _label(self) -> str:
        own = (self._widget.description, *(part.value for part in self._before))
        return _PERCENT_AT_END.sub("", " ".join(filter(None, map(_plain_text, own)))).rstrip(": ")

    def _tell(self) -> None:
        widget = self._widget
        self._bar.show(
            label=self._label,
            done=0 if self._is_endless else widget.value - widget.min,
            total=None if self._is_endless else widget.max - widget.min,
            detail=" ".join(filter(None, (_plain_text(part.value) for part in self._behind))).lstrip("| "),
        )

    def _changed(self, change: Any) -> None:
        widget = self._widget
        is_value = change["owner"] is widget and change["name"] == "value" and not self._is_endless
        if not self._bar.is_open or (is_value and change["new"] < change["old"]):
            if not is_value:  # a last word behind its end
                return
            self._bar.end(kept=True)
            self._bar = self._bars.begin(self._label)
        self._tell()
        is_alone = not self._before and not self._behind
        # tqdm marks a bar so that was left before its end, by `break` say.
        ends = ("success",) if is_alone else ("success", "danger")
        is_marked = change["name"] == "bar_style" and change["new"] in ends
        if is_marked or (is_value and is_alone and widget.value >= widget.max):
            self._bar.end(kept=True)

    def _closed(self, change: Any) -> None:
        if change["new"] is None:
            self._bar.end(kept=False)


def _registry() -> dict[str, Any]:
    """All widgets of this process."""
    module: Any = sys.modules.get("ipywidgets.widgets.widget")
    if module is None:
        return {}
    known = getattr(module, "_instances", None)  # ipywidgets 8
    return dict(module.Widget.widgets if known is None else known)


def _within(widget: Any) -> Iterator[Any]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _within(child)


def _box_of(widget: Any, parts: Sequence[Any]) -> Sequence[Any]:
    boxes = (list(getattr(part, "children", ())) for part in parts)
    return next((box for box in boxes if any(child is widget for child in box)), [widget])


def _is_one_of(widget: Any, names: Sequence[str]) -> bool:
    return any(kind.__name__ in names for kind in type(widget).__mro__)


def _plain_text(text: str) -> str:
    return html.unescape(_TAG.sub("", text)).replace("\u2007", " ").strip()
