"""A set of running ranks, as the main thread sees it: start, follow, bring back, stop.

The monitor reads; everything that only the main thread may do is done here: forking, showing,
answering interrupts, unpickling and writing into the notebook.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from nbdist.errors import ChannelError, LaunchError, RunInterrupted, ValueLost
from nbdist.looks import NameInfo
from nbdist.messages import FIRST_RUN, Assignment, Debug, Leave, Run, SendAgain, Values
from nbdist.metrics import Metrics
from nbdist.options import Options
from nbdist.session.deaths import Coroner
from nbdist.session.interrupts import Interrupts
from nbdist.session.logs import RunLogs
from nbdist.session.looking import Looking
from nbdist.session.lookout import Lookout
from nbdist.session.monitor import Arrived, Asked, Broken, Hung, Interrupted, Monitor, Note, Show
from nbdist.session.owner import Owner
from nbdist.session.port import ReservedPort
from nbdist.session.reminder import Reminder
from nbdist.session.scratch import make_board, make_scratch
from nbdist.session.standing import hang_note
from nbdist.session.stopping import Stopping
from nbdist.start import start_workers
from nbdist.start.birth import Birth
from nbdist.start.guard import Guard
from nbdist.start.worker import Worker, end_workers, occupy_standard_descriptors
from nbdist.state import RunState
from nbdist.values.landing import Landed, land
from nbdist.values.memory import open_memory
from nbdist.values.parcel import unpack
from nbdist.values.remote import Remote, Unreadable
from nbdist.views.screen import Output
from nbdist.views.tail import Tail
from nbdist.views.text import TextView
from nbdist.worker.interrupts import Board

_LEAVE_S = 2.0

running: list[Ranks] = []
"""All of this process that are up, the oldest first."""


class Ranks:
    """Workers of one session.

    Args:
        assignments: one per rank; `devices.resolve` chose the devices.
        options: of the run.
        screen: where text and displays go.
        view: makes the text view of each run, from its ranks, its ``--logs`` and the folder of its logs.
        live: whether the ranks are to live on after a failure or an interrupt.
    """

    def __init__(
        self,
        assignments: Sequence[Assignment],
        options: Options,
        screen: Output,
        view: Callable[[Sequence[int], str, str], TextView],
        *,
        live: bool = False,
    ):
        self._options = options
        self._screen = screen
        self._make_view = view
        self._live = live
        occupy_standard_descriptors()
        self._scratch = make_scratch()
        self._port = ReservedPort()
        self.logs = RunLogs(len(assignments))
        places: dict[str, Any] = {"scratch": self._scratch, "logs": str(self.logs.folder)}
        places["master_port"] = self._port.number
        self.assignments = [replace(assignment, **places) for assignment in assignments]
        self._inbox: SimpleQueue[Note] = SimpleQueue()
        self._arrived: dict[int, Arrived] = {}
        self._workers: list[Worker] = []
        self.interrupts = Interrupts(lambda: self._inbox.put(Interrupted()))
        self.owner = Owner(self.interrupts, screen.note)
        self._runs_on = tuple(range(len(assignments)))
        self.tail = Tail()
        self.reminder = Reminder()  # of what is to be done while they are followed
        self.label = "a cell"  # whose they are
        self.start_method = ""
        self.runs: Counter[int] = Counter()
        self._board: Board | None = None
        self._run = FIRST_RUN
        self._group = 0

    def start(self, method: str, birth: Birth, *, with_ipython: bool) -> None:
        """Start the workers by a start method; they begin with the work they are born to.

        Raises:
            LaunchError, KeyboardInterrupt: they cannot be started; nothing is left behind.
        """
        self._twins = birth.twins
        self.start_method = method
        with contextlib.ExitStack() as undo:
            undo.callback(self._give_back)
            self._board = make_board(self._scratch, len(self.assignments))
            packing = partial(self.interrupts.raised, 1)
            self._workers = start_workers(method, self.assignments, birth, packing, with_ipython=with_ipython)
            undo.callback(lambda: end_workers(self._workers))
            marks = [assignment.mark for assignment in self.assignments]
            pids = [worker.pid for worker in self._workers]
            self._guard = Guard(zip(pids, marks, strict=True), self._scratch)
            undo.callback(self._guard.close)
            self._monitor = Monitor(
                self._workers,
                self.logs,
                self._inbox,
                Coroner(self._scratch, self._guard),
                withdraw=self.interrupts.withdraw,
            )
            self.looking = Looking(self._workers[0].channel, self._monitor)
            self._stopping = Stopping(
                self._workers, self._monitor, self._board, self._screen, live=self._live
            )
            self._begin_run(self._options, first=True)
            try:
                self._monitor.start()
            except RuntimeError as error:  # no more threads
                raise LaunchError(
                    f"{error}. Raise the limit of processes and threads (ulimit -u)."
                ) from error
            undo.pop_all()
        running.append(self)

    def _give_back(self) -> None:
        self._port.close()
        if self._board is not None:
            self._board.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _begin_run(self, options: Options, **how: bool) -> None:
        view = self._make_view(self._runs_on, options.logs, str(self.logs.folder))
        lookout = Lookout(self._workers, options.hang_timeout)
        self.tail = Tail()
        self._monitor.begin(view, lookout, self._runs_on, stop_hangs=options.on_hang == "stop", **how)

    def send(self, message: Run, fds: Sequence[int], options: Options, *, need_all: bool = True) -> None:
        """Give the ranks their next work, or those that are alive work that each does by itself. Those that
        it is not for take what the notebook has new."""
        self._begin(options, message.ranks, need_all=need_all)
        self.runs.update(self._runs_on)
        message = replace(message, number=self._run, group=self._group if need_all else None)
        for worker in self._workers:
            with contextlib.suppress(ChannelError):  # it died; the monitor says how
                worker.channel.send(message, fds=fds)

    def _begin(self, options: Options, runs_on: Sequence[int] | None = None, *, need_all: bool) -> None:
        self._runs_on = tuple(range(len(self._workers)) if runs_on is None else runs_on)
        self._drop_arrived()
        self._run += 1
        self._group += self._stopping.begin(self._run)  # where all meet anew
        self._begin_run(options, need_all=need_all)

    def debug(self, rank: int) -> None:
        """Let the user look into a rank whose work has failed."""
        with self.owner.working("%distributed debug"):
            self._begin(self._options, need_all=False)
            for worker in self._workers:
                with contextlib.suppress(ChannelError):
                    worker.channel.send(Debug(rank=rank, number=self._run))
            state = self.follow(lambda state: state.settled)
        death = state.ranks[rank].death
        if death is not None:
            self._screen.note(f"rank {rank} has ended: {death.summary}")

    @property
    def state(self) -> RunState:
        """What is known of the ranks now."""
        return self._monitor.state

    @property
    def metrics(self) -> Metrics:
        """What the current run has logged."""
        return self._monitor.metrics

    @property
    def runs_on(self) -> tuple[int, ...]:
        """The ranks that do the work."""
        return self._runs_on

    @property
    def names(self) -> tuple[NameInfo, ...]:
        """What rank 0's work has bound, as it said last."""
        return self._monitor.names

    def pid(self, rank: int) -> int:
        """A rank's process."""
        return self._workers[rank].pid

    def log_files(self) -> list[Path]:
        """Of each rank the file with all that it has printed until now, if it has printed."""
        self._monitor.flush_logs()
        return [self.logs.path(rank) for rank in range(len(self._workers))]

    def follow(self, until: Callable[[RunState], bool]) -> RunState:
        """Show what ranks print and answer interrupts, until their state is as wished or settled."""
        while not (until(self.state) or self.state.settled) or not self._inbox.empty():
            self._take_note()
        return self.state

    def _take_note(self) -> None:
        note = self._next_note()
        if isinstance(note, Show):
            self.tail.add(note.items)
            self._screen.show(note.items)
        elif isinstance(note, Arrived):
            self._keep(note)
        elif isinstance(note, RunState):
            self._on_state(note)
        elif isinstance(note, Asked):
            self._ask(note)
        elif isinstance(note, Hung):
            self._screen.note(hang_note(note, self._workers, self.interrupts))
        elif isinstance(note, Interrupted):
            self._stopping.interrupt(self.interrupts.count)
        elif isinstance(note, Broken):
            raise note.error

    def _next_note(self) -> Note | None:
        """The next note; None when something else was due first, such as a step towards the run's end."""
        self.reminder.answer()
        patience = self._stopping.patience_s(), self.reminder.patience_s()
        try:
            return self._inbox.get(timeout=min((one for one in patience if one is not None), default=None))
        except Empty:
            if self._stopping.patience_s() == 0.0:
                self._stopping.step()
            return None

    def _keep(self, note: Arrived) -> None:
        former = self._arrived.pop(note.rank, None)
        if former is not None:
            os.close(former.fd)
        self._arrived[note.rank] = note

    def _on_state(self, state: RunState) -> None:
        if state.broken_off and not state.settled:
            self._stopping.broken_off()

    def _ask(self, asked: Asked) -> None:
        """Ask the user for a rank. The user's interrupt, or the end of the run, ends that too."""
        try:
            with self.interrupts.asking():
                if self.state.broken_off or self.interrupted:  # by now; a later interrupt is raised here
                    return
                reply = self._screen.ask(asked.question)
        except KeyboardInterrupt:
            return
        with contextlib.suppress(ChannelError):  # it died; the monitor says how
            self._workers[asked.rank].channel.send(reply)
        self._monitor.note_answer(asked.rank)

    @property
    def ended(self) -> Set[int]:
        """Ranks that did not come out of their work and were ended."""
        return self._stopping.ended

    @property
    def interrupted(self) -> bool:
        """Whether the user asked to stop, at whatever moment of the run."""
        return self.interrupts.count > 0

    def bring_back(self, lead: int = 0, *, dropped_by: int = 2) -> Landed:
        """Write what the ranks handed over into the notebook, all of it or, on trouble, what is readable: the
        names, changes and result of the rank `lead`. As `collect`, then `land`."""
        return self.land(self.collect(lead, dropped_by=dropped_by), lead)

    def collect(self, lead: int = 0, *, dropped_by: int = 3) -> dict[int, dict[str, Any]]:
        """What the ranks handed over, by rank, as far as it can be read; to be landed while they are up.

        Args:
            dropped_by: the how manieth interrupt drops it.

        Raises:
            RunInterrupted: that one came before all had arrived.
        """
        self._stopping.leave_it()
        # The leading rank's last: it holds what is put together of all ranks' parts.
        ranks = sorted(self._arrived, key=lambda rank: (rank == lead, -rank))
        try:
            return {rank: self._read(rank, dropped_by) for rank in ranks if rank in self.state.alive}
        except KeyboardInterrupt:
            raise RunInterrupted("what the ranks handed over was dropped, nothing was written") from None
        finally:
            self._twins.shards.clear()

    def land(self, arrived: Mapping[int, Mapping[str, Any]], lead: int = 0) -> Landed:
        """Write what was collected into the notebook."""
        values = self.handed_over(lead)
        unbound = values.unbound if values else ()
        with self.interrupts.raised(3):  # a way out of the user's code
            landed = land(arrived, unbound, self._twins, ranks=self._runs_on, lead=lead)
        landed.lost = {**self.lost(), **landed.lost}
        is_gone = self.state.ranks[lead].phase == "gone" and lead not in self._arrived
        if is_gone and self.interrupts.count < 2:
            ended_by_us = lead in self.ended
            reason = "it did not come out of its work and was ended" if ended_by_us else "its process ended"
            landed.lost[f"what rank {lead} had changed"] = reason
        return landed

    def handed_over(self, rank: int) -> Values | None:
        """What a rank said of its values, if it has handed any over."""
        return self._arrived[rank].values if rank in self._arrived else None

    def lost(self) -> dict[str, str]:
        """What stays on the ranks, with the reason."""
        lost: dict[str, str] = {}
        for rank, arrived in sorted(self._arrived.items()):
            of_rank = "" if rank == self._runs_on[0] else f" of rank {rank}"
            lost |= {f"{title}{of_rank}": reason for title, reason in arrived.values.lost.items()}
        return lost

    def imported(self) -> tuple[str, ...]:
        """Parts of torch that the first rank had to import by itself."""
        values = self.handed_over(self._runs_on[0])
        return values.imported if values else ()

    def result_data(self) -> Mapping[str, Any] | None:
        """The rich display of a result whose value stays on its rank."""
        values = self.handed_over(self._runs_on[0])
        return values.result_data if values else None

    def _read(self, rank: int, dropped_by: int) -> dict[str, Any]:
        """A rank's values. What cannot be read here is left out when the rank sends the rest again."""
        again = SendAgain()
        while True:
            arrived = self._arrived[rank]
            try:
                with self.interrupts.raised(dropped_by):  # which runs the user's code, too
                    parcel = arrived.values.parcel
                    memory = open_memory(arrived.fd, parcel.size_bytes)
                    values = unpack(parcel, memory, self._twins, rank=rank)
                if all(value.is_readable() for value in values.values() if isinstance(value, Remote)):
                    return values
                again = replace(again, copied=True)
            except Unreadable:
                again = replace(again, copied=True)
            except ValueLost as lost:
                again = replace(again, without={**again.without, lost.key: lost.reason})
            with contextlib.suppress(ChannelError):  # it died; the monitor says how
                self._workers[rank].channel.send(again)
            while self._arrived[rank] is arrived and rank in self.state.alive:
                self._take_note()
            if self._arrived[rank] is arrived:
                os.close(self._arrived.pop(rank).fd)
                return {}

    def stop(self) -> None:
        """Let the ranks leave, end those that do not, give all back; nothing in a fork of their process."""
        if not self.owner.is_here:
            return
        for rank in self.state.alive:
            with contextlib.suppress(ChannelError):
                self._workers[rank].channel.send(Leave())
        self._monitor.join(_LEAVE_S)
        if self._monitor.is_alive():
            for rank in self.state.alive:
                self._workers[rank].kill()
            self._monitor.join()
        end_workers([self._workers[rank] for rank in self.state.alive])  # the monitor itself has failed
        running.remove(self)
        self._guard.close()
        self._give_back()
        self.rest()

    def rest(self) -> None:
        """Show what is left to be shown, and give values back that nobody has taken."""
        shows = []
        while not self._inbox.empty():
            note = self._inbox.get()
            if isinstance(note, Show):
                shows.append(note)
            elif isinstance(note, Arrived):
                self._keep(note)
        self._drop_arrived()
        for show in shows:
            self._screen.show(show.items)

    def _drop_arrived(self) -> None:
        for arrived in self._arrived.values():
            os.close(arrived.fd)
        self._arrived.clear()
