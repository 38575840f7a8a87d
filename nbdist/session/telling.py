"""What the user is told of a session: what is sent, what stays on the ranks, who has died."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from nbdist.errors import Failure, ranks_phrase
from nbdist.session.news import News
from nbdist.worker.keeping import DOES_NOT_TRAVEL

OF_ANOTHER_PROCESS = (
    "These ranks belong to another process, from which this one was forked. "
    "Ask there, or start ranks of this process' own."
)


def of_news(news: News, *, quiet: bool) -> Iterator[str]:
    """Before it is sent; quiet names only what both sides have changed."""
    if news.apart:
        yield (
            f"{', '.join(news.apart)}: changed in the notebook and on the ranks; the ranks keep theirs. "
            f"%distributed push {','.join(news.apart)} sends the notebook's, pull brings the ranks'."
        )
    for name, reason in news.unsent.items():
        yield f"{name} has changed in the notebook; the ranks have it as it was: {reason}"
    if news.told and not quiet:
        yield f"sent to the ranks: {', '.join(news.told)}"


def of_kept(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Names that live on the ranks alone, as far as that is new."""
    new = {name: what for name, what in sorted(after.items()) if before.get(name) != what}
    listed = ", ".join(f"{name} ({what})" for name, what in new.items())
    if all(what.endswith(DOES_NOT_TRAVEL) for what in new.values()):
        yield from [f"on the ranks only: {listed}"] if new else ()
    else:
        yield f"on the ranks only: {listed}; %distributed pull NAME brings it"


def of_dead(deaths: Mapping[int, Failure], ended_by_us: Collection[int], *, whose: str = "") -> str:
    """Which ranks have died, and how: ``rank 1 has died: its process (pid 7) ended with exit code 3``."""
    how = [
        f"{'it did not come out of its work; ' if rank in ended_by_us else ''}{death.summary}"
        for rank, death in deaths.items()
    ]
    if len(how) == 1:
        return f"{ranks_phrase([*deaths])}{whose} has died: {how[0]}"
    told = "; ".join(f"rank {rank}: {one}" for rank, one in zip(deaths, how, strict=True))
    return f"{ranks_phrase([*deaths])}{whose} have died. {told}"


def of_deaths(
    deaths: Mapping[int, Failure], ended_by_us: Collection[int], own: str, *, any_alive: bool
) -> str:
    """Which ranks have died, and what to do.

    Args:
        own: what names their session in a command, where it needs a name.
        any_alive: whether others live.
    """
    others = "The other ranks are kept to be looked into (%distributed stacks, pull). " if any_alive else ""
    return (
        f"{of_dead(deaths, ended_by_us, whose=' of this session')}. {others}%distributed start{own} begins "
        f"anew, with the same options (in Python: start()), %distributed stop{own} ends the session."
    )
