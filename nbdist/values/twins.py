"""The notebook's objects as they stood at the fork, and what a rank changed of them.

A forked rank has every object of the notebook at the same address, so identity is a name that
both sides understand: the kernel makes `Twins` just before it forks, and each side has them.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterable, Mapping
from typing import Any

from nbdist.cell import names_read_by
from nbdist.values import pages
from nbdist.values.kinds import ATOMS, Buffer, Content, Kind, kind_of


class Twins:
    """Objects that exist on both sides, by ``id``.

    Args:
        namespace: the notebook's global names.
        roots: names whose values the cell may reach and change.
        others: further objects it may reach, such as a call's arguments.

    Attributes:
        known: every object reached, by id; holding them keeps the ids valid.
    """

    def __init__(
        self, namespace: dict[str, Any], roots: Iterable[str], others: Mapping[str, Any] | None = None
    ):
        self.namespace = namespace
        self.names = dict(namespace)
        self.known: dict[int, Any] = {}
        self._where: dict[int, tuple[int, str]] = {}
        self._before: dict[int, tuple[Kind, Content]] = {}
        self._buffers: dict[int, Buffer] = {}
        self._written_before_forks: set[Buffer] = set()
        self._walk([(0, name, namespace[name]) for name in roots if name in namespace])
        self._walk([(0, name, value) for name, value in (others or {}).items()])
        self._know_definitions()

    def _walk(self, todo: list[tuple[int, str, Any]]) -> None:
        while todo:
            parent, label, obj = todo.pop()
            if type(obj) in ATOMS or id(obj) in self.known or obj is self.namespace or not self._is_ours(obj):
                continue
            kind = kind_of(obj)
            self.known[id(obj)] = obj
            self._where[id(obj)] = (parent, label)
            self._before[id(obj)] = (kind, kind.content(obj))
            buffer = kind.buffer(obj)
            if buffer is not None:
                self._buffers[id(obj)] = buffer
            todo.extend((id(obj), "", part) for part in kind.parts(obj))
            if isinstance(obj, types.FunctionType):
                names = names_read_by(obj) & self.namespace.keys()
                todo.extend((0, name, self.namespace[name]) for name in names)

    def _is_ours(self, obj: object) -> bool:
        """Whether an object is the notebook's data, or a definition made in the notebook."""
        if isinstance(obj, types.FunctionType):
            return obj.__globals__ is self.namespace
        return not isinstance(obj, type) or obj.__module__ == "__main__"

    def _know_definitions(self) -> None:
        """Every function and class of the notebook keeps its identity, whether the cell reads it or not."""
        for name, value in self.names.items():
            if isinstance(value, (types.FunctionType, type)) and self._is_ours(value):
                self.known.setdefault(id(value), value)
                self._where.setdefault(id(value), (0, name))

    def knows(self, obj: object) -> bool:
        """Whether `obj` is one of the notebook's objects."""
        return self.known.get(id(obj), self) is obj

    def path(self, key: int) -> str:
        """Where the notebook holds an object, for messages: the name it was reached by."""
        while True:
            parent, label = self._where[key]
            if parent == 0:
                return label
            key = parent

    def watch_forks(self) -> None:
        """Keep track of written memory while the rank forks children of its own.

        A child such as a DataLoader worker maps the rank's pages too, which hides from then on
        that the rank alone had written them.
        """
        os.register_at_fork(before=self._note_written)

    def _note_written(self) -> None:
        self._written_before_forks |= pages.written(self._buffers.values())

    def changed(self, within: Iterable[str] | None = None) -> dict[int, Any]:
        """What to send for each object whose content is no longer what it was, by id.

        Args:
            within: only objects that the values of these names reach now; None for all.
        """
        self._note_written()
        reachable = self._reachable(within) if within is not None else None
        changes = {}
        for key, (kind, before) in self._before.items():
            obj = self.known[key]
            if reachable is not None and key not in reachable:
                continue
            if not before.same_as(kind.content(obj)) or self._buffers.get(key) in self._written_before_forks:
                changes[key] = kind.portable(obj)
        return changes

    def _reachable(self, names: Iterable[str]) -> set[int]:
        seen: dict[int, Any] = {}
        todo = [self.namespace[name] for name in names if name in self.namespace]
        while todo:
            obj = todo.pop()
            if type(obj) in ATOMS or id(obj) in seen or obj is self.namespace or not self._is_ours(obj):
                continue
            seen[id(obj)] = obj
            todo.extend(kind_of(obj).parts(obj))
        return set(seen)

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
