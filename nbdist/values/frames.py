"""The kind of pandas' frames and series."""

from __future__ import annotations

from typing import Any

from nbdist.values.kind import Content, Kind


class FrameKind(Kind):
    """A frame holds blocks of values and its axes. The blocks' arrays are watched as arrays are."""

    def content(self, obj: Any) -> Content:
        manager = obj._mgr
        # Blocks are made anew by many reads; the arrays in them are what counts.
        values = tuple(block.values for block in manager.blocks)
        places = tuple(tuple(block.mgr_locs) for block in manager.blocks)
        name = (obj.name,) if obj.ndim == 1 else ()
        return Content((type(obj), *values, *manager.axes, *name), (places, repr(obj.attrs)))

    def portable(self, obj: Any) -> Any:
        return obj.copy(deep=False)

    def land(self, twin: Any, portable: Any) -> None:
        object.__setattr__(twin, "_mgr", portable._mgr)
        if twin.ndim == 1:
            twin.name = portable.name
        twin.attrs = portable.attrs
