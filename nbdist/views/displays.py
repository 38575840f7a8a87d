"""Displays of several ranks: which of them are one, and where an update of one rank goes.

A display with an id can be updated. While ranks show the same they have one display. An update that
the lowest of them does not make next, or has not made before, gives the others a display of their own. One
that an earlier cell of the notebook has made is rank 0's.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nbdist.messages import Display
from nbdist.views.items import Shown

_FIRST = 0
_FIRST_PATIENCE_S = 2.0
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DATE = re.compile(r"<dc:date>[^<]*</dc:date>")
_ID = re.compile(r"""\bid=["']([\w.-]+)["']""")
_REFERENCE = re.compile(r"""(?<=[#"'])[\w.-]+""")  # of an id: in a url, in CSS, by itself


class Displays:
    """The displays of one run.

    >>> displays = Displays()
    >>> for rank in (0, 1):  # each has an id that IPython made up
    ...     print(displays.name(rank, Display(kind="display", data={"a": 1}, display_id=f"id {rank}"))[:8])
    display-
    display-
    """

    def __init__(self) -> None:
        self._named: dict[tuple[int, str], str] = {}  # by rank and id: the name of the display that has it
        self._counts: Counter[tuple[int, str]] = Counter()
        self._targets: dict[tuple[int, str], str] = {}  # by rank and id: the id in the cell's output
        self._owners: dict[str, set[int]] = {}  # by id in the output
        self._notebooks: set[str] = set()  # ids of displays that earlier cells have made: rank 0 updates them
        self._contents: dict[str, set[str]] = {}  # what has been shown there
        self._ahead: dict[str, dict[int, Display]] = {}  # by id in the output: updates its owner has not made
        self._have_shown: set[int] = set()
        self._clears: Counter[int] = Counter()
        self._cleared = 0

    def name(self, rank: int, display: object) -> str:
        """What a rank's display is compared by with those of other ranks."""
        content = _content(display)
        if not isinstance(display, Display) or display.display_id is None:
            return content
        key = (rank, display.display_id)
        if display.kind == "display":
            self._counts[rank, content] += 1
            self._named[key] = f"display-{self._counts[rank, content]}-{content}"
            return self._named[key]
        return f"update of {self._named.get(key, display.display_id)}: {content}"

    def patience_s(self, rank: int, display: object) -> float:
        """How much later than it is usual with text others may show the same: a rank's first display is late
        by what it had to import for it, each rank at a speed of its own."""
        if rank in self._have_shown or (isinstance(display, Display) and display.kind == "clear"):
            return 0.0
        self._have_shown.add(rank)
        return _FIRST_PATIENCE_S

    def merged(self, ranks: Sequence[int], displays: Sequence[object]) -> Iterator[Shown]:
        """What the cell shows of a display that `ranks` have made, each its own of `displays`."""
        first = displays[0]
        if isinstance(first, Display) and first.kind == "clear":
            if self._is_next_clear(ranks):
                yield Shown((), first)
        elif not isinstance(first, Display) or first.display_id is None:
            yield _shown(ranks, first)
        else:
            own = dict(zip(ranks, displays, strict=True))
            take = self._begin if first.kind == "display" else self._update
            yield from take(own)  # type: ignore[arg-type]

    def _is_next_clear(self, ranks: Sequence[int]) -> bool:
        """Whether a rank clears for a time for which no other has cleared yet: a loop in which every
        rank clears once a step does not wipe away what others have shown in the same step."""
        self._clears.update(ranks)
        latest = max(self._clears[rank] for rank in ranks)
        is_next, self._cleared = latest > self._cleared, max(latest, self._cleared)
        return is_next

    def _begin(self, own: dict[int, Display]) -> Iterator[Shown]:
        first = next(iter(own.values()))
        target = self._free_id(own)
        for rank, display in own.items():
            assert display.display_id is not None
            former = self._targets.get((rank, display.display_id))
            if former is not None:
                self._owners[former].discard(rank)
            self._targets[rank, display.display_id] = target
        self._owners[target] = set(own)
        self._contents[target] = {_content(first)}
        yield _shown(tuple(own), replace(first, kind="display", display_id=target))

    def _free_id(self, own: dict[int, Display]) -> str:
        """The lowest rank's id, unless that is another rank's display: an id may stand in the cell's text."""
        rank, display = next(iter(own.items()))
        assert display.display_id is not None
        owners = self._owners.get(display.display_id, set())
        return display.display_id if owners <= set(own) else f"{display.display_id} of rank {rank}"

    def _update(self, own: dict[int, Display]) -> Iterator[Shown]:
        content = _content(next(iter(own.values())))
        by_target: dict[str, dict[int, Display]] = {}
        for rank, display in own.items():
            assert display.display_id is not None
            target = self._targets.get((rank, display.display_id), display.display_id)
            by_target.setdefault(target, {})[rank] = display
        for target, updates in by_target.items():
            if target not in self._owners:
                self._notebooks.add(target)
                self._owners[target] = {_FIRST}
            owners = self._owners[target]
            of_others = target not in self._notebooks and not owners.intersection(updates)
            if of_others or min(owners) in updates:
                self._contents.setdefault(target, set()).add(content)
                yield _shown(tuple(updates), replace(next(iter(updates.values())), display_id=target))
                yield from self._part(target, content)
            elif content not in self._contents.get(target, ()):
                self._ahead.setdefault(target, {}).update(updates)

    def left(self) -> Iterator[Shown]:
        """What is shown at the end: updates that have waited for the lowest rank's."""
        for target in list(self._ahead):
            yield from self._part(target, "")

    def _part(self, target: str, content: str) -> Iterator[Shown]:
        """Its owner shows something: ranks that had something else in the meantime get their own."""
        by_content: dict[str, dict[int, Display]] = {}
        for rank, display in sorted(self._ahead.pop(target, {}).items()):
            by_content.setdefault(_content(display), {})[rank] = display
        for other, own in by_content.items():
            if other != content:
                yield from self._begin(own)


def _shown(ranks: Sequence[int], display: object) -> Shown:
    return Shown(() if 0 in ranks else tuple(ranks), display)


def _content(display: object) -> str:
    """Short, and the same for the same content."""
    if isinstance(display, Display):
        data = {mime: _comparable(content) for mime, content in display.data.items()}
        if len(data) > 1:  # it is seen only where nothing richer is
            data["text/plain"] = _ADDRESS.sub("", str(data.get("text/plain", "")))
        display = ("clear",) if display.kind == "clear" else (data, display.metadata)
    return hashlib.sha256(repr(display).encode("utf-8", "replace")).hexdigest()


def _comparable(content: object) -> object:
    """Markup without what no two processes share: when it was made, and ids that were drawn by lot
    (matplotlib's clip paths, pandas' styles). Ids are told by their order instead."""
    if not isinstance(content, str) or "<" not in content:
        return content
    order = {name: f"#{number}" for number, name in enumerate(dict.fromkeys(_ID.findall(content)))}
    content = _DATE.sub("", content)
    return _REFERENCE.sub(lambda match: order.get(match[0], match[0]), content) if order else content
