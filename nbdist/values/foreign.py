"""Code that belongs to the user's values (``__reduce__``, ``__setstate__``, ``__eq__``) may raise
anything. It runs here, and what it raises becomes that value's reason to stay behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A value's own code failed.

    Attributes:
        reason: one line for the user.
        error_class: of what was raised.
    """

    reason: str
    error_class: type[BaseException]


def call_foreign(step: Callable[[], T]) -> T | Refusal:
    """The result of `step`, or why it failed."""
    try:
        return step()
    except (Exception, SystemExit) as error:  # noqa: BLE001  the boundary to code that is not ours
        return Refusal((str(error) or type(error).__name__).splitlines()[0], type(error))
