"""How ranks are brought out of their work: a signal first, then time to come out, then their end.

It is planned here and carried out by whoever follows the run, in the main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from nbdist.errors import ranks_phrase
from nbdist.messages import FIRST_RUN
from nbdist.session.hangs import wait_in_vain
from nbdist.session.monitor import Monitor
from nbdist.start.worker import Worker
from nbdist.views.screen import Output
from nbdist.worker.interrupts import Board

# After a rank has raised: how long the others may still fail by themselves, and how long an interrupted
# rank has to come out of its work. What it hands over then may take as long as it takes.
_GRACE_S = 0.2
_ANSWER_S = 0.6
# After the user's interrupt: the ranks come out of their work within 2 s, whatever they do.
_INTERRUPT_ANSWER_S = 1.5
# In a session a rank's variables would be lost with it: the user is told by then, and it may take longer.
_LIVE_ANSWER_S = 10.0
# How often it is looked whether ranks that have been interrupted wait for each other again.
_LOOK_EVERY_S = 0.1
# How long the text and the traceback of an exception, which run the user's code, may take.
_REPORT_S = 5.0


class Stopping:
    """Of the ranks of one session.

    Args:
        board: says to the ranks which run a signal is for.
        live: whether the ranks are to live on.

    Attributes:
        answered: how many of the user's interrupts this run has seen.
        ended: ranks that were ended from here.
    """

    def __init__(
        self, workers: Sequence[Worker], monitor: Monitor, board: Board, screen: Output, *, live: bool
    ):
        self._workers = workers
        self._monitor = monitor
        self._board = board
        self._screen = screen
        self._live = live
        self._run = FIRST_RUN
        self._plan: list[tuple[float, Callable[[], None]]] = []
        self._struck_s = 0.0
        self.answered = 0
        self.ended: set[int] = set()

    def begin(self, run: int) -> bool:
        """A run of that number begins.

        Returns:
            Whether the ranks meet anew before it, whatever they still have going on between them.
        """
        anew = self._monitor.state.broken_off or self.answered > 0
        if anew:  # ranks that were idle may be waiting for the others to meet them, and these will not come
            self._strike(self._monitor.state.idle)
        self._run = run
        self.answered = 0
        self._plan = []
        return anew

    def patience_s(self) -> float | None:
        """How long until something is to be done; None for ever."""
        return max(0.0, self._plan[0][0] - time.monotonic()) if self._plan else None

    def step(self) -> None:
        """Do what is due."""
        _, do = self._plan.pop(0)
        do()

    def leave_it(self) -> None:
        """The run has come to its end."""
        self._plan = []

    def broken_off(self) -> None:
        """A rank has failed: the others are to stop."""
        if not self._plan:
            self._plan_end(_GRACE_S, _ANSWER_S)

    def interrupt(self, count: int) -> None:
        """The user has interrupted the run that many times."""
        if self.answered >= count:
            return  # it was the run before's, which had ended by itself
        self.answered += 1
        self._plan = []
        if self.answered == 1:
            self._plan_end(0.0, _INTERRUPT_ANSWER_S)
        else:
            self._kill(self._monitor.state.unfinished)

    def _plan_end(self, grace_s: float, answer_s: float) -> None:
        interrupt_s = time.monotonic() + grace_s
        steps = [
            (interrupt_s, self._interrupt),
            (interrupt_s + _LOOK_EVERY_S, self._look_for_waiting),
            (interrupt_s + (_LIVE_ANSWER_S if self._live else answer_s), self._kill_working),
            (interrupt_s + (_LIVE_ANSWER_S if self._live else _REPORT_S), self._kill_telling),
        ]
        if self._live:
            steps.append((interrupt_s + answer_s, self._tell_of_working))
        self._plan = sorted(steps, key=_moment)

    def _interrupt(self) -> None:
        self._monitor.note_stop()
        state = self._monitor.state
        self._strike([*state.working, *state.idle])

    def _strike(self, ranks: Sequence[int]) -> None:
        self._struck_s = time.monotonic()
        for rank in ranks:
            self._board.stop(rank, self._run)
            self._workers[rank].interrupt()

    def _look_for_waiting(self) -> None:
        """An interrupt breaks off one collective. A rank that enters another one, in a ``finally``, may find
        nobody there any more, and the user is not to press twice for that, which would end it."""
        now_s = time.monotonic()
        waiting = wait_in_vain(self._monitor.state, now_s, self._struck_s)
        if waiting:
            self._strike(waiting)
        if self._monitor.state.working:
            self._plan = sorted([*self._plan, (now_s + _LOOK_EVERY_S, self._look_for_waiting)], key=_moment)

    def _tell_of_working(self) -> None:
        working = self._monitor.state.working
        if working:
            self._screen.note(
                f"{ranks_phrase(working)}: not stopped yet, because C code or the import of a library does "
                "not let itself be interrupted, or the work catches KeyboardInterrupt. "
                f"After {_LIVE_ANSWER_S:g} s in all the process is ended, with all its variables; interrupt "
                "again to end it now."
            )

    def _kill_working(self) -> None:
        self._kill(self._monitor.state.working)

    def _kill_telling(self) -> None:
        self._kill(self._monitor.state.telling)

    def _kill(self, ranks: Sequence[int]) -> None:
        self._monitor.note_stop()
        self.ended |= set(ranks)
        for rank in ranks:
            self._workers[rank].kill()


def _moment(step: tuple[float, Callable[[], None]]) -> float:
    return step[0]
