"""How a worker's process ended: its exit code, what Python wrote of its stack, whether memory ran out."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from nbdist.messages import Died, Text
from nbdist.shell import place_text
from nbdist.start.guard import Guard
from nbdist.start.worker import Worker
from nbdist.worker.afterfork import last_words_path
from nbdist.worker.unsent import read_unsent, unsent_path

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')  # as faulthandler writes it
_RUNS_WORK = ("/IPython/", "/nbdist/worker/work.py", "/nbdist/worker/notebook.py")
_SYSTEM = Path("/proc/vmstat")


class Coroner:
    """Made before the workers die.

    Args:
        scratch: the run's folder for temporary files.
        guard: ends what a worker left that ended badly.

    Attributes:
        mute: ranks that were ended because they had closed their connection.
    """

    def __init__(self, scratch: str, guard: Guard):
        self._scratch = scratch
        self._guard = guard
        self.mute: set[int] = set()
        self._memory_kills = _memory_kills()

    def examine(self, worker: Worker) -> Died:
        """Reap a worker that has ended, and say how it did."""
        exit_code = worker.process.reap()
        if exit_code != 0:
            self._guard.ended(worker.pid)
        return Died(
            time_s=time.monotonic(),
            pid=worker.pid,
            exit_code=exit_code,
            trace=self._last_words(worker.rank) if exit_code < 0 else (),
            memory_ran_out=_memory_kills() > self._memory_kills,
            mute=worker.rank in self.mute and exit_code == -signal.SIGKILL,
        )

    def unsent(self, rank: int, received: int) -> Iterator[Text]:
        """Text that a worker had written and not sent when it ended.

        Args:
            received: the number of the last batch of messages that came.
        """
        return read_unsent(unsent_path(self._scratch, rank), received)

    def _last_words(self, rank: int) -> tuple[str, ...]:
        """Frames of the user's code, the most recent call first."""
        try:
            text = Path(last_words_path(self._scratch, rank)).read_text(errors="replace")
        except OSError:  # none was written
            return ()
        for thread in text.split("\n\n"):
            frames = [found.groups() for found in map(_FRAME.match, thread.splitlines()) if found]
            users = [*takewhile(lambda frame: not any(part in frame[0] for part in _RUNS_WORK), frames)]
            if users and len(users) < len(frames):  # the main thread, whichever the signal came to
                return tuple(place_text(file, int(line), function) for file, line, function in users)
        return ()


def _memory_kills() -> int:
    """How many processes the system has ended so far because its memory ran out."""
    try:
        counts = dict(line.split() for line in _SYSTEM.read_text().splitlines())
    except OSError:  # no Linux
        return 0
    return int(counts.get("oom_kill", 0))
