"""Ranks and the one thread that reads them: start, run, interrupt, stop."""

from nbdist.session.session import Session, launch, run_cell

__all__ = ["Session", "launch", "run_cell"]
