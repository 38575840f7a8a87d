"""Bars that libraries draw as HTML (``<progress>``), in a display that they update: fastprogress,
Transformers.

A display that holds nothing but bars is not shown: its bars are. One that holds more, such as a
table of losses, is shown as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

from nbdist.worker.bars import Bar, Bars

_PERCENT = re.compile(r"^\d+(\.\d+)?%\s*")
_UNSEEN = ("style", "script")


@dataclass
class _Found:
    """A bar in HTML."""

    done: float
    total: float | None
    text: str = ""


@dataclass
class _Hidden:
    """A display that has not been shown, for it holds bars alone."""

    bars: list[Bar] = field(default_factory=list)


class MarkupBars:
    """The displays of one rank that hold bars."""

    def __init__(self, bars: Bars):
        self._bars = bars
        self._hidden: dict[str, _Hidden] = {}

    def take(self, display_id: str, html: str, *, update: bool) -> bool:
        """Whether a display is not to be shown, its bars having been taken from it."""
        is_hidden = display_id in self._hidden
        if not is_hidden and (update or "<progress" not in html):
            return False
        page = _Page(html)
        if not is_hidden and not page.holds_bars_alone:
            return False
        if not is_hidden:
            self._end_full()
        hidden = self._hidden.setdefault(display_id, _Hidden())
        for bar in hidden.bars[len(page.bars) :]:
            bar.end(kept=False)
        if page.holds_bars_alone:
            for place, found in enumerate(page.bars):
                self._show(hidden, place, found)
            return True
        return not page.has_more

    def was_hidden(self, display_id: str) -> bool:
        """Whether a display, which is to be shown now, has not been so far."""
        hidden = self._hidden.pop(display_id, None)
        for bar in hidden.bars if hidden is not None else ():
            bar.end(kept=False)
        return hidden is not None

    def _end_full(self) -> None:
        """A new bar begins: those that are full will not be wiped away any more."""
        for hidden in self._hidden.values():
            for place, bar in enumerate(hidden.bars):
                if bar.is_full:
                    bar.end(kept=place == 0)

    def _show(self, hidden: _Hidden, place: int, found: _Found) -> None:
        if place == len(hidden.bars):
            hidden.bars.append(self._bars.begin(""))
        bar = hidden.bars[place]
        if not bar.is_open or found.done < bar.done:  # it begins anew: the next of its kind
            bar.end(kept=place == 0)
            bar = hidden.bars[place] = self._bars.begin("")
        detail = _PERCENT.sub("", " ".join(found.text.split()))
        bar.show(label="", done=found.done, total=found.total, detail=detail)


class _Page(HTMLParser):
    """Reads the bars of a piece of HTML, and whether it holds anything else."""

    def __init__(self, html: str):
        super().__init__()
        self.bars: list[_Found] = []
        self.has_more = False
        self._depth = 0
        self._bar_depth = -1  # of what encloses the bar whose text is read
        self._unseen = 0
        self.feed(html)
        self.close()

    @property
    def holds_bars_alone(self) -> bool:
        return bool(self.bars) and not self.has_more

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "progress":
            named = dict(attrs)
            self.bars.append(_Found(_number(named.get("value")) or 0.0, _number(named.get("max"))))
            self._bar_depth = self._depth
        elif tag in ("img", "table", "svg", "canvas"):
            self.has_more = True
        if tag in _UNSEEN:
            self._unseen += 1
        if tag not in ("br", "img", "hr", "input", "meta", "link"):
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        self._depth -= 1
        self._unseen -= tag in _UNSEEN
        if self._depth < self._bar_depth:
            self._bar_depth = -1

    def handle_data(self, data: str) -> None:
        if self._unseen or not data.strip():
            return
        if self._bar_depth >= 0:
            self.bars[-1].text += data
        else:
            self.has_more = True


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
