"""Ranks and the one thread that reads them: start, run, interrupt, stop."""

import sys

if sys.platform == "win32":
    from nbdist.session.elsewhere import (
        Session,
        anything_held,
        debug,
        launch,
        release,
        run_cell,
        shut_down,
        warm_up,
        where_ranks_stand,
    )
else:
    from nbdist.session.held import anything_held, debug, release
    from nbdist.session.ranks import where_ranks_stand
    from nbdist.session.session import Session, launch, run_cell
    from nbdist.start.forkserver import shut_down, warm_up

__all__ = [
    "Session",
    "anything_held",
    "debug",
    "launch",
    "release",
    "run_cell",
    "shut_down",
    "warm_up",
    "where_ranks_stand",
]
