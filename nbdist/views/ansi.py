"""Terminal colours, line by line: a colour that a rank leaves on does not run into other ranks' lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

RESET = "\x1b[0m"

_COLOUR = re.compile(r"\x1b\[([0-9;:]{0,64})m")
_ENDED_BY = {39: "ink", 49: "paper", 22: "weight", 23: "3", 24: "4", 25: "5", 27: "7", 28: "8", 29: "9"}
_SLOTS = {1: "weight", 2: "weight", 3: "3", 4: "4", 21: "4", 5: "5", 6: "5", 7: "7", 8: "8", 9: "9"}


class Painter:
    """Makes each line whole: opens what its rank had left open, and closes it at the line's end.

    >>> painter = Painter()
    >>> painter.line([0], 0, "\\x1b[31mred")
    '\\x1b[31mred\\x1b[0m'
    >>> painter.line([0], 0, "still")
    '\\x1b[31mstill\\x1b[0m'
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], dict[str, str]] = {}

    def line(self, ranks: Sequence[int], kind: int, text: str) -> str:
        """A line that all of `ranks` wrote to the stream `kind`."""
        before = self._open.get((ranks[0], kind), {})
        if not before and "\x1b" not in text:
            return text
        after = _carry(before, text)
        for rank in ranks:
            self._open[rank, kind] = after
        return "".join((*before.values(), text, RESET if after else ""))


def _carry(opened: dict[str, str], text: str) -> dict[str, str]:
    """What is on after a text, each property with the sequence that switches it on."""
    opened = dict(opened)
    for match in _COLOUR.finditer(text):
        for code, numbers in _codes(match[1]):
            if code == 0:
                opened.clear()
            elif code in _ENDED_BY:
                opened.pop(_ENDED_BY[code], None)
            elif slot := _slot(code):
                opened[slot] = f"\x1b[{numbers}m"
    return opened


def _codes(parameters: str) -> Iterator[tuple[int, str]]:
    """Each code of a sequence, with the numbers that belong to it: ``38;5;9`` is one."""
    numbers = [number or "0" for number in parameters.split(";")]
    while numbers:
        code = int(numbers[0].partition(":")[0] or 0)
        taken = 1
        if numbers[0] in ("38", "48") and len(numbers) > 1:
            taken = 3 if numbers[1] == "5" else 5
        yield code, ";".join(numbers[:taken])
        del numbers[:taken]


def _slot(code: int) -> str:
    if 30 <= code <= 38 or 90 <= code <= 97:
        return "ink"
    if 40 <= code <= 48 or 100 <= code <= 107:
        return "paper"
    return _SLOTS.get(code, "")
