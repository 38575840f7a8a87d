"""Sessions: ranks that stay from one piece of work to the next."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any

from nbdist.errors import SessionError
from nbdist.options import Options, from_keywords
from nbdist.session.ending import RichValue, raise_failure, report
from nbdist.session.held import release
from nbdist.session.ledger import Ledger
from nbdist.session.method import choose_method
from nbdist.session.opening import assignments_for, load_torch, namespace_of, open_ranks
from nbdist.session.ranks import Ranks
from nbdist.shell import current_shell
from nbdist.start.birth import Birth
from nbdist.state import RunState
from nbdist.values.twins import Twins, twins_of
from nbdist.values.walk import reached
from nbdist.views.screen import Screen
from nbdist.worker.work import CallWork, Wanted, Work

_MAX_RETURN_BYTES = 1 << 20


class Session:
    """Ranks that stay: their names live on from one piece of work to the next.

    Args:
        **options: those of ``%%distributed``, with underscores.

    Example:
        >>> with nbdist.Session(devices=2) as session:
        ...     session.run(os.getpid)
        [4711, 4712]
    """

    def __init__(self, **options: Any):
        self._begin(from_keywords(**options))

    @classmethod
    def of(cls, options: Options) -> Session:
        """A session with options that are checked already."""
        session = cls.__new__(cls)
        session._begin(options)
        return session

    def _begin(self, options: Options) -> None:
        self._options = options
        self._shell = current_shell()
        self._ranks: Ranks | None = None

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def options(self) -> Options:
        """What its ranks were started with."""
        return self._options

    @property
    def running(self) -> bool:
        """Whether its ranks are up."""
        return self._ranks is not None

    @property
    def names(self) -> Collection[str]:
        """Names that its ranks have and the notebook has not."""
        return frozenset()

    def start(self) -> None:
        """Start the ranks and wait until their process group stands.

        Raises:
            SessionError: it runs already.
            LaunchError, RankFailedError: the ranks do not come up; none is left.
        """
        load_torch()
        release()
        if self._ranks is not None:
            raise SessionError(
                "This session has been started already. Call stop() first, or make another Session."
            )
        found = reached(namespace_of(self._shell), ())
        birth = Birth(found=found, twins=twins_of(found), work=None, wanted=Wanted())
        assignments = assignments_for(self._options)
        method = choose_method(self._options.start_method, birth, Screen(self._shell))
        ranks = open_ranks(assignments, self._options, self._shell)
        self._twins = birth.twins
        if method != "fork":  # these ranks begin with nothing of the notebook
            self._twins = Twins(found.namespace, {}, {})
            self._twins.names = {}
        self._ledger = Ledger(self._twins)
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
        wanted = Wanted(results=True, by_value=True, output=())
        ranks = self._running()
        with ranks.interrupts.answered():
            state = self._do(CallWork(function, args, kwargs), wanted, self._options)
            self._end_if_failed(ranks, state)
            results = ranks.results()
            for title, reason in ranks.lost().items():
                Screen(self._shell).note(f"{title} stays behind: {reason}")
            return results

    def run_work(self, work: Work, options: Options) -> Any:
        """Do a piece of the notebook's work, a cell, and write what it changed into the notebook.

        Args:
            options: of this work alone.

        Returns:
            Rank 0's result.
        """
        ranks = self._running()
        most = _MAX_RETURN_BYTES if options.max_return is None else options.max_return
        wanted = Wanted(output=options.output, gather=options.gather, max_return=most, by_value=True)
        with ranks.interrupts.answered():
            state = self._do(work, wanted, options)
            landed = ranks.bring_back()
            data = ranks.result_data()
            self._ledger.saw(landed.names)
        report(landed, ranks, Screen(self._shell))
        self._end_if_failed(ranks, state)
        return RichValue(data) if data is not None else landed.result

    def _do(self, work: Work, wanted: Wanted, options: Options) -> RunState:
        """Send work to the ranks and follow it to its end."""
        ranks = self._running()
        parcel, fd, lost = self._ledger.pack(work, wanted)
        try:
            if "work" in lost:
                raise SessionError(f"{work} cannot be sent to the ranks: {lost['work']}")
            ranks.send(parcel, fd, options)
            return ranks.follow(lambda state: state.settled)
        finally:
            os.close(fd)

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
            raise_failure(state, ranks, self._twins)
