"""The notebook's objects as they stood when the ranks began, and what a rank changed of them.

An object has a key that both sides understand: its ``id`` in the kernel. A forked rank has the same
object at the same address; a rank that was started otherwise is told which of its objects is whose twin.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterable, Mapping
from typing import Any

from nbdist.cell import names_read_by
from nbdist.values import pages
from nbdist.values.kinds import ATOMS, Buffer, Content, Kind, kind_of


def is_definition(obj: object) -> bool:
    """Whether an object is a function or a class."""
    return isinstance(obj, (types.FunctionType, type))


class Twins:
    """Objects that exist on both sides.

    Args:
        namespace: the notebook's global names, in this process.
        known: the objects by key; holding them keeps the ids valid.
        labels: for each key the name by which the notebook reaches the object, for messages.

    Attributes:
        names: the namespace as it was when this was made.
    """

    def __init__(self, namespace: dict[str, Any], known: Mapping[int, Any], labels: Mapping[int, str]):
        self.namespace = namespace
        self.names = dict(namespace)
        self.known = dict(known)
        self.labels = dict(labels)
        self._keys = {id(obj): key for key, obj in self.known.items()}
        self._before: dict[int, tuple[Kind, Content]] = {}
        self._buffers: dict[int, Buffer] = {}
        self._written_before_forks: set[Buffer] = set()
        for key, obj in self.known.items():
            if not is_definition(obj) or key in self.labels:
                self._remember(key, obj)

    def _remember(self, key: int, obj: Any) -> None:
        kind = kind_of(obj)
        self._before[key] = (kind, kind.content(obj))
        buffer = kind.buffer(obj)
        if buffer is not None:
            self._buffers[key] = buffer

    def key_of(self, obj: object) -> int | None:
        """The key of one of the notebook's objects; None for any other."""
        return self._keys.get(id(obj))

    def watch_forks(self) -> None:
        """Keep track of written memory while the rank forks children of its own.

        A child such as a DataLoader worker maps the rank's pages too, which hides from then on
        that the rank alone had written them.
        """
        os.register_at_fork(before=self._note_written)

    def _note_written(self) -> None:
        self._written_before_forks |= pages.written(self._buffers.values())

    def changed(self, within: Iterable[str] | None = None) -> dict[int, Any]:
        """What to send for each object whose content is no longer what it was, by key.

        Args:
            within: only objects that the values of these names reach now; None for all.
        """
        self._note_written()
        reachable = None if within is None else reached(self.namespace, within).objects.keys()
        changes = {}
        for key, (kind, before) in self._before.items():
            obj = self.known[key]
            if reachable is not None and id(obj) not in reachable:
                continue
            if not before.same_as(kind.content(obj)) or self._buffers.get(key) in self._written_before_forks:
                changes[key] = kind.portable(obj)
        return changes

    def land(self, key: int, portable: Any) -> None:
        """Write a change into the notebook's own object."""
        kind_of(self.known[key]).land(self.known[key], portable)

    def bound(self) -> dict[str, Any]:
        """Names of the namespace that hold another object than before."""
        missing = object()
        return {
            name: value
            for name, value in self.namespace.items()
            if self.names.get(name, missing) is not value
        }

    def unbound(self) -> list[str]:
        """Names that the namespace has lost."""
        return [name for name in self.names if name not in self.namespace]


class Reached:
    """What some names of a namespace lead to.

    Attributes:
        objects: everything reached that has parts or an identity, by id.
        labels: for each id the name that led there.
        names: the names that were followed, those that functions read included.
    """

    def __init__(self, namespace: dict[str, Any], without: Iterable[str] = ()):
        self.namespace = namespace
        self._without = frozenset(without)
        self.objects: dict[int, Any] = {}
        self.labels: dict[int, str] = {}
        self.names: set[str] = set()

    def follow(self, name: str, value: Any) -> None:
        """Walk from a value; objects met before are not walked again."""
        todo = [(name, value)]
        while todo:
            label, obj = todo.pop()
            if type(obj) in ATOMS or id(obj) in self.objects or not self._is_ours(obj):
                continue
            self.objects[id(obj)] = obj
            self.labels[id(obj)] = label
            todo.extend((label, part) for part in kind_of(obj).parts(obj))
            if isinstance(obj, types.FunctionType):
                todo.extend(self._new_names(names_read_by(obj)))

    def _new_names(self, names: Iterable[str]) -> list[tuple[str, Any]]:
        new = set(names) & self.namespace.keys() - self.names - self._without
        self.names |= new
        return [(name, self.namespace[name]) for name in new]

    def follow_names(self, names: Iterable[str]) -> None:
        """Walk from the values of names; those that the namespace lacks are left out."""
        for name, value in self._new_names(names):
            self.follow(name, value)

    def _is_ours(self, obj: object) -> bool:
        """Whether an object is the notebook's data, or a definition made in the notebook."""
        return obj is not self.namespace and is_notebooks(obj, self.namespace)


def is_notebooks(obj: object, namespace: dict[str, Any]) -> bool:
    """False for functions and classes of imported modules: they travel by name."""
    if isinstance(obj, types.FunctionType):
        return obj.__globals__ is namespace
    return not isinstance(obj, type) or obj.__module__ == "__main__"


def reached(
    namespace: dict[str, Any],
    names: Iterable[str],
    others: Mapping[str, Any] | None = None,
    without: Iterable[str] = (),
) -> Reached:
    """Everything that names, and further objects, lead to; names in `without` lead nowhere."""
    found = Reached(namespace, without)
    found.follow_names(names)
    for label, obj in (others or {}).items():
        found.follow(label, obj)
    return found


def twins_of(found: Reached) -> Twins:
    """Twins for a rank that is forked from this process: what was reached, and each function and
    class of the notebook, which keep their identity whether the cell reads them or not."""
    definitions = {
        id(value): value
        for value in found.namespace.values()
        if is_definition(value) and is_notebooks(value, found.namespace)
    }
    return Twins(found.namespace, {**definitions, **found.objects}, found.labels)
