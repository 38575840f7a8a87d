"""One-shot runs: ranks that live for one cell or one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbdist import defaults
from nbdist.errors import OptionError
from nbdist.options import Options, from_keywords, spelled
from nbdist.session.ending import RichValue, raise_failure, report
from nbdist.session.held import hold, release
from nbdist.session.method import choose_method
from nbdist.session.opening import assignments_for, load_torch, namespace_of, note_needed, open_ranks
from nbdist.shell import current_shell
from nbdist.start.birth import Birth
from nbdist.values.twins import twins_of
from nbdist.values.walk import reached
from nbdist.views.screen import Screen
from nbdist.worker.work import SHELLS_OWN, CallWork, Wanted, Work


def run_once(work: Work, options: Options, shell: Any, *, show_result: bool) -> Any:
    """Start ranks for one piece of work, bring back what it did, and end them.

    Args:
        show_result: whether a result that stays on its rank is stood in for by what it looks like.
    """
    if options.ranks is not None:
        raise OptionError(
            f"{spelled({'ranks': options.ranks})}: these ranks live for this run alone, and all take part. "
            "Start ranks that stay first (%distributed start), or leave it out."
        )
    load_torch()
    release()
    found = reached(namespace_of(shell), _roots(work, options), work.objects)
    wanted = Wanted(output=options.output, gather=options.gather, max_return=options.max_return)
    birth = Birth(found=found, twins=twins_of(found), work=work, wanted=wanted)
    assignments = assignments_for(options)
    method = choose_method(options.start_method, birth, Screen(shell))
    ranks = open_ranks(assignments, options, shell)
    with ranks.interrupts.answered():
        ranks.start(method, birth, with_ipython=shell is not None)
        kept = False
        try:
            state = ranks.follow(lambda state: state.settled)
            landed = ranks.bring_back()
            data = ranks.result_data()
            note_needed(ranks.imported())
            kept = options.hold and bool(state.failures)
        finally:
            if kept:
                hold(ranks, Screen(shell))
            else:
                ranks.stop()
    report(landed, ranks, Screen(shell))
    raise_failure(state, ranks, birth.twins)
    return RichValue(data) if data is not None and show_result else landed.result


def _roots(work: Work, options: Options) -> set[str]:
    return {*work.reads, *(options.output or ()), *options.gather} - SHELLS_OWN


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
    return run_once(
        CallWork(function, args),
        from_keywords(defaults.current(), **options),
        current_shell(),
        show_result=False,
    )
