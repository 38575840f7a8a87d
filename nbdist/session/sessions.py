"""The live sessions of this process, by name, whoever started them: ``%distributed start`` or Python."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nbdist import defaults
from nbdist.errors import Failure, SessionError
from nbdist.options import PLAIN, name_flag
from nbdist.role import rank_here
from nbdist.session.giving_back import held_back

if TYPE_CHECKING:
    from nbdist.session.session import Session

_NAME_ERROR = re.compile(r"name '(\w+)' is not defined")
_sessions: dict[str, Session] = {}
"""Those that are up here, and in a process that was forked those of its parent."""
_told: set[str] = set()
"""Of these, those that `others_up` has named."""


def free_name() -> str:
    """For a session that Python makes without a name: the defaults' if there is one, else one that is in
    nobody's way."""
    own = defaults.current().name
    if own != PLAIN.name:
        return own
    return next(name for n in itertools.count(1) if (name := f"python-{n}") not in _sessions)


def make_room(name: str) -> None:
    """Before a session of that name starts: one whose ranks have died ends.

    Raises:
        SessionError: one of that name is up.
    """
    former = session_named(name)
    if former is None:
        return
    if not former.deaths:
        raise SessionError(
            f"{former} already. End it first (%distributed stop{name_flag(name)}), or start another one "
            "beside it: %distributed start --name other."
        )
    former.stop()


def enter(name: str, session: Session) -> None:
    """A session is up."""
    _sessions[name] = session


def leave(name: str) -> None:
    """A session has ended."""
    _sessions.pop(name, None)
    _told.discard(name)


def session_named(name: str) -> Session | None:
    """The session of that name, if it is up."""
    return live_sessions().get(name)


def live_sessions() -> dict[str, Session]:
    """Those that are up, by name. A rank has none: what it inherits is the notebook's."""
    if rank_here() is not None:
        return {}
    return {name: session for name, session in _sessions.items() if session.running}


def no_such_session(name: str) -> SessionError:
    """What is raised where somebody asks for a session that is not up."""
    others = ", ".join(live_sessions())
    up = f"Up is: {others} (%distributed status)." if others else "None is up."
    start = f"%distributed start{name_flag(name)}"
    return SessionError(f"There is no session {name!r}. {up} Start its ranks first: {start}.")


def notes_on(failures: Iterable[Failure]) -> list[str]:
    """For names that ranks of a run did not find, and that live on the ranks of a session."""
    missing = {found[1] for failure in failures if (found := _NAME_ERROR.match(failure.message))}
    return [
        f"{info.name} lives on the ranks of session {name}, and this run has ranks of its own: "
        f"%distributed pull {info.name} brings it into the notebook first."
        for name, session in live_sessions().items()
        for info in session.names_bound
        if info.name in missing
    ]


def others_up() -> str:
    """For a cell that gets ranks of its own while sessions of other names are up: how it runs there. Once of
    each session."""
    names = live_sessions().keys()
    if names <= _told:
        return ""
    _told.update(names)
    sessions, are = ("sessions", "are") if len(names) > 1 else ("session", "is")
    return (
        f"{sessions} {', '.join(names)} {are} up, and this cell runs on ranks of its own: "
        f"%%distributed --name {next(iter(names))} runs it there."
    )


def stop_sessions() -> None:
    """End all."""
    with held_back():
        for session in live_sessions().values():
            session.stop()
