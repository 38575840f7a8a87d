"""One-shot runs: ranks that live for one cell or one call."""

from __future__ import annotations

from typing import Any

from nbdist.errors import OptionError
from nbdist.options import Options, spelled
from nbdist.session.ending import RichValue, raise_failure, report
from nbdist.session.held import hold, release
from nbdist.session.method import choose_method
from nbdist.session.opening import assignments_for, load_torch, note_needed, open_ranks
from nbdist.session.ranks import Ranks
from nbdist.session.showing import shown
from nbdist.shell import SHELLS_OWN, namespace_of
from nbdist.start.birth import Birth, twins_of
from nbdist.state import RunState
from nbdist.values.twins import Twins
from nbdist.values.walk import reached
from nbdist.views.screen import Output, Screen
from nbdist.worker.work import Wanted, Work


class OneShot:
    """Ranks for one piece of work: opened, started, followed, ended.

    Args:
        output: where what the ranks print and show goes.

    Attributes:
        ranks: they are not up before `start`.
    """

    def __init__(self, work: Work, options: Options, shell: Any, output: Output):
        if options.ranks is not None:
            raise OptionError(
                f"{spelled({'ranks': options.ranks})}: these ranks live for this run alone, and all take "
                "part. Start ranks that stay first (%distributed start), or leave it out."
            )
        load_torch()
        release()
        found = reached(namespace_of(shell), _roots(work, options), work.objects)
        wanted = Wanted(output=options.output, gather=options.gather, max_return=options.max_return)
        self._birth = Birth(found=found, twins=twins_of(found), work=work, wanted=wanted)
        self._options = options
        self._shell = shell
        assignments = assignments_for(options, shell)
        self._method = choose_method(options.start_method, self._birth, Screen(shell))
        self.ranks: Ranks = open_ranks(assignments, options, shell, output)

    @property
    def twins(self) -> Twins:
        """The notebook's objects that the work can reach."""
        return self._birth.twins

    def start(self) -> None:
        """Start the ranks; they begin with the work."""
        self.ranks.start(self._method, self._birth, with_ipython=self._shell is not None)

    def follow(self) -> RunState:
        """Show what the ranks print, until no rank works any more."""
        return self.ranks.follow(lambda state: state.settled)

    def end(self, *, failed: bool) -> None:
        """End the ranks, or keep them after a failure, where the user asked for that."""
        if failed and self._options.hold:
            hold(self.ranks, Screen(self._shell))
        else:
            self.ranks.stop()


def run_once(work: Work, options: Options, shell: Any, *, show_result: bool) -> Any:
    """Start ranks for one piece of work, bring back what it did, and end them.

    Args:
        show_result: whether a result that stays on its rank is stood in for by what it looks like.
    """
    screen = Screen(shell)
    run = OneShot(work, options, shell, screen)
    ranks = run.ranks
    with ranks.interrupts.answered():
        run.start()
        failed = False
        try:
            with shown(ranks, work, options, shell):
                state = run.follow()
            landed = ranks.bring_back()
            data = ranks.result_data()
            note_needed(ranks.imported())
            failed = bool(state.failures)
        finally:
            run.end(failed=failed)
    report(landed, ranks, screen)
    raise_failure(state, ranks, run.twins)
    return RichValue(data) if data is not None and show_result else landed.result


def _roots(work: Work, options: Options) -> set[str]:
    return {*work.reads, *(options.output or ()), *options.gather} - SHELLS_OWN
