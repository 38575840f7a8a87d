"""What a kind of object can tell: what it holds directly, how that is compared, sent and written back.

Nothing here recurses. Parts are kept by reference and compared by identity, so that taking a
`Content` costs a shallow copy and "changed" is exact. Large buffers are not copied: they are
named by address and compared by their memory pages (`pages`).
"""

from __future__ import annotations

import bisect
import copyreg
import ctypes
import operator
import types
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

# Values without parts that could change and without an identity anybody relies on.
ATOMS: frozenset[type] = frozenset(
    {
        *(int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range, slice),
        *(types.BuiltinFunctionType, types.CodeType, types.MethodDescriptorType),
        *(types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    }
)


class Content(NamedTuple):
    """What an object holds: `parts` count by identity, `facts` by value."""

    parts: tuple[Any, ...] = ()
    facts: tuple[Any, ...] = ()

    def same_as(self, other: Content) -> bool:
        return (
            len(self.parts) == len(other.parts)
            and all(map(operator.is_, self.parts, other.parts))
            and self.facts == other.facts
        )


@dataclass(frozen=True, slots=True)
class Buffer:
    """A stretch of this process's memory that belongs to an object."""

    address: int
    size_bytes: int

    def view(self) -> memoryview:
        """The memory itself; valid while its owner lives."""
        return memoryview((ctypes.c_char * self.size_bytes).from_address(self.address)).cast("B")


class Spans:
    """Stretches of memory that do not overlap, to find the one that another lies in."""

    def __init__(self, buffers: Iterable[Buffer]):
        self._buffers = sorted(buffers, key=lambda buffer: buffer.address)
        self._addresses = [buffer.address for buffer in self._buffers]

    def around(self, inner: Buffer) -> Buffer | None:
        """The stretch that holds all of `inner`."""
        at = bisect.bisect_right(self._addresses, inner.address) - 1
        if at < 0:
            return None
        outer = self._buffers[at]
        end = outer.address + outer.size_bytes
        return outer if inner.address + inner.size_bytes <= end else None


class Kind:
    """An object that stands for itself: known by identity, neither entered nor rewritten."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        """Objects to walk to from `obj`."""
        return self.content(obj).parts

    def content(self, obj: Any) -> Content:
        """What `obj` holds now, for comparison."""
        return Content()

    def memory(self, obj: Any) -> Buffer | None:
        """The memory whose bytes belong to `obj`, beside its content."""
        return None

    def layout(self, obj: Any) -> Any:
        """How `obj` looks at its memory, for comparison and for `refit`."""
        return None

    def refit(self, twin: Any, layout: Any, size_bytes: int, holder: Any) -> None:
        """Give a twin memory of that size, looked at as `layout` says.

        Args:
            holder: another twin that has that memory already; None for new memory.
        """
        raise TypeError(f"it has other memory here, and {type(twin).__name__} objects cannot be given it")

    def after_memory(self, twin: Any) -> None:
        """Called when the bytes of the notebook's own object have been written."""

    def portable(self, obj: Any) -> Any:
        """What to send so that `land` can make a twin equal to `obj`."""
        raise TypeError(f"{type(obj).__name__} objects cannot be changed in place")

    def difference(self, obj: Any, before: Content) -> Any:
        """As `portable`, for a twin that still is as `before`: what has not changed may be left out."""
        return self.portable(obj)

    def land(self, twin: Any, portable: Any) -> None:
        """Write what `portable` or `difference` gave into the notebook's own object."""
        raise TypeError(f"{type(twin).__name__} objects cannot be changed in place")


def attributes_of(obj: Any) -> dict[str, Any]:
    """Instance attributes, from ``__dict__`` and ``__slots__``, past any ``__getattr__``."""
    held = dict(getattr(obj, "__dict__", None) or {})
    for name in slots_of(type(obj)):
        try:
            held[name] = object.__getattribute__(obj, name)
        except AttributeError:  # a slot that is not filled
            continue
    return held


def slots_of(cls: type) -> Collection[str]:
    """Names of the attributes that lie in ``__slots__``."""
    names = vars(cls).get("__slotnames__")  # where copyreg keeps them
    if names is None:
        names = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    return names  # type: ignore[no-any-return]


def set_attributes(twin: Any, attributes: dict[str, Any], kept: Collection[str] = ()) -> None:
    """Give `twin` these attributes and no others, but for those `kept` as they are."""
    for name in [name for name in attributes_of(twin) if name not in attributes and name not in kept]:
        object.__delattr__(twin, name)
    own = getattr(twin, "__dict__", None)
    for name, value in attributes.items():
        if isinstance(own, dict) and name not in slots_of(type(twin)):
            own[name] = value
        else:
            object.__setattr__(twin, name, value)
