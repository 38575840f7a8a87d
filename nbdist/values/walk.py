"""What the notebook's names lead to."""

from __future__ import annotations

import builtins
import contextlib
import gc
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from nbdist.cell import names_read_by
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.kind import ATOMS
from nbdist.values.kinds import KindCache
from nbdist.values.modules import is_users, users_module
from nbdist.values.plain import is_in_filled_space
from nbdist.values.snapshot import PLAIN, contents

_FEW_CLASSES = 4
_STEPS = 40  # pickle goes some levels down for each, and Python bounds them


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


class Reached:
    """What some names of a namespace lead to.

    Attributes:
        objects: everything reached that has parts or an identity, by id.
        labels: for each id the name that led there.
        names: the names that were followed, those that functions read included.
        left_out: names that would have been followed, had they not to lead nowhere.
    """

    def __init__(self, namespace: dict[str, Any], without: Iterable[str] = ()):
        self.namespace = namespace
        self._without = frozenset(without)
        self.objects: dict[int, Any] = {}
        self.labels: dict[int, str] = {}
        self.names: set[str] = set()
        self.left_out: set[str] = set()
        self._read: set[str] = set()
        self._kinds = KindCache()

    def follow(self, name: str, value: Any) -> None:
        """Walk from a value, one level after another; objects met before are not walked again."""
        self._walk(name, value)
        self._follow_read()

    def parts(self, obj: Any) -> list[Any]:
        """What an object holds directly."""
        return self._parts(type(obj), [obj])

    def follow_names(self, names: Iterable[str]) -> None:
        """Walk from the values of names; those that the namespace lacks are left out."""
        self._read |= set(names)
        self._follow_read()

    def _follow_read(self) -> None:
        while self._read:
            self.left_out |= self._read & self._without
            new = self._read & self.namespace.keys() - self.names - self._without
            self._read = set()
            self.names |= new
            for name in sorted(new):  # what leads to an object has the same name in every run
                self._walk(name, self.namespace[name])

    def _walk(self, name: str, value: Any) -> None:
        level = [value]
        while level:
            inside: list[Any] = []
            for cls, objects in _by_class(level):
                if cls not in ATOMS:
                    inside += self._enter(name, cls, objects)
            level = inside

    def _enter(self, name: str, cls: type, objects: list[Any]) -> Iterable[Any]:
        """Take objects of one class; what those that are new lead to."""
        new = dict(zip(map(id, objects), objects, strict=True))
        if not self.objects.keys().isdisjoint(new):
            new = {key: obj for key, obj in new.items() if key not in self.objects}
        if cls in PLAIN:
            new.pop(id(self.namespace), None)
            new.pop(id(vars(builtins)), None)
        elif issubclass(cls, (types.FunctionType, type)):
            new = {key: obj for key, obj in new.items() if is_notebooks(obj, self.namespace)}
        elif issubclass(cls, types.ModuleType):
            new = {key: obj for key, obj in new.items() if is_users(obj)}
        self.objects.update(new)
        self.labels.update(dict.fromkeys(new, name))
        if cls in PLAIN:
            inside = list(contents(cls, new.values()))
            return () if ATOMS.issuperset(map(type, inside)) else inside
        inside = self._parts(cls, new.values())
        if issubclass(cls, (types.FunctionType, type)):
            inside += self._surroundings(new.values())
        elif new:
            inside.append(cls)  # its methods may set its own attributes
        return inside

    def _surroundings(self, definitions: Iterable[Any]) -> Iterator[Any]:
        """What functions and classes find by name: the notebook's names, or a module of the user's."""
        for definition in definitions:
            if type(definition) is types.FunctionType:
                self._read |= names_read_by(definition)
            module = users_module(definition.__module__)
            if module is not None:
                yield module

    def _parts(self, cls: type, objects: Iterable[Any]) -> list[Any]:
        parts_of = self._kinds[cls].parts
        inside: list[Any] = []
        for obj in objects:
            parts = call_foreign(partial(parts_of, obj))
            if not isinstance(parts, Refusal):
                inside += parts
        return inside


def _by_class(objects: list[Any]) -> Iterable[tuple[type, list[Any]]]:
    classes = set(map(type, objects))
    if len(classes) == 1:
        return ((classes.pop(), objects),)
    if len(classes) <= _FEW_CLASSES:
        return [(cls, [obj for obj in objects if type(obj) is cls]) for cls in classes if cls not in ATOMS]
    groups: dict[type, list[Any]] = {cls: [] for cls in classes}
    for obj in objects:
        groups[type(obj)].append(obj)
    return groups.items()


def is_librarys(obj: Any, namespace: dict[str, Any]) -> bool:
    """Whether an object is a module, or a function or class of one: each process has its own."""
    if issubclass(type(obj), types.ModuleType):
        return True
    return is_definition(obj) and not is_notebooks(obj, namespace)


def is_notebooks(obj: object, namespace: dict[str, Any]) -> bool:
    """Whether a function or a class is the notebook's, or of one of the user's own modules.

    Those of other modules travel by name. A function made inside a library's function, such as a
    decorator's wrapper, has no such name.
    """
    if type(obj) is types.FunctionType:
        found = obj.__globals__ is namespace or "<locals>" in obj.__qualname__ or hasattr(obj, "__wrapped__")
        return found or is_in_filled_space(obj) or users_module(obj.__module__) is not None
    if not issubclass(type(obj), type):
        return True
    module = vars(obj).get("__module__")
    return module == "__main__" or users_module(module) is not None


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


def reached_inside(
    namespace: dict[str, Any], holders: Mapping[int, Any], known: Mapping[int, Any]
) -> Reached:
    """What objects lead to that is not known itself; its label is the key of who holds it."""
    found = Reached(namespace)
    found.objects = {id(obj): obj for obj in known.values()}
    with without_gc():
        for key, obj in holders.items():
            if type(obj) not in PLAIN:
                for part in found.parts(obj):
                    found.follow(str(key), part)
    for obj in known.values():
        found.objects.pop(id(obj), None)  # one object may have two keys
    return found


def inside_out(value: Any, key_of_id: Callable[[int], int | None]) -> Iterator[Any]:
    """Objects inside a value, some steps apart, the innermost first: from each of them on it is not
    deep, once those before it are dealt with. Objects that have a key are not entered."""
    kinds = KindCache()

    def parts_of(obj: Any) -> Iterator[Any]:
        if type(obj) in PLAIN:
            return contents(type(obj), [obj])
        parts = call_foreign(partial(kinds[type(obj)].parts, obj))
        return iter(()) if isinstance(parts, Refusal) else iter(parts)

    seen = {id(value): value}  # held, so that the ids stay theirs
    way = [(value, parts_of(value))]
    while way:
        obj, parts = way[-1]
        for part in parts:
            if type(part) not in ATOMS and id(part) not in seen and key_of_id(id(part)) is None:
                seen[id(part)] = part
                way.append((part, parts_of(part)))
                break
        else:
            way.pop()
            if way and len(way) % _STEPS == 0:
                yield obj
