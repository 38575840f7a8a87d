"""A line of text with a terminal's colours, as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from nbdist.views.visible import COLOUR, visible, without_codes

# As Jupyter shows the terminal's colours in a cell's text, dark ones and bright ones.
_COLOURS = (
    *("#3e424d", "#e75c58", "#00a250", "#ddb62b", "#208ffb", "#d160c4", "#60c6c8", "#c5c1b4"),
    *("#282c36", "#b22b31", "#007427", "#b27d12", "#0065ca", "#a03196", "#258f8f", "#a1a6b2"),
)
_FLAGS = {1: "font-weight:bold", 2: "opacity:0.6", 3: "font-style:italic", 4: "text-decoration:underline"}
_OFF = {39: "color", 49: "background-color", 23: "font-style", 24: "text-decoration"}


def text_html(text: str) -> str:
    """A line of text with a terminal's colours.

    >>> text_html("\\x1b[1ma < b")
    '<span style="font-weight:bold">a &lt; b</span>'
    """
    text = without_codes(text, keep_colours=True)
    style: dict[str, str] = {}
    pieces, start = [], 0
    for match in COLOUR.finditer(text):
        pieces.append(_styled(text[start : match.start()], style))
        _apply(style, [int(number or 0) for number in re.split("[;:]", match[1])])
        start = match.end()
    return "".join([*pieces, _styled(text[start:], style)])


def _styled(text: str, style: Mapping[str, str]) -> str:
    escaped = html.escape(visible(text), quote=False)
    if not escaped or not style:
        return escaped
    told = ";".join(f"{name}:{value}" for name, value in style.items())
    return f'<span style="{told}">{escaped}</span>'


def _apply(style: dict[str, str], codes: list[int]) -> None:
    while codes:
        code = codes.pop(0)
        if code == 0:
            style.clear()
        elif code in (38, 48):
            colour = _extended(codes)
            if colour:
                style["color" if code == 38 else "background-color"] = colour
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style["color"] = _COLOURS[code % 10 + (8 if code >= 90 else 0)]
        elif 40 <= code <= 47 or 100 <= code <= 107:
            style["background-color"] = _COLOURS[code % 10 + (8 if code >= 100 else 0)]
        elif code in _FLAGS:
            name, _, value = _FLAGS[code].partition(":")
            style[name] = value
        elif code == 22:
            style.pop("font-weight", None)
            style.pop("opacity", None)
        elif code in _OFF:
            style.pop(_OFF[code], None)


def _extended(codes: list[int]) -> str:
    """The colour that follows 38 or 48: one of 256, or its red, green and blue."""
    kind = codes.pop(0) if codes else 0
    if kind == 5 and codes:
        number = codes.pop(0)
        if number < 16:
            return _COLOURS[number]
        if number >= 232:
            grey = 8 + 10 * (min(number, 255) - 232)
            return f"rgb({grey},{grey},{grey})"
        steps = ((number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6)
        red, green, blue = (0 if step == 0 else 55 + 40 * step for step in steps)
        return f"rgb({red},{green},{blue})"
    if kind == 2 and len(codes) >= 3:
        red, green, blue = (min(codes.pop(0), 255) for _ in range(3))
        return f"rgb({red},{green},{blue})"
    return ""
