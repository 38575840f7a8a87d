"""What each rank has made of its own under the same names.

The ranks run one program: what rank 0 binds to a name, the others mostly bind, too, each to an object of its
own. Where all of them have built it alike, one key can stand for the object of each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.kind import ATOMS, Buffer, Kind
from nbdist.values.kinds import KindCache
from nbdist.values.models import inside_wrapper, is_wrapper
from nbdist.values.numeric import ArrayKind, TensorKind
from nbdist.values.twins import Twins
from nbdist.values.walk import is_librarys, is_notebooks

_UNORDERED = (set, frozenset)


@dataclass(frozen=True, slots=True)
class Outline:
    """How the value of a name is built.

    Attributes:
        digest: the same for values that are built alike of the same classes, whatever numbers and texts
            they hold.
        objects: what is new in it, in an order that goes by its build.
    """

    digest: bytes
    objects: list[Any]


def outlines(bound: Mapping[str, Any], twins: Twins) -> dict[str, Outline]:
    """The outlines of the values of names, without those that are sharded over the ranks."""
    walk = _Walk(twins)
    found = {name: call_foreign(partial(walk.outline, bound[name])) for name in sorted(bound)}
    return {name: outline for name, outline in found.items() if isinstance(outline, Outline)}


class _Walk:
    """Through the values of several names: an object belongs to the first that leads to it."""

    def __init__(self, twins: Twins):
        self._twins = twins
        self._find = twins.finder()
        self._kinds = KindCache()
        self._order: dict[int, int] = {}
        self._memory: dict[Buffer, int] = {}
        self._held: list[Any] = []  # so that the ids stay theirs

    def outline(self, value: Any) -> Outline:
        digest, objects = hashlib.blake2b(digest_size=16), []
        waiting = [value]
        while waiting:
            obj = waiting.pop()
            if is_wrapper(obj):  # the notebook has the model itself in its place
                digest.update(b"wrapped ")
                obj = inside_wrapper(obj)
            line, inside = self._met(obj)
            if inside is not None:
                objects.append(obj)
                waiting += reversed(inside)
            digest.update(f"{line}\n".encode(errors="replace"))
        return Outline(digest.digest(), objects)

    def _met(self, obj: Any) -> tuple[str, list[Any] | None]:
        """What the digest says of an object, and what is in it, if it is new."""
        cls = type(obj)
        if cls in ATOMS:
            return "", None
        key = self._find(id(obj))
        if key is not None and (key > 0 or key in self._twins.shared):
            return f"{key}", None
        if id(obj) in self._order:
            return f"again {self._order[id(obj)]}", None
        called = f"{cls.__module__}.{cls.__qualname__}"
        if cls.__module__.startswith("torch.distributed"):
            raise TypeError("it is sharded over the ranks, or belongs to their group")
        if is_librarys(obj, self._twins.namespace):
            return f"{called} {getattr(obj, '__qualname__', obj.__name__)}", None
        self._order[id(obj)] = len(self._order)
        self._held.append(obj)
        kind = self._kinds[cls]
        inside = [] if issubclass(cls, _UNORDERED) else list(self._parts(kind, obj))
        line = f"{called} {len(inside)} {self._form(kind, obj)}"
        if is_notebooks(cls, self._twins.namespace):
            inside.append(cls)
        return line, inside

    def _parts(self, kind: Kind, obj: Any) -> tuple[Any, ...]:
        parts = call_foreign(partial(kind.parts, obj))
        return () if isinstance(parts, Refusal) else tuple(parts)

    def _form(self, kind: Kind, obj: Any) -> str:
        """Of an array or a tensor its form, and whose memory it looks at: views are views on each rank."""
        if not isinstance(kind, (ArrayKind, TensorKind)):
            return ""
        memory, form = kind.memory(obj), f"{tuple(obj.shape)} {obj.dtype}"
        if memory is None:
            return form
        place = self._twins.key_at(memory)
        if place is None or (place < 0 and place not in self._twins.shared):
            place = -1 - self._memory.setdefault(memory, len(self._memory))
        return f"{form} {place} {memory.size_bytes}"
