"""The dashboard as HTML that needs nobody's help: no scripts, no style sheet, no widget.

It is what a saved notebook keeps, and what front ends show that have no widgets. Untrusted notebooks keep
inline styles, tables, ``<details>``, ``<progress>``, ``<pre>`` and images as data. Signals have colours that
stand out on a light page and on a dark one; all else takes the page's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nbdist.views.dashboard.charts import chart_html
from nbdist.views.dashboard.picture import BarPicture, FailurePicture, Picture
from nbdist.views.dashboard.room import KEPT, LIVE, Room, lines, size_of, take, text
from nbdist.views.dashboard.static_log import log_html
from nbdist.views.dashboard.static_ranks import ranks_html
from nbdist.views.dashboard.styles import BODY, DIM, FRAME, PRE, SUMMARY, TONES
from nbdist.views.dashboard.words import (
    bar_facts,
    count_text,
    facts_of,
    metric_names,
    picture_text,
    state_of,
    tone_of,
)

__all__ = ["picture_html", "picture_text"]

_MOST_BARS = 8


def picture_html(picture: Picture, *, live: bool, now_ms: float | None = None) -> str:
    """The picture as HTML with inline styles alone.

    Args:
        live: whether the run goes on: where ranks are and how far, and less of all else.
        now_ms: of a live one, so that it can say how long.

    Returns:
        Less than 200 kB whatever the picture holds, and less than 60 kB if live.
    """
    room = LIVE if live else KEPT
    parts = [
        _heading(picture, now_ms),
        *(_bars(picture["bars"]) if live else ()),
        *_failures(picture, room),
        *_charts(picture, room),
        ranks_html(picture, room, live=live, now_ms=now_ms),
        log_html(picture, room),
    ]
    told = TONES[tone_of(picture["heading"]["state"])]
    inner = "\n".join(part for part in parts if part)
    return f'<div style="{FRAME};border-left:3px solid {told};{BODY}">\n{inner}\n</div>'


def _heading(picture: Picture, now_ms: float | None) -> str:
    heading = picture["heading"]
    colour = TONES[tone_of(heading["state"])]
    facts = " · ".join(text(fact, 80) for fact in facts_of(heading, now_ms))
    told = text(state_of(heading, 160), 160)
    title = f"<b><bdi>{text(heading['title'], 120)}</bdi></b>"
    state = f'<b style="color:{colour}"><bdi>{told}</bdi></b>'
    line = (
        f'<div style="margin:0 0 6px 0">{title} {state} <span style="{DIM}">· <bdi>{facts}</bdi></span></div>'
    )
    hint = text(heading["hint"], 300)
    return line + (f'<div style="{DIM};margin:0 0 6px 0">{hint}</div>' if hint else "")


def _bars(bars: Mapping[str, BarPicture]) -> Iterator[str]:
    for bar in list(bars.values())[:_MOST_BARS]:
        label = " · ".join(
            text(part, 60) for part in (bar["label"], f"ranks {bar['ranks']}" if bar["ranks"] else "") if part
        )
        facts = " · ".join(text(fact, 60) for fact in bar_facts(bar))
        value = "" if not bar["total"] else f' value="{min(max(bar["done"] / bar["total"], 0), 1):.4f}"'
        yield (
            f'<div style="margin:0 0 6px 0"><div><bdi>{label}</bdi> <span style="{DIM}">{facts}</span></div>'
            f'<progress max="1"{value} style="width:100%;height:8px"></progress></div>'
        )
    if len(bars) > _MOST_BARS:
        yield f'<div style="{DIM}">{count_text(len(bars) - _MOST_BARS, "more bar")}</div>'


def _failures(picture: Picture, room: Room) -> Iterator[str]:
    """Causes first, open where they are seen here alone; what followed from them, folded."""
    is_open = picture["heading"]["log_is_open"]
    causes = [failure for failure in picture["failures"] if not failure["consequence"]]
    others = [failure for failure in picture["failures"] if failure["consequence"]]
    most = room.failures * 2 // 3
    shown = take(
        (
            _failure(failure, most // (1 if number == 0 else 6), is_open=is_open and number == 0)
            for number, failure in enumerate(causes)
        ),
        room.failures,
    )
    yield from shown
    if len(causes) > len(shown):
        more = count_text(len(causes) - len(shown), "more failure")
        yield f'<div style="{DIM};margin:0 0 6px 0">{more}</div>'
    left = room.failures - sum(map(size_of, shown))
    if others:
        rows = take((f"<div>{_failure_title(failure)}</div>" for failure in others), min(left, 6_000))
        if len(rows) < len(others):
            rows.append(f'<div style="{DIM}">… and {len(others) - len(rows):,} more</div>')
        what = "consequence of it" if len(others) == 1 else "consequences of it"
        told = f"{len(others):,} {what}" if causes else count_text(len(others), "failure")
        yield f'<details><summary style="{SUMMARY}">{told}</summary>{"".join(rows)}</details>'


def _failure(failure: FailurePicture, most_bytes: int, *, is_open: bool) -> str:
    title = _failure_title(failure)
    if not failure["traceback"].strip():
        return f'<div style="margin:0 0 6px 0">{title}</div>'
    inner = lines(failure["traceback"], most_bytes, most_bytes)
    return (
        f'<details{" open" if is_open else ""}><summary style="{SUMMARY}">{title}</summary>'
        f'<pre style="{PRE}">{inner}</pre></details>'
    )


def _failure_title(failure: FailurePicture) -> str:
    line = f", line {failure['line']}" if failure["line"] is not None else ""
    rank = text(f"rank {failure['ranks']}", 60) + line
    colour = TONES["held" if failure["consequence"] else "bad"]
    return f'<b style="color:{colour}">{rank}</b> <bdi>{text(failure["title"], 400)}</bdi>'


def _charts(picture: Picture, room: Room) -> Iterator[str]:
    """All of them with a line for each rank if that fits, or else with bands, or else the first ones."""
    charts = picture["charts"]
    if not charts:
        return
    images: list[str] = []
    for by_rank in (True, False):
        made = (chart_html(name, chart, by_rank=by_rank) for name, chart in charts.items())
        images = take(made, room.charts)
        if len(images) == len(charts):
            break
    yield f'<div style="margin:6px 0 0 0">{"".join(images)}</div>'
    drawn = list(charts)[: len(images)]
    names = [text(name, 40) for name in metric_names(picture) if name not in drawn]
    if names:
        told = take(names, 2_000)
        listed = ", ".join([*told, *(["…"] if len(told) < len(names) else [])])
        more = f"{count_text(len(names), 'more metric')}, not drawn here: {listed}"
        yield f'<div style="{DIM};margin:0 0 6px 0">{more}</div>'
