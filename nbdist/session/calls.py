"""A function, as `nbdist.launch` hands it over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbdist import defaults
from nbdist.errors import OptionError
from nbdist.options import check_callable, from_keywords
from nbdist.role import only_notebook
from nbdist.session.background import begin
from nbdist.session.once import run_once
from nbdist.shell import current_shell
from nbdist.worker.work import CallWork


def launch(function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    """Run a function on ranks and give back rank 0's return value.

    Args:
        function: called as ``function(*args)`` on every rank, in a process of its own, with the
            process group made.
        *args: handed to it; under ``fork`` nothing is pickled.
        **options: those of ``%%distributed``, with underscores: ``devices=4``, ``seed=0``. With
            ``background=True`` it returns at once.

    Returns:
        Rank 0's return value; None with a note where it cannot travel. In the background a `Run`.
        What the function changed of its arguments and of the notebook is changed here too, with rank 0's
        values.

    Raises:
        OptionError: a wrong option, or no function (also a TypeError); nothing was started.
        LaunchError: the ranks could not be started.
        RankFailedError: the function failed on a rank.
        SessionError: this is a rank.

    Example:
        >>> nbdist.launch(train, model, devices=2)
    """
    only_notebook("nbdist.launch()")
    check_callable("launch", function)
    work, shell = CallWork(function, args), current_shell()
    asked = from_keywords(defaults.under(options), **options)
    if asked.gather:
        raise OptionError(
            f"gather={','.join(asked.gather)!r}: brings back names that a cell binds, and a function's "
            "names are its own. Return what you want back; Session.run gives every rank's return value."
        )
    start = run_once if asked.background is None else begin
    return start(work, asked, shell, show_result=False)
