"""What a worker that is no fork of the kernel is given: the names that its work needs, once for all
ranks in one shared-memory file, and the notebook's surroundings."""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbdist.errors import LaunchError
from nbdist.messages import Parcel
from nbdist.start.birth import Birth
from nbdist.values.memory import Original, open_memory
from nbdist.values.parcel import LABELS, TWINS, Echo, pack, unpack_each
from nbdist.values.reasons import explain
from nbdist.values.surroundings import Surroundings, settle, surroundings, unsettled
from nbdist.values.twins import Twins
from nbdist.values.walk import Reached, is_definition, reached
from nbdist.worker.sources import learn_sources, sources_of
from nbdist.worker.work import Wanted, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Luggage:
    """Packed by the kernel.

    Attributes:
        fd: the memory file; whoever has this owns it.
        lost: names that stay in the kernel, with the reason.
    """

    parcel: Parcel
    fd: int
    names: tuple[str, ...]
    lost: Mapping[str, str]


def pack_luggage(birth: Birth) -> Luggage:
    """Pack what `birth`'s work needs.

    Raises:
        LaunchError: the work itself, or a name that it certainly reads, cannot be pickled.
    """
    lost: dict[str, str] = {}
    found = birth.found
    while True:
        ordered = sorted(found.names, key=lambda name: (_turn(found.namespace[name]), name))
        names = {f"name:{name}": found.namespace[name] for name in ordered}
        values = {
            "surroundings": surroundings(given=True),
            "sources": sources_of(found.objects.values()),
            **names,
            "work": (birth.work, birth.wanted),
        }
        packed = pack(values, _nobody(found), echo=Echo(found.objects, found.labels))
        if not packed.lost:
            parcel, fd = packed.parcel, packed.fd
            return Luggage(parcel=parcel, fd=fd, names=tuple(sorted(found.names)), lost=lost)
        os.close(packed.fd)
        for key, reason in packed.lost.items():
            name = key.partition(":")[2] or key
            title, value = ("the call", birth.work) if key == "work" else (name, values[key])
            lost[name] = explain(title, value, reason, advise=False)
        _check(lost, birth)
        # Without these names, and without what only they lead to.
        objects = birth.work.objects if birth.work is not None else {}
        found = reached(found.namespace, birth.found.names - lost.keys(), objects, without=lost)


def _turn(value: object) -> int:
    """Modules first, then definitions, then data, whose own code may need both when it is rebuilt."""
    return 0 if isinstance(value, types.ModuleType) else 1 if is_definition(value) else 2


def _nobody(found: Reached) -> Twins:
    """The other side has none of our objects yet."""
    return Twins(found.namespace, {}, {})


def _check(lost: Mapping[str, str], birth: Birth) -> None:
    """A value that the work needs must be there before anything starts. What the work assigns by
    itself may be missing."""
    way_out = "or use --start-method fork in a kernel that has not used CUDA"
    if "work" in lost:
        raise LaunchError(
            f"The call cannot be sent to the ranks: {lost['work']}. Pass other values, {way_out}."
        )
    for name in sorted(lost):
        if birth.work is None or name not in birth.work.assigns:
            raise LaunchError(
                f"{name} cannot be sent to the ranks, and the cell or a function that it calls reads it: "
                f"{lost[name]}. Make {name} inside the cell, {way_out}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """The luggage, in the worker."""

    twins: Twins
    work: Work | None
    wanted: Wanted


def unpack_luggage(parcel: Parcel, fd: int, namespace: dict[str, Any]) -> Unpacked:
    """Settle in: the notebook's surroundings, and its names in `namespace`."""
    values = {}
    waiting: Surroundings = {}
    memory = open_memory(fd, parcel.size_bytes)
    for key, value in unpack_each(parcel, memory, Twins(namespace, {}, {})):
        kind, _, name = key.partition(":")
        if key == "surroundings":  # first of all: the rest is imported from the notebook's path
            waiting = settle(value)
        elif key == "sources":
            learn_sources(value)
        elif kind == "name":
            namespace[name] = value
        else:
            values[key] = value
    import torch  # noqa: F401  a rank needs it, whatever the names have brought

    unsettled.update(settle(waiting))
    work, wanted = values["work"]
    original = Original(fd, memory)
    twins = Twins(namespace, values[TWINS], values[LABELS], told=True, original=original)
    return Unpacked(twins=twins, work=work, wanted=wanted)
