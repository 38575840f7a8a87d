"""The dashboard in IPython's terminal, of a run that is waited for: it stands below the text while the run
goes on, and is text behind it at the end."""

from __future__ import annotations

import functools
import importlib.util
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nbdist.forksafety import fork_gate
from nbdist.views.dashboard.picture import Picture
from nbdist.views.dashboard.terminal import drawn_lines
from nbdist.views.footer import footer
from nbdist.views.screen import is_watched

_NO_MOVES = ("", "dumb", "unknown", "emacs")
"""Terminals, by TERM, in which nothing can be written anew."""

_MOST_OF_SCREEN = 2 / 3


def is_live_terminal(shell: Any) -> bool:
    """Whether IPython runs in a terminal that can show what changes."""
    is_able = os.environ.get("TERM", "") not in _NO_MOVES and importlib.util.find_spec("rich") is not None
    return shell is not None and is_able and is_watched(shell)


class TerminalPlace:
    """The foot of the terminal; see `Place`."""

    is_watched = True

    def face(self) -> TerminalFace:
        """See `Place`."""
        with fork_gate:
            import rich.console  # noqa: F401  the first use takes a moment
        return TerminalFace()

    def show_still(self, still: Mapping[str, str]) -> None:
        """See `Place`: who saw the run's text has seen it."""


class TerminalFace:
    """See `Face`."""

    every_s = 0.5

    def open(self, picture: Picture, text: str) -> None:
        """See `Face`."""
        self.update(picture)

    def update(self, picture: Picture) -> int:
        """See `Face`."""
        now_ms = 1000 * time.time()

        def drawn(columns: int, rows: int) -> Sequence[str]:
            most = max(int(rows * _MOST_OF_SCREEN), 1)
            return drawn_lines(picture, width=columns, most=most, now_ms=now_ms)

        footer.show(functools.cache(drawn))  # again after each text
        return 0

    def close(self, picture: Picture, still: Mapping[str, str] | None) -> None:
        """See `Face`."""
        footer.leave(lambda columns, _: drawn_lines(picture, width=columns))
