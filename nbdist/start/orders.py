"""What the kernel says to its fork server, and to workers that begin with nothing of the kernel."""

from __future__ import annotations

from dataclasses import dataclass

from nbdist.messages import Assignment, Parcel


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """What a worker that is no fork of the kernel begins with; its luggage travels beside it."""

    assignment: Assignment
    parcel: Parcel


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOne:
    """To the fork server: fork a worker; its channel, its two pipes and the one for the report of its end
    travel beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """From the fork server: the new worker's pid."""

    pid: int
