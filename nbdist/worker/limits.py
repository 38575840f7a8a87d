"""How much a rank hands over: what is larger than asked for stays, and what the notebook's memory cannot take
is saved to the disk. Hours of training are never dropped."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import psutil

from nbdist.errors import bytes_text
from nbdist.values.foreign import Refusal, call_foreign


def free_memory_bytes() -> int:
    """What the system, and the container that this process may be in, can still give."""
    free = int(psutil.virtual_memory().available)
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
            free = min(free, _number(folder, limit) - _number(folder, used) + _cached(folder))
    return max(free, 0)


def _number(folder: str, name: str) -> int:
    with open(os.path.join(folder, name)) as file:
        return int(file.read())


def _cached(folder: str) -> int:
    """Files that the system would drop for others' need."""
    with open(os.path.join(folder, "memory.stat")) as file:
        lines = dict(line.split() for line in file)
    return int(lines.get("inactive_file", 0))


class Limits:
    """Which values go, by their sizes.

    Args:
        most_bytes: of each value that nobody asked for by its name; None for no bound.
        asked: keys of those that somebody asked for.
        room_bytes: of all values together.

    Attributes:
        unfit: keys of values for which there is no room.
    """

    def __init__(
        self,
        most_bytes: int | None,
        asked: Callable[[str], bool],
        room_bytes: Callable[[], int] = free_memory_bytes,
    ):
        self._most_bytes = most_bytes
        self._asked = asked
        self._room_bytes = room_bytes
        self.unfit: set[str] = set()

    def admit(self, sizes: Mapping[str, int]) -> dict[str, str]:
        """Which are left out, with the reason."""
        most = self._most_bytes
        if most is not None:
            reason = f"more than --max-return {bytes_text(most)}; --output brings it"
            large = {
                key: f"it has {bytes_text(size)}, {reason}"
                for key, size in sizes.items()
                if size > most and not self._asked(key)
            }
            if large:
                return large
        return self._without_room(sizes)

    def _without_room(self, sizes: Mapping[str, int]) -> dict[str, str]:
        """The largest, until the rest has room. What is changed in place comes all or none."""
        total, room = sum(sizes.values()), self._room_bytes()
        groups: dict[str, list[str]] = {}
        for key in sizes:
            groups.setdefault("in place" if is_in_place(key) else key, []).append(key)
        unfit: dict[str, str] = {}
        while total > room and groups:
            largest = max(groups, key=lambda group: sum(sizes[key] for key in groups[group]))
            keys = groups.pop(largest)
            size = sum(sizes[key] for key in keys)
            total -= size
            reason = f"it needs {bytes_text(size)} of memory, and {bytes_text(room)} are free"
            unfit |= dict.fromkeys(keys, reason)
        self.unfit |= unfit.keys()
        return unfit


def is_in_place(key: str) -> bool:
    """Whether a key of `worker.handover` is that of a change of the notebook's own object."""
    return key.partition(":")[0] in ("object", "memory")


def save(values: Mapping[str, Any], folder: str, rank: int) -> dict[str, str]:
    """Save values beside the run's logs, in one file, so that what they share stays shared.

    Returns:
        For each name what a message says of it.
    """
    what = "values" if len(values) > 1 else "".join(values).replace(" ", "-")
    path = os.path.join(folder, f"{what}-of-rank-{rank}.pt")
    saved = call_foreign(partial(_write, dict(values), path))
    if isinstance(saved, Refusal) and len(values) > 1:  # one of them cannot be: the others can
        told: dict[str, str] = {}
        _remove(path)
        for name, value in values.items():
            told |= save({name: value}, folder, rank)
        return told
    if isinstance(saved, Refusal):
        _remove(path)
        return dict.fromkeys(values, f"it could not be saved either: {saved.reason}")
    return {name: f"it is saved: torch.load({path!r}, weights_only=False)[{name!r}]" for name in values}


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # it may never have been made
        os.unlink(path)


def _write(values: dict[str, Any], path: str) -> None:
    import cloudpickle
    import torch

    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save(values, path, pickle_module=cloudpickle)
