"""Which options a cell may have in a session that is up: those that its ranks were started with hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nbdist.devices import resolve, this_machine
from nbdist.errors import OptionError, ranks_phrase
from nbdist.options import Options, name_flag, spelled
from nbdist.session.ranks import Ranks

_OF_START = ("devices", "accelerator", "backend", "start_method", "seed", "timeout", "strategy", "init")


def options_in(session: Options, ranks: Ranks, cell: Options, given: Collection[str]) -> Options:
    """The options of a cell: those of its session, and over them what the cell's own line gives.

    Args:
        session: what the session was started with.
        ranks: the session's.
        cell: what holds for the cell.
        given: names of the options that its line gives.

    Raises:
        OptionError: it needs other ranks than those that are up.
    """
    for name in _OF_START:
        if name in given and not _fits(name, session, ranks, cell):
            raise _misfit(name, session, ranks, cell)
    options = replace(session, **{name: getattr(cell, name) for name in given})
    unknown = [rank for rank in options.ranks or () if rank >= len(ranks.assignments)]
    if unknown:
        raise OptionError(
            f"{spelled({'ranks': options.ranks})}: this session has no {ranks_phrase(unknown)}. "
            f"Allowed: ranks 0 to {len(ranks.assignments) - 1}."
        )
    return options


def _fits(name: str, session: Options, ranks: Ranks, cell: Options) -> bool:
    wanted = getattr(cell, name)
    if name == "devices":
        return resolve(wanted, session.accelerator, this_machine()) == devices_of(ranks)
    if name == "accelerator":
        return wanted in ("auto", devices_of(ranks)[0].partition(":")[0])
    if name == "backend":
        return bool(wanted == ranks.assignments[0].backend)
    if name == "start_method":
        return wanted in ("auto", session.start_method, ranks.start_method)
    return bool(wanted == getattr(session, name))


def _misfit(name: str, session: Options, ranks: Ranks, cell: Options) -> OptionError:
    told = spelled({name: getattr(cell, name)})
    own = name_flag(session.name)
    return OptionError(
        f"{told}: {described(session.name, ranks)}, and this is settled when a session starts. "
        f"Leave it out to run the cell there, or end that one first (%distributed stop{own}), or start "
        f"another one beside it: %distributed start --name other {told}."
    )


def devices_of(ranks: Ranks) -> tuple[str, ...]:
    """The device of each rank, as this process would call it."""
    return tuple(assignment.chosen_device for assignment in ranks.assignments)


def described(name: str, ranks: Ranks) -> str:
    """What is up: ``session main: 4 ranks on the CPU are up``, or, once some have died, ``1 of 4 ranks``."""
    devices = devices_of(ranks)
    where = "the CPU" if devices[0] == "cpu" else ", ".join(devices)
    count, alive = len(devices), len(ranks.state.alive)
    number = f"{count}" if alive == count else f"{alive} of {count}"
    verb = "is" if alive == 1 else "are"
    return f"session {name}: {number} rank{'s' if count > 1 else ''} on {where} {verb} up"
