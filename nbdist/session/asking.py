"""Which names may be asked for by ``%distributed pull`` and ``push``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from nbdist.checks import did_you_mean
from nbdist.errors import SessionError


def check_push(names: Sequence[str], here: Collection[str]) -> None:
    """Before names are sent.

    Args:
        here: the notebook's names.

    Raises:
        SessionError: it has not all of them.
    """
    missing = [name for name in names if name not in here]
    if missing:
        raise SessionError(
            f"push {','.join(names)}: the notebook has no {', '.join(missing)}{_guesses(missing, here)}."
        )


def check_pull(names: Sequence[str], rank: int, alive: Collection[int], only_here: Collection[str]) -> None:
    """Before names are brought from a rank.

    Args:
        alive: ranks that are up.
        only_here: those of the names that the notebook alone has.

    Raises:
        SessionError: the rank is not up, or there is nothing to be brought.
    """
    if rank not in alive:
        raise SessionError(
            f"pull {','.join(names)}: rank {rank} is not up. Allowed: {', '.join(map(str, alive))}."
        )
    if only_here and rank == 0:
        raise SessionError(
            f"pull {','.join(names)}: the ranks have no {', '.join(only_here)}, only the notebook has."
        )


def not_handed_over(
    names: Sequence[str], rank: int, absent: Mapping[str, str], known: Collection[str]
) -> SessionError:
    """What is raised where names did not come.

    Args:
        absent: which, and why.
        known: names that are somewhere.
    """
    why = "; ".join(f"{name}: {reason}" for name, reason in absent.items())
    guesses = _guesses([name for name in absent if name not in known], known)
    return SessionError(f"pull {','.join(names)}: rank {rank} did not hand over {why}{guesses}.")


def _guesses(names: Iterable[str], known: Collection[str]) -> str:
    return "".join(did_you_mean(name, known) for name in names)
