"""The Python interface: one-shot cells and calls, and sessions whose ranks stay."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from nbdist.cell import Cell, dotted_imports, unknown_outputs
from nbdist.devices import as_local, resolve, this_machine
from nbdist.errors import OptionError, RunInterrupted, SessionError
from nbdist.messages import Assignment
from nbdist.options import Options, from_keywords
from nbdist.session.held import hold, release
from nbdist.session.method import choose_method
from nbdist.session.ranks import Ranks
from nbdist.shell import current_shell
from nbdist.start.birth import Birth
from nbdist.state import RunState
from nbdist.values.foreign import call_foreign
from nbdist.values.graph import load_error
from nbdist.values.landing import Landed
from nbdist.values.parcel import pack
from nbdist.values.twins import Twins, twins_of
from nbdist.values.walk import reached
from nbdist.views.failure import failure_of
from nbdist.views.screen import Screen, is_watched
from nbdist.views.text import TextView
from nbdist.worker.work import SHELLS_OWN, CallWork, CellWork, Wanted, Work


def assignments_for(options: Options) -> list[Assignment]:
    """Who is on which device."""
    chosen = resolve(options.devices, options.accelerator, this_machine())
    devices, visible = as_local(chosen)
    backend = options.backend or ("nccl" if devices[0].startswith("cuda") else "gloo")
    return [
        Assignment(
            rank=rank,
            world_size=len(devices),
            device=device,
            backend=backend,
            master_port=0,
            timeout_s=options.timeout,
            seed=options.seed,
            strategy=options.strategy,
            init=options.init,
            visible_devices=visible,
        )
        for rank, device in enumerate(devices)
    ]


class RichValue:
    """Stands for a value that stayed on rank 0: shows as that value does."""

    def __init__(self, data: Any):
        self._data = dict(data)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return self._data

    def __repr__(self) -> str:
        return str(self._data.get("text/plain", ""))


def _namespace(shell: Any) -> dict[str, Any]:
    namespace: dict[str, Any] = shell.user_ns if shell is not None else sys.modules["__main__"].__dict__
    return namespace


def _open(assignments: list[Assignment], options: Options, shell: Any) -> Ranks:
    batch = not is_watched(shell)
    view = partial(_text_view, len(assignments), batch, options.logs)
    return Ranks(assignments, options, Screen(shell), view)


def _text_view(world_size: int, batch: bool, logs: Any, folder: str) -> TextView:
    return TextView(world_size, batch=batch, logs=logs, log_dir=folder)


_needed_parts: set[str] = set()


def _load_torch() -> None:
    """Import before the fork, once here instead of once in each rank, what ranks need: torch, and the
    parts of it that earlier ranks had to import (an optimizer's first use takes more than a second)."""
    import torch.distributed  # noqa: F401

    environment = dict(os.environ)
    while _needed_parts:
        call_foreign(partial(importlib.import_module, _needed_parts.pop()))
    for name in os.environ.keys() - environment.keys():  # torch notes a folder there, and will again
        del os.environ[name]


def _run_once(work: Work, options: Options, shell: Any, *, show_result: bool) -> Any:
    """Start ranks for one piece of work, bring back what it did, and end them."""
    _load_torch()
    release()
    found = reached(_namespace(shell), _roots(work, options), work.objects)
    wanted = Wanted(output=options.output, gather=options.gather, max_return=options.max_return)
    birth = Birth(found=found, twins=twins_of(found), work=work, wanted=wanted)
    assignments = assignments_for(options)
    method = choose_method(options.start_method, birth, Screen(shell))
    ranks = _open(assignments, options, shell)
    with ranks.interrupts.answered():
        ranks.start(method, birth, with_ipython=shell is not None)
        kept = False
        try:
            state = ranks.follow(lambda state: state.settled)
            landed = ranks.bring_back()
            data = ranks.result_data()
            _needed_parts.update(ranks.imported())
            kept = options.hold and bool(state.failures)
        finally:
            if kept:
                hold(ranks, Screen(shell))
            else:
                ranks.stop()
    _report(landed, ranks, Screen(shell))
    _raise_failure(state, ranks, birth.twins)
    return RichValue(data) if data is not None and show_result else landed.result


def _roots(work: Work, options: Options) -> set[str]:
    return {*work.reads, *(options.output or ()), *options.gather} - SHELLS_OWN


def _report(landed: Landed, ranks: Ranks, screen: Screen) -> None:
    for name, reason in landed.lost.items():
        screen.note(f"{name} stays behind: {reason}")
    if ranks.logs.trouble is not None:
        screen.note(
            f"the log files in {ranks.logs.folder} are not complete: {ranks.logs.trouble}. "
            "NBDIST_LOG_DIR in the environment names another place."
        )


def _raise_failure(state: RunState, ranks: Ranks, twins: Twins) -> None:
    if ranks.interrupted or (state.broken_off and not state.failures):
        raise RunInterrupted(f"all {len(state.ranks)} ranks were stopped")
    if state.failures:
        logs = ranks.logs
        folder = str(logs.folder) if logs.folder.exists() and logs.trouble is None else ""
        error = failure_of(state, folder, whole=current_shell() is None)
        pickled = error.failures[0].pickled
        raise error from (load_error(pickled, twins) if pickled is not None else None)


def run_cell(shell: Any, cell: Cell, first_line: str, options: Options) -> Any:
    """Run a notebook's cell on ranks, as the magic does.

    Returns:
        The last expression's value, or None where the cell shows none.

    Raises:
        OptionError: before anything starts.
        RankFailedError: the cell failed; rank 0's changes are in the notebook all the same.
        KeyboardInterrupt: the run was interrupted.
    """
    for option, names in (("--output", options.output or ()), ("--gather", options.gather)):
        unknown = sorted(unknown_outputs(cell, names, shell.user_ns))
        if unknown:
            raise OptionError(
                f"{option} {','.join(names)}: neither the notebook nor the cell has {', '.join(unknown)}. "
                "Allowed: names of the notebook and names that the cell binds. "
                "Correct the name, or leave it out."
            )
    # Before the fork: once here instead of once in each rank.
    from nbdist.worker.notebook import know_cell

    work = CellWork(cell, first_line)
    know_cell(shell, work.text)
    try:
        result = _run_once(work, options, shell, show_result=True)
    except RunInterrupted:
        raise
    except KeyboardInterrupt:
        raise RunInterrupted("nothing was started") from None
    for module in dotted_imports(cell):
        call_foreign(partial(importlib.import_module, module))
    return result if cell.has_result else None


def launch(function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    """Run a function on ranks and give back rank 0's return value.

    Args:
        function: called as ``function(*args)`` on every rank, in a process of its own, with the
            process group made.
        *args: handed to it; under ``fork`` nothing is pickled.
        **options: those of ``%%distributed``, with underscores: ``devices=4``, ``seed=0``.

    Returns:
        Rank 0's return value; None with a note where it cannot travel. What the function changed
        of its arguments and of the notebook is changed here too, with rank 0's values.

    Raises:
        OptionError: a wrong option; nothing was started.
        LaunchError: the ranks could not be started.
        RankFailedError: the function failed on a rank.

    Example:
        >>> nbdist.launch(train, model, devices=2)
    """
    if not callable(function):
        raise OptionError(f"launch({function!r}): not callable. Pass a function, then its arguments.")
    return _run_once(CallWork(function, args), from_keywords(**options), current_shell(), show_result=False)


class Session:
    """Ranks that stay: each `run` calls a function on all of them.

    Args:
        **options: those of ``%%distributed``, with underscores.

    Example:
        >>> with nbdist.Session(devices=2) as session:
        ...     session.run(os.getpid)
        [4711, 4712]
    """

    def __init__(self, **options: Any):
        self._options = from_keywords(**options)
        self._shell = current_shell()
        self._ranks: Ranks | None = None

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Fork the ranks and wait until their process group stands.

        Raises:
            SessionError: it runs already.
            LaunchError, RankFailedError: the ranks do not come up; none is left.
        """
        _load_torch()
        release()
        if self._ranks is not None:
            raise SessionError(
                "This session has been started already. Call stop() first, or make another Session."
            )
        found = reached(_namespace(self._shell), ())
        wanted = Wanted(results=True, by_value=True, output=())
        birth = Birth(found=found, twins=twins_of(found), work=None, wanted=wanted)
        assignments = assignments_for(self._options)
        method = choose_method(self._options.start_method, birth, Screen(self._shell))
        ranks = _open(assignments, self._options, self._shell)
        self._twins = birth.twins
        if method != "fork":  # these ranks begin with nothing of the notebook
            self._twins = Twins(found.namespace, {}, {})
            self._twins.names = {}
        with ranks.interrupts.answered():
            ranks.start(method, birth, with_ipython=self._shell is not None)
            self._ranks = ranks
            state = ranks.follow(lambda state: not any(rank.phase == "starting" for rank in state.ranks))
            self._end_if_failed(ranks, state)

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call ``function(*args, **kwargs)`` on every rank.

        Its arguments are copies, and what it changes stays on the ranks: return what you want back.

        Returns:
            The return values, by rank.

        Raises:
            SessionError: the session is not running.
            RankFailedError: the function failed on a rank; the session has ended.
        """
        ranks = self._running()
        values = {**self._new_names(function, args, kwargs), "call": (function, args, kwargs)}
        parcel, fd, lost = pack(values, self._twins, definitions_only=True)
        try:
            if lost:
                raise SessionError(
                    f"{function!r} and its arguments cannot be sent to the ranks: {lost['call']}"
                )
            with ranks.interrupts.answered():
                ranks.send(parcel, fd)
                state = ranks.follow(lambda state: state.settled)
                self._end_if_failed(ranks, state)
                results = ranks.results()
                for title, reason in ranks.lost().items():
                    Screen(self._shell).note(f"{title} stays behind: {reason}")
                return results
        finally:
            os.close(fd)

    def _new_names(self, *call: Any) -> dict[str, Any]:
        """Names that the call may read and that the notebook has bound anew since the ranks saw them."""
        namespace, seen = self._twins.namespace, self._twins.names
        names = reached(namespace, (), {"the call": call}).names
        new = {name: namespace[name] for name in names if seen.get(name, self) is not namespace[name]}
        seen.update(new)
        return {f"name:{name}": value for name, value in new.items()}

    def stop(self) -> None:
        """End the ranks. A session that has ended stays so."""
        if self._ranks is not None:
            ranks, self._ranks = self._ranks, None
            ranks.stop()

    def _running(self) -> Ranks:
        if self._ranks is None:
            raise SessionError(
                "This session is not running. Use it as `with nbdist.Session() as s:` or call start()."
            )
        return self._ranks

    def _end_if_failed(self, ranks: Ranks, state: RunState) -> None:
        if state.broken_off or ranks.interrupted:
            self.stop()
            _raise_failure(state, ranks, self._twins)
