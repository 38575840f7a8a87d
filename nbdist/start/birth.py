"""What a worker begins with, whichever way it is started."""

from __future__ import annotations

from dataclasses import dataclass

from nbdist.values.files import name_of, users_files
from nbdist.values.twins import Twins
from nbdist.values.walk import Reached, is_definition, is_notebooks
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


def twins_of(found: Reached) -> Twins:
    """Twins for a rank that is forked from this process: what was reached, and, whether the cell reads them
    or not, each function and class of the notebook, which keep their identity, and all open files."""
    for value in found.namespace.values():
        if is_definition(value) and is_notebooks(value, found.namespace):
            found.objects.setdefault(id(value), value)
    held = {id(file): file for file in users_files() if id(file) not in found.objects}
    labels = {**found.labels, **{key: name_of(file) for key, file in held.items()}}
    return Twins(found.namespace, {**found.objects, **held}, labels, held=held.keys())
