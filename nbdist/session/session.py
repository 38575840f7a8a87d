"""Sessions: ranks that stay from one piece of work to the next.

Longer than 400 lines because all that a session can do is read together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from nbdist import defaults
from nbdist.cell import parse_cell
from nbdist.errors import Failure, RunInterrupted, SessionError
from nbdist.looks import NameInfo
from nbdist.options import Options, check_callable, check_lasting, from_keywords, name_flag
from nbdist.role import NotebooksOwn, check_needs, only_notebook
from nbdist.session import asking, telling
from nbdist.session.anew import changed_here
from nbdist.session.ending import RichValue, check_interrupt, raise_failure, report
from nbdist.session.fitting import described, options_in
from nbdist.session.giving_back import held_back
from nbdist.session.held import offer, release, take_back
from nbdist.session.ledger import Ledger
from nbdist.session.logs import tail
from nbdist.session.looking import Answer
from nbdist.session.method import choose_method
from nbdist.session.opening import assignments_for, load_torch, open_ranks
from nbdist.session.overview import status_of
from nbdist.session.ranks import Ranks
from nbdist.session.reloading import Reloads, execute_anew, patches_objects
from nbdist.session.sessions import enter, free_name, leave, make_room
from nbdist.session.showing import shown, title_of
from nbdist.shell import SHELLS_OWN, current_shell, namespace_of
from nbdist.start.birth import Birth, twins_of
from nbdist.state import RunState
from nbdist.values.landing import Landed
from nbdist.values.twins import Twins
from nbdist.values.walk import reached
from nbdist.views.overview import SessionStatus
from nbdist.views.screen import Screen
from nbdist.worker.work import CallWork, CellWork, NoWork, Wanted, Work, bind_names, values_of

_MAX_RETURN_BYTES = 1 << 20
_NOTHING_SENT = "nothing was sent to the ranks"


class Session(NotebooksOwn):
    """Ranks that stay: their names live on from one piece of work to the next.

    Args:
        **options: those of ``%%distributed``, with underscores. Under its ``name`` the notebook's commands
            and cells find it (``%%distributed --name eval``); without one it gets one of its own,
            ``python-1``, which `status` shows.

    Example:
        >>> with nbdist.Session(devices=2) as session:
        ...     session.run(os.getpid)
        [4711, 4712]
    """

    what = "a session"

    def __init__(self, **options: Any):
        self._begin(from_keywords(replace(defaults.current(), name=free_name()), **options))

    @classmethod
    def of(cls, options: Options) -> Session:
        """A session with options that are checked already."""
        session = cls.__new__(cls)
        session._begin(options)
        return session

    def _begin(self, options: Options) -> None:
        only_notebook("nbdist.Session()")
        check_lasting(options, "a session")
        self._options = options
        self._shell = current_shell()
        self._screen = Screen(self._shell)
        self._ranks: Ranks | None = None

    def __enter__(self) -> Session:
        try:
            self.start()
        except BaseException:  # an interrupt that came when they were up: nobody else would end them
            self.stop()
            raise
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
        only_notebook("Session.running")
        return self._own is not None

    def __str__(self) -> str:
        if self._own is None:
            return f"session {self._options.name}: not up"
        what = described(self._options.name, self._own)
        return f"{what}; {telling.of_dead(self.deaths, self._own.ended)}" if self.deaths else what

    def status(self) -> SessionStatus:
        """What is known of the ranks now: nobody waits for one that is busy. (A `Run`'s is no method.)

        Raises:
            SessionError: the session is not running.

        Example:
            >>> session.status().ranks[0].state
            'idle'
        """
        ranks = self._up()
        return status_of(self._options.name, described(self._options.name, ranks), ranks, ranks.names)

    def logs(self, rank: int, lines: int = 200) -> str:
        """The last lines of all that a rank has printed since the session began.

        Args:
            lines: how many at most.

        Raises:
            SessionError: the session is not running, or has no such rank.
        """
        ranks = self._up()
        if not 0 <= rank < len(ranks.assignments):
            raise SessionError(f"There is no rank {rank}. Allowed: 0 to {len(ranks.assignments) - 1}.")
        return tail(ranks.log_files()[rank], lines)

    def options_for(self, cell: Options, given: Collection[str]) -> Options:
        """The options of a cell that runs here: the session's, and over them what the cell's line gives.

        Raises:
            OptionError: it needs other ranks than these.
        """
        return options_in(self._options, self._running(), cell, given)

    @property
    def names_bound(self) -> tuple[NameInfo, ...]:
        """Names that its work has bound on rank 0, as it said last."""
        return self._own.looking.names if self._own is not None else ()

    @property
    def names(self) -> Collection[str]:
        """Names that its ranks have and the notebook has not."""
        return {info.name for info in self.names_bound} - namespace_of(self._shell).keys()

    def look(self, expression: str, help: Mapping[str, Any] | None = None) -> Answer:
        """What rank 0 says of an object, or said last if it is busy or does not answer at once.

        Args:
            expression: a name, with attributes and constant items behind it: ``model.layers[0]``.
            help: None asks for its attributes; else arguments of IPython's ``object_inspect_mime``.
        """
        return self._own.looking.ask(expression, help) if self._own is not None else None

    def start(self) -> None:
        """Start the ranks and wait until their process group stands. Ranks that are left of a session of
        which one has died end first.

        Raises:
            SessionError: it runs already, or another one of its name does.
            LaunchError, RankFailedError: the ranks do not come up; none is left.
        """
        only_notebook("Session.start()")
        load_torch()
        release()
        if self._own is not None and not self.deaths:
            raise SessionError(
                "This session has been started already. Call stop() first, or make another Session."
            )
        make_room(self._options.name)
        namespace = namespace_of(self._shell)
        assignments = assignments_for(self._options, self._shell)
        birth = _birth(namespace, ())
        method = choose_method(self._options.start_method, birth, Screen(self._shell))
        if method == "fork":  # these ranks begin with all that the notebook has
            birth = _birth(namespace, namespace.keys() - SHELLS_OWN)
        self._twins = birth.twins
        self._reloads = Reloads(self._shell)
        self._ledger = Ledger(birth.twins, namespace if method == "fork" else {})
        ranks = open_ranks(assignments, self._options, self._shell, live=True)
        ranks.label = f"session {self._options.name}"
        with ranks.owner.working("start"):
            ranks.start(method, birth, with_ipython=self._shell is not None)
            self._ranks = ranks
            enter(self._options.name, self)
            self._twins.names = {}  # the ranks have them; here they would keep old values alive
            state = ranks.follow(lambda state: state.settled)
            if state.broken_off or ranks.interrupted:
                self.stop()
                raise_failure(state, ranks, self._twins)

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call ``function(*args, **kwargs)`` on every rank.

        Its arguments are copies, and what it changes stays on the ranks: return what you want back. While the
        ranks work for another thread this one waits for its turn.

        Returns:
            The return values, by rank.

        Raises:
            OptionError (also TypeError): that is no function.
            SessionError: the session is not running.
            RankFailedError: the function failed on a rank. The ranks live on, with a fresh process group.
            KeyboardInterrupt: the run was interrupted; likewise.
        """
        check_callable("run", function)
        work = CallWork(function, args, kwargs)
        with self._working(f"run({title_of(work)})") as ranks:
            self._reload(ranks)
            return self._call(work, ranks)

    def _reload(self, ranks: Ranks) -> None:
        """Have the ranks execute those of the user's modules anew that the notebook has."""
        names = self._reloads.taken()
        if names:
            work = CallWork(execute_anew, (names, patches_objects(self._shell)))
            there = [*dict.fromkeys(name for found in self._call(work, ranks) for name in found)]
            self._note([f"reloaded on the ranks: {', '.join(there)}"] if there else [])

    def _call(self, work: CallWork, ranks: Ranks) -> list[Any]:
        state, landed = self._do(work, Wanted(results=True, live=True, output=()), self._options, ranks)
        self._raise_if_failed(ranks, state)
        report(landed, ranks, self._screen)
        return [landed.results.get(rank) for rank in range(len(ranks.assignments))]

    def run_work(self, work: Work, options: Options) -> Any:
        """Do a piece of the notebook's work, a cell, and write what it changed into the notebook.

        Args:
            options: of this work alone.

        Returns:
            Rank 0's result.
        """
        most = _MAX_RETURN_BYTES if options.max_return is None else options.max_return
        lead = options.ranks[0] if options.ranks else 0
        wanted = Wanted(output=options.output, gather=options.gather, max_return=most, live=True, lead=lead)
        with self._working(f"a {title_of(work)}") as ranks:
            self._reload(ranks)
            state, landed = self._do(work, wanted, options, ranks)
            data = ranks.result_data()
            report(landed, ranks, self._screen)
            self._raise_if_failed(ranks, state)
        return RichValue(data) if data is not None else landed.result

    def run_cell(self, text: str) -> Any:
        """Run a cell's text in the ranks, with the notebook's names, as ``%%distributed`` does.

        Returns:
            Rank 0's value of the last expression; None where the cell shows none.

        Raises:
            SessionError: there is no IPython.
            RankFailedError: it failed on a rank; rank 0's changes are in the notebook all the same.
        """
        if self._shell is None:
            raise SessionError("run_cell: no IPython is running here. Call run() with a function instead.")
        cell = parse_cell(text, self._shell.transform_cell)
        check_needs(cell.needs - {info.name for info in self.names_bound}, self._shell.user_ns)
        work = CellWork(cell, "run_cell", number=self._shell.displayhook.prompt_count)
        result = self.run_work(work, self._options)
        return result if cell.has_result else None

    def push(self, **values: Any) -> None:
        """Bind names on all ranks, each to a copy of its value.

        Raises:
            SessionError: a value cannot be sent.

        Example:
            >>> session.push(rate=0.1)
        """
        with self._working("push") as ranks:
            self._call(CallWork(bind_names, (values,)), ranks)
            self._ledger.bound_there(values)

    def pull(self, *names: str, rank: int = 0) -> Any:
        """A rank's values of names, however large they are; nothing is bound.

        Returns:
            A copy of the value; of several names a tuple of them.

        Raises:
            SessionError: the rank has no such name, there is no such rank, or a value does not travel.

        Example:
            >>> session.pull("model", rank=1)
        """
        world_size = len(self._running().assignments)
        if not 0 <= rank < world_size:
            raise SessionError(f"pull(rank={rank}): there are ranks 0 to {world_size - 1}.")
        with self._working("pull") as ranks:
            found = self._call(CallWork(values_of, (names, rank)), ranks)[rank]
        if found is None:
            raise SessionError(f"pull({', '.join(map(repr, names))}): a value does not travel.")
        missing = [name for name in names if name not in found]
        if missing:
            raise SessionError(
                f"pull({', '.join(map(repr, names))}): rank {rank} has no {', '.join(missing)}."
            )
        return found[names[0]] if len(names) == 1 else tuple(found[name] for name in names)

    def send_names(self, *names: str) -> None:
        """Send the notebook's values of names to all ranks, whatever they have.

        Raises:
            SessionError: a name is not there, or its value cannot be sent.
        """
        asking.check_push(names, namespace_of(self._shell))
        with self._working("push") as ranks:
            self._do(NoWork(), Wanted(live=True, output=()), self._options, ranks, push=names)
            check_interrupt(ranks, "the ranks may have the new values")

    def bring_names(self, *names: str, rank: int | None = None) -> int:
        """Bring a rank's values of names into the notebook, however large they are and whatever the notebook
        has made of its own: what it had is changed in place, if it is rank 0's. Another rank may have died.

        Args:
            rank: None for the first that lives.

        Returns:
            The rank.

        Raises:
            SessionError: it has no such name, it is not there, or a new value does not travel.
        """
        alive = self._up().state.alive
        if not alive:
            raise SessionError(self._after_death())
        rank = min(alive) if rank is None else rank
        here = namespace_of(self._shell)
        there = {info.name for info in self.names_bound}
        unknown = [name for name in names if name not in there and not self._ledger.knows(name)]
        asking.check_pull(names, rank, alive, [name for name in unknown if name in here])
        with self._working("pull", without=self.deaths.keys() - {rank}) as ranks:
            with self._found_out(ranks) as looking, looking:
                whole = changed_here(self._twins, names) if rank == 0 else frozenset()
            wanted = Wanted(live=True, output=names, whole=whole, lead=rank)
            _, landed = self._do(NoWork(), wanted, self._options, ranks, alone=True, dropped_by=1)
            check_interrupt(ranks, "what was pulled is in the notebook")
            of_rank = "" if rank == ranks.runs_on[0] else f" of rank {rank}"
            lost = [name for name in names if f"{name}{of_rank}" in landed.lost]
            absent = {name: landed.lost.pop(f"{name}{of_rank}") for name in lost}
            report(landed, ranks, self._screen)
        if absent:
            raise asking.not_handed_over(names, rank, absent, there | here.keys())
        return rank

    @contextlib.contextmanager
    def _working(self, what: str, without: Collection[int] = ()) -> Iterator[Ranks]:
        """Its ranks, which work for this thread alone while the block runs.

        Args:
            what: they do, as the user would call it.
            without: ranks that may have died.
        """
        ranks = self._running(without)
        with ranks.owner.working(what):
            self._check_up(ranks)
            self._running(without)
            yield ranks
            check_interrupt(ranks, "the ranks had ended their work by then")

    def _do(
        self,
        work: Work,
        wanted: Wanted,
        options: Options,
        ranks: Ranks,
        push: Iterable[str] = (),
        *,
        alone: bool = False,
        dropped_by: int = 2,
    ) -> tuple[RunState, Landed]:
        """Send work to the ranks, follow it to its end, and take what they hand over.

        Args:
            alone: whether each rank can do it by itself, also when another has died.
            dropped_by: the how manieth interrupt drops what they hand over.
        """
        with self._found_out(ranks) as looking:
            news = self._ledger.news(work, wanted, push, options.ranks, looking)
        try:
            self._check_up(ranks)
            check_interrupt(ranks, _NOTHING_SENT)
            self._note(telling.of_news(news, quiet=bool(push) or wanted.results))
            take_back(ranks)
            ranks.send(replace(news.message, ranks=options.ranks), news.fds, options, need_all=not alone)
            self._ledger.sent(news)
        finally:
            news.close()
        try:
            with shown(ranks, work, options, self._shell):
                state = ranks.follow(lambda state: state.settled)
        except BaseException:  # the front end is gone, say: nobody would know what the ranks are at
            self.stop()
            raise
        self._check_up(ranks)
        kept = dict(self._ledger.kept)
        try:
            landed = ranks.bring_back(wanted.lead, dropped_by=dropped_by)
        except RunInterrupted:
            self._tell_of_deaths()
            raise
        if wanted.lead == 0:
            self._ledger.took(landed, [ranks.handed_over(rank) for rank in range(len(ranks.assignments))])
        else:
            self._ledger.bound_here(landed.names)
        self._ledger.bound_by(landed.names, options.ranks)
        if any(rank.untaken for rank in state.ranks):
            self._ledger.untaken(news)
        self._note(telling.of_kept(kept, self._ledger.kept))
        return state, landed

    @contextlib.contextmanager
    def _found_out(self, ranks: Ranks) -> Iterator[contextlib.AbstractContextManager[None]]:
        """Large values, and code of the user's, may take long: gives the block in which an interrupt is a way
        out. Nothing has been sent then."""
        try:
            yield ranks.interrupts.raised(1)
        except KeyboardInterrupt:
            self._check_up(ranks)
            raise RunInterrupted(_NOTHING_SENT) from None

    def _note(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._screen.note(line)

    def stop(self) -> None:
        """End the ranks, whatever they do, also for another thread. A session that has ended stays so, and in
        a process that was forked from its own there is nothing to end."""
        only_notebook("Session.stop()")
        with held_back():
            ranks = self._own
            if ranks is not None:
                self._ranks = None
                leave(self._options.name)
                take_back(ranks)
                ranks.owner.evict()
                ranks.stop()

    @property
    def deaths(self) -> Mapping[int, Failure]:
        """Ranks that have died, and how. The others only wait to be looked into."""
        return {} if self._own is None else self._own.state.deaths

    @property
    def _own(self) -> Ranks | None:
        """Its ranks, if they are up and this process', not its parent's."""
        return self._ranks if self._ranks is not None and self._ranks.owner.is_here else None

    def _up(self) -> Ranks:
        """Its ranks, whatever state they are in."""
        only_notebook("a session")
        ranks = self._own
        if ranks is None and self._ranks is not None:
            raise SessionError(telling.OF_ANOTHER_PROCESS)
        if ranks is None:
            raise SessionError(
                "This session is not running. Use it as `with nbdist.Session() as s:` or call start()."
            )
        return ranks

    def _check_up(self, ranks: Ranks) -> None:
        """While this thread waited for its ranks another one may have ended them."""
        if self._ranks is not ranks:
            raise SessionError("This session was stopped meanwhile, by another thread.")

    def _running(self, without: Collection[int] = ()) -> Ranks:
        """Its ranks, all of them alive, or all but those that may have died."""
        ranks = self._up()
        if self.deaths.keys() - set(without):
            raise SessionError(self._after_death())
        return ranks

    def _after_death(self) -> str:
        ranks, own = self._up(), name_flag(self._options.name)
        return telling.of_deaths(self.deaths, ranks.ended, own, any_alive=bool(ranks.state.alive))

    def _raise_if_failed(self, ranks: Ranks, state: RunState) -> None:
        """Raise what a work ended with. The ranks meet anew before the next one."""
        if not state.broken_off and not ranks.interrupted:
            return
        offer(ranks)
        self._tell_of_deaths()
        raise_failure(state, ranks, self._twins)

    def _tell_of_deaths(self) -> None:
        if self.deaths:
            self._screen.note(self._after_death())


def _birth(namespace: dict[str, Any], names: Iterable[str]) -> Birth:
    """For ranks that begin with these names of the notebook, and wait for work."""
    found = reached(namespace, names)
    twins = twins_of(found) if found.names else Twins(namespace, {}, {})
    return Birth(found=found, twins=twins, work=None, wanted=Wanted(output=(), live=True))
