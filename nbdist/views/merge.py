"""Ranks' lines become one order: what all printed once, and the rest in rows, in rank order.

Each rank has one queue, so its own order is always kept. Lines are given out in rows. A row looks
at each rank's head, the lowest rank first:

- a head that every other rank has in its queue too is a *meeting point*: it waits for the others;
- any other head is given out, together with the ranks that have the same line as their head;
- a rank without a line is passed over.

When nothing can be given out, either all heads are the same line, and it goes out as everybody's,
or meeting points cross, and the one that is farthest from being met goes out alone.

That a line is *not* common, or that a rank has *no* line, is decided only once the window has
passed or nothing more can come; the opposite can be seen at once and stays true. So the order
depends on what each rank printed, and not on when, as long as the ranks are within the window of
one another. A rank that was passed over has lost its place in the rows: it comes back with the row
that is nearest to it in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from math import inf
from typing import Any, NamedTuple

from nbdist.views.lines import Run
from nbdist.views.queues import RankQueue

QUEUE_LINES = 80_000
QUEUE_CHARS = 8_000_000
"""When more than that waits, over all ranks, it is given out as it stands."""

_MOST_AT_ONCE = 256  # common lines that go out together
_MOST_CANDIDATES = 8  # ranks whose meeting points are compared where they cross


class Merged(NamedTuple):
    """Lines as they go out.

    Attributes:
        ranks: who printed them.
        shown: what each of `ranks` shows in the line's place, if its run said so.
        is_open: everybody has it, and nobody has given it an end.
    """

    kind: int
    lines: list[str]
    ranks: tuple[int, ...]
    shown: tuple[Any, ...] = ()
    is_open: bool = False


class _Verdict(Enum):
    PASS = auto()
    GIVE = auto()
    WAIT = auto()


class Merger:
    """Merges the lines of `world_size` ranks. It knows only the times that it is told.

    Args:
        window_s: how far apart in time ranks may be and still be matched.

    Attributes:
        due_s: when `advance` can decide more though nothing came; None while no line waits.
    """

    def __init__(self, world_size: int, window_s: float):
        self._queues = [RankQueue() for _ in range(world_size)]
        self._everybody = tuple(range(world_size))
        self._window_s = window_s
        self._given: list[Merged] = []
        self._lines = self._chars = 0  # that wait
        self.due_s: float | None = None
        # The row that is being worked on; while lines wait there always is one.
        self._row = 0
        self._rank: int | None = None  # where it stands
        self._lead = RankQueue()  # whose head, the oldest, tells the row's time
        self._lead_number = self._lead_together = 0
        self._time_s = 0.0
        self._gave = self._left_out = False
        self._wide = False  # takes in every head, whenever it came

    def waits(self, rank: int) -> bool:
        """Whether lines of a rank have not been given out yet."""
        return self._queues[rank].head is not None

    def push(self, rank: int, run: Run, now_s: float) -> None:
        """Queue lines of a rank. Call `advance` first when `due_s` has come."""
        queue = self._queues[rank]
        came_first = queue.head is None
        queue.push(run, now_s)
        self._lines += len(run.lines)
        self._chars += sum(map(len, run.lines))
        if self._lines > QUEUE_LINES or self._chars > QUEUE_CHARS:
            self.advance(inf)
        elif self._waited_for(queue, came_first):
            self.advance(now_s)

    def finish(self, rank: int, now_s: float) -> None:
        """A rank prints nothing more."""
        self._queues[rank].finished = True
        self.advance(now_s)

    def reopen(self) -> None:
        """Ranks that had finished have more lines after all."""
        for queue in self._queues:
            queue.finished = False

    def advance(self, now_s: float) -> None:
        """Decide all that can be decided."""
        self.due_s = None
        while self._rank is not None or self._begin_row():
            if not self._work_row(now_s):
                return

    def take(self) -> list[Merged]:
        """What has been given out since the last call."""
        given, self._given = self._given, []
        return given

    def _waited_for(self, queue: RankQueue, came_first: bool) -> bool:
        """Whether the row stood still for just what came: it must go on now, for later it would see more."""
        if self._rank is None:
            return True
        waiting = self._queues[self._rank]
        if waiting is queue:
            return came_first
        return waiting.head is not None and queue.has(waiting.head)

    def _begin_row(self) -> bool:
        while self._give_common():
            continue
        waiting = [queue for queue in self._queues if queue.head is not None]
        if not waiting:
            return False
        if all(queue.lapsed for queue in waiting):  # the others have been silent, too: all begin anew
            for queue in self._queues:
                queue.lapsed = False
        in_place = (queue for queue in waiting if not queue.lapsed)
        self._lead = min(in_place, key=lambda queue: queue.stamp_s)
        self._lead_number, self._lead_together = self._lead.first, self._lead.together
        self._time_s = self._lead.stamp_s
        self._row += 1
        self._rank = 0
        self._gave = self._left_out = False
        return True

    def _work_row(self, now_s: float) -> bool:
        """Go on with the row; False where it has to wait, until `due_s`."""
        assert self._rank is not None
        for rank in range(self._rank, len(self._queues)):
            self._rank = rank
            queue = self._queues[rank]
            if queue.row == self._row:  # it has given its line along with a lower rank
                continue
            verdict = self._judge(queue, now_s)
            if verdict is _Verdict.WAIT:
                return False
            if verdict is _Verdict.GIVE:
                self._give(queue)
        self._rank = None
        if self._gave:
            self._wide = False
        else:
            self._resolve()
        return True

    def _judge(self, queue: RankQueue, now_s: float) -> _Verdict:
        latest_s = self._time_s + self._window_s
        head = queue.head
        if head is None:
            if not queue.finished and now_s < latest_s:
                return self._wait(latest_s)
            queue.lapsed = not queue.finished
            return _Verdict.PASS
        if queue.meets or self._is_meeting_point(head):
            queue.meets = True
            return _Verdict.PASS
        if not self._wide and self._belongs_later(queue, latest_s):
            self._left_out = True
            return _Verdict.PASS
        known_s = queue.stamp_s + self._window_s + queue.patience_s
        if now_s < known_s and not self._stays_uncommon(queue, head):
            return self._wait(known_s)
        return _Verdict.GIVE

    def _wait(self, until_s: float) -> _Verdict:
        self.due_s = until_s
        return _Verdict.WAIT

    def _is_meeting_point(self, line: tuple[int, str]) -> bool:
        # A plain loop: it runs for each line, and mostly ends at the first other rank.
        for queue in self._queues:  # noqa: SIM110
            if not queue.has(line):
                return False
        return True

    def _belongs_later(self, queue: RankQueue, latest_s: float) -> bool:
        """Whether a head is no part of this row."""
        if queue.stamp_s > latest_s:
            queue.lapsed = True
            return True
        if not queue.lapsed:
            return False
        following_s = self._lead.stamp_of(self._lead_number + 1)
        if following_s is None:
            return False
        if following_s == self._time_s:  # lines that came together with others are taken to end with them
            return self._lead_together > queue.together
        return abs(following_s - queue.stamp_s) <= abs(self._time_s - queue.stamp_s)

    def _stays_uncommon(self, queue: RankQueue, line: tuple[int, str]) -> bool:
        """Whether nothing that may still come makes a head common, or its label longer."""
        others = [other for other in self._queues if other is not queue]
        if any(other.head is None and not other.finished for other in others):
            return False
        return any(other.finished and not other.has(line) for other in others)

    def _resolve(self) -> None:
        """A row gave out nothing."""
        head = self._queues[0].head
        if all(queue.head == head for queue in self._queues):
            return  # the next row begins with it
        if all(queue.meets for queue in self._queues):
            self._wide = False
            self._give(max(self._queues[:_MOST_CANDIDATES], key=self._distance))
        else:  # the next row takes in what this one left out, or what came after it had looked
            self._wide = self._left_out

    def _distance(self, queue: RankQueue) -> int:
        head = queue.head
        assert head is not None
        return max(other.distance(head) for other in self._queues)

    def _give(self, queue: RankQueue) -> None:
        """Give out a head, with all ranks that have the same."""
        head = queue.head
        assert head is not None
        kind, line = head
        self._hand_out(kind, [line], [rank for rank, other in enumerate(self._queues) if other.head == head])
        self._gave = True

    def _give_common(self) -> bool:
        """Give out the lines with which all queues begin."""
        heads = [queue.head for queue in self._queues]
        head = heads[0]
        if head is None or heads.count(head) < len(heads):
            return False
        blocks = [queue.block(_MOST_AT_ONCE) for queue in self._queues]
        rows = enumerate(zip(*blocks, strict=False))
        count = next((n for n, lines in rows if len(set(lines)) > 1), min(map(len, blocks)))
        self._hand_out(head[0], blocks[0][:count], self._everybody)
        return True

    def _hand_out(self, kind: int, lines: list[str], ranks: Sequence[int]) -> None:
        queues = [self._queues[rank] for rank in ranks]
        shown = () if queues[0].shown is None else tuple([queue.shown for queue in queues])
        is_open = queues[0].is_open and len(queues) == len(self._queues) and all(q.is_open for q in queues)
        for queue in queues:
            queue.drop(len(lines))
            queue.row, queue.lapsed = self._row, False
        self._lines -= len(lines) * len(ranks)
        self._chars -= sum([len(line) for line in lines]) * len(ranks)
        self._given.append(Merged(kind, lines, tuple(ranks), shown, is_open))
