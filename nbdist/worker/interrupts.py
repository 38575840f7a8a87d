"""SIGINT in a rank: it stops the user's work, and nothing else.

Front ends may signal the ranks directly, and the kernel does too: between works, while a traceback
is made and while values are handed over, an interrupt does no harm, however often it comes.

Python answers a signal only when its main thread comes back to Python code. A rank that waits in a
collective does not: then, after a moment, a thread breaks the collective off.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

# How long the main thread may take to come back by itself.
_PATIENCE_S = 0.05

_listening = False
_came = False
_answered = threading.Event()


def install(break_off: Callable[[], None]) -> None:
    """Take SIGINT over. Call in the main thread.

    Args:
        break_off: frees a main thread that waits in a collective; called in another thread.
    """
    wake_up, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGINT, _on_interrupt)
    # The C handler writes here at once, wherever the main thread is.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    # A signal to a child of the rank is none to the rank.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    watch = threading.Thread(target=_watch, args=(wake_up, break_off), name="nbdist-interrupts", daemon=True)
    watch.start()


def _on_interrupt(*_: object) -> None:
    global _came
    _came = True
    _answered.set()
    if _listening:
        raise KeyboardInterrupt


def _watch(wake_up: int, break_off: Callable[[], None]) -> None:
    while numbers := os.read(wake_up, 64):
        if signal.SIGINT in numbers and _listening and not _answered.wait(_PATIENCE_S):
            break_off()
        _answered.clear()


def came() -> bool:
    """Whether this rank has been interrupted: what it raises now is a consequence, and nobody reads it."""
    return _came


@contextlib.contextmanager
def listening(now: bool) -> Iterator[None]:
    """Whether SIGINT raises KeyboardInterrupt inside this block."""
    global _listening
    before, _listening = _listening, now
    try:
        yield
    finally:
        _listening = before
