"""Text of a single rank goes out as it comes, unfinished lines too."""

from __future__ import annotations

_MOST_OPEN_CHARS = 10_000


class Passage:
    """One stream: how much of its last line has gone out before its end.

    >>> passage = Passage()
    >>> passage.note("one\\ntw")
    >>> passage.rest_of_line("o\\nthree\\n")
    'o\\n'
    """

    def __init__(self) -> None:
        self._open_chars = 0

    def takes(self, text: str) -> bool:
        """Whether text may go out now: a very long line waits for its end."""
        return self._open_after(text) <= _MOST_OPEN_CHARS

    def note(self, text: str) -> None:
        """This text has gone out."""
        self._open_chars = self._open_after(text)

    def rest_of_line(self, text: str) -> str:
        """The part of a text that goes on with a line whose beginning has gone out."""
        if not self._open_chars:
            return ""
        head, newline, _ = text.partition("\n")
        return head + newline

    def _open_after(self, text: str) -> int:
        begin = max(text.rfind("\n"), text.rfind("\r")) + 1
        return len(text) - begin + (0 if begin else self._open_chars)
