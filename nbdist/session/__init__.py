"""Ranks and the one thread that reads them: start, run, interrupt, stop."""

import sys

if sys.platform == "win32":
    from nbdist.session.elsewhere import (
        Run,
        Session,
        anything_held,
        debug,
        ended_runs,
        held_back,
        launch,
        live_runs,
        live_sessions,
        no_such_session,
        release,
        run_cell,
        session_named,
        shut_down,
        stop_runs,
        stop_sessions,
        warm_up,
        where_ranks_stand,
    )
else:
    from nbdist.session.background import Run, ended_runs, live_runs, stop_runs
    from nbdist.session.calls import launch
    from nbdist.session.cells import run_cell
    from nbdist.session.giving_back import held_back
    from nbdist.session.held import anything_held, debug, release
    from nbdist.session.overview import where_ranks_stand
    from nbdist.session.session import Session
    from nbdist.session.sessions import (
        live_sessions,
        no_such_session,
        session_named,
        stop_sessions,
    )
    from nbdist.start.forkserver import shut_down, warm_up

__all__ = [
    "Run",
    "Session",
    "anything_held",
    "debug",
    "ended_runs",
    "held_back",
    "launch",
    "live_runs",
    "live_sessions",
    "no_such_session",
    "release",
    "run_cell",
    "session_named",
    "shut_down",
    "stop_runs",
    "stop_sessions",
    "warm_up",
    "where_ranks_stand",
]
