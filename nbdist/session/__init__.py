"""Ranks and the one thread that reads them: start, run, interrupt, stop."""

from nbdist.session.ranks import where_ranks_stand
from nbdist.session.session import Session, launch, run_cell

__all__ = ["Session", "launch", "run_cell", "where_ranks_stand"]
