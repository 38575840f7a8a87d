"""SIGINT in a rank: it stops the user's work, and nothing else.

Front ends may signal the ranks directly, and the kernel does too: between works, while a traceback
is made and while values are handed over, an interrupt does no harm, however often it comes.

Python answers a signal only when its main thread comes back to Python code. A rank that waits in a
collective does not: then, after a moment, a thread breaks the collective off. Nor does one that was just
about to sleep when the signal came: a second signal, which means nothing, ends that sleep.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

# How long the main thread may take to come back by itself, and how long once it has been woken.
_PATIENCE_S = 0.05
_WOKEN_S = 0.02

_WAKING = signal.SIGURG  # ignored by whoever does not ask for it

_listening = False
_came = False
_answered = threading.Event()


def install(aim: Callable[[], Callable[[], None]]) -> None:
    """Take SIGINT over. Call in the main thread.

    Args:
        aim: called in another thread at an interrupt; what it gives frees a main thread that waits in a
            collective, and does nothing if that has come out and moved on meanwhile.
    """
    wake_up, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGINT, _on_interrupt)
    signal.signal(_WAKING, lambda *_: None)
    # The C handler writes here at once, wherever the main thread is.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    # A signal to a child of the rank is none to the rank.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    watch = threading.Thread(target=_watch, args=(wake_up, aim), name="nbdist-interrupts", daemon=True)
    watch.start()


def _on_interrupt(*_: object) -> None:
    global _came
    _came = True
    _answered.set()
    if _listening:
        raise KeyboardInterrupt


def _watch(wake_up: int, aim: Callable[[], Callable[[], None]]) -> None:
    while numbers := os.read(wake_up, 64):
        if signal.SIGINT not in numbers:
            continue
        if _listening:
            break_off = aim()
            if not _comes_back():
                break_off()
                _answered.wait()  # or this answer would count for the next interrupt
        _answered.clear()


def _comes_back() -> bool:
    if _answered.wait(_PATIENCE_S):
        return True
    signal.pthread_kill(threading.main_thread().ident or 0, _WAKING)
    return _answered.wait(_WOKEN_S)


def came() -> bool:
    """Whether this rank has been interrupted: what it raises now is a consequence, and nobody reads it."""
    return _came


def forget() -> None:
    """A new work begins: what came before it was for another."""
    global _came
    _came = False


@contextlib.contextmanager
def listening(now: bool) -> Iterator[None]:
    """Whether SIGINT raises KeyboardInterrupt inside this block."""
    global _listening
    before, _listening = _listening, now
    try:
        yield
    finally:
        _listening = before
