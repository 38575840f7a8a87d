"""The notebook's live sessions, by name: what ``%distributed start`` and ``stop`` deal with."""

from __future__ import annotations

from nbdist.errors import SessionError
from nbdist.options import PLAIN, Options
from nbdist.session.session import Session

_sessions: dict[str, Session] = {}


def start_session(options: Options) -> Session:
    """Start the session that `options.name` names, in place of one of that name whose ranks have died.

    Raises:
        SessionError: one of that name is up.
        LaunchError, RankFailedError: its ranks do not come up.
    """
    former = session_named(options.name)
    if former is not None and not former.deaths:
        own = "" if options.name == PLAIN.name else f" --name {options.name}"
        raise SessionError(
            f"{former} already. End it first (%distributed stop{own}), or start another one beside it: "
            "%distributed start --name other."
        )
    if former is not None:
        former.stop()
    session = Session.of(options)
    session.start()
    _sessions[options.name] = session
    return session


def session_named(name: str) -> Session | None:
    """The session of that name, if it is up."""
    session = _sessions.get(name)
    return session if session is not None and session.running else None


def live_sessions() -> dict[str, Session]:
    """Those that are up, by name."""
    return {name: session for name, session in _sessions.items() if session.running}


def no_such_session(name: str) -> SessionError:
    """What is raised where somebody asks for a session that is not up."""
    others = ", ".join(live_sessions())
    up = f"Up is: {others} (%distributed status)." if others else "None is up."
    start = "%distributed start" if name == PLAIN.name else f"%distributed start --name {name}"
    return SessionError(f"There is no session {name!r}. {up} Start its ranks first: {start}.")


def stop_sessions(name: str | None = None) -> bool:
    """End one session, or all; whether there was any."""
    names = [name] if name is not None else list(_sessions)
    ended = [session for session in map(_sessions.pop, names, [None] * len(names)) if session is not None]
    for session in ended:
        session.stop()
    return bool(ended)
