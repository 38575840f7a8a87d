"""What ``%distributed COMMAND`` does: the ranks that are up, looked at and commanded from the notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbdist import defaults
from nbdist.auto import auto
from nbdist.checks import did_you_mean
from nbdist.errors import OptionError, SessionError
from nbdist.help import commands_text
from nbdist.options import ALL_OPTIONS, OF_ONE_CELL, PLAIN, given, name_flag, parse_words, split_line
from nbdist.options import complete as complete_options
from nbdist.session import (
    Run,
    Session,
    anything_held,
    debug,
    ended_runs,
    held_back,
    live_runs,
    live_sessions,
    no_such_session,
    release,
    session_named,
    where_ranks_stand,
)
from nbdist.shell import SHELLS_OWN, current_shell, namespace_of
from nbdist.views.overview import SessionStatus

_NO_RANKS = "No ranks are up."
_NAME, _ALL, _RANK = "--name", "--all", "--rank"
_LOG_LINES = 50  # of each rank, where all are shown
_LOG_LINES_OF_ONE = 200


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        run: does it, with the words behind it.
        usage: those words.
        what: it does, in words.
        flags: which flags are among them.
    """

    run: Callable[[Sequence[str]], None]
    usage: str
    what: str
    flags: tuple[str, ...] = ()


def run_command(line: str) -> None:
    """Do what a line says.

    Raises:
        OptionError: there is no such command, or its words are wrong.
        SessionError: what it is about is not up.
    """
    command, *words = split_line(line) or ["help"]
    if command not in COMMANDS:
        raise OptionError(
            f"%distributed {line.strip()}: no such command{did_you_mean(command.lower(), COMMANDS)}. "
            f"Allowed: {', '.join(COMMANDS)}. "
            "To run a cell on ranks, write %%distributed, with two percent signs, as its first line."
        )
    COMMANDS[command].run(words)


def check_no_command(words: Sequence[str]) -> None:
    """Refuse a command behind the magic that runs a cell.

    Raises:
        OptionError: the words begin with one.
    """
    if words and words[0] in COMMANDS:
        line = " ".join(words)
        raise OptionError(
            f"%%distributed {line}: a command is written with one percent sign, %distributed {line}. "
            "%%distributed runs the cell below it on ranks; options alone may follow it."
        )


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


def _named(name: str | None) -> Session | Run:
    """As `_session`; also a run in the background, which is looked for by its name, or is the only one."""
    runs, sessions = live_runs(), live_sessions()
    if name is None and not sessions and len(runs) == 1:
        return next(iter(runs.values()))
    return runs[name] if name in runs and name not in sessions else _session(name)


def _ended_run(name: str | None) -> tuple[str, Run] | None:
    """The run in the background of that name, if it has ended and nothing else has the name; without one the
    last that has ended, if nothing is up."""
    up, ended = {**live_runs(), **live_sessions()}, ended_runs()
    if name is None:
        return list(ended.items())[-1] if ended and not up else None
    return (name, ended[name]) if name in ended and name not in up else None


def _outcome(name: str, run: Run) -> str:
    ranks = f"{run.world_size} rank{'s' if run.world_size > 1 else ''}"
    return f"background run {name}: {ranks}, {run.status}"


def _start(words: Sequence[str]) -> None:
    options = parse_words(words, defaults.current())
    former = session_named(options.name)
    if former is not None and former.deaths and given(words).keys() <= {"name"}:
        options = former.options  # as it was
    if options.name in live_runs():
        raise SessionError(
            f"--name {options.name}: a background run of that name has ranks. Take another name, or end that "
            f"one first: %distributed stop --name {options.name}."
        )
    session = Session.of(options)
    session.start()
    own = name_flag(options.name)
    print(f"{session}: %%distributed{own} runs a cell there, %distributed stop{own} ends it.")


def _stop(words: Sequence[str]) -> None:
    every = list(words) == [_ALL]
    if _ALL in words and not every:
        raise _wrong("stop", words)
    name = None if every else _name_in("stop", words)
    runs, sessions = live_runs(), live_sessions()
    if every:
        ended: dict[str, Session | Run] = {**runs, **sessions}
    elif name is not None:
        if (over := _ended_run(name)) is not None:
            print(f"{_outcome(*over)}: nothing of it is up.")
            return
        ended = {name: _named(name)}
    else:
        ended = {PLAIN.name: sessions[PLAIN.name]} if PLAIN.name in sessions else {}
    with held_back():
        released = name is None and release()
        for label, one in ended.items():
            one.stop()
            print(f"{'session' if isinstance(one, Session) else 'background run'} {label} has ended.")
    if released:
        print("The ranks that were kept after a failure have ended.")
    if name is None and not every:
        _tell_what_is_left(nothing=not ended and not released)
    elif not ended and not released:
        print(_NO_RANKS)


def _tell_what_is_left(*, nothing: bool) -> None:
    """After a stop that named nothing."""
    for session in live_sessions().values():
        print(f"{session}: %distributed stop{name_flag(session.options.name)} ends it.")
    for name in live_runs():
        print(f"background run {name}: %distributed stop {_NAME} {name} ends it and drops what it has done.")
    if nothing and not live_sessions() and not live_runs():
        print(_NO_RANKS)


def _status(words: Sequence[str]) -> None:
    name = _name_in("status", words)
    if name is not None and (over := _ended_run(name)) is not None:
        print(f"{_outcome(*over)}. %distributed logs{name_flag(name)} shows what its ranks printed.")
        return
    up: list[Session | Run] = (
        [*live_sessions().values(), *live_runs().values()] if name is None else [_named(name)]
    )
    for one in up:
        _show(_overview(one))
    if not up and anything_held():
        print(
            "Ranks are kept after a failure: %distributed debug looks into them, %distributed stop ends them."
        )
    elif not up:
        print(f"{_NO_RANKS} %distributed start starts some that stay.")


def _overview(one: Session | Run) -> SessionStatus:
    return one.status() if isinstance(one, Session) else one.overview()


def _show(value: Any) -> None:
    from IPython.display import display

    display(value)


def _logs(words: Sequence[str]) -> None:
    rank, others = _rank_in("logs", words)
    name = _name_in("logs", others)
    over = _ended_run(name)
    if over is not None and name is None:  # nobody has said whose
        print(_outcome(*over))
    whose = over[1] if over is not None else _named(name)
    if rank is not None:
        print(whose.logs(rank, _LOG_LINES_OF_ONE), end="")
        return
    world_size = whose.world_size if isinstance(whose, Run) else len(_overview(whose).ranks)
    for one in range(world_size):
        print(f"rank {one}:\n{whose.logs(one, _LOG_LINES)}", end="")


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
    print(f"sent to the ranks of session {session.options.name}: {', '.join(names)}.")


def _pull(words: Sequence[str]) -> None:
    rank, others = _rank_of_flag(words)
    names, session = _names("pull", others)
    brought = session.bring_names(*names, rank=rank)
    print(f"brought from rank {brought}: {', '.join(names)}.")


def _rank_of_flag(words: Sequence[str]) -> tuple[int | None, list[str]]:
    """The rank of ``--rank N`` among words, and the other words."""
    spread: list[str] = []
    for word in words:
        spread += word.split("=", 1) if word.startswith(f"{_RANK}=") else [word]
    if _RANK not in spread:
        return None, spread
    at = spread.index(_RANK)
    number = spread[at + 1 : at + 2]
    if not number or not number[0].isdecimal():
        raise _wrong("pull", words)
    return int(number[0]), spread[:at] + spread[at + 2 :]


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


_OF_START = tuple(opt.flag for opt in ALL_OPTIONS if opt.name not in OF_ONE_CELL)


def overview_of_commands() -> str:
    """What ``%distributed`` alone shows."""
    return commands_text({name: (command.usage, command.what) for name, command in COMMANDS.items()})


def _help(words: Sequence[str]) -> None:
    if words:
        raise _wrong("help", words)
    print(f"{overview_of_commands()}\n%%distributed? shows the options.")


def _auto(words: Sequence[str]) -> None:
    print(auto.command(words))


def _defaults(words: Sequence[str]) -> None:
    if words:
        defaults.change(words)
    print(defaults.described())


COMMANDS: Mapping[str, Command] = {
    "start": Command(_start, "[OPTIONS]", "starts ranks that stay; OPTIONS as of %%distributed", _OF_START),
    "stop": Command(_stop, "[--name NAME | --all]", "ends them", (_NAME, _ALL)),
    "status": Command(_status, "[--name NAME]", "what is up, and what it does", (_NAME,)),
    "logs": Command(_logs, "[RANK] [--name NAME]", "what each rank printed last", (_NAME,)),
    "push": Command(_push, "NAMES [--name NAME]", "sends the notebook's values to the ranks", (_NAME,)),
    "pull": Command(_pull, "NAMES [--rank N] [--name NAME]", "brings the ranks' values here", (_RANK, _NAME)),
    "stacks": Command(_stacks, "", "where the ranks stand"),
    "debug": Command(_debug, "[RANK]", "pdb where a cell failed"),
    "auto": Command(_auto, "[on [OPTIONS] | off]", "every cell on the ranks", ("on", "off")),
    "defaults": Command(_defaults, "[--reset] [OPTIONS]", "options of all cells", ("--reset", *_OF_START)),
    "help": Command(_help, "", "shows this"),
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
        return [name for name in _names_after(words) if name.startswith(last.removeprefix(f"{_NAME}="))]
    if magic.startswith("%%"):
        return complete_options(line)
    if len(words) == 1 and words[0] in ("pull", "push", "logs", "debug") and not last.startswith("-"):
        start = last.rpartition(",")[2]
        return sorted(word for word in _offered(words[0]) if word.startswith(start))
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


def _names_after(words: Sequence[str]) -> Iterable[str]:
    """Names that may stand behind ``--name``."""
    knows_runs = words[:1] in (["stop"], ["status"], ["logs"])
    ended = ended_runs() if words[:1] == ["logs"] else {}
    return {**ended, **live_sessions(), **(live_runs() if knows_runs else {})}


def _offered(command: str) -> Iterable[str]:
    """What may stand behind a command that is about names or ranks; as the ranks said last."""
    try:
        session = _named(None) if command == "logs" else _session(None)
    except SessionError:  # none is up
        return ()
    if command in ("logs", "debug"):
        return map(str, range(len(_overview(session).ranks)))
    assert isinstance(session, Session)
    if command == "pull":
        return [info.name for info in session.names_bound if info.type_name != "module"]
    here = namespace_of(current_shell())
    return [name for name in here if not name.startswith("_") and name not in SHELLS_OWN]


def _may_follow(command: Command, word: str, words: Sequence[str]) -> bool:
    return not word.startswith("-") or (word in command.flags and word not in words)
