"""SIGINT in a rank: it stops the user's work, and nothing else.

Front ends may signal the ranks directly, and the kernel does too: between works, while a traceback
is made and while values are handed over, an interrupt does no harm, however often it comes.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

_listening = False


def install() -> None:
    """Take SIGINT over. Call in the main thread."""
    signal.signal(signal.SIGINT, _on_interrupt)


def _on_interrupt(*_: object) -> None:
    if _listening:
        raise KeyboardInterrupt


@contextlib.contextmanager
def listening(now: bool) -> Iterator[None]:
    """Whether SIGINT raises KeyboardInterrupt inside this block."""
    global _listening
    before, _listening = _listening, now
    try:
        yield
    finally:
        _listening = before
