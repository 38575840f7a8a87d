"""The exception tree, and the text of messages that more than one room gives.

    NbdistError
     ├─ OptionError (also ValueError)       a wrong option or argument; nothing was started
     │   └─ NotCallableError (TypeError)     what was to be called is no function
     ├─ LaunchError (also RuntimeError)     the ranks could not be started; nothing ran
     │   └─ CellSyntaxError                 the cell is no Python
     ├─ SessionError (also RuntimeError)    a session was used after its end, from a wrong thread or rank
     ├─ ChannelError (also ConnectionError) talk between kernel and rank
     │   ├─ ChannelClosed                   this side closed it
     │   ├─ ChannelEnded                    the other side ended, between two messages
     │   └─ ChannelBroken                   the other side ended inside a message, or sent rubbish
     ├─ ValueLost (also RuntimeError)       a value of a rank could not be brought back
     ├─ RunStopped (also RuntimeError)      a run in the background was stopped, by its `interrupt` or `stop`
     ├─ StillRunning (also TimeoutError)    a run in the background has not ended in the time given
     └─ RankFailedError (also RuntimeError) the cell failed on at least one rank
    KeyboardInterrupt
     └─ RunInterrupted                      the user stopped the run

In IPython and Jupyter each of them shows as its message alone: the frames between the cell and
the raise are nbdist's own and tell a user nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class NbdistError(Exception):
    """Base of all that nbdist raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: what to show instead of a stack trace of ours."""
        return [f"{type(self).__name__}: {self}"]


class OptionError(NbdistError, ValueError):
    """A wrong option or argument: says the value, what is allowed and the next step."""


class NotCallableError(OptionError, TypeError):
    """What the ranks were to call is no function."""


class LaunchError(NbdistError, RuntimeError):
    """The ranks could not be started; the cell did not run anywhere."""


class CellSyntaxError(LaunchError):
    """The cell's text is no Python. The `SyntaxError` is ``__cause__``.

    Args:
        error: what Python says.
        shown: lines as IPython shows it.
    """

    def __init__(self, error: BaseException, shown: Sequence[str]):
        line = f"line {error.lineno} of the cell: " if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        super().__init__(f"{line}{type(error).__name__}: {said}. Nothing was started.")
        self._shown = list(shown)

    def _render_traceback_(self) -> list[str]:
        return [*self._shown, *super()._render_traceback_()]


class SessionError(NbdistError, RuntimeError):
    """A session was used after its end, or from a thread or a rank that may not use it."""


class RunStopped(NbdistError, RuntimeError):
    """A run in the background was stopped before its end; raised where its result is asked for.

    It is no KeyboardInterrupt: nobody has interrupted the cell that asks.
    """


class StillRunning(NbdistError, TimeoutError):
    """A run in the background has not ended in the time that somebody waited for it; it goes on."""


class ChannelError(NbdistError, ConnectionError):
    """Something about the channel between the kernel and a rank."""


class ChannelClosed(ChannelError):
    """This side closed the channel before."""


class ChannelEnded(ChannelError):
    """The other side ended, between two messages."""


class ChannelBroken(ChannelError):
    """The other side ended inside a message, or sent what is no message."""


class ValueLost(NbdistError, RuntimeError):
    """A value of a rank could not be brought back into the notebook.

    Attributes:
        key: which value.
    """

    def __init__(self, key: str, reason: str):
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


_MESSAGE_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One rank's exception, or its death.

    Attributes:
        rank: who failed.
        time_s: when, on the machine's monotonic clock.
        type_name: the exception's class name; ``"Died"`` for a process that ended, ``"Stuck"`` for work
            that could not go on.
        message: ``str(exception)``, or how the rank died.
        cell_line: line of the cell (its first line, with the magic, is 1), if one is involved.
        traceback: lines as IPython would show them, without nbdist's own frames.
        hint: what helps, where that is known.
        consequence: whether it only says that another rank left, or that nbdist stopped this one.
        pickled: the exception, pickled, where that is possible.
    """

    rank: int
    time_s: float
    type_name: str
    message: str
    cell_line: int | None = None
    traceback: tuple[str, ...] = ()
    hint: str = ""
    consequence: bool = False
    pickled: bytes | None = None

    @property
    def summary(self) -> str:
        """The exception on one line: ``ValueError: too large``."""
        first, *more = self.message.splitlines() or [""]
        message = f"{first} […]" if more else first
        if len(message) > _MESSAGE_CHARS:
            message = f"{message[:_MESSAGE_CHARS]}… ({len(self.message):,} characters)"
        if self.type_name in ("Died", "Stuck"):
            return message
        return f"{self.type_name}: {message}" if message else self.type_name


class RankFailedError(NbdistError, RuntimeError):
    """The cell failed on at least one rank.

    Attributes:
        failures: every failure, the cause first, then the others by time; consequences of the
            cause (closed connections) last.
        world_size: how many ranks ran the cell.

    The original exception is ``__cause__`` where it could be pickled.

    Example:
        >>> try:
        ...     nbdist.launch(train, devices=2)
        ... except nbdist.RankFailedError as error:
        ...     print(error.failures[0].rank, error.failures[0].message)
    """

    def __init__(
        self, message: str, failures: Sequence[Failure], world_size: int, report: Sequence[str] = ()
    ):
        super().__init__(message)
        self.failures = tuple(failures)
        self.world_size = world_size
        self._report = list(report)

    def _render_traceback_(self) -> list[str]:
        return [*self._report, f"{type(self).__name__}: {self}"]


class RunInterrupted(KeyboardInterrupt):
    """The user stopped the run. A `KeyboardInterrupt` for all that catch or show it."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


RunInterrupted.__name__ = RunInterrupted.__qualname__ = "KeyboardInterrupt"
RunInterrupted.__module__ = "builtins"  # a traceback shows it as what it is to all that catch it


@contextlib.contextmanager
def plainly_interrupted() -> Iterator[None]:
    """An interrupt of this block shows without nbdist's own frames, wherever it strikes."""
    try:
        yield
    except RunInterrupted:
        raise
    except KeyboardInterrupt:
        raise RunInterrupted("nothing runs on the ranks") from None


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def bytes_text(size_bytes: int) -> str:
    """A size as it is written in messages.

    >>> bytes_text(4), bytes_text(1536), bytes_text(139 * 2**30)
    ('4 bytes', '1.5 KiB', '139 GiB')
    """
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    number = tenths_text(size) if unit and size < 100 else f"{math.floor(size + 0.5):,}"
    return f"{number} {_UNITS[unit]}"


def tenths_text(number: float) -> str:
    """A number that is not negative to one decimal place, halves upwards.

    >>> tenths_text(1.25), tenths_text(1024)
    ('1.3', '1,024.0')
    """
    return f"{math.floor(number * 10 + 0.5) / 10:,.1f}"


def ranks_phrase(ranks: Sequence[int]) -> str:
    """Ranks as they are called in a sentence.

    >>> ranks_phrase([1]), ranks_phrase([0, 1, 3])
    ('rank 1', 'ranks 0-1,3')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}"


def ranks_text(ranks: Sequence[int]) -> str:
    """How ranks are written in labels and messages: ``0``, ``1-3``, ``0,2``.

    >>> ranks_text([0, 1, 2, 5])
    '0-2,5'
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
