"""Where all ranks stand, as text: a line for ranks that stand alike, then stacks of the odd ones out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from nbdist.errors import ranks_phrase
from nbdist.state import RankState, RunState
from nbdist.views.doing import phrase

Groups = Mapping[str, Sequence[RankState]]


def standing_report(state: RunState, now_s: float) -> list[str]:
    """One line for each group of ranks.

    Args:
        now_s: monotonic.
    """
    return [_line(phrase, ranks, now_s) for phrase, ranks in _groups(state).items()]


def moving_report(state: RunState, still: Collection[int]) -> list[str]:
    """A line for each group of the ranks that work and are none of those that stand still."""
    moving = [rank for rank in state.ranks if rank.rank in state.working and rank.rank not in still]
    groups = _groups(RunState(ranks=tuple(moving)))
    return [f"{_ranks(ranks)} {said if len(ranks) == 1 else _plural(said)}" for said, ranks in groups.items()]


def odd_stacks(state: RunState, *, every: bool = False) -> list[str]:
    """Stacks of working ranks, but for the largest group if there is one, or of every one.

    Of a group that stands alike one stack is shown.
    """
    lines: list[str] = []
    for ranks in _odd_groups(state, every=every):
        standing = ranks[0].standing
        assert standing is not None
        lines += [f"stack of {_ranks(ranks)}:", *standing.stack]
    return lines


def odd_ranks(state: RunState) -> list[int]:
    """Of each group of which `odd_stacks` shows a stack the first rank."""
    return [ranks[0].rank for ranks in _odd_groups(state, every=False)]


def _odd_groups(state: RunState, *, every: bool) -> Iterator[Sequence[RankState]]:
    groups = _groups(state)
    sizes = sorted((len(ranks) for ranks in groups.values()), reverse=True)
    for ranks in groups.values():
        common = len(ranks) == sizes[0] and sizes[0] not in sizes[1:] and len(sizes) > 1 and not every
        if (
            ranks[0].standing is not None
            and ranks[0].phase not in ("finished", "idle", "gone")
            and not common
        ):
            yield ranks


def _groups(state: RunState) -> Groups:
    groups: dict[str, list[RankState]] = {}
    for rank in state.ranks:
        groups.setdefault(phrase(rank), []).append(rank)
    return groups


def _line(phrase: str, ranks: Sequence[RankState], now_s: float) -> str:
    since = [rank.standing.since_s for rank in ranks if rank.standing and rank.standing.since_s]
    text = f"{_ranks(ranks)} {phrase}" if len(ranks) == 1 else f"{_ranks(ranks)} {_plural(phrase)}"
    return (
        f"{text} (for {now_s - min(since):.0f} s)"
        if since and ranks[0].phase in ("starting", "running")
        else text
    )


def _plural(phrase: str) -> str:
    verb, _, rest = phrase.partition(" ")
    plural = {
        "waits": "wait",
        "computes": "compute",
        "runs": "run",
        "is": "are",
        "has": "have",
        "was": "were",
    }
    return f"{plural.get(verb, verb)} {rest}".rstrip()


def _ranks(ranks: Sequence[RankState]) -> str:
    return ranks_phrase([rank.rank for rank in ranks])
