"""What ``%distributed COMMAND`` does: the ranks that are up, looked at and commanded from the notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nbdist.errors import OptionError
from nbdist.options import parse_words
from nbdist.session import debug, release, start_session, stop_sessions, where_ranks_stand

_NO_RANKS = "No ranks are up."
_NAME = "--name"


def run_command(line: str) -> None:
    """Do what a line says.

    Raises:
        OptionError: there is no such command, or its words are wrong.
    """
    command, *words = line.split() or [""]
    if command not in COMMANDS:
        raise _unknown(line)
    COMMANDS[command](words)


def _unknown(line: str) -> OptionError:
    return OptionError(
        f"%distributed {line.strip()}: no such command. Allowed: {', '.join(COMMANDS)}. "
        "To run a cell on ranks, write %%distributed, with two percent signs, as its first line."
    )


def _start(words: Sequence[str]) -> None:
    options = parse_words(words)
    start_session(options)


def _stop(words: Sequence[str]) -> None:
    name = parse_words(words).name if words else None
    stopped, released = stop_sessions(name), name is None and release()
    if not stopped and not released:
        print(_NO_RANKS)


def _stacks(words: Sequence[str]) -> None:
    if words:
        raise _unknown(" ".join(["stacks", *words]))
    print("\n".join(where_ranks_stand()) or _NO_RANKS)


def _debug(words: Sequence[str]) -> None:
    if len(words) > 1 or not all(word.isdecimal() for word in words):
        raise _unknown(" ".join(["debug", *words]))
    debug(int(words[0]) if words else None)


COMMANDS: Mapping[str, Callable[[Sequence[str]], None]] = {
    "start": _start,
    "stop": _stop,
    "stacks": _stacks,
    "debug": _debug,
}
