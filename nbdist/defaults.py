"""The options that hold in this notebook where a cell or a call says nothing: ``%distributed defaults``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nbdist.options import PLAIN, Options, given, spelled

_RESET = "--reset"

_changed: dict[str, Any] = {}


def current() -> Options:
    """What holds now."""
    return replace(PLAIN, **_changed)


def change(words: Sequence[str]) -> None:
    """Add options to what holds; after a first word ``--reset`` nothing of before holds.

    Raises:
        OptionError: a wrong option; nothing has changed.
    """
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
