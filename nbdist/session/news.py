"""What the notebook has new for a session's ranks, packed to be sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbdist.messages import Run
from nbdist.values.parcel import Echo
from nbdist.values.surroundings import Surroundings


@dataclass(slots=True, kw_only=True)
class Draft:
    """What the ledger notes once the news are on their way.

    Attributes:
        renewed: keys of objects that count as they are now.
        newer: keys of objects that are newer on the ranks, with the version of them here.
        seen: names whose values count as seen.
        dropped: keys of objects that go as new ones.
    """

    renewed: set[int] = field(default_factory=set)
    newer: dict[int, int] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What is about to be sent.

    Attributes:
        message: with its two memory files.
        names: that are bound anew.
        missing: names that are bound where there is none of that name.
        written: keys of objects whose content is sent.
        echo: objects that are new to the ranks.
        around: the notebook's surroundings.
        told: names, for the user: their values are on the way.
        apart: names that both sides have changed.
        draft: what else changes with them in the ledger.
        unsent: why the new content of what names lead to cannot be sent, by name.
    """

    message: Run
    fds: tuple[int, int]
    names: frozenset[str]
    missing: frozenset[str]
    written: frozenset[int]
    echo: Echo
    around: Surroundings
    told: tuple[str, ...]
    apart: tuple[str, ...]
    draft: Draft
    unsent: Mapping[str, str]

    def close(self) -> None:
        """Give the memory files back."""
        for fd in self.fds:
            os.close(fd)
