"""What a worker begins with, whichever way it is started."""

from __future__ import annotations

from dataclasses import dataclass

from nbdist.values.twins import Twins
from nbdist.values.walk import Reached
from nbdist.worker.work import Wanted, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What all workers of a session begin with.

    Attributes:
        found: what the work may reach in the notebook.
        twins: those objects, as the kernel knows them.
        work: what to do first; None waits for work.
        wanted: which values come back.
    """

    found: Reached
    twins: Twins
    work: Work | None
    wanted: Wanted
