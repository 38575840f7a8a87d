"""Ranks and the one thread that reads them: start, run, interrupt, stop."""

from nbdist.session.held import anything_held, debug, release
from nbdist.session.ranks import where_ranks_stand
from nbdist.session.session import Session, launch, run_cell

__all__ = ["Session", "anything_held", "debug", "launch", "release", "run_cell", "where_ranks_stand"]
