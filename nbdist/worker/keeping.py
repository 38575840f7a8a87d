"""What lives on in a rank of a live session, because it is large or does not travel."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbdist.errors import bytes_text
from nbdist.messages import Made
from nbdist.values.models import is_wrapper
from nbdist.values.outline import Outline
from nbdist.values.parcel import Echo
from nbdist.values.size import described, size_of
from nbdist.values.snapshot import Changes
from nbdist.values.twins import Twins
from nbdist.values.walk import reached

DOES_NOT_TRAVEL = ", does not travel"
"""Ends what is said of a name that stays because of that; `pull` would not bring it either."""

_SHARDING = ("torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed._")


@dataclass(slots=True, kw_only=True)
class Kept:
    """What stays.

    Attributes:
        names: bound names, with what they are.
        contents: names that lead to objects of the notebook whose changes stay, with what these are.
        newer: keys of those objects.
    """

    names: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    newer: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rank has handed over: once the kernel has taken it, both sides know it.

    Attributes:
        echo: objects that are new to the notebook.
        in_place: keys of its own that were changed.
        made: what it has made under names that it bound.
    """

    echo: Echo
    in_place: frozenset[int] = frozenset()
    made: Mapping[str, Outline] = field(default_factory=dict)

    def taken(self, twins: Twins) -> None:
        """The kernel has taken it."""
        twins.renew(self.in_place)
        twins.adopt(self.echo.packed, self.echo.labels, told=True)

    def share(self, twins: Twins, made: Mapping[str, Sequence[int | None]]) -> None:
        """All ranks have made under names what this one has: the keys stand for the objects of each."""
        for name, keys in made.items():
            pairs = zip(keys, self.made[name].objects, strict=True)
            new = {key: obj for key, obj in pairs if key is not None and key not in twins.known}
            twins.adopt(new, dict.fromkeys(new, name), told=True)
            twins.share(key for key in keys if key is not None)


def said_of(made: Mapping[str, Outline], twins: Twins, *, with_keys: bool) -> dict[str, Made]:
    """What the kernel is told of what a rank has made; the keys are those of `echo_of`."""
    find = twins.finder()
    return {
        name: Made(
            outline.digest,
            tuple(find(id(obj)) or -id(obj) for obj in outline.objects) if with_keys else (),
        )
        for name, outline in made.items()
    }


def keep_large_names(bound: dict[str, Any], twins: Twins, most_bytes: int, kept: Kept) -> dict[str, Any]:
    """The names that go, and those that stay: also views of what stays."""
    going = {}
    find = twins.finder()
    for name, value in bound.items():
        if size_of(value, most_bytes, find) > most_bytes or lies_on(kept.newer, value, twins):
            kept.names[name] = described(value)
        else:
            going[name] = value
    return going


def lies_on(keys: Collection[int], value: Any, twins: Twins) -> bool:
    """Whether a value leads to views of the memory of some of the notebook's objects."""
    if not keys:
        return False
    inside = reached(twins.namespace, (), {"": value}).objects.values()
    return not twins.below(inside).isdisjoint(keys)


def keep_large_changes(changes: Changes, twins: Twins, most_bytes: int, kept: Kept) -> Changes:
    """The changes that go, and those that stay; what belongs together, a model and its optimizer, goes or
    stays together."""
    changed = changes.contents.keys() | changes.memory.keys()
    find = twins.finder()
    for labels, keys in _together(changed, twins):
        size = sum(changes.memory[key].size_bytes for key in keys & changes.memory.keys())
        size += sum(
            size_of(changes.contents[key], most_bytes, find) for key in keys & changes.contents.keys()
        )
        if any(_is_sharded(changes.contents[key]) for key in keys & changes.contents.keys()):
            kept.newer |= keys
            kept.contents |= dict.fromkeys(labels, "its new content, sharded over the ranks")
        elif size > most_bytes:
            kept.newer |= keys
            kept.contents |= dict.fromkeys(labels, f"its new content, {bytes_text(size)}")
    return Changes(
        {key: content for key, content in changes.contents.items() if key not in kept.newer},
        {key: memory for key, memory in changes.memory.items() if key not in kept.newer},
        changes.refused,
    )


def _is_sharded(content: Any) -> bool:
    """Whether torch.distributed has put something of its own into an object: parameters, a class, hooks."""
    inside = content if isinstance(content, tuple) else (content,)
    parts = [part for held in inside for part in (held, *(held.values() if type(held) is dict else ()))]
    modules = (getattr(part, "__module__", None) or type(part).__module__ for part in parts)
    return any(isinstance(module, str) and module.startswith(_SHARDING) for module in modules)


def _together(changed: Collection[int], twins: Twins) -> list[tuple[set[str], set[int]]]:
    """Changed objects by the names that lead to them; names with an object in common are one group."""
    groups: list[tuple[set[str], set[int]]] = []
    for label in {twins.labels[key] for key in changed}:
        objects = reached(twins.namespace, [label]).objects
        keys = {key for key in changed if twins.labels[key] == label or id(twins.known[key]) in objects}
        names = {label}
        apart = []
        for group in groups:
            if keys.isdisjoint(group[1]):
                apart.append(group)
            else:
                names |= group[0]
                keys |= group[1]
        groups = [*apart, (names, keys)]
    return groups


def echo_of(names: Iterable[str], changed: Iterable[int], twins: Twins) -> Echo:
    """What is new to the notebook in the values of names, and inside its own objects that have changed."""
    inside: dict[str, list[Any]] = {}
    for key in changed:
        inside.setdefault(twins.labels[key], []).append(twins.known[key])
    found = reached(twins.namespace, names, inside)
    passed = {id(objects) for objects in inside.values()}
    find = twins.finder()
    new = {
        key: obj
        for key, obj in found.objects.items()
        # The notebook has the model itself in a wrapper's place.
        if key not in passed and find(key) is None and not is_wrapper(obj)
    }
    return Echo(
        {-key: obj for key, obj in new.items()},
        {-key: found.labels[key] for key in new if key in found.labels},
    )


def with_what_belongs(among: Collection[int], changes: Changes, twins: Twins) -> Changes:
    """Of all changes those of some objects, and of what belongs together with them.

    Args:
        among: the objects' ids.
    """
    changed = changes.contents.keys() | changes.memory.keys()
    wanted: set[int] = set()
    for _, keys in _together(changed, twins):
        if any(id(twins.known[key]) in among for key in keys):
            wanted |= keys
    return Changes(
        {key: content for key, content in changes.contents.items() if key in wanted},
        {key: memory for key, memory in changes.memory.items() if key in wanted},
        {key: why for key, why in changes.refused.items() if id(twins.known[key]) in among},
    )


def with_whole(keys: Collection[int], changes: Changes, twins: Twins) -> Changes:
    """All changes, and of these objects what they hold, changed or not."""
    whole = twins.whole(twins.known.keys() & set(keys))
    return Changes(
        {**whole.contents, **changes.contents},
        {**whole.memory, **changes.memory},
        {**whole.refused, **changes.refused},
    )
