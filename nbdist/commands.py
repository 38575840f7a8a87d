"""What ``%distributed COMMAND`` does: the ranks that are up, looked at and commanded from the notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nbdist import defaults
from nbdist.auto import auto
from nbdist.errors import OptionError, SessionError
from nbdist.options import Options, parse_words, split_line
from nbdist.session import (
    Session,
    debug,
    release,
    session_named,
    start_session,
    stop_sessions,
    where_ranks_stand,
)

_NO_RANKS = "No ranks are up."
_NAME = "--name"


def run_command(line: str) -> None:
    """Do what a line says.

    Raises:
        OptionError: there is no such command, or its words are wrong.
    """
    command, *words = split_line(line) or [""]
    if command not in COMMANDS:
        raise _unknown(line)
    COMMANDS[command](words)


def _unknown(line: str) -> OptionError:
    return OptionError(
        f"%distributed {line.strip()}: no such command. Allowed: {', '.join(COMMANDS)}. "
        "To run a cell on ranks, write %%distributed, with two percent signs, as its first line."
    )


def _start(words: Sequence[str]) -> None:
    options = parse_words(words, defaults.current())
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


def _push(words: Sequence[str]) -> None:
    names, options = _names("push", words)
    _live(options.name).send_names(*names)


def _pull(words: Sequence[str]) -> None:
    names, options = _names("pull", words)
    _live(options.name).bring_names(*names)


def _names(command: str, words: Sequence[str]) -> tuple[tuple[str, ...], Options]:
    """The names that follow a command, with commas or spaces, and the options behind them."""
    flags = [at for at, word in enumerate(words) if word.startswith("-")]
    end = flags[0] if flags else len(words)
    names = [name for word in words[:end] for name in word.split(",") if name]
    wrong = [name for name in names if not name.isidentifier()]
    if wrong or not names:
        what = f"{wrong[0]} is not a name" if wrong else "no name is given"
        raise OptionError(
            f"%distributed {' '.join([command, *words])}: {what}. "
            f"Write, for example, %distributed {command} model"
        )
    return tuple(dict.fromkeys(names)), parse_words(words[end:], defaults.current())


def _live(name: str) -> Session:
    session = session_named(name)
    if session is None:
        raise SessionError("No live session is up. %distributed start starts one.")
    return session


def _auto(words: Sequence[str]) -> None:
    print(auto.command(words))


def _defaults(words: Sequence[str]) -> None:
    if words:
        defaults.change(words)
    print(defaults.described())


COMMANDS: Mapping[str, Callable[[Sequence[str]], None]] = {
    "start": _start,
    "stop": _stop,
    "stacks": _stacks,
    "debug": _debug,
    "push": _push,
    "pull": _pull,
    "auto": _auto,
    "defaults": _defaults,
}
