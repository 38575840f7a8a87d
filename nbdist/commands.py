"""What ``%distributed COMMAND`` does: the ranks that are up, looked at and commanded from the notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbdist import defaults
from nbdist.auto import auto
from nbdist.checks import did_you_mean
from nbdist.errors import OptionError
from nbdist.options import ALL_OPTIONS, PLAIN, Options, given, parse_words, split_line
from nbdist.options import complete as complete_options
from nbdist.session import (
    Session,
    debug,
    live_sessions,
    no_such_session,
    release,
    session_named,
    start_session,
    stop_sessions,
    where_ranks_stand,
)

_NO_RANKS = "No ranks are up."
_NAME, _ALL = "--name", "--all"
_LOG_LINES = 50  # of each rank, where all are shown


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        run: does it, with the words behind it.
        usage: those words.
        flags: which flags are among them.
    """

    run: Callable[[Sequence[str]], None]
    usage: str = ""
    flags: tuple[str, ...] = ()


def run_command(line: str) -> None:
    """Do what a line says.

    Raises:
        OptionError: there is no such command, or its words are wrong.
        SessionError: what it is about is not up.
    """
    command, *words = split_line(line) or [""]
    if command not in COMMANDS:
        raise OptionError(
            f"%distributed {line.strip()}: no such command{did_you_mean(command, COMMANDS)}. "
            f"Allowed: {', '.join(COMMANDS)}. "
            "To run a cell on ranks, write %%distributed, with two percent signs, as its first line."
        )
    COMMANDS[command].run(words)


def _wrong(command: str, words: Sequence[str]) -> OptionError:
    allowed = f"%distributed {command} {COMMANDS[command].usage}".rstrip()
    return OptionError(f"%distributed {' '.join([command, *words])}: not understood. Allowed: {allowed}.")


def _rank_in(command: str, words: Sequence[str]) -> tuple[int | None, list[str]]:
    """The one rank that words may name, and the other words."""
    ranks = [word for word in words if word.isdecimal()]
    if len(ranks) > 1:
        raise _wrong(command, words)
    return (int(ranks[0]) if ranks else None), [word for word in words if not word.isdecimal()]


def _name_in(command: str, words: Sequence[str]) -> str | None:
    """The session that words name; nothing else is allowed among them."""
    if words and words[0].partition("=")[0] != _NAME:
        raise _wrong(command, words)
    values = given(words)
    if values.keys() - {"name"}:
        raise _wrong(command, words)
    name: str | None = values.get("name")
    return name


def _session(name: str | None) -> Session:
    """The session of that name; without one the main one, or the only one."""
    up = live_sessions()
    if name is None and PLAIN.name not in up and len(up) == 1:
        return next(iter(up.values()))
    session = session_named(PLAIN.name if name is None else name)
    if session is None:
        raise no_such_session(PLAIN.name if name is None else name)
    return session


def _start(words: Sequence[str]) -> None:
    options = parse_words(words, defaults.current())
    session = start_session(options)
    own = _own(options)
    print(f"{session}: %%distributed{own} runs a cell there, %distributed stop{own} ends it.")


def _own(options: Options) -> str:
    return "" if options.name == PLAIN.name else f" {_NAME} {options.name}"


def _stop(words: Sequence[str]) -> None:
    every = list(words) == [_ALL]
    name = None if every else _name_in("stop", words)
    if name is not None and session_named(name) is None:
        raise no_such_session(name)
    released = name is None and release()
    stopped = stop_sessions(None if every else name or PLAIN.name)
    left = [session for session in live_sessions().values() if name is None]
    if left:
        print("\n".join(f"{session}: %distributed stop{_own(session.options)} ends it." for session in left))
    elif not stopped and not released:
        print(_NO_RANKS)


def _status(words: Sequence[str]) -> None:
    name = _name_in("status", words)
    sessions = [*live_sessions().values()] if name is None else [_session(name)]
    for session in sessions:
        _show(session.status())
    if not sessions:
        print(f"{_NO_RANKS} %distributed start starts some that stay.")


def _show(value: Any) -> None:
    from IPython.display import display

    display(value)


def _logs(words: Sequence[str]) -> None:
    rank, others = _rank_in("logs", words)
    session = _session(_name_in("logs", others))
    if rank is not None:
        print(session.logs(rank), end="")
        return
    for one in range(len(session.status().ranks)):
        print(f"rank {one}:\n{session.logs(one, _LOG_LINES)}", end="")


def _stacks(words: Sequence[str]) -> None:
    if words:
        raise _wrong("stacks", words)
    print("\n".join(where_ranks_stand()) or _NO_RANKS)


def _debug(words: Sequence[str]) -> None:
    rank, others = _rank_in("debug", words)
    if others:
        raise _wrong("debug", words)
    debug(rank)


def _push(words: Sequence[str]) -> None:
    names, session = _names("push", words)
    session.send_names(*names)


def _pull(words: Sequence[str]) -> None:
    names, session = _names("pull", words)
    session.bring_names(*names)


def _names(command: str, words: Sequence[str]) -> tuple[tuple[str, ...], Session]:
    """The names that follow a command, with commas or spaces, and the session behind them."""
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
    return tuple(dict.fromkeys(names)), _session(_name_in(command, words[end:]))


_OF_START = tuple(opt.flag for opt in ALL_OPTIONS if opt.name not in ("ranks", "output", "gather"))


def _auto(words: Sequence[str]) -> None:
    print(auto.command(words))


def _defaults(words: Sequence[str]) -> None:
    if words:
        defaults.change(words)
    print(defaults.described())


COMMANDS: Mapping[str, Command] = {
    "start": Command(_start, "[options of %%distributed]", _OF_START),
    "stop": Command(_stop, "[--name NAME | --all]", (_NAME, _ALL)),
    "status": Command(_status, "[--name NAME]", (_NAME,)),
    "logs": Command(_logs, "[RANK] [--name NAME]", (_NAME,)),
    "push": Command(_push, "NAMES [--name NAME]", (_NAME,)),
    "pull": Command(_pull, "NAMES [--name NAME]", (_NAME,)),
    "stacks": Command(_stacks),
    "debug": Command(_debug, "[RANK]"),
    "auto": Command(_auto, "[on [options of %%distributed] | off]", ("on", "off")),
    "defaults": Command(_defaults, "[--reset] [options of %%distributed]", ("--reset", *_OF_START)),
}


def complete(line: str) -> list[str]:
    """What could stand for the last word of a line that begins with ``%distributed`` or ``%%distributed``.

    Example:
        >>> complete("%distributed sta")
        ['start', 'status', 'stacks']
    """
    magic, *words = line.split() or [""]
    last = words.pop() if words and line == line.rstrip() else ""
    if [*words, last][-2:-1] == [_NAME] or last.startswith(f"{_NAME}="):
        return [name for name in live_sessions() if name.startswith(last.removeprefix(f"{_NAME}="))]
    if magic.startswith("%%"):
        return complete_options(line)
    if not words:
        return [command for command in COMMANDS if command.startswith(last)]
    command = COMMANDS.get(words[0])
    if command is None:
        return []
    found = complete_options(line.replace(f" {words[0]}", "", 1)) if words[0] == "start" else command.flags
    return [
        word
        for word in found
        if word.startswith(last.rpartition("=")[2]) and _may_follow(command, word, words)
    ]


def _may_follow(command: Command, word: str, words: Sequence[str]) -> bool:
    return not word.startswith("-") or (word in command.flags and word not in words)
