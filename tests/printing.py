"""What the tests of a cell's text share: views, and ranks that print."""

from __future__ import annotations

from collections.abc import Iterable

from nbdist.views.text import Item, Stream, TextView


def live(world_size: int, **options: object) -> TextView:
    return TextView(world_size, batch=False, log_dir="/logs/7", **options)  # type: ignore[arg-type]


def batch(world_size: int, **options: object) -> TextView:
    return TextView(world_size, batch=True, log_dir="/logs/7", **options)  # type: ignore[arg-type]


def text_of(items: Iterable[Item]) -> str:
    return "".join(
        item.labelled if isinstance(item, Stream) else f"<{item.ranks} {item.display}>" for item in items
    )


def printed(view: TextView, *texts: str, now_s: float = 0.0) -> TextView:
    """Rank n prints the nth text."""
    for rank, text in enumerate(texts):
        view.text(rank, "stdout", text, now_s)
    return view
