"""`track`: one progress bar for the loops of all ranks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from nbdist import audience
from nbdist.training.ranks import is_rank_zero

T = TypeVar("T")
_SHOW_EVERY_S = 0.1


class Tracked(Generic[T]):
    """What `track` makes: each iteration over it has a bar of its own."""

    def __init__(self, iterable: Iterable[T], label: str, total: float | None):
        self._iterable, self._label, self._total = iterable, label, total

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # as of what is iterated over

    def __iter__(self) -> Iterator[T]:
        total = self._total if self._total is not None else _length(self._iterable)
        here = audience.current
        if here is not None:
            return _shown(self._iterable, self._label, total, here)
        return iter(_with_tqdm(self._iterable, self._label, total))


def track(iterable: Iterable[T], label: str = "", total: float | None = None) -> Tracked[T]:
    """Iterate with a progress bar, one for all ranks: it shows the rank that is least far.

    In a process that is no rank of an nbdist run tqdm draws it, on rank 0, if tqdm is installed.

    Args:
        iterable: a loader, a range, a generator.
        label: what stands before the bar. Bars of several ranks with the same label are one.
        total: how many items there are; by default the iterable's length, if it has one.

    Example:
        >>> for batch in nbdist.track(loader, f"epoch {epoch}"):
        ...     train(batch)
    """
    return Tracked(iterable, label, total)


def _length(iterable: Any) -> int | None:
    try:
        return len(iterable)
    except (TypeError, NotImplementedError):  # a loader of an iterable dataset has the method, and no length
        return None


def _shown(items: Iterable[T], label: str, total: float | None, here: audience.Audience) -> Iterator[T]:
    bar = here.bar(label)
    bar.show(label=label, done=0, total=total)
    done, due_s = 0, time.monotonic() + _SHOW_EVERY_S
    try:
        for item in items:
            yield item
            done += 1
            now_s = time.monotonic()
            if now_s >= due_s:
                due_s = now_s + _SHOW_EVERY_S
                bar.show(label=label, done=done, total=total)
    finally:  # also where the loop is left by `break` or an exception
        bar.show(label=label, done=done, total=total)
        bar.end(kept=True)


def _with_tqdm(iterable: Iterable[T], label: str, total: float | None) -> Iterable[T]:
    if not is_rank_zero():
        return iterable
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return iterable
    bar: Iterable[T] = tqdm(iterable, desc=label or None, total=total)
    return bar
