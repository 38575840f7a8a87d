"""What a session's ranks have seen of the notebook, and what they must be told before their next work."""

from __future__ import annotations

from typing import Any

from nbdist.messages import Parcel
from nbdist.values.parcel import pack
from nbdist.values.twins import Twins
from nbdist.values.walk import reached
from nbdist.worker.work import SHELLS_OWN, Wanted, Work


class Ledger:
    """Of one session.

    Args:
        twins: the notebook's objects that the ranks began with.
    """

    def __init__(self, twins: Twins):
        self._twins = twins

    def pack(self, work: Work, wanted: Wanted) -> tuple[Parcel, int, dict[str, str]]:
        """Work for the ranks, with the names that it may read and that the notebook has bound anew since
        they saw them; as `values.parcel.pack`."""
        values = {**self._new_names(work, wanted), "work": (work, wanted)}
        return pack(values, self._twins, definitions_only=True)

    def _new_names(self, work: Work, wanted: Wanted) -> dict[str, Any]:
        namespace, seen = self._twins.namespace, self._twins.names
        roots = {*work.reads, *(wanted.output or ()), *wanted.gather} - SHELLS_OWN
        names = reached(namespace, roots, work.objects).names
        new = {name: namespace[name] for name in names if seen.get(name, self) is not namespace[name]}
        seen.update(new)
        return {f"name:{name}": value for name, value in new.items()}

    def saw(self, names: list[str]) -> None:
        """What the ranks have bound and handed over counts as seen."""
        namespace = self._twins.namespace
        self._twins.names.update({name: namespace[name] for name in names})
