"""Texts that may hold anything, made to be seen: what would act on a page or on a terminal is written out.

All that shows what ranks say goes through here: a text that turns the direction of reading, moves a cursor or
ends a string does nothing but stand there.
"""

from __future__ import annotations

import re

COLOUR = re.compile(r"\x1b\[([0-9;:]{0,64})m")
"""A code that sets colours, with its numbers."""

_OTHER_CODES = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-ln-~]"  # moves and erasures
    r"|\x1b\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)"  # window titles, links
    r"|\x1b[()][0-9A-Za-z]|\x1b[=>78DEHMc]"  # character sets, modes
)
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tabulators and line ends
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # they turn the direction of reading
    "\u2028\u2029\ufeff\ufff9-\ufffb\ufffe\uffff"  # other line ends, marks, no characters
    "\ud800-\udfff]"  # halves of a character: no encoding takes them
)


def visible(text: str) -> str:
    """A text in which all that would act unseen is written out.

    >>> visible("a\\x00b \\x1b[1m \\u202egnp.exe \\x9b")
    'a␀b ␛[1m \\\\u202egnp.exe \\\\x9b'
    """
    return _UNSEEN.sub(_written_out, text)


def without_codes(text: str, *, keep_colours: bool = False) -> str:
    """A text without a terminal's codes.

    >>> without_codes("\\x1b[31mred\\x1b[0m\\x1b[2K")
    'red'
    """
    text = _OTHER_CODES.sub("", text)
    return text if keep_colours else COLOUR.sub("", text)


def one_line(text: str, most: int) -> str:
    """A text on one line, visible, without codes, at most so many characters; of a long one with a
    word on how long it is.

    >>> one_line("a\\n  b", 10), one_line("x" * 50, 10)
    ('a b', 'xxxxxxxxx…')
    """
    length = len(text)
    line = " ".join(visible(without_codes(text[: 4 * most])).split())
    if len(line) <= most and length <= 4 * most:
        return line
    told = f"… ({length:,} characters in all)" if most >= 100 else "…"
    return line[: most - len(told)] + told


def shortened(text: str, most: int) -> str:
    """A text's beginning and, of a long one more, its end, with a word on what is between.

    >>> shortened("begin" + "." * 1000 + "end", 60)
    'begin.....\\n… 988 characters are left out …\\n.......end'
    """
    if len(text) <= most:
        return text
    kept = max(most - 40, 0)
    head, tail = kept // 2, kept - kept // 2
    if kept > 2_000:
        head, tail = kept // 4, kept - kept // 4
    first = re.sub(r"\x1b[^m\n]{0,64}$", "", text[:head])  # no half of a code
    last = text[len(text) - tail :]
    return f"{first}\n… {len(text) - kept:,} characters are left out …\n{last}"


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
