"""The dashboard in a terminal: a table of ranks, bars, failures; with rich, or as plain lines without."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nbdist.views.dashboard.picture import BarPicture, Picture, RankPicture
from nbdist.views.dashboard.words import (
    Tone,
    counts_of,
    elapsed_text,
    facts_of,
    list_text,
    metrics_of,
    odd_ones,
    place_of,
    ranks_of,
    since_of,
    state_of,
    tone_of,
    use_of,
)
from nbdist.views.visible import one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

_COLOURS: Mapping[Tone, str] = {
    "good": "green",
    "bad": "red",
    "busy": "blue",
    "held": "yellow",
    "rest": "bright_black",
}
_COLUMNS = ("rank", "state", "where", "use", "last metrics")
_MOST_ROWS = 16
_MOST_BARS = 4
_MOST_FAILURES = 4
_CELL_CHARS = 80
_BAR_CELLS = 20
_GAP = "  "


class _Row(NamedTuple):
    tone: Tone
    cells: tuple[str, ...]


class _Piece(NamedTuple):
    """A part of a line: its text and its style, in rich's words."""

    text: str
    style: str = ""


class PictureRenderable:
    """A picture that rich can show, such as in a `rich.live.Live`."""

    def __init__(self, picture: Picture, *, rows: int = _MOST_ROWS, now_ms: float | None = None):
        """
        Args:
            rows: ranks with a row of their own; of more ranks it is said how many are in which state.
            now_ms: of a run that goes on, so that it can say how long.
        """
        self._picture, self._rows, self._now_ms = picture, rows, now_ms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.text import Text

        for line in _lines(self._picture, options.max_width, self._rows, self._now_ms):
            yield Text.assemble(*line, no_wrap=True, overflow="ellipsis")


def picture_lines(
    picture: Picture, *, width: int = 80, rows: int = _MOST_ROWS, now_ms: float | None = None
) -> list[str]:
    """The picture as plain lines, none wider than `width` columns of a terminal.

    Args:
        rows: as for `PictureRenderable`; so `now_ms`.
    """
    lines = _lines(picture, width, rows, now_ms)
    return [_cut("".join(piece.text for piece in line).rstrip(), width) for line in lines]


def _lines(picture: Picture, width: int, rows: int, now_ms: float | None) -> Iterator[list[_Piece]]:
    yield _heading(picture, now_ms)
    yield from _table(list(_rows(picture, rows, now_ms)), width)
    yield from ([_Piece(line)] for line in _bars(picture["bars"]))
    for failure in _failures(picture):
        yield from ([_Piece(line, _COLOURS["bad"])] for line in textwrap.wrap(failure, max(width, 10)))


def _heading(picture: Picture, now_ms: float | None) -> list[_Piece]:
    heading = picture["heading"]
    return [
        _Piece(one_line(heading["title"], 60), "bold"),
        _Piece(f" {state_of(heading, 60)}", _COLOURS[tone_of(heading["state"])]),
        _Piece("".join(f" · {one_line(fact, 40)}" for fact in facts_of(heading, now_ms)), "dim"),
    ]


def _table(rows: Sequence[_Row], width: int) -> Iterator[list[_Piece]]:
    if not rows:
        return
    kept = [place for place in range(len(_COLUMNS)) if any(row.cells[place] for row in rows)]
    columns = [[_COLUMNS[place], *(row.cells[place] for row in rows)] for place in kept]
    widths = _widths(columns, width)
    state = kept.index(1)
    for number, cells in enumerate(zip(*columns, strict=True)):
        styles = ["dim" if number == 0 else ""] * len(cells)
        if number:
            styles[state] = _COLOURS[rows[number - 1].tone]
        padded = (f"{_padded(cell, width)}{_GAP}" for cell, width in zip(cells, widths, strict=True))
        yield [_Piece(text, style) for text, style in zip(padded, styles, strict=True)]


def _rows(picture: Picture, most: int, now_ms: float | None) -> Iterator[_Row]:
    ranks = list(ranks_of(picture))
    if len(ranks) > most:
        for state, those in counts_of(picture):
            told = f"{len(those):,} {state}"
            yield _Row(tone_of(state), ("", told, f"ranks {list_text(those, 40)}", "", ""))
        ranks = odd_ones(picture)[: max(most - 4, 1)]
    for rank, one in ranks:
        yield _rank_row(rank, one, now_ms)


def _rank_row(rank: int, one: RankPicture, now_ms: float | None) -> _Row:
    since = since_of(one, now_ms)
    place = place_of(one)
    straggler = f"straggler: {one['straggler']}" if one["straggler"] else ""
    where = " · ".join(part for part in (straggler, place, since) if part)
    cells = (
        str(rank),
        state_of(one, _CELL_CHARS),
        where,
        " ".join(use_of(one)),
        ", ".join(metrics_of(one, 3, 16)),
    )
    tone: Tone = "held" if one["straggler"] and tone_of(one["state"]) == "busy" else tone_of(one["state"])
    return _Row(tone, tuple(one_line(cell, _CELL_CHARS) for cell in cells))


def _bars(bars: Mapping[str, BarPicture]) -> Iterator[str]:
    for bar in list(bars.values())[:_MOST_BARS]:
        share = min(max(bar["done"] / bar["total"], 0.0), 1.0) if bar["total"] else None
        steps = f"{bar['done']:g}" if bar["total"] is None else f"{bar['done']:g}/{bar['total']:g}"
        left = "" if bar["left_s"] is None else f"{elapsed_text(bar['left_s'] * 1000)} left"
        drawn = "" if share is None else f"{share:4.0%} {_drawn(share)}"
        parts = (one_line(bar["label"], 30), drawn, steps, one_line(bar["rate"], 20), left)
        yield "  ".join(part for part in parts if part)
    if len(bars) > _MOST_BARS:
        yield f"{len(bars) - _MOST_BARS:,} more bars"


def _drawn(share: float) -> str:
    done = round(share * _BAR_CELLS)
    return "━" * done + "╌" * (_BAR_CELLS - done)


def _failures(picture: Picture) -> Iterator[str]:
    causes = [failure for failure in picture["failures"] if not failure["consequence"]]
    for failure in causes[:_MOST_FAILURES]:
        yield f"rank {one_line(failure['ranks'], 30)}: {one_line(failure['title'], 300)}"
    if len(causes) > _MOST_FAILURES:
        yield f"{len(causes) - _MOST_FAILURES:,} more failures"


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Columns as wide as they need to be; where that is too much the widest give."""
    widths = [max(map(_cells, column)) for column in columns]
    while sum(widths) + len(_GAP) * len(widths) > width and max(widths) > 1:
        widest = widths.index(max(widths))
        widths[widest] -= 1
    return widths


def _padded(text: str, width: int) -> str:
    cut = _cut(text, width)
    return cut + " " * (width - _cells(cut))


def _cut(text: str, width: int) -> str:
    if _cells(text) <= width:
        return text
    while text and _cells(text) > width - 1:
        text = text[:-1]
    return f"{text}…"


def _cells(text: str) -> int:
    """Columns that a terminal takes for it."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
