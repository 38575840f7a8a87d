"""What the user is told of a session: what is sent, what stays on the ranks, who has died."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from nbdist.errors import Failure, ranks_phrase
from nbdist.session.news import News

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
    new = [f"{name} ({what})" for name, what in sorted(after.items()) if before.get(name) != what]
    if new:
        yield f"on the ranks only: {', '.join(new)}; %distributed pull NAME brings it"


def of_deaths(deaths: Mapping[int, Failure], ended_by_us: Collection[int]) -> str:
    """Which ranks have died, and what to do."""
    how = "; ".join(
        f"rank {rank}: {'it did not come out of its work; ' if rank in ended_by_us else ''}{death.summary}"
        for rank, death in deaths.items()
    )
    have = "have" if len(deaths) > 1 else "has"
    return (
        f"{ranks_phrase([*deaths])} of this session {have} died ({how}). The other ranks are kept "
        "to be looked into (%distributed stacks, pull). %distributed start begins anew (in Python: "
        "start()), %distributed stop ends the session."
    )
