"""Ranks as a table; of very many, how many are in which state, and those that are odd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nbdist.views.dashboard.picture import Picture, RankPicture
from nbdist.views.dashboard.room import Room, take, text
from nbdist.views.dashboard.styles import BREAKS, CELL, CODE, DIM, HEAD, ROW, TABLE, TONES, WIDE
from nbdist.views.dashboard.words import (
    count_text,
    counts_of,
    list_text,
    metrics_of,
    odd_ones,
    place_of,
    ranks_of,
    since_of,
    spread_of,
    state_of,
    tone_of,
    use_of,
)

_MOST_METRICS = 6


def ranks_html(picture: Picture, room: Room, *, live: bool, now_ms: float | None) -> str:
    """The ranks, as one or more tables.

    Args:
        live: whether they go on: then it is told for how long they are where they are.
    """
    ranks = list(ranks_of(picture))
    if not ranks:
        return f'<div style="{DIM}">no ranks yet</div>' if live else ""
    if len(ranks) <= room.rows:
        return _table(ranks, room, now_ms)
    odd = odd_ones(picture)[: room.rows // 2]
    return "\n".join([*_summary(picture), *([_table(odd, room, now_ms)] if odd else [])])


def _table(ranks: Sequence[tuple[int, RankPicture]], room: Room, now_ms: float | None) -> str:
    has_metrics = any(one["metrics"] or one["rate"] for _, one in ranks)
    has_use = any(use_of(one) for _, one in ranks)
    heads = ["rank", "state", *(["use"] if has_use else []), *(["last metrics"] if has_metrics else [])]
    made = (_row(rank, one, now_ms, has_use=has_use, has_metrics=has_metrics) for rank, one in ranks)
    rows = take(made, room.table)
    more = len(ranks) - len(rows)
    note = f'<div style="{DIM}">{count_text(more, "more rank")}, not shown here</div>' if more else ""
    return _as_table(heads, rows) + note


def _as_table(heads: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f'<th style="{HEAD}">{name}</th>' for name in heads)
    body = "\n".join(rows)
    inner = f'<thead><tr style="{ROW}">{head}</tr></thead>\n<tbody>\n{body}\n</tbody>'
    return f'<div style="{WIDE}"><table style="{TABLE}">{inner}</table></div>'


def _row(rank: int, one: RankPicture, now_ms: float | None, *, has_use: bool, has_metrics: bool) -> str:
    cells = [
        _cell(f"<b>{rank}</b>", _dim(text(one["device"], 40))),
        _cell(*_state(one, now_ms)),
    ]
    if has_use:
        cells.append(_cell(*(_dim(text(part, 40).replace(" ", "\u00a0")) for part in use_of(one))))
    if has_metrics:
        parts = [text(part, 80) for part in metrics_of(one, _MOST_METRICS)]
        cells.append(_cell(f'<div style="{BREAKS}">{", ".join(parts)}</div>'))
    return f'<tr style="{ROW}">{"".join(cells)}</tr>'


def _state(one: RankPicture, now_ms: float | None) -> Iterator[str]:
    since = since_of(one, now_ms)
    yield f"{_word(one)}{f' for {since}' if since else ''}"
    if place := text(place_of(one), 120):
        inner = f'<code style="{CODE}">{place}</code>' if one["line"] is not None else place
        yield f'<div style="{DIM};{BREAKS}">{inner}</div>'
    if one["straggler"]:
        yield f'<div style="color:{TONES["held"]}">straggler: {text(one["straggler"], 120)}</div>'


def _word(one: RankPicture) -> str:
    return f'<b style="color:{TONES[tone_of(one["state"])]}">{text(state_of(one, 80), 80)}</b>'


def _cell(*parts: str) -> str:
    return f'<td style="{CELL}">{"".join(parts)}</td>'


def _dim(markup: str) -> str:
    return f'<div style="{DIM}">{markup}</div>' if markup else ""


def _summary(picture: Picture) -> Iterator[str]:
    """How many ranks are in which state, and between what their metrics lie."""
    rows = []
    for state, ranks in counts_of(picture):
        word = f'<b style="color:{TONES[tone_of(state)]}">{state}</b>'
        cells = [_cell(word), _cell(f"{len(ranks):,}"), _cell(text(list_text(ranks), 80))]
        rows.append(f'<tr style="{ROW}">{"".join(cells)}</tr>')
    yield _as_table(("state", "number", "ranks"), rows)
    spread = [
        f'<tr style="{ROW}">{_cell(text(name, 40))}{_cell(mean)}{_cell(between)}</tr>'
        for name, mean, between in spread_of(picture, _MOST_METRICS)
    ]
    if spread:
        yield _as_table(("metric", "mean", "over ranks"), spread)
