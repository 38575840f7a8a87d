"""The notebook's objects as they stood when the ranks began, and what a rank changed of them.

An object has a key that both sides understand: its ``id`` in the kernel. A forked rank has the same
object at the same address; a rank that was started otherwise is told which of its objects is whose twin.
"""

from __future__ import annotations

import contextlib
import gc
import operator
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nbdist.cell import names_read_by
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.kind import ATOMS, Buffer, Content, Kind, Spans
from nbdist.values.kinds import KindCache, kind_of
from nbdist.values.memory import Original
from nbdist.values.pages import MemoryWatch

_PIECE_BYTES = 1 << 20
_PLAIN = frozenset({list, dict, set, tuple, frozenset})


def _items(obj: Any) -> tuple[Any, ...]:
    """What one of Python's own containers holds."""
    if type(obj) is dict:
        return (*obj, *obj.values())
    return tuple(obj)


def is_definition(obj: object) -> bool:
    """Whether an object is a function or a class."""
    return issubclass(type(obj), (types.FunctionType, type))


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Many objects are made and none is garbage: collections in between would only look for it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(slots=True)
class Changes:
    """What a rank changed of the notebook's objects, by their keys.

    Attributes:
        contents: what to send of those whose content is another.
        memory: the bytes of those whose memory was written.
        refused: why a changed content cannot be sent.
    """

    contents: dict[int, Any] = field(default_factory=dict)
    memory: dict[int, memoryview] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


class Twins:
    """Objects that exist on both sides.

    Args:
        namespace: the notebook's global names, in this process.
        known: the objects by key; holding them keeps the ids valid.
        labels: for each key the name by which the notebook reaches the object, for messages.
        told: whether this process was told the keys; else they are the objects' own ids.
        original: of the file in which the objects' memory came here, if it did.

    Attributes:
        names: the namespace as it was when this was made.
        modules: what was imported then.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        known: Mapping[int, Any],
        labels: Mapping[int, str],
        *,
        told: bool = False,
        original: Original | None = None,
    ):
        self.namespace = namespace
        self.names = dict(namespace)
        self.modules = frozenset(sys.modules)
        self.known = known
        self.labels = labels
        self._keys = {id(obj): key for key, obj in known.items()} if told else None
        self._before: dict[int, tuple[Kind, Content | Refusal]] = {}
        self._before_plain: dict[int, tuple[Any, ...]] = {}
        self._memory: dict[int, Buffer] = {}
        self._at: dict[Buffer, int] = {}
        self._spans: Spans | None = None
        self._watch = MemoryWatch(original)
        kinds = KindCache()
        with without_gc():
            for key in self.labels:
                obj = self.known[key]
                if type(obj) in _PLAIN:  # there can be millions of them: the short way
                    self._before_plain[key] = _items(obj)
                else:
                    self._remember(key, obj, kinds)

    def _remember(self, key: int, obj: Any, kinds: KindCache) -> None:
        kind = kinds[type(obj)]
        self._before[key] = (kind, call_foreign(partial(kind.content, obj)))
        memory = call_foreign(partial(kind.memory, obj))
        if isinstance(memory, Buffer):
            self._memory[key] = memory
            if self._at.setdefault(memory, key) == key:
                self._watch.add(memory)

    def key_of(self, obj: object) -> int | None:
        """The key of one of the notebook's objects; None for any other."""
        if self._keys is not None:
            return self._keys.get(id(obj))
        key = id(obj)
        return key if key in self.known else None

    def key_at(self, memory: Buffer) -> int | None:
        """The key of an object of the notebook that this memory still belongs to."""
        key = self._at.get(memory)
        return key if key is not None and self._still_has(key) else None

    def key_around(self, memory: Buffer) -> tuple[int, int] | None:
        """As `key_at` for memory that lies inside an object's: its key, and where in it, in bytes."""
        if self._spans is None:
            self._spans = Spans(self._at)
        outer = self._spans.around(memory)
        key = self.key_at(outer) if outer is not None else None
        return (key, memory.address - outer.address) if key is not None and outer is not None else None

    def _still_has(self, key: int) -> bool:
        return kind_of(self.known[key]).memory(self.known[key]) == self._memory[key]

    def watch_forks(self) -> None:
        """Keep track of written memory while the rank forks children of its own."""
        os.register_at_fork(before=self._watch.note_written)

    def changes(self, within: Iterable[str] | None = None) -> Changes:
        """What is no longer as it was.

        Args:
            within: only objects that the values of these names reach now; None for all.
        """
        self._watch.note_written()
        reachable = None if within is None else reached(self.namespace, within).objects.keys()
        found = Changes()
        for key in self._before:
            if reachable is None or id(self.known[key]) in reachable:
                self._compare(key, found)
        for key, before in self._before_plain.items():
            obj = self.known[key]
            items = _items(obj)
            if len(items) == len(before) and all(map(operator.is_, items, before)):
                continue
            if reachable is None or id(obj) in reachable:
                found.contents[key] = kind_of(obj).portable(obj)
        return found

    def _compare(self, key: int, found: Changes) -> None:
        obj = self.known[key]
        kind, before = self._before[key]
        after = call_foreign(partial(kind.content, obj))
        if isinstance(before, Refusal):
            same = isinstance(after, Refusal)
            send = partial(kind.portable, obj)
        else:
            same = isinstance(after, Content) and before.same_as(after)
            send = partial(kind.difference, obj, before)
        if not same:
            portable = call_foreign(send)
            if isinstance(portable, Refusal):
                found.refused[key] = portable.reason
            else:
                found.contents[key] = portable
        memory = self._memory.get(key)
        if (
            memory is not None
            and self._at[memory] == key
            and self._still_has(key)
            and self._watch.changed(memory)
        ):
            found.memory[key] = memory.view()

    def land(self, key: int, portable: Any) -> None:
        """Write a changed content into the notebook's own object."""
        kind_of(self.known[key]).land(self.known[key], portable)

    def land_memory(self, key: int, data: Any) -> None:
        """Write changed bytes into the memory of the notebook's own object, if they differ."""
        obj, mine = self.known[key], self._memory[key].view()
        if not self._still_has(key) or len(mine) != len(data):
            raise RuntimeError("it has another size in the notebook by now")
        if not _equal(mine, memoryview(data)):
            mine[:] = data
            kind_of(obj).after_memory(obj)

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


def _equal(mine: memoryview, theirs: memoryview) -> bool:
    """Compare bytes a piece at a time: a memoryview's own comparison looks at each item singly."""
    starts = range(0, len(mine), _PIECE_BYTES)
    return all(bytes(mine[at : at + _PIECE_BYTES]) == bytes(theirs[at : at + _PIECE_BYTES]) for at in starts)


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
        self._kinds = KindCache()

    def follow(self, name: str, value: Any) -> None:
        """Walk from a value; objects met before are not walked again."""
        todo = [value]
        objects, labels = self.objects, self.labels
        while todo:
            obj = todo.pop()
            cls, key = type(obj), id(obj)
            if cls in ATOMS or key in objects:
                continue
            if cls in _PLAIN:  # there can be millions of them: the short way
                if obj is not self.namespace:
                    objects[key] = obj
                    labels[key] = name
                    inside = obj.values() if cls is dict else obj
                    if not ATOMS.issuperset(map(type, inside)):
                        todo.extend(inside)
                    if cls is dict and not ATOMS.issuperset(map(type, obj)):
                        todo.extend(obj)
                continue
            if not self._is_ours(obj):
                continue
            objects[key] = obj
            labels[key] = name
            parts = call_foreign(partial(self._kinds[cls].parts, obj))
            if not isinstance(parts, Refusal):
                todo.extend(parts)
            if cls is types.FunctionType:
                self.follow_names(names_read_by(obj))

    def follow_names(self, names: Iterable[str]) -> None:
        """Walk from the values of names; those that the namespace lacks are left out."""
        new = set(names) & self.namespace.keys() - self.names - self._without
        self.names |= new
        for name in new:
            self.follow(name, self.namespace[name])

    def _is_ours(self, obj: object) -> bool:
        """Whether an object is the notebook's data, or a definition made in the notebook."""
        return is_notebooks(obj, self.namespace)


def is_notebooks(obj: object, namespace: dict[str, Any]) -> bool:
    """False for functions and classes of imported modules: they travel by name.

    A function made inside a library's function, such as a decorator's wrapper, has no such name.
    """
    if type(obj) is types.FunctionType:
        return obj.__globals__ is namespace or "<locals>" in obj.__qualname__ or hasattr(obj, "__wrapped__")
    return not issubclass(type(obj), type) or vars(obj).get("__module__") == "__main__"


def reached(
    namespace: dict[str, Any],
    names: Iterable[str],
    others: Mapping[str, Any] | None = None,
    without: Iterable[str] = (),
) -> Reached:
    """Everything that names, and further objects, lead to; names in `without` lead nowhere."""
    found = Reached(namespace, without)
    with without_gc():
        found.follow_names(names)
        for label, obj in (others or {}).items():
            found.follow(label, obj)
    return found


def twins_of(found: Reached) -> Twins:
    """Twins for a rank that is forked from this process: what was reached, and each function and
    class of the notebook, which keep their identity whether the cell reads them or not."""
    for value in found.namespace.values():
        if is_definition(value) and is_notebooks(value, found.namespace):
            found.objects.setdefault(id(value), value)
    return Twins(found.namespace, found.objects, found.labels)
