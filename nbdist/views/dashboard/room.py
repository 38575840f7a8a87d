"""How much a page may hold: parts take what is there, and what does not fit is told."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass

from nbdist.views.colours import text_html
from nbdist.views.visible import one_line, shortened, visible, without_codes


@dataclass(frozen=True, slots=True)
class Room:
    """What each part of a page may take, in bytes of UTF-8.

    Attributes:
        rows: ranks with a row of their own.
        line_chars: of one line of the log.
    """

    failures: int
    charts: int
    table: int
    log: int
    rows: int
    line_chars: int


KEPT = Room(failures=25_000, charts=50_000, table=60_000, log=55_000, rows=64, line_chars=4_000)
"""Of a notebook that is saved: less than 200 kB in all."""

LIVE = Room(failures=10_000, charts=20_000, table=16_000, log=9_000, rows=32, line_chars=500)
"""Of a page that is sent twice a second: less than 60 kB."""


def size_of(markup: str) -> int:
    """Bytes on the wire and in the file."""
    return len(markup.encode())


def take(parts: Iterable[str], most_bytes: int) -> list[str]:
    """The first parts that fit."""
    taken = []
    for part in parts:
        most_bytes -= size_of(part) + 1
        if most_bytes < 0:
            break
        taken.append(part)
    return taken


def text(value: str, most_chars: int) -> str:
    """A text on one line, as markup that shows it."""
    return html.escape(one_line(value, most_chars))


def lines(value: str, most_chars: int, most_bytes: int) -> str:
    """Lines with a terminal's colours, as markup of at most so many bytes; colours go before text does."""
    while True:
        cut = shortened(value, most_chars)
        markup = text_html(cut)
        if size_of(markup) > most_bytes:
            markup = html.escape(visible(without_codes(cut)), quote=False)
        if size_of(markup) <= most_bytes:
            return markup
        most_chars = min(most_chars, len(cut)) // 2
