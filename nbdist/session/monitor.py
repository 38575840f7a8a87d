"""The one thread that reads all ranks: messages, pipes and deaths become state, text and logs.

What it finds goes into the `inbox`: what may be shown now (at most ten times a second) and each
new `RunState`. It never writes to the notebook itself.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from nbdist.errors import ChannelError
from nbdist.figures import Logged
from nbdist.looks import Looked, NameInfo
from nbdist.messages import (
    Answered,
    Asking,
    Died,
    Display,
    Event,
    Finished,
    Mark,
    Progress,
    Ready,
    Stream,
    Stuck,
    Text,
    Values,
    Wrote,
)
from nbdist.metrics import Metrics
from nbdist.session.deaths import Coroner
from nbdist.session.hangs import Hang
from nbdist.session.logs import RunLogs
from nbdist.session.lookout import Lookout
from nbdist.session.pipes import Pipes
from nbdist.start.worker import Worker
from nbdist.state import RunState, first_state, fold, next_run, stop_working
from nbdist.views.bars import bar_line
from nbdist.views.hang import moving_report
from nbdist.views.text import Item, TextView

_SHOW_EVERY_S = 0.1
_ASK_S = 0.3  # what ranks said before a question is shown before it, but nobody waits longer for more
_MUTE_S = 0.5  # a process that ends closes its connection before it has ended


@dataclass(frozen=True, slots=True)
class Show:
    """Items for the cell's output."""

    items: Sequence[Item]


@dataclass(frozen=True, slots=True)
class Arrived:
    """Values of a rank, with their memory file; whoever takes it owns the descriptor."""

    rank: int
    values: Values
    fd: int


@dataclass(frozen=True, slots=True)
class Hung:
    """A hang, and the state in which it was found."""

    state: RunState
    hang: Hang


@dataclass(frozen=True, slots=True)
class Asked:
    """A rank's question to the user."""

    rank: int
    question: Asking


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The user asked to stop (put in by the main thread's signal handler)."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The monitor itself failed: a fault of nbdist's."""

    error: BaseException


Note = Show | RunState | Arrived | Asked | Hung | Interrupted | Broken


class Monitor(threading.Thread):
    """Reads `workers` until all have ended.

    Args:
        coroner: finds out how a worker ended.
        withdraw: called when a run breaks off while the user is being asked.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        logs: RunLogs,
        inbox: SimpleQueue[Note],
        coroner: Coroner,
        *,
        withdraw: Callable[[], None],
    ):
        super().__init__(name="nbdist-monitor", daemon=True)
        self._workers = workers
        self._logs = logs
        self._inbox = inbox
        self._coroner = coroner
        self._withdraw = withdraw
        self._question: tuple[float, Asked] | None = None
        self._mute_s: dict[int, float] = {}
        self._lock = threading.Lock()
        self.state = first_state(len(workers))
        self.metrics = Metrics()
        self.looked: SimpleQueue[Looked] = SimpleQueue()
        self.names: tuple[NameInfo, ...] = ()
        self._view: TextView | None = None
        self._shown_s = 0.0
        self._pipes = [Pipes(worker) for worker in workers]

    def begin(
        self,
        view: TextView,
        lookout: Lookout,
        runs_on: Collection[int],
        *,
        stop_hangs: bool,
        first: bool = False,
        need_all: bool = True,
    ) -> None:
        """Start a run.

        Args:
            view: takes what the ranks print from now on.
            lookout: finds hangs.
            runs_on: the ranks that work.
            stop_hangs: whether a run that may hang is stopped.
            first: whether it is the ranks' first.
            need_all: whether all ranks must be alive.
        """
        with self._lock:
            self._view = view
            self._lookout = lookout
            self._stop_hangs = stop_hangs
            self.metrics = Metrics()  # whoever has the former run's keeps them
            if not first:
                self.state = next_run(self.state, runs_on, need_all=need_all)
                self._inbox.put(self.state)  # a rank may have died meanwhile

    def note_stop(self) -> None:
        """Ranks that still work are being told to stop: what they say now is no failure of theirs."""
        with self._lock:
            self.state = stop_working(self.state)

    def flush_logs(self) -> None:
        """Bring to the disk what the ranks have printed until now."""
        with self._lock:
            self._logs.flush()

    def note_answer(self, rank: int) -> None:
        """A rank has been sent the answer to its question."""
        with self._lock:
            self._fold(rank, Answered())

    def run(self) -> None:
        """Read until the last worker has been reaped; a fault of ours reaches the main thread."""
        self._selector = selectors.DefaultSelector()
        try:
            self._read_all()
        except BaseException as error:
            self._inbox.put(Broken(error))
            raise
        finally:
            self._selector.close()
            self._logs.close()

    def _read_all(self) -> None:
        for worker in self._workers:
            self._register(worker)
        waiting = set(range(len(self._workers)))
        while waiting:
            ready = self._selector.select(self._patience_s())
            with self._lock:
                for key, _ in ready:
                    # Handling one event may end the registration of another: of a worker that has ended.
                    if self._selector.get_map().get(key.fd) is not key:
                        continue
                    kind, worker = key.data
                    if kind == "end":
                        waiting.discard(worker.rank)
                    self._handle(kind, worker)
                self._end_mute()
                self._show_due()
                self._ask_due()
                self._look_for_hang()

    def _register(self, worker: Worker) -> None:
        for fd in (worker.stdout_fd, worker.stderr_fd):
            self._selector.register(fd, selectors.EVENT_READ, ("pipe", worker))
        self._selector.register(worker.channel.fileno(), selectors.EVENT_READ, ("channel", worker))
        self._selector.register(worker.process.fileno(), selectors.EVENT_READ, ("end", worker))

    def _patience_s(self) -> float | None:
        """How long nothing needs doing: until what waits may be shown, or a hang may be found."""
        now_s = time.monotonic()
        due = [self._lookout.next_look_s(self.state)]
        due += [since_s + _MUTE_S for since_s in self._mute_s.values()]
        if self._question is not None:
            due.append(self._question[0] + _ASK_S)
        shown_s = self._view.next_due_s() if self._view is not None else None
        if shown_s is not None:
            due.append(max(shown_s, self._shown_s + _SHOW_EVERY_S))
        first_s = min((moment for moment in due if moment is not None), default=None)
        return None if first_s is None else max(0.0, first_s - now_s)

    def _handle(self, kind: str, worker: Worker) -> None:
        if kind == "channel":
            self._read_channel(worker)
        elif kind == "end":
            self._bury(worker)
        else:
            self._read_pipes(worker)

    def _read_channel(self, worker: Worker) -> None:
        try:
            messages = worker.channel.receive_available()
        except ChannelError:  # it ended, or died in the middle of a message: the end of its process tells how
            self._forget(worker.channel.fileno())
            self._mute_s[worker.rank] = time.monotonic()
            return
        pipes = self._pipes[worker.rank]
        for message in messages:
            if isinstance(message, Mark):
                self._take_wrote(worker, pipes.begin(message.number))
            else:
                self._take(worker, message)
        self._take_wrote(worker, pipes.end())

    def _take(self, worker: Worker, event: Event) -> None:
        now_s = time.monotonic()
        if isinstance(event, (Text, Wrote)):
            self._logs.write(worker.rank, event.text)
            if self._view is not None:
                self._view.text(worker.rank, event.stream, event.text, now_s)
            return
        if isinstance(event, Display):
            if self._view is not None:
                self._view.display(worker.rank, event, now_s)
            return
        if isinstance(event, Progress):
            self._take_progress(worker.rank, event, now_s)
            return
        if isinstance(event, Logged):
            self.metrics.add(worker.rank, event)
            return
        if isinstance(event, Looked):
            self.looked.put(event)
            return
        if isinstance(event, Asking):
            self._question = now_s, Asked(worker.rank, event)
        if isinstance(event, Finished) and event.values is not None:
            self._inbox.put(Arrived(worker.rank, event.values, worker.channel.take_fd()))
            if worker.rank == 0:
                self.names = event.values.names
        self._fold(worker.rank, event)

    def _take_progress(self, rank: int, progress: Progress, now_s: float) -> None:
        end = {"open": "", "kept": "\n", "gone": "\r"}[progress.phase]
        self._logs.write_bar(rank, f"{bar_line(progress)}{end}")
        self.state = fold(self.state, rank, progress)
        if self._view is not None:
            if progress.phase == "kept":
                self._view.bar_ended(rank, progress, now_s)
            self._view.bars(self.state.bars, now_s)

    def _fold(self, rank: int, event: Event) -> None:
        state = fold(self.state, rank, event)
        if isinstance(event, (Finished, Died)) and self._view is not None:
            self._view.bars(state.bars, time.monotonic())
            self._view.finished(rank)
        if state.settled and not self.state.settled:
            self._end_view()
        self.state = state  # what was said is in the inbox before anybody sees that all has been said
        if state.broken_off:
            self._question = None
            self._withdraw()
        if state.settled or state.broken_off or isinstance(event, Ready):
            self._inbox.put(state)  # each wakes the main thread: what changes nothing for it is not told

    def _end_view(self) -> None:
        self._logs.flush()
        if self._view is not None:
            self._inbox.put(Show(self._view.close(time.monotonic())))
            self._view = None

    def _show_due(self) -> None:
        now_s = time.monotonic()
        if self._view is None or now_s - self._shown_s < _SHOW_EVERY_S:
            return
        due_s = self._view.next_due_s()
        if due_s is None or due_s > now_s:
            return
        self._shown_s = now_s
        items = self._view.take(now_s)
        if items:
            self._inbox.put(Show(items))

    def _ask_due(self) -> None:
        """Put a question once all is shown that was said before it."""
        if self._question is None:
            return
        since_s, asked = self._question
        said_all = self._view is None or self._view.next_due_s() is None
        if said_all or time.monotonic() - since_s >= _ASK_S:
            self._question = None
            self._inbox.put(asked)

    def _end_mute(self) -> None:
        """End ranks that have closed their connection and live on: nobody will hear of them again."""
        now_s = time.monotonic()
        for rank, since_s in list(self._mute_s.items()):
            if now_s - since_s >= _MUTE_S:
                del self._mute_s[rank]
                self._coroner.mute.add(rank)
                self._workers[rank].kill()

    def _look_for_hang(self) -> None:
        now_s = time.monotonic()
        hang = self._lookout.look(self.state, now_s)
        if hang is None:
            return
        if not hang.certain and not self._stop_hangs:
            self._inbox.put(Hung(self.state, hang))
            return
        others = (
            "" if hang.certain else "".join(f"; {line}" for line in moving_report(self.state, hang.ranks))
        )
        for rank in hang.ranks:
            self._fold(rank, Stuck(time_s=now_s, reason=hang.reason + others))

    def _read_pipes(self, worker: Worker) -> None:
        pipes = self._pipes[worker.rank]
        self._take_wrote(worker, pipes.read())
        for fd in pipes.ended():
            self._forget(fd)

    def _take_wrote(self, worker: Worker, texts: Iterable[tuple[Stream, str]]) -> None:
        for stream, text in texts:
            self._take(worker, Wrote(stream=stream, text=text))

    def _forget(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _bury(self, worker: Worker) -> None:
        """A worker has ended: read what it left, reap it, give its descriptors back."""
        died = self._coroner.examine(worker)
        channel_fd = worker.channel.fileno()
        try:
            while channel_fd in self._selector.get_map():
                self._read_channel(worker)
        except BlockingIOError:  # a child that left the rank's process group still holds the other end
            self._forget(channel_fd)
        for text in self._coroner.unsent(worker.rank, self._pipes[worker.rank].batch):
            self._take(worker, text)
        self._read_pipes(worker)
        self._take_wrote(worker, self._pipes[worker.rank].rest())
        for fd in (channel_fd, worker.process.fileno(), worker.stdout_fd, worker.stderr_fd):
            self._forget(fd)
        self._mute_s.pop(worker.rank, None)  # not mute but dead, though its channel's end was seen first
        worker.close()
        self._fold(worker.rank, died)
