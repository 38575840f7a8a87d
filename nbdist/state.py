"""What is known of a run: messages folded into one immutable state, and the cause of a failure.

Pure: no clock, no process, no output.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nbdist.errors import Failure
from nbdist.figures import Usage
from nbdist.messages import (
    Answered,
    Asking,
    Died,
    Event,
    Finished,
    HandingOver,
    Outcome,
    Progress,
    Raised,
    Ready,
    Standing,
    Stuck,
)

Phase = Literal["starting", "running", "failing", "handing over", "finished", "idle", "gone"]
_AT_REST: Sequence[Phase] = ("finished", "idle", "gone")

_OF_CELL = re.compile(r"line (\d+), in <module>$")
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank in the current run.

    Attributes:
        outcome: how its work ended, once it did.
        failure: why it failed or how it died.
        stopped: whether nbdist ended its work, because of another rank or at the user's wish: what
            it says after that is no failure of its own.
        asking: whether it waits for a line from the user.
        standing: where its main thread was seen last.
        raised: that its work raised, before the whole story is known.
        death: how its process ended, whether somebody waited for it or not.
        finished_s: when its work ended, monotonic.
        threads: whether threads that the work has started go on.
        untaken: whether its work did not begin, because it could not take what the notebook had new for it.
        bars: its progress bars that have not ended, the oldest first.
        usage: what it used of the machine when that was measured last.
    """

    rank: int
    phase: Phase = "starting"
    outcome: Outcome | None = None
    failure: Failure | None = None
    stopped: bool = False
    asking: bool = False
    standing: Standing | None = None
    raised: Raised | None = None
    death: Failure | None = None
    finished_s: float | None = None
    threads: bool = False
    untaken: bool = False
    bars: tuple[Progress, ...] = ()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One progress bar of several ranks.

    Attributes:
        parts: each rank's own.
    """

    parts: Mapping[int, Progress]

    @property
    def progress(self) -> Progress:
        """The part of the rank that is least far, and of those the slowest: the work is done when all have
        done it."""
        return min(self.parts.values(), key=lambda part: (_share(part), -part.elapsed_s))

    @property
    def share(self) -> float:
        """How much of it is done; of a bar without a total, how many steps."""
        return _share(self.progress)

    def among(self, ranks: Collection[int]) -> Bar | None:
        """The bar of some ranks alone, if one of them has it."""
        parts = {rank: part for rank, part in self.parts.items() if rank in ranks}
        return Bar(parts=parts) if parts else None


def _share(progress: Progress) -> float:
    return progress.done / progress.total if progress.total else progress.done


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """All ranks in the current run."""

    ranks: tuple[RankState, ...]

    @property
    def settled(self) -> bool:
        """Whether no rank works any more."""
        return all(rank.phase in _AT_REST for rank in self.ranks)

    @property
    def working(self) -> tuple[int, ...]:
        """Ranks that still work."""
        return tuple(rank.rank for rank in self.ranks if rank.phase in ("starting", "running"))

    @property
    def idle(self) -> tuple[int, ...]:
        """Ranks that the work is not for: they meet the others where all meet anew, and no more."""
        return tuple(rank.rank for rank in self.ranks if rank.phase == "idle")

    @property
    def telling(self) -> tuple[int, ...]:
        """Ranks whose work has raised and that are making their report."""
        return tuple(rank.rank for rank in self.ranks if rank.phase == "failing")

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Ranks that have not handed over yet."""
        return tuple(rank.rank for rank in self.ranks if rank.phase not in _AT_REST)

    @property
    def alive(self) -> tuple[int, ...]:
        """Ranks whose process has not ended."""
        return tuple(rank.rank for rank in self.ranks if rank.phase != "gone")

    @property
    def deaths(self) -> Mapping[int, Failure]:
        """Ranks whose process has ended, and how it did."""
        return {rank.rank: rank.death for rank in self.ranks if rank.death is not None}

    @property
    def broken_off(self) -> bool:
        """Whether a rank failed, or was interrupted by somebody else than the kernel."""
        return bool(self.failures) or any(
            rank.outcome == "interrupted" or rank.phase == "failing" for rank in self.ranks
        )

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Progress bars that go on, those of several ranks as one, in the order of the lowest rank."""
        parts: dict[str, dict[int, Progress]] = {}
        for rank in self.ranks:
            for progress in rank.bars:
                parts.setdefault(progress.key, {})[rank.rank] = progress
        return tuple(Bar(parts=own) for own in parts.values())

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Every failure: causes by time, then the consequences by time. Those of one kind come together and
        by rank: which of them was the first is chance, and a run that fails again is to say the same."""
        failures = [rank.failure for rank in self.ranks if rank.failure is not None]
        first_s: dict[tuple[object, ...], float] = {}
        for failure in failures:
            kind = _kind_of(failure)
            first_s[kind] = min(failure.time_s, first_s.get(kind, failure.time_s))
        # Sorted by rank as they are.
        return tuple(sorted(failures, key=lambda one: (one.consequence, first_s[_kind_of(one)])))


def _kind_of(failure: Failure) -> tuple[object, ...]:
    """What failures share that differ in numbers alone, such as the shapes of a rank's tensors."""
    message = _NUMBERS.sub("#", failure.message[:500])
    return failure.consequence, failure.type_name, failure.cell_line, message


def first_state(world_size: int) -> RunState:
    """The state before anything has been heard."""
    return RunState(ranks=tuple(RankState(rank=rank) for rank in range(world_size)))


def next_run(state: RunState, runs_on: Collection[int], *, need_all: bool = True) -> RunState:
    """The state at the start of the next run, on some of the ranks; the others are idle.

    Args:
        need_all: whether it fails at once where one of the ranks is gone.
    """
    return RunState(ranks=tuple(_next_run_of(rank, rank.rank in runs_on, need_all) for rank in state.ranks))


def _next_run_of(rank: RankState, takes_part: bool, needed: bool) -> RankState:
    if rank.phase != "gone":
        return RankState(rank=rank.rank, phase="running" if takes_part else "idle")
    failure = rank.death if needed else None
    return RankState(rank=rank.rank, phase="gone", outcome="failed", failure=failure, death=rank.death)


def fold(state: RunState, rank: int, event: Event) -> RunState:
    """The state after an event of one rank."""
    before = state.ranks[rank]
    after = _fold_rank(before, event)
    # One that was told to stop may be ended before its last word has been read.
    if before.phase == "finished" and after.phase == "gone" and not state.settled and not before.stopped:
        after = replace(after, outcome="failed", failure=after.failure or after.death)
    if after is before:
        return state
    return replace(state, ranks=(*state.ranks[:rank], after, *state.ranks[rank + 1 :]))


def stop_working(state: RunState) -> RunState:
    """The state once nbdist has told every rank that still works to stop."""
    working = state.working
    return RunState(
        ranks=tuple(replace(rank, stopped=rank.stopped or rank.rank in working) for rank in state.ranks)
    )


def _fold_rank(rank: RankState, event: Event) -> RankState:
    if rank.phase == "idle" and not isinstance(event, Died):
        return rank
    if rank.asking and isinstance(event, (Answered, Raised, HandingOver, Died)):
        rank = replace(rank, asking=False)
    if isinstance(event, Ready) and rank.phase == "starting":
        return replace(rank, phase="running" if event.works else "idle")
    if isinstance(event, Asking):
        return replace(rank, asking=True)
    if isinstance(event, Standing) and rank.phase in ("starting", "running"):
        return replace(rank, standing=event)
    if isinstance(event, Usage):
        return replace(rank, usage=event)
    if isinstance(event, Progress):
        return replace(rank, bars=_bars_after(rank.bars, event))
    if isinstance(event, Raised) and not rank.stopped:
        return replace(rank, phase="failing", raised=event)
    if isinstance(event, HandingOver):
        return replace(rank, phase="handing over")
    if isinstance(event, Stuck) and not rank.stopped:
        return replace(rank, stopped=True, failure=_stuck(rank, event))
    if isinstance(event, Finished):
        finished = replace(rank, phase="finished", finished_s=event.time_s, threads=event.threads, bars=())
        return _finished(replace(finished, untaken=event.untaken), event)
    if isinstance(event, Died):
        return _died(replace(rank, phase="gone", bars=(), death=_death(rank, event)), rank.phase)
    return rank


def _died(rank: RankState, phase: Phase) -> RankState:
    """A rank whose process has ended in a phase of its work."""
    if phase in ("finished", "idle"):
        return rank
    if rank.raised is not None:
        return replace(rank, outcome="failed", failure=_untold(rank, rank.raised))
    if rank.stopped:
        return replace(rank, outcome="interrupted")
    return replace(rank, outcome="failed", failure=rank.death)


def _bars_after(bars: tuple[Progress, ...], progress: Progress) -> tuple[Progress, ...]:
    if progress.phase != "open":
        return tuple(bar for bar in bars if bar.key != progress.key)
    if all(bar.key != progress.key for bar in bars):
        return (*bars, progress)
    return tuple(progress if bar.key == progress.key else bar for bar in bars)


def _finished(rank: RankState, event: Finished) -> RankState:
    if rank.stopped and event.outcome != "ok":
        return replace(rank, outcome="interrupted")
    failure = event.failure
    if failure is not None and rank.raised is not None:  # the earliest is the cause
        failure = replace(failure, time_s=rank.raised.time_s)
    return replace(rank, outcome=event.outcome, failure=failure or rank.failure)


def _stuck(rank: RankState, event: Stuck) -> Failure:
    standing = rank.standing
    return Failure(
        rank=rank.rank,
        time_s=event.time_s,
        type_name="Stuck",
        message=event.reason,
        cell_line=standing.cell_line if standing else None,
        traceback=standing.stack if standing else (),
    )


def _untold(rank: RankState, raised: Raised) -> Failure:
    """An exception whose own code did not let the rank tell more of it."""
    return Failure(
        rank=rank.rank,
        time_s=raised.time_s,
        type_name=raised.type_name,
        message="its text and its values could not be had: the process ended, or was ended, before",
    )


def _death(rank: RankState, event: Died) -> Failure:
    process = f"its process (pid {event.pid})"
    if event.exit_code < 0:
        number = -event.exit_code
        names = {known.value: known.name for known in signal.Signals}
        name = names.get(number, f"signal {number}")
        how = f"{process} was ended by {name}"
        if name == "SIGKILL" and event.memory_ran_out:
            how += ": the system's memory ran out"
    else:
        how = f"{process} ended with exit code {event.exit_code}"
    if event.mute:
        how = f"{process} closed its connection to the notebook (os.closerange?) and was ended"
    standing = rank.standing
    if not event.trace and standing is not None and standing.cell_line is not None:
        how += f"; it was last seen at line {standing.cell_line} of the cell"
    return Failure(
        rank=rank.rank,
        time_s=event.time_s,
        type_name="Died",
        message=how,
        cell_line=_cell_line(event.trace),
        traceback=event.trace,
    )


def _cell_line(trace: Sequence[str]) -> int | None:
    """The cell's line in a stack whose last entry is the cell's."""
    found = _OF_CELL.search(trace[-1]) if trace else None
    return int(found[1]) if found else None
