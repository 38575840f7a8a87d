"""Ranks that live on after a failure, so that the user can look into them: those of a cell that is over, and
those of a live session, until its next work."""

from __future__ import annotations

from dataclasses import dataclass

from nbdist.errors import SessionError
from nbdist.session.giving_back import held_back
from nbdist.session.ranks import Ranks
from nbdist.shell import current_shell
from nbdist.state import RunState
from nbdist.views.screen import Screen, is_watched


@dataclass(frozen=True, slots=True)
class _Held:
    """Ranks, and the state in which their run ended."""

    ranks: Ranks
    ended: RunState

    @property
    def broken(self) -> list[int]:
        """Ranks whose work did not end well and that live, the one that failed first before all."""
        causes = [failure.rank for failure in self.ended.failures]
        others = [rank.rank for rank in self.ended.ranks if rank.outcome == "interrupted"]
        return [rank for rank in dict.fromkeys([*causes, *others]) if rank in self.ranks.state.alive]

    @property
    def how(self) -> str:
        """What happened to the first of `broken`."""
        return "failed" if self.ended.ranks[self.broken[0]].outcome == "failed" else "was stopped"


_held: list[_Held] = []
_failed_live: list[_Held] = []


def hold(ranks: Ranks, screen: Screen) -> None:
    """Keep ranks whose run has failed until `release`."""
    held = _Held(ranks, ranks.state)
    ranks.label = "ranks that are kept after a failure"
    ranks.rest()
    _held.append(held)
    if held.broken:
        screen.note(
            f"the ranks are kept: %distributed debug opens pdb where rank {held.broken[0]} {held.how}, "
            "%distributed stop ends them, and so does the next cell on ranks."
        )


def offer(ranks: Ranks) -> None:
    """Let `debug` look into ranks of a live session whose work has failed, until `take_back`."""
    _failed_live.append(_Held(ranks, ranks.state))


def take_back(ranks: Ranks) -> None:
    """A live session's ranks end, or go on with something else."""
    _failed_live[:] = [held for held in _failed_live if held.ranks is not ranks]


def anything_held() -> bool:
    """Whether there are ranks to look into."""
    return bool(_held or _failed_live)


def release() -> bool:
    """End the ranks that are kept; whether there were any."""
    had_any = bool(_held)
    with held_back():
        while _held:
            _held.pop().ranks.stop()
    return had_any


def debug(rank: int | None = None) -> None:
    """Open pdb at the frame in which a kept rank failed or was stopped.

    Args:
        rank: which; None for the one that failed first.

    Raises:
        SessionError: no ranks are kept, or there is nothing to look into in this one.
    """
    failed = [*_failed_live, *_held]
    if not failed:
        raise SessionError(
            "No ranks are kept whose last cell failed. Those of a session can be looked into until its next "
            "cell. Elsewhere run the cell with %%distributed --hold: when it fails, its ranks wait, and "
            "%distributed debug opens pdb where the first of them failed."
        )
    if not is_watched(current_shell()):
        raise SessionError("%distributed debug asks for commands, and this front end has no input box.")
    broken = failed[-1].broken
    if not broken:
        raise SessionError("The ranks that failed have ended: there is nothing to look into.")
    if rank is not None and rank not in broken:
        raise SessionError(
            f"%distributed debug {rank}: there is nothing to look into. Allowed: "
            + ", ".join(f"%distributed debug {other}" for other in sorted(broken))
        )
    failed[-1].ranks.debug(broken[0] if rank is None else rank)
