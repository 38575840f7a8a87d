"""The dashboard in a terminal: a table of ranks, bars, failures; with rich, or as plain lines without."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nbdist.views.cursor import width_of
from nbdist.views.dashboard.picture import BarPicture, Picture, RankPicture
from nbdist.views.dashboard.words import (
    Tone,
    count_text,
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
_FIRST_KEPT = (0, 1, 4, 2, 3)  # of the columns, where not all have room
_LEAST_CHARS = (4, 11, 20, 8, 16)  # a column that has less says nothing
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


def drawn_lines(
    picture: Picture, *, width: int, most: int | None = None, now_ms: float | None = None
) -> list[str]:
    """The picture as rich's lines for a terminal, with its codes, none wider than `width` columns.

    Args:
        most: lines; as many ranks have rows of their own as leave room for bars.
        now_ms: as for `PictureRenderable`.
    """
    from rich.console import Console

    rows = _MOST_ROWS if most is None else min(max(most - _MOST_BARS - 2, 2), _MOST_ROWS)
    written = io.StringIO()
    console = Console(
        file=written, width=width, force_terminal=True, force_jupyter=False, legacy_windows=False
    )
    console.print(PictureRenderable(picture, rows=rows, now_ms=now_ms))
    return written.getvalue().split("\n")[:-1][:most]


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
    yield _heading(picture, width, now_ms)
    yield from _table(list(_rows(picture, rows, now_ms)), width)
    yield from ([_Piece(line)] for line in _bars(picture["bars"], width))
    for failure in _failures(picture):
        yield from ([_Piece(line, _COLOURS["bad"])] for line in textwrap.wrap(failure, max(width, 10)))


def _heading(picture: Picture, width: int, now_ms: float | None) -> list[_Piece]:
    heading = picture["heading"]
    title, state = one_line(heading["title"], 60), f" {state_of(heading, 60)}"
    facts = [f" · {one_line(fact, 40)}" for fact in facts_of(heading, now_ms)]
    while len(facts) > 1 and width_of("".join((title, state, *facts))) > width:
        del facts[-2]  # the time is the last
    return [
        _Piece(title, "bold"),
        _Piece(state, _COLOURS[tone_of(heading["state"])]),
        _Piece("".join(facts), "dim"),
    ]


def _table(rows: Sequence[_Row], width: int) -> Iterator[list[_Piece]]:
    if not rows:
        return
    columns = {
        place: [title, *(row.cells[place] for row in rows)]
        for place, title in enumerate(_COLUMNS)
        if any(row.cells[place] for row in rows)
    }
    widths = _widths({place: max(map(width_of, column)) for place, column in columns.items()}, width)
    kept = list(widths)
    state = kept.index(1)
    for number, cells in enumerate(zip(*(columns[place] for place in kept), strict=True)):
        styles = ["dim" if number == 0 else ""] * len(cells)
        if number:
            styles[state] = _COLOURS[rows[number - 1].tone]
        padded = (_padded(cell, widths[place]) for cell, place in zip(cells, kept, strict=True))
        pieces = [_Piece(f"{text}{_GAP}", style) for text, style in zip(padded, styles, strict=True)]
        yield [*pieces[:-1], _Piece(pieces[-1].text.rstrip(), pieces[-1].style)]


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


def _bars(bars: Mapping[str, BarPicture], width: int) -> Iterator[str]:
    for bar in list(bars.values())[:_MOST_BARS]:
        yield _bar_line(bar, width)
    if len(bars) > _MOST_BARS:
        yield count_text(len(bars) - _MOST_BARS, "more bar")


def _bar_line(bar: BarPicture, width: int) -> str:
    """Where there is little room, without the rate, and then with a shorter bar."""
    share = min(max(bar["done"] / bar["total"], 0.0), 1.0) if bar["total"] else None
    steps = f"{bar['done']:g}" if bar["total"] is None else f"{bar['done']:g}/{bar['total']:g}"
    left = "" if bar["left_s"] is None else f"{elapsed_text(bar['left_s'] * 1000)} left"
    line = ""
    for rate, cells in ((one_line(bar["rate"], 20), _BAR_CELLS), ("", _BAR_CELLS), ("", _BAR_CELLS // 4)):
        drawn = "" if share is None else f"{share:4.0%} {_drawn(share, cells)}"
        line = _GAP.join(part for part in (one_line(bar["label"], 30), drawn, steps, rate, left) if part)
        if width_of(line) <= width:
            break
    return line


def _drawn(share: float, cells: int) -> str:
    done = round(share * cells)
    return "━" * done + "╌" * (cells - done)


def _failures(picture: Picture) -> Iterator[str]:
    causes = [failure for failure in picture["failures"] if not failure["consequence"]]
    for failure in causes[:_MOST_FAILURES]:
        yield f"rank {one_line(failure['ranks'], 30)}: {one_line(failure['title'], 300)}"
    if len(causes) > _MOST_FAILURES:
        yield count_text(len(causes) - _MOST_FAILURES, "more failure")


def _widths(wanted: Mapping[int, int], width: int) -> dict[int, int]:
    """How wide which columns are: as wide as they want to be; where that is too much, some are left out, and
    of the others the widest give.

    >>> _widths({0: 4, 1: 7, 2: 40, 3: 7, 4: 30}, 40)
    {0: 4, 1: 7, 3: 7, 4: 16}
    """
    least = {place: min(wanted[place], _LEAST_CHARS[place]) for place in wanted}
    kept: list[int] = []
    for place in (place for place in _FIRST_KEPT if place in wanted):
        if len(kept) < 2 or _room({one: least[one] for one in (*kept, place)}) <= width:
            kept.append(place)
    widths = {place: wanted[place] for place in sorted(kept)}
    while _room(widths) > width and max(widths.values()) > 1:
        can_give = [place for place in widths if widths[place] > least[place]] or list(widths)
        widths[max(can_give, key=lambda place: widths[place])] -= 1
    return widths


def _room(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _padded(text: str, width: int) -> str:
    cut = _cut(text, width)
    return cut + " " * (width - width_of(cut))


def _cut(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return f"{text}…"
