"""Runs that nobody waits for: cells of the notebook run beside them.

Longer than 400 lines because all that a run can do is read together.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nbdist.errors import (
    OptionError,
    RankFailedError,
    RunInterrupted,
    RunStopped,
    SessionError,
    StillRunning,
)
from nbdist.options import Options
from nbdist.role import NotebooksOwn, only_notebook, rank_here
from nbdist.session.between import BetweenCells
from nbdist.session.ending import RichValue, failure_in, raise_failure, report
from nbdist.session.giving_back import held_back
from nbdist.session.logs import tail
from nbdist.session.naming import check_name
from nbdist.session.once import OneShot
from nbdist.session.opening import note_needed
from nbdist.session.overview import status_of
from nbdist.session.record import write_record
from nbdist.session.sessions import live_sessions, notes_on
from nbdist.session.showing import source_of
from nbdist.session.telling import OF_ANOTHER_PROCESS
from nbdist.shell import current_shell, namespace_of
from nbdist.state import RunState
from nbdist.values.since import Since
from nbdist.views.dashboard.live import Source
from nbdist.views.dashboard.picture import RunWord
from nbdist.views.overview import SessionStatus
from nbdist.views.panel import Panel, panel_for
from nbdist.views.screen import Screen, is_watched
from nbdist.worker.work import Work

_runs: dict[str, Run] = {}
"""All that hold ranks by name, the oldest first; one that was given no name has a number."""

_ended: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
"""Those that have ended and that somebody still has, by name."""


def live_runs() -> dict[str, Run]:
    """Those of this process whose ranks are up, by name. A rank has none: it inherits the notebook's."""
    return {name: run for name, run in _runs.items() if run._is_here}


def ended_runs() -> dict[str, Run]:
    """Those of this process that have ended, by name, as far as somebody has them; the last one last."""
    return {name: run for name, run in _ended.items() if run._is_here}


class LogText(str):
    """A rank's log: text that a notebook shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Run(NotebooksOwn):
    """Ranks at work in the background: of ``%%distributed --background`` or ``launch(background=True)``.

    What rank 0 changed is written into the notebook when the run is waited for; else as soon as it has ended
    and no cell runs, unless the notebook has bound or changed the same meanwhile. In a program without a
    notebook, when it is waited for.

    Example:
        >>> run = nbdist.launch(train, model, devices=2, background=True)
        >>> run.status
        'running'
        >>> run.wait()
        0.93
    """

    what = "a run in the background"

    def __init__(
        self,
        one: OneShot,
        panel: Panel,
        source: Source,
        name: str,
        label: str,
        shell: Any,
        *,
        show_result: bool,
        then: Callable[[], None],
    ):
        self._one: OneShot | None = one
        self._owner = one.ranks.owner
        self._panel = panel
        self._name = name
        self._label = label  # its name, or what stands for one
        one.ranks.label = f"background run {label}"
        self._show_result = show_result
        self._then = then
        self._logs = one.ranks.logs
        self._world_size = len(one.ranks.assignments)
        self._ranks_info = [
            {"rank": own.rank, "device": own.chosen_device, "pid": one.ranks.pid(own.rank)}
            for own in one.ranks.assignments
        ]
        self._metrics = one.ranks.metrics
        # What the ranks came to is told, not that their processes are ended after it.
        self._source = replace(source, state=lambda: self._state or one.ranks.state)
        self._begun_s = time.time()
        self._ended_s: float | None = None
        self._since: Since | None = Since(one.twins)
        self._lock = threading.RLock()
        self._settled = threading.Event()
        self._waits = False
        self._state: RunState | None = None
        self._arrived: dict[int, dict[str, Any]] | None = None
        self._status: RunWord | None = None
        self._error: BaseException | None = None
        self._result: Any = None
        self._between = BetweenCells(shell, self._bind_unasked)
        self._thread = threading.Thread(target=self._follow, name="nbdist-run", daemon=True)

    # What the user has of it

    @property
    def status(self) -> RunWord:
        """``running``, ``finished``, ``failed``, ``interrupted`` (by `interrupt`) or ``stopped``.

        One word, without parentheses; the table that `Session.status` gives is `overview` here.
        """
        only_notebook(f"{self._label}.status")
        if self._status or not self._settled.is_set():
            return self._status or "running"
        return self._outcome()

    def _outcome(self) -> RunWord:
        """Of ranks that have ended their work."""
        one, state = self._one, self._state
        if one is None or state is None or state.failures:
            return "failed"
        return "interrupted" if one.ranks.interrupted or state.broken_off else "finished"

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the run has ended, and write what it changed into the notebook.

        Args:
            timeout: the longest wait, in seconds.

        Returns:
            Rank 0's result: the cell's last value, or the function's return value.

        Raises:
            RankFailedError: it failed on a rank.
            RunStopped: it was interrupted or stopped.
            KeyboardInterrupt: the wait was interrupted, and the run goes on; in a batch run, the cell was.
            StillRunning (also TimeoutError): it has not ended in time, and goes on.
            SessionError: this is not the main thread, which alone writes into the notebook, or not the
                process that has begun the run but one that was forked from it.
        """
        only_notebook(f"{self._label}.wait()")
        if not self._is_here:
            raise SessionError(OF_ANOTHER_PROCESS)
        if threading.current_thread() is not threading.main_thread():
            raise SessionError(
                "A run is waited for in the main thread, which alone writes into the notebook. "
                "Elsewhere ask for `run.status`."
            )
        try:
            has_ended = self._settled.wait(timeout)
        except KeyboardInterrupt:
            raise RunInterrupted("nobody waits any more; the run goes on, run.interrupt() ends it") from None
        if not has_ended:
            raise StillRunning(f"the run has not ended within {timeout:g} s; it goes on")
        self._bind(asked=True)
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._result

    @property
    def result(self) -> Any:
        """What `wait` gives or raises: it waits, too. Without parentheses."""
        return self.wait()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the ranks, as the stop button does for a cell that is waited for: what
        rank 0 had changed comes back. A second time: end them at once."""
        only_notebook(f"{self._label}.interrupt()")
        one = self._one
        if one is not None and self._is_here and not self._settled.is_set():
            one.ranks.interrupts.press()

    def stop(self) -> None:
        """End the ranks at once and drop what they have done, as far as it is not in the notebook. In a
        process that was forked from theirs there is nothing to end."""
        only_notebook(f"{self._label}.stop()")
        one = self._one
        if one is None or not self._is_here:
            return
        with held_back():
            if not self._settled.is_set():
                one.ranks.interrupts.press()
                one.ranks.interrupts.press()
            self._settled.wait()
            with self._lock:
                if self._one is not None:
                    self._error = RunStopped("the run was stopped; nothing of it is in the notebook")
                    self._close(self._one, "stopped")

    @property
    def _is_here(self) -> bool:
        """False in a process that was forked from the one that has begun the run."""
        return self._owner.is_here

    @property
    def world_size(self) -> int:
        """How many ranks it has, or had."""
        return self._world_size

    def overview(self) -> SessionStatus:
        """What its ranks do now, as a table.

        Raises:
            SessionError: it has ended.
        """
        only_notebook(f"{self._label}.overview()")
        one = self._one
        if one is None:
            raise SessionError(f"{self._label}: this run has ended ({self.status}).")
        what = f"background run {self._label}: {_ranks(self._world_size)}, {self.status}"
        return status_of(self._label, what, one.ranks, None)

    def logs(self, rank: int = 0, lines: int | None = None) -> str:
        """All that a rank has printed until now.

        Args:
            rank: which.
            lines: of these the last ones only.

        Raises:
            OptionError: there is no such rank.
        """
        only_notebook(f"{self._label}.logs()")
        if rank not in range(self._world_size):
            raise OptionError(f"logs({rank!r}): no such rank. Allowed: 0 to {self._world_size - 1}.")
        if lines is None:
            return LogText(self._logs.read(rank))
        self._logs.flush()
        return LogText(tail(self._logs.path(rank), lines))

    @property
    def history(self) -> Any:
        """What `nbdist.log` has recorded until now: a row for each step of each rank, with the seconds since
        the run began, and a column for each metric. A pandas DataFrame; without pandas a list of dicts.

        Example:
            >>> run.history.plot(x="step", y="loss")
        """
        only_notebook(f"{self._label}.history")
        return self._metrics.history()

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write what is known of the run until now as JSON: title, outcome, begun and ended (ISO 8601),
        ranks, metrics (the rows of `history`, null for what is not finite) and failures. The file is whole
        or not there.

        Args:
            path: the file; what it held is replaced.

        Example:
            >>> run.export("run.json")
        """
        only_notebook(f"{self._label}.export()")
        write_record(
            path,
            title=self._label,
            outcome=self.status,
            begun_s=self._begun_s,
            ended_s=self._ended_s,
            ranks=self._ranks_info,
            metrics=self._metrics,
            failures=self._state.failures if self._state is not None else (),
        )

    def __repr__(self) -> str:
        name = f" {self._name}" if self._name else ""
        if rank_here() is not None:
            return f"<nbdist.Run{name}, which lives in the notebook>"
        return f"<nbdist.Run{name} on {_ranks(self._world_size)}: {self.status}>"

    def _ipython_display_(self) -> None:
        if rank_here() is not None or not self._panel.show_here():
            raise NotImplementedError  # IPython shows the text then

    # How it goes

    def _begin(self, *, waits: bool) -> None:
        _runs[self._label] = self
        atexit.register(_end_with_program)
        self._panel.open(
            f"{self._label}, {_ranks(self._world_size)}",
            self._source,
            {"interrupt": self.interrupt, "stop": self.stop},
        )
        self._waits = waits
        if waits:
            self._follow()
        else:
            self._thread.start()

    def _follow(self) -> None:
        """Until the ranks have ended their work: in a thread of its own, or where the cell waits."""
        assert self._one is not None
        ranks = self._one.ranks
        try:
            state = self._state = self._one.follow()
            if state.failures and not ranks.interrupted:
                self._panel.fail(failure_in(state, ranks))
                for note in notes_on(state.failures):
                    self._panel.note(note)
            self._panel.tell(f"{self._outcome()}; what it changed is bound when no cell runs")
        except BaseException as error:  # noqa: BLE001  a fault of nbdist's: `wait` raises it
            self._error = error
        finally:
            self._ended_s = time.time()
            self._settled.set()
            self._between.ask()

    def _bind_unasked(self) -> None:
        self._bind(asked=False)

    def _bind(self, *, asked: bool) -> None:
        """Write into the notebook what rank 0 changed, unless that needs to be asked for first."""
        with self._lock:
            one = self._one
            if one is None:
                return
            is_over = True
            with one.ranks.interrupts.answered():
                try:
                    if self._state is not None:
                        is_over = self._land(one, self._state, asked=asked)
                finally:
                    if is_over:
                        self._close(one, self.status)

    def _land(self, one: OneShot, state: RunState, *, asked: bool) -> bool:
        """Whether it was done."""
        ranks = one.ranks
        if self._arrived is None:
            self._arrived = ranks.collect()
            # The notebook has its own working folder, random states and settings, and has gone on with them.
            own = self._arrived.get(0, {})
            self._arrived[0] = {key: value for key, value in own.items() if not key.startswith("around:")}
        if not asked:
            assert self._since is not None
            values = ranks.handed_over(0)
            conflicts = self._since.conflicts(self._arrived[0], values.unbound if values else ())
            if conflicts:
                self._ask(conflicts)
                return False
        landed = ranks.land(self._arrived)
        data = ranks.result_data()
        note_needed(ranks.imported())
        report(landed, ranks, self._panel)
        self._result = RichValue(data) if data is not None and self._show_result else landed.result
        self._then()
        try:
            raise_failure(state, ranks, one.twins)
        except RankFailedError as error:
            self._error = error
        except RunInterrupted as error:
            self._error = error if self._waits else RunStopped(f"the run was interrupted: {error}")
        return True

    def _ask(self, names: list[str]) -> None:
        run = self._name or "run"
        they, them = ("have", "them") if len(names) > 1 else ("has", "it")
        self._panel.tell(
            f"{self.status}; what it changed waits",
            f"{', '.join(names)} {they} been bound or changed in the notebook since this run began, and what "
            f"the run changed waits: {run}.wait() writes it over {them}, {run}.stop() drops it.",
        )

    def _close(self, one: OneShot, status: RunWord) -> None:
        """Give all back."""
        self._status = status
        self._one = self._since = self._arrived = None
        one.end(failed=False)
        if self._thread.is_alive():
            self._thread.join()
        self._between.close()
        self._panel.close(status)
        del _runs[self._label]
        _ended.pop(self._label, None)
        _ended[self._label] = self
        if not _runs:
            atexit.unregister(_end_with_program)


def begin(
    work: Work,
    options: Options,
    shell: Any,
    *,
    show_result: bool,
    then: Callable[[], None] = lambda: None,
) -> Run:
    """Start ranks for one piece of work and return at once; in a batch run, when it has ended.

    Args:
        show_result: as of `run_once`.
        then: called when what the work changed has been written into the notebook.
    """
    if options.hold:
        raise OptionError(
            "--hold: the ranks of a run in the background are not kept after a failure. "
            "Leave out --hold, or --background."
        )
    name = options.background or ""
    _check_free(name)
    if name and (told := check_name(name, work, namespace_of(shell))):
        Screen(shell).note(told)
    # A batch run takes the notebook as a program: what comes after this cell may need what it does.
    waits = shell is not None and not is_watched(shell)
    panel = panel_for(shell, waits=waits, dashboard=options.dashboard)
    one = OneShot(work, options, shell, panel)
    with one.ranks.interrupts.answered(), contextlib.ExitStack() as undo:
        one.start()
        undo.callback(one.ranks.stop)
        if one.ranks.interrupted:
            raise RunInterrupted("the run was stopped before it had begun")
        taken = {*_runs, *live_sessions()}
        label = name or next(free for n in itertools.count(1) if (free := f"run-{n}") not in taken)
        source = source_of(one.ranks, work, panel.tail, name=label, in_background=True)
        run = Run(one, panel, source, name, label, shell, show_result=show_result, then=then)
        if name:
            namespace_of(shell)[name] = run
        undo.pop_all()
        run._begin(waits=waits)
    if waits:
        run.wait()
    return run


def _check_free(name: str) -> None:
    if name in live_runs():
        raise SessionError(
            f"--background {name}: a run of that name has ranks already ({_runs[name].status}). Take "
            f"another name, or end that one first: {name}.wait() waits for it, "
            f"%distributed stop --name {name} ends it."
        )
    if name in live_sessions():
        raise SessionError(
            f"--background {name}: a session of that name is up, and %distributed commands with "
            f"--name {name} are about that. Take another name."
        )


def stop_runs() -> bool:
    """End all runs in the background; whether there were any."""
    runs = live_runs().values()
    with held_back():
        for run in runs:
            run.stop()
    return bool(runs)


def _end_with_program() -> None:
    for name, run in live_runs().items():
        if current_shell() is None and run.status == "running":  # whoever ends a notebook knows of it
            Screen(None).note(
                f"background run {name} had not ended when the program did: it is ended, and what it "
                "has done is lost. Its wait() waits for it."
            )
    stop_runs()


def _ranks(world_size: int) -> str:
    return f"{world_size} rank{'s' if world_size > 1 else ''}"
