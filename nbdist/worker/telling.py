"""What a rank's work logs, gathered: ten messages a second at most, however often it logs."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Mapping
from typing import Any

from nbdist import audience
from nbdist.figures import Logged
from nbdist.worker.bars import Bar, Bars
from nbdist.worker.capture import Outbox

_MOST_CALLS = 20_000  # between two messages


class Telling:
    """The audience of this rank's work.

    A call costs its writer next to nothing: numbers lie in lists until the sender of the outbox packs them.
    """

    def __init__(self, outbox: Outbox, bars: Bars):
        self._outbox = outbox
        self._bars = bars
        self._lock = threading.RLock()  # a signal's handler may log in the middle of a call
        self._by_step: dict[str, list[float]] = {}
        self._by_call: dict[str, list[float]] = {}
        self._late: list[tuple[dict[str, list[float]], str, float, float, audience.Later]] = []
        self._calls = 0
        self._full_at = _MOST_CALLS
        self._waits = False  # whether the sender knows that there is something
        outbox.source = self._packed

    def install(self) -> None:
        """Be told from now on; not in children that the rank forks."""
        audience.attend(self)
        os.register_at_fork(after_in_child=lambda: audience.attend(None))

    def bar(self, label: str) -> Bar:
        """A new bar."""
        return self._bars.begin(label)

    def log(self, step: float | None, values: Mapping[str, Any]) -> None:
        """Take numbers."""
        now_s = time.time()
        with self._lock:
            self._calls += 1
            if step is None:
                step, columns = self._calls, self._by_call
            else:
                columns = self._by_step
            for name, value in values.items():
                if type(value) is not float:
                    self._late.append((columns, name, step, now_s, value))
                    continue
                column = columns.get(name)
                if column is None:
                    column = columns[name] = []
                column += (step, now_s, value)
            if not self._waits:
                self._waits = True
                self._outbox.remind()
            is_full = self._calls >= self._full_at
        if is_full:  # the work logs faster than the sender comes by
            self._hand_on()

    def end(self) -> None:
        """The work has ended: what it has logged goes before all that is added from now on."""
        self._hand_on()
        with self._lock:
            self._late.clear()  # of a device that has failed
            self._calls, self._full_at = 0, _MOST_CALLS

    def _hand_on(self) -> None:
        logged = self._packed()
        if logged is not None:
            packed = (*logged.by_step.values(), *logged.by_call.values())
            self._outbox.add_large(logged, sum(map(len, packed)))

    def _packed(self) -> Logged | None:
        """All that can be read by now; None where there is nothing."""
        with self._lock:
            self._waits, self._full_at = False, self._calls + _MOST_CALLS
            late, self._late = self._late, []
            for columns, name, step, time_s, value in late:
                if value.ready():
                    columns.setdefault(name, []).extend((step, time_s, value.read()))
                else:
                    self._late.append((columns, name, step, time_s, value))
            if self._late:
                self._waits = True
                self._outbox.remind()
            by_step, by_call = ({n: c for n, c in own.items() if c} for own in (self._by_step, self._by_call))
            self._by_step.clear()
            self._by_call.clear()
        if not by_step and not by_call:
            return None
        return Logged(by_step=_bytes_of(by_step), by_call=_bytes_of(by_call))


def _bytes_of(columns: Mapping[str, list[float]]) -> dict[str, bytes]:
    return {name: array("d", column).tobytes() for name, column in columns.items()}
