"""Kinds of the standard library's objects whose state is not in attributes."""

from __future__ import annotations

import contextvars
import ctypes
import gc
import hashlib
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nbdist.values.kind import ATOMS, Content, Kind, attributes_of, set_attributes
from nbdist.values.plain import Instance, PlainInstance

_NOTHING: Any = object()


class ErrorKind(Instance):
    """Exceptions. Tracebacks stay where they are."""

    def _state(self, obj: Any) -> tuple[Any, ...]:
        return obj.args, obj.__cause__, obj.__context__, obj.__suppress_context__

    def content(self, obj: Any) -> Content:
        args, *state = self._state(obj)
        return Content((*args, *state, *super().content(obj).parts))

    def portable(self, obj: Any) -> Any:
        return self._state(obj), super().portable(obj)

    def land(self, twin: Any, portable: Any) -> None:
        (args, cause, context, suppress), rest = portable
        super().land(twin, rest)
        twin.args, twin.__cause__, twin.__context__ = args, cause, context
        twin.__suppress_context__ = suppress


class WeakKind(Kind):
    """Weak dictionaries and sets: what they hold at the moment."""

    def items(self, obj: Any) -> tuple[Any, ...]:
        """Its members, held."""
        return tuple(obj) if isinstance(obj, weakref.WeakSet) else (*obj.keys(), *obj.values())

    def content(self, obj: Any) -> Content:
        items = self.items(obj)
        return Content(tuple(sorted(items, key=id)) if isinstance(obj, weakref.WeakSet) else items)

    def portable(self, obj: Any) -> Any:
        return self.items(obj)

    def land(self, twin: Any, portable: Any) -> None:
        twin.clear()
        fill_weak(twin, portable)


class HandleKind(PlainInstance):
    """Handles of torch's hooks: they refer weakly to the dicts that hold the hooks, and change these. (Other
    weak references lead nowhere: what they refer to must not live on because we know it.)"""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        dicts = (reference() for reference in (obj.hooks_dict_ref, *getattr(obj, "extra_dict", ())))
        return (*super().parts(obj), *dicts)


def fill_weak(twin: Any, items: tuple[Any, ...]) -> None:
    """Put members into an empty weak dictionary or set."""
    if isinstance(twin, weakref.WeakSet):
        twin.update(items)
        return
    half = len(items) // 2
    for key, value in zip(items[:half], items[half:], strict=True):
        twin[key] = value


class EventKind(Kind):
    """Events of threads: whether they are set."""

    def content(self, obj: Any) -> Content:
        return Content(facts=(obj.is_set(),))

    def portable(self, obj: Any) -> Any:
        return obj.is_set()

    def land(self, twin: Any, portable: Any) -> None:
        if portable:
            twin.set()
        else:
            twin.clear()


class SimpleQueueKind(Kind):
    """`queue.SimpleQueue`: what waits in it."""

    def content(self, obj: Any) -> Content:
        return Content(waiting_in(obj))

    def portable(self, obj: Any) -> Any:
        return waiting_in(obj)

    def land(self, twin: Any, portable: Any) -> None:
        while not twin.empty():
            twin.get_nowait()
        for item in portable:
            twin.put(item)


def waiting_in(queue: Any) -> tuple[Any, ...]:
    """What waits in a `queue.SimpleQueue`, which is left as it is."""
    held = [part for part in gc.get_referents(queue) if part is not type(queue)]
    # Before Python 3.13 it keeps a list, at whose begin there may be places of what has gone.
    items = held if sys.version_info >= (3, 13) else held[0] if held else []
    size = queue.qsize()
    return tuple(items[len(items) - size :])


class CachedKind(PlainInstance):
    """Functions of the user's behind `functools.lru_cache`, whose cache compiled code keeps to itself."""

    def content(self, obj: Any) -> Content:
        info = obj.cache_info()
        return Content(super().content(obj).parts, (info.misses, info.currsize))

    def difference(self, obj: Any, before: Content) -> Any:
        if obj.__module__ == "__main__" and self.content(obj).facts != before.facts:
            raise TypeError("what it has cached stays on the ranks. Calls in the notebook compute it anew")
        return super().difference(obj, before)


class DatabaseKind(Kind):
    """`sqlite3.Connection`: what is in a file all processes see, what is in memory none but its own."""

    def content(self, obj: Any) -> Content:
        return Content(facts=(obj.total_changes,))

    def portable(self, obj: Any) -> Any:
        if not any(file for _, _, file in obj.execute("PRAGMA database_list")):
            raise TypeError(
                "its database is in memory, and what it holds stays on the rank. Keep it in a file"
            )

    def land(self, twin: Any, portable: Any) -> None:
        """Nothing: the file is the same."""


class ContextVarKind(Kind):
    """A context variable's value in the cell's context."""

    def content(self, obj: contextvars.ContextVar[Any]) -> Content:
        return Content((obj.get(_NOTHING),))

    def portable(self, obj: contextvars.ContextVar[Any]) -> Any:
        return obj.get()

    def land(self, twin: contextvars.ContextVar[Any], portable: Any) -> None:
        twin.set(portable)


class CDataKind(Kind):
    """ctypes' numbers, arrays and structures: bytes, in which addresses are this process's own."""

    def content(self, obj: Any) -> Content:
        return Content(facts=(bytes(obj),))

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return tuple((obj._objects or {}).values()) if isinstance(obj._objects, dict) else ()

    def portable(self, obj: Any) -> Any:
        check_no_address(type(obj))
        return bytes(obj)

    def land(self, twin: Any, portable: Any) -> None:
        ctypes.memmove(ctypes.addressof(twin), portable, len(portable))


def check_no_address(cls: Any) -> None:
    """Raise for a ctypes class whose objects hold an address."""
    if issubclass(cls, ctypes.Array):
        check_no_address(cls._type_)
    elif issubclass(cls, (ctypes.Structure, ctypes.Union)):
        for base in cls.__mro__:
            for field in vars(base).get("_fields_", ()):
                check_no_address(field[1])
    elif getattr(cls, "_type_", "P") in ("P", "z", "Z", "O") or not isinstance(cls._type_, str):
        raise TypeError("it holds an address, which has no meaning in another process")


class IteratorKind(Kind):
    """Iterators of Python's own over something: where they stand."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return tuple(gc.get_referents(obj))  # the very lists that it goes over

    def _state(self, obj: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # in Python 3.12 and 3.13 itertools' objects can go on doing it
            return obj.__reduce__()

    def content(self, obj: Any) -> Content:
        parts, facts = _flat(self._state(obj))
        return Content(parts, facts)

    def portable(self, obj: Any) -> Any:
        state = self._state(obj)
        if len(state) < 3 or not hasattr(obj, "__setstate__"):
            raise TypeError(f"{type(obj).__name__} objects that have run on a rank cannot be brought back")
        return state[2]

    def land(self, twin: Any, portable: Any) -> None:
        twin.__setstate__(portable)


def _flat(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What nested tuples hold: objects, and values that are compared as such."""
    parts: list[Any] = []
    facts: list[Any] = []
    todo = [value]
    while todo:
        one = todo.pop()
        if type(one) is tuple:
            facts.append(len(one))
            todo.extend(one)
        elif type(one) in ATOMS:
            facts.append(one)
        elif type(one) is list:  # made by the iterator for this answer
            facts.append(len(one))
            parts.extend(one)
        else:
            parts.append(one)
    return tuple(parts), tuple(facts)


class SayingKind(PlainInstance):
    """Instances that say what their state is. Where compiled code holds a part of it, an image's pixels
    say, that is compared as it is pickled.

    Args:
        is_hidden: whether what objects of a class hold is out of sight.
    """

    def __init__(self, is_hidden: Callable[[type], bool]):
        self._is_hidden = is_hidden

    def content(self, obj: Any) -> Content:
        content = super().content(obj)
        if not any(map(self._is_hidden, set(map(type, content.parts)))):
            return content
        return Content(content.parts, (hashlib.blake2b(pickle.dumps(obj.__getstate__())).digest(),))

    def difference(self, obj: Any, before: Content) -> Any:
        if self.content(obj).facts == before.facts:
            return super().difference(obj, before)
        return _Said(obj.__getstate__())

    def land(self, twin: Any, portable: Any) -> None:
        if isinstance(portable, _Said):
            twin.__setstate__(portable.state)
        else:
            super().land(twin, portable)


@dataclass(frozen=True, slots=True)
class _Said:
    state: Any


class OpaqueKind(Kind):
    """Objects of compiled code that know how to be pickled: their state is what they pickle."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return ()

    def content(self, obj: Any) -> Content:
        return Content(facts=(pickle.dumps(obj.__reduce_ex__(4)),))

    def portable(self, obj: Any) -> Any:
        reduced = obj.__reduce_ex__(4)
        if isinstance(reduced, str) or len(reduced) < 3 or reduced[2] is None or len(reduced) > 3:
            raise TypeError(
                f"{type(obj).__name__} objects cannot be changed in place. Bind a new one to a name"
            )
        return reduced[2], attributes_of(obj)

    def land(self, twin: Any, portable: Any) -> None:
        state, attributes = portable
        twin.__setstate__(state)
        set_attributes(twin, attributes)
