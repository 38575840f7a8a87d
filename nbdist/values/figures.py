"""Kinds of matplotlib's objects: a figure of the notebook that a rank has drawn into is named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from nbdist.values.kind import Content, Kind

# What of an artist a user sets; drawing it changes none of this.
_TOLD = (
    *("get_text", "get_xydata", "get_offsets", "get_array", "get_xy", "get_width", "get_height"),
    *("get_color", "get_facecolor", "get_linestyle", "get_linewidth", "get_visible", "get_alpha"),
    *("get_xscale", "get_yscale", "get_label"),
)


class ArtistKind(Kind):
    """What stands in a figure: axes, lines. They lead to the figure."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        figure = obj.figure
        while figure is not None and figure.figure not in (None, figure):  # a part of another figure
            figure = figure.figure
        return () if figure is None else (figure,)


class FigureKind(Kind):
    """A whole figure: which artists stand in it, and what they show."""

    def parts(self, obj: Any) -> tuple[Any, ...]:
        return ()

    def content(self, obj: Any) -> Content:
        artists = tuple(_artists(obj))
        return Content(artists, (_digest(artists),))

    def portable(self, obj: Any) -> Any:
        raise TypeError("it is a figure of the notebook, which the cell has drawn into. Make it in the cell")


def _artists(figure: Any) -> Iterator[Any]:
    yield from figure.get_children()
    for axes in figure.axes:
        # An axis is drawn anew each time: of it the user's label counts.
        yield from (child for child in axes.get_children() if not hasattr(child, "get_major_locator"))
        yield from (axes.xaxis.label, axes.yaxis.label)


def _digest(artists: tuple[Any, ...]) -> bytes:
    told = hashlib.blake2b()
    for artist in artists:
        for name in _TOLD:
            get = getattr(artist, name, None)
            value: Any = get() if get is not None else None
            told.update(value.tobytes() if hasattr(value, "tobytes") else repr(value).encode())
    return told.digest()
