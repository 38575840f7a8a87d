"""The dashboard in a terminal: a table of ranks, bars, failures; with rich, or as plain lines without."""

from __future__ import annotations

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
    tone_of,
    use_of,
)
from nbdist.views.visible import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

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


class _Row(NamedTuple):
    tone: Tone
    cells: tuple[str, ...]


def picture_renderable(
    picture: Picture, *, rows: int = _MOST_ROWS, now_ms: float | None = None
) -> RenderableType:
    """The picture for `rich.live.Live`; it needs rich.

    Args:
        rows: ranks with a row of their own; of more ranks it is said how many are in which state.
        now_ms: of a run that goes on, so that it can say how long.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    heading = picture["heading"]
    head = Text(no_wrap=True, overflow="ellipsis")
    for number, part in enumerate(_heading(picture, now_ms)):
        style = ("bold", _COLOURS[tone_of(heading["state"])], "dim")[min(number, 2)]
        head.append(f"{' ' if number else ''}{part}", style)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in _COLUMNS:
        table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=None)
    for row in _rows(picture, rows, now_ms):
        texts = [Text(cell, no_wrap=True, overflow="ellipsis") for cell in row.cells]
        texts[1].stylize(_COLOURS[row.tone])
        table.add_row(*texts)
    parts: list[RenderableType] = [head, *([table] if table.row_count else [])]
    parts += [Text(line, no_wrap=True, overflow="ellipsis") for line in _bars(picture["bars"])]
    parts += [Text(line, style="red", overflow="fold") for line in _failures(picture)]
    return Group(*parts)


def picture_lines(
    picture: Picture, *, width: int = 80, rows: int = _MOST_ROWS, now_ms: float | None = None
) -> list[str]:
    """The picture as plain lines, none wider than `width` characters of a terminal.

    Args:
        rows: as for `picture_renderable`; so `now_ms`.
    """
    table = [_COLUMNS, *(row.cells for row in _rows(picture, rows, now_ms))]
    lines = [" ".join(_heading(picture, now_ms))]
    if len(table) > 1:
        widths = _widths(table, width)
        lines += ["  ".join(map(_padded, row, widths)).rstrip() for row in table]
    lines += [*_bars(picture["bars"]), *_failures(picture)]
    return [_cut(line, width) for line in lines]


def _heading(picture: Picture, now_ms: float | None) -> Iterator[str]:
    heading = picture["heading"]
    yield one_line(heading["title"], 60)
    yield one_line(heading["told"] or heading["state"], 60)
    yield "· " + " · ".join(one_line(fact, 40) for fact in facts_of(heading, now_ms))


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
    where = " · ".join(part for part in (place, since, f"straggler: {one['straggler']}") if part)
    if not one["straggler"]:
        where = " · ".join(part for part in (place, since) if part)
    cells = (
        str(rank),
        one["told"] or one["state"],
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


def _widths(table: Sequence[Sequence[str]], width: int) -> list[int]:
    """Columns as wide as they need to be; where that is too much the widest give."""
    widths = [max(map(_cells, column)) for column in zip(*table, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 1:
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
