"""Who is told what a rank's work logs, and how far its loops are: the worker of an nbdist run, or nobody.

What is called in a rank (`nbdist.training`) knows nothing of the worker around it; they meet here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class OpenBar(Protocol):
    """A progress bar that goes on."""

    def show(
        self, *, label: str, done: float, total: float | None, detail: str = "", drawn: str = ""
    ) -> None:
        """It is so far now."""

    def end(self, *, kept: bool) -> None:
        """It is over."""


class Audience(Protocol):
    """The worker, as its work's loops see it."""

    def log(self, step: float | None, values: Mapping[str, Any]) -> None:
        """Take numbers, each a float or a `Later`; `step` None is the number of the call."""

    def bar(self, label: str) -> OpenBar:
        """A new bar."""


class Later(Protocol):
    """A number that a device has not computed yet."""

    def ready(self) -> bool:
        """Whether it can be read without waiting."""

    def read(self) -> float:
        """The number."""


current: Audience | None = None
"""None in a plain process, and in a child that a rank forked."""


def attend(audience: Audience | None) -> None:
    """From now on this one is told."""
    global current
    current = audience
