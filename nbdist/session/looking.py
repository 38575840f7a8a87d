"""What the kernel asks rank 0 between works, for completion and help: answered at once, or not at all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from queue import Empty
from typing import Any, TypeAlias

from nbdist.channel import Channel
from nbdist.errors import ChannelError
from nbdist.looks import Look, NameInfo
from nbdist.session.monitor import Monitor

_PATIENCE_S = 0.15
_MOST_KNOWN = 1000

Answer: TypeAlias = tuple[str, ...] | Mapping[str, str] | None


class Looking:
    """Asks, and keeps what it was told for the time when the rank is busy.

    Args:
        channel: to the rank.
        monitor: reads the channel, and knows whether the rank is busy.
    """

    def __init__(self, channel: Channel, monitor: Monitor):
        self._channel = channel
        self._monitor = monitor
        self._number = 0
        self._open: dict[int, tuple[str, str]] = {}
        self._known: dict[tuple[str, str], Answer] = {}

    @property
    def names(self) -> tuple[NameInfo, ...]:
        """What the rank's work has bound, as it said last."""
        return self._monitor.names

    def ask(self, expression: str, help: Mapping[str, Any] | None) -> Answer:
        """What is known of an object: now if the rank can say it at once, else what was known last.

        Args:
            help: as in `Look`.
        """
        state = self._monitor.state
        question = (expression, repr(help))
        self._take_answers(0.0)
        if (
            state.settled and 0 in state.alive and not self._open
        ):  # a rank that still looks for an earlier answer is busy too
            self._number += 1
            with contextlib.suppress(ChannelError):  # it died; the monitor says how
                self._channel.send(Look(number=self._number, expression=expression, help=help))
                self._open[self._number] = question
            self._take_answers(_PATIENCE_S)
        return self._known.get(question)

    def _take_answers(self, patience_s: float) -> None:
        until_s = time.monotonic() + patience_s
        with contextlib.suppress(Empty):
            while self._open:
                looked = self._monitor.looked.get(timeout=max(0.0, until_s - time.monotonic()))
                self._keep(self._open.pop(looked.number), looked.answer)

    def _keep(self, question: tuple[str, str], answer: Answer) -> None:
        self._known.pop(question, None)
        self._known[question] = answer
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
