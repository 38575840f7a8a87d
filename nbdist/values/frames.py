"""The kinds of pandas' frames, series, arrays and indices, and how they are rebuilt.

What shares memory is copied before it is written (copy-on-write). Who does so is kept in an object that all
of them hold, `refs`: one for each piece of memory. It has a twin as any object has, so that whoever shared
memory does so on the other side, too, and knows it there. Not all of them are there: where there are several
here, the twin counts one more.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from nbdist.values.kind import Content, Kind, attributes_of, set_attributes
from nbdist.values.rebuild import Reduce


class FrameKind(Kind):
    """A frame holds blocks of values and its axes. The blocks' arrays are watched as arrays are."""

    def content(self, obj: Any) -> Content:
        manager = obj._mgr
        # Blocks are made anew by many reads; the arrays in them are what counts.
        values = tuple(block.values for block in manager.blocks)
        refs = tuple(getattr(block, "refs", None) for block in manager.blocks)  # since pandas 2
        places = tuple(tuple(block.mgr_locs) for block in manager.blocks)
        name = (obj.name,) if obj.ndim == 1 else ()
        return Content((type(obj), *values, *refs, *manager.axes, *name), (places, repr(obj.attrs)))

    def portable(self, obj: Any) -> Any:
        return obj._mgr, obj.name if obj.ndim == 1 else None, obj.attrs

    def land(self, twin: Any, portable: Any) -> None:
        manager, name, attrs = portable
        object.__setattr__(twin, "_mgr", manager)
        if twin.ndim == 1:
            twin.name = name
        twin.attrs = attrs


class BackedKind(Kind):
    """pandas' own arrays on one of numpy's, which compiled code keeps: of texts, times or categories."""

    def content(self, obj: Any) -> Content:
        own = _own_attributes(obj)
        return Content((type(obj), obj._ndarray, obj._dtype, *own, *own.values()))

    def portable(self, obj: Any) -> Any:
        return obj._ndarray, obj._dtype, _own_attributes(obj)

    def land(self, twin: Any, portable: Any) -> None:
        values, dtype, own = portable
        sys.modules["pandas._libs.arrays"].NDArrayBacked.__setstate__(twin, (values, dtype, {}))
        set_attributes(twin, own, kept=_CACHES)


_CACHES = ("_cache",)


def _own_attributes(array: Any) -> dict[str, Any]:
    return {name: value for name, value in attributes_of(array).items() if name not in _CACHES}


class _Elsewhere:
    """Stands for who looks at a piece of memory on the other side."""


_ELSEWHERE = _Elsewhere()


class RefsKind(Kind):
    """Who looks at a piece of memory."""

    def content(self, obj: Any) -> Content:
        return Content(facts=(_is_shared(obj),))

    def portable(self, obj: Any) -> Any:
        return _is_shared(obj)

    def land(self, twin: Any, portable: Any) -> None:
        _count_elsewhere(twin, portable)


class IndexKind(Kind):
    """An index does not change, except for its caches. Columns and series may lie on its memory."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return (vars(obj).get("_references"),)


def reducer_of(cls: type) -> Reduce | None:
    """How pandas' objects that may share memory are rebuilt; None for any other class."""
    internals: Any = sys.modules.get("pandas._libs.internals")
    refs_class = getattr(internals, "BlockValuesRefs", None)
    if refs_class is None:
        return None
    if cls is refs_class:
        return _reduce_refs
    if issubclass(cls, internals.Block):
        return _reduce_block
    if issubclass(cls, sys.modules["pandas.core.internals.managers"].SingleBlockManager):
        return _reduce_series_manager
    return _reduce_index if issubclass(cls, sys.modules["pandas"].Index) else None


def _reduce_refs(refs: Any) -> Any:
    return _make_refs, (type(refs), _is_shared(refs))


def _make_refs(cls: Any, is_shared: bool) -> Any:
    refs = cls()
    _count_elsewhere(refs, is_shared)
    return refs


def _is_shared(refs: Any) -> bool:
    """Whether several look at the memory in this process."""
    alive = (reference() for reference in refs.referenced_blocks)
    return sum(obj is not None and obj is not _ELSEWHERE for obj in alive) > 1


def _count_elsewhere(refs: Any, is_shared: bool) -> None:
    """Have it count those of the other side, if they share the memory there."""
    own = [reference for reference in refs.referenced_blocks if reference() is not _ELSEWHERE]
    refs.referenced_blocks = [*own, weakref.ref(_ELSEWHERE)] if is_shared else own


def _reduce_block(block: Any) -> Any:
    return _make_block, (*block.__reduce__(), block.refs)


def _make_block(make: Any, args: Any, refs: Any) -> Any:
    block = make(*args)
    block.refs = refs
    refs.add_reference(block)
    return block


def _reduce_series_manager(manager: Any) -> Any:
    """pandas would take the block apart. A frame's manager keeps its blocks by itself."""
    return type(manager), (manager.blocks[0], manager.axes[0])


def _reduce_index(index: Any) -> Any:
    refs = vars(index).get("_references")  # a range has no memory
    if refs is None:
        return None
    make, args, *_ = index.__reduce__()
    return make, args, refs, None, None, _set_references


def _set_references(index: Any, refs: Any) -> None:
    index._references = refs
    refs.add_index_reference(index)
