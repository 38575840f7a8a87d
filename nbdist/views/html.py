"""What a run has printed and shown as plain HTML, with inline styles alone: it shows in notebooks that nobody
has trusted, too, and on a light page as on a dark one."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbdist.messages import Display
from nbdist.views.colours import text_html
from nbdist.views.items import label_text
from nbdist.views.tail import Figure, Line, Tail

_PRE = (
    "margin:0;padding:0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;background:transparent"
)
_STDERR = "background-color:rgba(231,92,88,0.15)"


def tail_html(tail: Tail, where: str) -> str:
    """The last of a run's text and displays.

    Args:
        where: the folder in which all text is whole.
    """
    parts = []
    if tail.left_out:
        told = f"… {tail.left_out:,} lines not shown here: they are whole in {where}"
        parts.append(f'<div style="opacity:0.6">{html.escape(told)}</div>')
    for block in tail.blocks():
        if not isinstance(block, Figure):
            parts.append(_lines_html(block))
            continue
        if block.ranks:
            parts.append(_lines_html([Line("stdout", label_text(block.ranks))]))
        parts.append(display_html(block.display))
    return "\n".join(parts)


def _lines_html(lines: Sequence[Line]) -> str:
    rows = []
    for line in lines:
        text = text_html(line.labelled)
        rows.append(text if line.stream == "stdout" else f'<span style="{_STDERR}">{text}</span>')
    return f'<pre style="{_PRE}">{chr(10).join(rows)}</pre>'


def display_html(display: Display) -> str:
    """A display in the richest form that needs no front end's help."""
    for mime, make in _RICH.items():
        if mime in display.data:
            metadata = display.metadata.get(mime, {})
            return f"<div>{make(display.data[mime], metadata if isinstance(metadata, Mapping) else {})}</div>"
    lines = str(display.data.get("text/plain", "")).split("\n")
    return _lines_html([Line("stdout", line) for line in lines])


def _image(mime: str) -> Callable[[Any, Mapping[str, Any]], str]:
    def make(data: Any, metadata: Mapping[str, Any]) -> str:
        if isinstance(data, str) and mime != "image/svg+xml":
            encoded = "".join(data.split())  # in base64 already
        else:
            encoded = base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
        size = "".join(f' {side}="{metadata[side]}"' for side in ("width", "height") if side in metadata)
        size = html.escape(size, quote=False)
        return f'<img style="max-width:100%"{size} src="data:{mime};base64,{encoded}">'

    return make


_RICH: Mapping[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "text/html": lambda data, _: str(data),
    **{mime: _image(mime) for mime in ("image/png", "image/jpeg", "image/gif", "image/svg+xml")},
}
