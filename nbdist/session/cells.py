"""A notebook's cell, as the magic hands it over: run by ranks that are up, or by ranks of its own."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from functools import partial
from typing import Any

from nbdist.cell import Cell, unknown_outputs
from nbdist.errors import OptionError
from nbdist.options import Options
from nbdist.role import check_needs
from nbdist.session.background import begin
from nbdist.session.once import run_once
from nbdist.session.sessions import no_such_session, others_up, session_named
from nbdist.values.foreign import call_foreign
from nbdist.views.screen import Screen
from nbdist.worker.work import CellWork


def run_cell(shell: Any, cell: Cell, first_line: str, options: Options, given: Collection[str] = ()) -> Any:
    """Run a notebook's cell on ranks, as the magic does.

    Args:
        options: what holds for it.
        given: names of the options that its own line gives.

    Returns:
        The last expression's value, or None where the cell shows none. In the background: a `Run`.

    Raises:
        OptionError, SessionError, CellSyntaxError: before anything starts.
        RankFailedError: the cell failed; rank 0's changes are in the notebook all the same.
        KeyboardInterrupt: the run was interrupted.
    """
    live = session_named(options.name) if options.background is None else None
    if live is not None:
        options = live.options_for(options, given)
    elif "name" in given and options.background is None:
        raise no_such_session(options.name)
    for option, names in (("--output", options.output or ()), ("--gather", options.gather)):
        known = shell.user_ns.keys() if live is None else live.names | shell.user_ns.keys()
        unknown = sorted(unknown_outputs(cell, names, known))
        if unknown:
            raise OptionError(
                f"{option} {','.join(names)}: neither the notebook nor the cell has {', '.join(unknown)}. "
                "Allowed: names of the notebook and names that the cell binds. "
                "Correct the name, or leave it out."
            )
    of_ranks = {info.name for info in live.names_bound} if live is not None else set()
    check_needs(cell.needs - of_ranks, shell.user_ns)
    # Before the fork: once here instead of once in each rank.
    from nbdist.worker.notebook import know_cell

    work = CellWork(cell, first_line, number=shell.displayhook.prompt_count)
    know_cell(shell, work.text)
    if options.background is not None:
        return begin(work, options, shell, show_result=cell.has_result, then=partial(_import_here, cell))
    if live is None and (hint := others_up()):
        Screen(shell).note(hint)
    run = partial(run_once, shell=shell, show_result=True) if live is None else live.run_work
    result = run(work, options)
    _import_here(cell)
    return result if cell.has_result else None


def _import_here(cell: Cell) -> None:
    for module in cell.dotted_imports:
        call_foreign(partial(importlib.import_module, module))
