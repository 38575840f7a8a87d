"""Where text has left the cursor of a terminal: pure."""

from __future__ import annotations

import unicodedata

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


def at_edge(line: str, columns: int) -> bool:
    """Whether a terminal has just filled its last column: the cursor waits there, and the next character goes
    to the next line.

    >>> at_edge("." * 160, 80), at_edge("." * 161, 80)
    (True, False)
    """
    column = 0
    for char in without_codes(line).rpartition("\r")[2]:
        width = _width_of(char)
        if char == "\b":
            column = max(min(column, columns - 1) - 1, 0)
        elif char == "\t":
            column = min((column // _TABULATOR + 1) * _TABULATOR, columns - 1)
        else:
            column = width if column + width > columns else column + width
    return column == columns


def _width_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cc", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
