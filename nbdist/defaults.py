"""The options that hold in this notebook where a cell or a call says nothing: ``%distributed defaults``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nbdist.options import PLAIN, Options, check_lasting, given, spelled

_RESET = "--reset"

_changed: dict[str, Any] = {}


def current() -> Options:
    """What holds now."""
    return replace(PLAIN, **_changed)


def under(values: Mapping[str, Any]) -> Options:
    """What holds for a run whose own line or keywords give *values*, apart from these.

    The ranks of a run in the background are not kept after a failure: ``--hold`` contradicts it where both
    are written, and says nothing of it as a default.
    """
    in_background = values.get("background") not in (None, False)
    return replace(current(), hold=False) if in_background else current()


def change(words: Sequence[str]) -> None:
    """Add options to what holds; after a first word ``--reset`` nothing of before holds.

    Raises:
        OptionError: a wrong option; nothing has changed.
    """
    check_lasting(replace(PLAIN, **given(words[words[:1] == [_RESET] :])), "all cells")
    anew = words[:1] == [_RESET]
    values = given(words[1:] if anew else words)
    if anew:
        reset()
    _changed.update(values)


def reset() -> None:
    """Nothing but nbdist's own defaults holds."""
    _changed.clear()


def described() -> str:
    """What holds, as options."""
    return f"defaults of this notebook: {spelled(_changed) or 'none'}"
