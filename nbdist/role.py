"""What this process is: the notebook's (or a program's), or a rank, which leaves some things to that one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nbdist.errors import SessionError

_rank: int | None = None


def become_rank(rank: int) -> None:
    """From now on this process, with all that it forks, is a rank."""
    global _rank
    _rank = rank


def rank_here() -> int | None:
    """Which rank this process is; None for the notebook's own."""
    return _rank


def only_notebook(what: str) -> None:
    """Refuse in a rank what only the notebook can do: it has the ranks, and this is a copy of it at most.

    Raises:
        SessionError: this is a rank.
    """
    if _rank is not None:
        raise SessionError(
            f"this is rank {_rank}: {what} is for the notebook; run it in a cell of its own, without "
            "%%distributed (under auto: with %%local)."
        )


class NotebooksOwn:
    """Base of what lives in the notebook alone; a `StandIn` takes its place where no copy of it can be.

    Attributes:
        what: it is, in words.
    """

    what: str


class StandIn(NotebooksOwn):
    """In a rank, for something that lives in the notebook: whoever asks it is told so."""

    def __init__(self, what: str):
        self.what = what

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a protocol, which it has not
            raise AttributeError(name)
        raise _elsewhere("this", self.what)

    def __repr__(self) -> str:
        return f"<{self.what}, which lives in the notebook>"


def is_notebooks_own(value: object) -> bool:
    """Whether a value is one of those. Asked of its class: a lazy proxy may lie about its own."""
    return issubclass(type(value), NotebooksOwn)


def notebooks_own_in(names: Iterable[str], namespace: Mapping[str, Any]) -> list[str]:
    """Those of names whose values live in the notebook alone."""
    return sorted(name for name in names if is_notebooks_own(namespace.get(name)))


def check_needs(names: Iterable[str], namespace: Mapping[str, Any]) -> None:
    """Refuse work for ranks that needs what lives in the notebook.

    Raises:
        SessionError: one of the names is such a thing's.
    """
    for name in notebooks_own_in(names, namespace):
        raise _elsewhere(name, namespace[name].what)


def _elsewhere(name: str, what: str) -> SessionError:
    return SessionError(
        f"{name} is {what} and lives in the notebook: ask it in a cell without %%distributed "
        "(under auto: with %%local)."
    )
