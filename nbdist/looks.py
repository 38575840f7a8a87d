"""What is asked about the names and objects of a live rank, and what it says: messages, as in `messages`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class NameInfo:
    """A name that a live rank's work has bound.

    Attributes:
        size_bytes: of its value's data; None where that cannot be told at once.
    """

    name: str
    type_name: str
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """To a live rank that has nothing to do: what is to be known of ``model.layers[0]``? Without `help`, its
    attributes; else what the shell's ``object_inspect_mime`` says with these arguments."""

    number: int
    expression: str
    help: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The answer to the question of that number; None where there is none, or none in time."""

    number: int
    answer: tuple[str, ...] | Mapping[str, str] | None
