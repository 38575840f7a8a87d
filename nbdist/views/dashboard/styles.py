"""Inline styles that static HTML is made of."""

from __future__ import annotations

from collections.abc import Mapping

from nbdist.views.dashboard.words import Tone

TONES: Mapping[Tone, str] = {
    "good": "#1d8a4b",
    "bad": "#d9403a",
    "busy": "#2a7ccb",
    "held": "#a86a00",
    "rest": "#7d7d7d",
}
"""Colours with a contrast of four to one on white and on a dark page."""

LINE = "1px solid rgba(128,128,128,0.3)"
FRAME = "padding:2px 0 2px 10px;margin:0"
BODY = "font-size:13px;line-height:1.45;overflow-wrap:anywhere"
DIM = "opacity:0.7"
SUMMARY = "cursor:pointer;margin:0 0 4px 0"
PRE = (
    "margin:0 0 6px 0;padding:0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;"
    "background:transparent;font-size:12px;line-height:1.4"
)
INSET = "padding:0 0 0 16px"
SCROLLED = "max-height:26em;overflow-y:auto"
TABLE = "border-collapse:collapse;margin:4px 0 8px 0;border:none;font-size:12px;overflow-wrap:break-word"
BREAKS = "overflow-wrap:anywhere"
ROW = f"background:transparent;border-bottom:{LINE}"
HEAD = f"text-align:left;padding:2px 14px 2px 0;border:none;font-weight:normal;{DIM}"
WIDE = "overflow-x:auto"
CODE = "background:transparent;padding:0;font-size:12px;color:inherit"
CELL = "text-align:left;vertical-align:top;padding:3px 14px 3px 0;border:none"
