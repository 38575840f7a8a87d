"""A metric over steps as a small picture: an SVG in an ``<img>``, which untrusted notebooks show, too.

Such an image inherits nothing from its page: its greys and colours stand out on white and on black.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import ceil, floor, isfinite, log10
from typing import TypeGuard

from nbdist.metrics import Shown
from nbdist.views.dashboard.picture import ChartPicture
from nbdist.views.dashboard.words import number_text
from nbdist.views.visible import one_line

PALETTE = ("#2f86d6", "#d96b14", "#129a74", "#c266a0", "#a88412", "#7f7ae6", "#c9524a", "#7c8a22")
"""Told apart by colour-blind people, too (after Okabe and Ito); a line each for so many ranks."""

_WIDTH, _HEIGHT = 340, 170
_TOP, _BOTTOM, _RIGHT = 30, 22, 10
_CHAR = 7.0  # width of a digit where they are wide
_NAME_CHAR = 8.6  # of a letter of the name, which is bold
_GREY = "#808080"
_MOST_X = 400
_LARGEST = 8e307  # the difference of two is a number still
_MOST_CROSSES = 8  # of a line

_Place = Callable[[float], float]
_Ticks = Sequence[tuple[float, str]]
_Values = Sequence["Shown | None"]
_Series = Mapping[str, _Values]


def chart_html(name: str, chart: ChartPicture, *, by_rank: bool = True) -> str:
    """A chart as an image.

    Args:
        by_rank: whether each rank gets a line of its own where the picture has such; else there are the mean
            and the band between the lowest and the highest, which take less room.
    """
    encoded = base64.b64encode(chart_svg(name, chart, by_rank=by_rank).encode()).decode()
    alt = html.escape(alt_text(name, chart))
    style = "max-width:100%;margin:0 12px 8px 0;vertical-align:top"
    size = f'width="{_WIDTH}" height="{_HEIGHT}"'
    return f'<img alt="{alt}" {size} style="{style}" src="data:image/svg+xml;base64,{encoded}">'


def alt_text(name: str, chart: ChartPicture) -> str:
    """The chart in words: last value, range, number of values."""
    label = one_line(name, 80)
    mean = [(x, value) for x, value in zip(chart["x"], chart["mean"], strict=False) if value is not None]
    if not mean:
        return f"{label}: no values"
    x, last = mean[-1]
    values = [value for value in (*chart["low"], *chart["high"], *chart["mean"]) if _is_number(value)]
    between = f"from {number_text(min(values))} to {number_text(max(values))}" if values else "none is finite"
    return (
        f"{label}: {number_text(last)} at {one_line(chart['x_label'], 20)} {number_text(x)}; {between}; "
        f"{chart['points']:,} values"
    )


def chart_svg(name: str, chart: ChartPicture, *, by_rank: bool = True) -> str:
    """A chart as SVG: the mean with a band from the lowest to the highest, or a line for each rank."""
    series = _series(chart, by_rank=by_rank)
    shown = [value for values in series.values() for value in values if _is_number(value)]
    scale = _Scale.of(shown, may_be_log=True)
    labels = scale.ticks()
    left = 10 + max((len(text) for _, text in labels), default=1) * _CHAR
    x = chart["x"][:: _step(chart["x"])]
    x_scale = _Scale.of([value for value in x if isfinite(value)], may_be_log=False, is_tight=True)

    def place_x(value: float) -> float:
        return left + x_scale.share(value) * (_WIDTH - left - _RIGHT)

    def place_y(value: float) -> float:
        return _HEIGHT - _BOTTOM - scale.share(value) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        *_grid(labels, place_y, left),
        *_x_axis(x_scale, place_x, one_line(chart["x_label"], 12), left),
        *_lines(series, x, place_x, place_y),
        *_title(name, series, scale, shown),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="system-ui,sans-serif" font-size="11" fill="{_GREY}">'
        f"{''.join(parts)}</svg>"
    )


def _series(chart: ChartPicture, *, by_rank: bool) -> dict[str, list[Shown | None]]:
    """What is drawn: by rank, or ``mean``, ``low`` and ``high``."""
    if by_rank and 1 < len(chart["lines"]) <= len(PALETTE):
        return {rank: _clean(values) for rank, values in chart["lines"].items()}
    return {"mean": _clean(chart["mean"]), "low": _clean(chart["low"]), "high": _clean(chart["high"])}


def _clean(values: _Values) -> list[Shown | None]:
    """Numbers that can be drawn, words for those that are not finite, and None for gaps."""
    kept = values[:: _step(values)]
    return [max(-_LARGEST, min(_LARGEST, float(value))) if _is_number(value) else value for value in kept]


def _step(values: Sequence[object]) -> int:
    return max(1, ceil(len(values) / _MOST_X))


def _is_number(value: Shown | None) -> TypeGuard[float]:
    return value is not None and not isinstance(value, str) and isfinite(value)


class _Scale:
    """From values to shares of an axis, linear or logarithmic, with ticks at round numbers."""

    def __init__(self, low: float, high: float, *, is_log: bool):
        self.is_log = is_log
        self._low, self._high = (log10(low), log10(high)) if is_log else (low, high)

    @classmethod
    def of(cls, values: Sequence[float], *, may_be_log: bool, is_tight: bool = False) -> _Scale:
        """The scale that fits; logarithmic where values span more than three decades."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        if may_be_log and low > 0 and high / low > 1000:
            return cls(low, high, is_log=True)
        if high - low <= 1e-12 * max(abs(low), abs(high)):  # one value alone stands in the middle
            room = abs(low) * 0.1 or 1.0
            return cls(low - room, high + room, is_log=False)
        room = 0.0 if is_tight else (high - low) * 0.06
        return cls(low - room, high + room, is_log=False)

    def share(self, value: float) -> float:
        """Where a value stands: 0 to 1."""
        at = log10(value) if self.is_log and value > 0 else value
        return min(max((at - self._low) / (self._high - self._low), 0.0), 1.0)

    def ticks(self, most: int = 4) -> list[tuple[float, str]]:
        """Round numbers on the axis, with their texts."""
        if self.is_log:
            first, last = ceil(self._low - 1e-9), floor(self._high + 1e-9)
            every = max(1, ceil((last - first) / most))
            return [(10.0**power, _power_text(power)) for power in range(first, last + 1, every)]
        step = _round_step((self._high - self._low) / most)
        first, last = ceil(self._low / step), floor(self._high / step)
        values = [number * step for number in range(first, last + 1)]
        return [(value, _tick_text(value, step)) for value in values if isfinite(value)]


def _power_text(power: int) -> str:
    return f"{10.0**power:g}" if -4 < power < 6 else f"1e{power}"


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20, …"""
    power = 10.0 ** max(floor(log10(least)), -320) or least
    return next((power * factor for factor in (1, 2, 5) if power * factor >= least * 0.999), power * 10)


def _tick_text(value: float, step: float) -> str:
    """Short, and told apart from its neighbour's."""
    if step >= 1e-4 and abs(value) < 1e6:
        return f"{value + 0.0:.{max(0, -floor(log10(step) + 1e-9))}f}"
    if abs(value) < step / 2:
        return "0"
    digits = max(0, floor(log10(abs(value))) - floor(log10(step) + 1e-9))
    mantissa, _, power = f"{value:.{min(digits, 12)}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(power)}"


def _grid(ticks: _Ticks, place: _Place, left: float) -> Iterator[str]:
    for value, text in ticks:
        y = place(value)
        yield f'<path d="M{left:.0f} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{_GREY}" stroke-opacity=".28"/>'
        yield f'<text x="{left - 5:.0f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _x_axis(scale: _Scale, place: _Place, label: str, left: float) -> Iterator[str]:
    right = _WIDTH - _RIGHT
    label_left = right - len(label) * _CHAR
    for value, text in scale.ticks(5):
        half = len(text) * _CHAR / 2
        x = min(max(place(value), left), right - half)
        if x + half < label_left - 6:
            yield f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{text}</text>'
    yield f'<text x="{right}" y="{_HEIGHT - 6}" text-anchor="end">{html.escape(label)}</text>'


def _lines(series: _Series, x: Sequence[float], place_x: _Place, place_y: _Place) -> Iterator[str]:
    if "low" in series:
        band = [
            (place_x(at), place_y(low), place_y(high))
            for at, low, high in zip(x, series["low"], series["high"], strict=False)
            if _is_number(low) and _is_number(high) and isfinite(at)
        ]
        if len(band) > 1:
            around = [(at, low) for at, low, _ in band] + [(at, high) for at, _, high in reversed(band)]
            yield f'<path d="{_path(around)}z" fill="{PALETTE[0]}" fill-opacity=".25"/>'
    drawn = {name: values for name, values in series.items() if name not in ("low", "high")}
    for colour, values in zip(PALETTE, drawn.values(), strict=False):
        for piece in _pieces(x, values):
            points = [(place_x(at), place_y(value)) for at, value in piece]
            if len(points) == 1:
                at, height = points[0]
                yield f'<circle cx="{at:.1f}" cy="{height:.1f}" r="2.5" fill="{colour}"/>'
                continue
            style = f'fill="none" stroke="{colour}" stroke-width="1.6" stroke-linejoin="round"'
            yield f'<path d="{_path(points)}" {style}/>'
    yield from _crosses(drawn, x, place_x, place_y)


def _crosses(series: _Series, x: Sequence[float], place_x: _Place, place_y: _Place) -> Iterator[str]:
    """Where lines stop being finite; the first of each word with the word."""
    told: set[str] = set()
    for colour, values in zip(PALETTE, series.values(), strict=False):
        for at, height, word in islice(_ends(x, values), _MOST_CROSSES):
            left, y = place_x(at), place_y(height)
            half = len(word) * _CHAR / 2
            if word not in told:
                middle = min(left, _WIDTH - _RIGHT - half)
                above = y - 8 if y - 8 > _TOP else y + 14
                yield f'<text x="{middle:.1f}" y="{above:.1f}" text-anchor="middle">{word}</text>'
            told.add(word)
            style = f'text-anchor="middle" fill="{colour}" font-size="14" font-weight="bold"'
            yield f'<text x="{left:.1f}" y="{y + 4.5:.1f}" {style}>×</text>'


def _ends(x: Sequence[float], values: _Values) -> Iterator[tuple[float, float, str]]:
    """Where numbers stop being finite: the place, the number that came before (or else after), the word."""
    last: float | None = None
    was_finite = True
    for number, (at, value) in enumerate(zip(x, values, strict=False)):
        if _is_number(value):
            last, was_finite = value, True
        elif isinstance(value, str) and was_finite and isfinite(at):
            was_finite = False
            height = last if last is not None else next(filter(_is_number, values[number:]), None)
            if height is not None:
                yield at, height, value


def _pieces(x: Sequence[float], values: _Values) -> Iterator[list[tuple[float, float]]]:
    """What is between gaps."""
    piece: list[tuple[float, float]] = []
    for at, value in zip(x, values, strict=False):
        if _is_number(value) and isfinite(at):
            piece.append((at, value))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _path(points: Sequence[tuple[float, float]]) -> str:
    """A line, in tenths of a pixel relative to each other: that is short."""
    places = [(round(x * 10), round(y * 10)) for x, y in points]
    (x, y), *rest = places
    text = f"M{x / 10:g} {y / 10:g}l"
    for next_x, next_y in rest:
        text += f"{(next_x - x) / 10:g} {(next_y - y) / 10:g} "
        x, y = next_x, next_y
    return text.rstrip()


def _title(name: str, series: _Series, scale: _Scale, shown: Sequence[float]) -> Iterator[str]:
    end = _WIDTH - _RIGHT
    begin: float = end  # of what stands on the right
    if not shown:
        told = "no finite values" if any(map(any, series.values())) else "no values"
        yield f'<text x="{_WIDTH / 2}" y="{_HEIGHT / 2}" text-anchor="middle">{told}</text>'
    elif "low" not in series:
        for place, rank in enumerate(reversed(list(series))):
            colour, at = PALETTE[len(series) - 1 - place], end - 22 * place
            yield f'<text x="{at}" y="16" text-anchor="end" fill="{colour}" font-weight="bold">'
            yield f"{html.escape(one_line(rank, 3))}</text>"
        yield f'<text x="{end - 22 * len(series)}" y="16" text-anchor="end">rank</text>'
        begin = end - 22 * len(series) - 4 * _CHAR
    else:
        last = next(value for value in reversed(series["mean"] or shown) if value is not None)
        yield f'<text x="{end}" y="16" text-anchor="end">{number_text(last)}</text>'
        begin = end - len(number_text(last)) * _CHAR
    if scale.is_log:
        yield f'<text x="{begin - 10:.0f}" y="16" text-anchor="end">log</text>'
        begin -= 10 + 3 * _CHAR
    label = html.escape(one_line(name, int((begin - 18) / _NAME_CHAR)))
    yield f'<text x="8" y="16" font-size="12" font-weight="bold">{label}</text>'
