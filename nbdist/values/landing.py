"""Writing what arrived into the notebook, once all of it has arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.parcel import LABELS, TWINS
from nbdist.values.surroundings import write
from nbdist.values.twins import Twins


@dataclass(slots=True, kw_only=True)
class Landed:
    """What came back.

    Attributes:
        result: the work's value; None when there was none.
        results: every rank's own, by rank.
        names: names that were bound.
        gathered: for each gathered name the values of the ranks that sent one, by rank.
        lost: what stays behind, with the reason.
        around: titles of what was changed around the names.
        written: keys of the notebook's objects whose new content came.
        twins: new objects by rank 0's keys.
        labels: by those keys the names that lead to them.
    """

    result: Any = None
    results: dict[int, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    gathered: dict[str, dict[int, Any]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    around: set[str] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    twins: dict[int, Any] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)


def land(
    arrived: Mapping[int, Mapping[str, Any]],
    unbound: Iterable[str],
    twins: Twins,
    *,
    ranks: Sequence[int],
    lead: int = 0,
) -> Landed:
    """Write the values of all ranks into the notebook.

    Args:
        arrived: for each rank its values, under the keys of `worker.handover`.
        unbound: names that the leading rank deleted.
        ranks: who did the work: gathered lists have an entry for each, None for one that sent none.
        lead: the rank whose names, changes and result these are.
    """
    landed = Landed(results={rank: values.get("result") for rank, values in arrived.items()})
    own = arrived.get(lead, {})
    for key, value in own.items():
        kind, _, name = key.partition(":")
        if kind in ("object", "memory"):
            _land_object(kind, int(name), value, twins, landed)
        elif kind == "name":
            twins.namespace[name] = value
            landed.names.append(name)
        elif kind == "result":
            landed.result = value
        elif kind == TWINS:
            landed.twins = value
        elif kind == LABELS:
            landed.labels = value
    for name in unbound:
        twins.namespace.pop(name, None)
    _land_around(own, landed)
    _land_gathered(arrived, twins, landed, ranks)
    return landed


def _land_object(kind: str, key: int, value: Any, twins: Twins, landed: Landed) -> None:
    """A twin whose own code refuses the change keeps its old content and is named."""
    write = twins.land_memory if kind == "memory" else twins.land
    done = call_foreign(partial(write, key, value))
    if isinstance(done, Refusal):
        landed.lost[f"{twins.labels[key]} (its new content)"] = done.reason
    else:
        landed.written.add(key)


def _land_around(arrived: Mapping[str, Any], landed: Landed) -> None:
    """Last: libraries that the values have brought are loaded by now."""
    for key, value in arrived.items():
        kind, _, title = key.partition(":")
        if kind == "around":
            done = call_foreign(partial(write, title, value))
            if isinstance(done, Refusal):
                landed.lost[title] = done.reason
            landed.around.add(title)


def _land_gathered(
    arrived: Mapping[int, Mapping[str, Any]], twins: Twins, landed: Landed, ranks: Sequence[int]
) -> None:
    for rank in sorted(arrived):
        for key, value in arrived[rank].items():
            kind, _, name = key.partition(":")
            if kind == "gather":
                landed.gathered.setdefault(name, {})[rank] = value
    for name, by_rank in landed.gathered.items():
        twins.namespace[name] = [by_rank.get(rank) for rank in ranks]
