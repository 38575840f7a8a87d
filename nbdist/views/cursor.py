"""Where text has left the cursor of a terminal: pure."""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

from nbdist.views.visible import without_codes

_TABULATOR = 8


def width_of(text: str) -> int:
    """Columns that a terminal takes for a text without codes.

    >>> width_of("loss"), width_of("数据"), width_of("e\\u0301")
    (4, 4, 1)
    """
    return sum(map(_width_of, text))


def is_open(line: str) -> bool:
    """Whether something stands on a line that has no end, or has been taken away by blanks.

    >>> is_open("50%"), is_open("50%\\r   \\r"), is_open("50%\\r")
    (True, False, True)
    """
    draws = [draw for draw in without_codes(line).split("\r") if draw]
    return bool(draws) and not draws[-1].isspace()


class Place(NamedTuple):
    """A cursor's, in its row.

    Attributes:
        column: the columns before it: all of them where it waits at the edge, for the next character to go to
            the next row.
        furthest: how many columns of the row have been written.
    """

    column: int
    furthest: int


def place_after(line: str, columns: int) -> Place:
    """Where the cursor is behind a line of text.

    >>> place_after("." * 160, 80), place_after("." * 161 + "\r", 80)
    (Place(column=80, furthest=80), Place(column=0, furthest=1))
    """
    column = furthest = 0
    for char in without_codes(line):
        width = _width_of(char)
        if char == "\r":
            column = 0
        elif char == "\b":
            column = max(min(column, columns - 1) - 1, 0)
        elif char == "\t":
            column = min((column // _TABULATOR + 1) * _TABULATOR, columns - 1)
        elif column + width > columns:
            column = furthest = width
        else:
            column += width
        furthest = max(furthest, column)
    return Place(column, furthest)


def _width_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cc", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
