"""Every option once: its type, default, help and what is allowed.

The magic's parser, the keywords of the Python interface, the help text, tab completion and the README's
table (`help`) are all made from the fields of `Options`. A new option is one more field, and perhaps
a check.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from nbdist import checks
from nbdist.checks import MAX_DEVICES, MAX_TIMEOUT_S, MIN_TIMEOUT_S, Devices
from nbdist.errors import NotCallableError, OptionError

MAX_SEED = 2**32 - 2**16  # seed + rank stays in numpy's range (below 2**32) for 65,536 ranks

STRATEGIES = ("ddp", "ddp_find_unused_parameters_true", "ddp_static_graph")
START_METHODS = ("auto", "fork", "forkserver", "spawn")

NEXT_STEP = "%%distributed? shows all options."


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: what the parsers, help and completion need to know of it."""

    name: str  # the field of `Options` and the keyword of the Python interface
    default: Any  # True or False makes it a switch, a flag without a value
    check: Callable[[object], Any]  # raw value -> the field's value; ValueError if it is wrong
    help: str
    default_help: str  # the default in words
    allowed: str  # what a value may be, in words
    example: Any
    short: str = ""  # a one-letter flag such as "-d"
    metavar: str = ""  # stands for the value in help
    choices: tuple[str, ...] = ()  # values that completion offers
    alone: Any = None  # what the flag without a value means; None: it needs one

    @property
    def is_switch(self) -> bool:
        """Whether it is a flag without a value."""
        return isinstance(self.default, bool)

    @property
    def flag(self) -> str:
        """The long flag: ``--devices``, or ``--no-init`` for a switch that is on by default."""
        return ("--no-" if self.default is True else "--") + self.name.replace("_", "-")

    @property
    def undo(self) -> str:
        """The flag that gives a switch its default again, where the notebook's defaults say otherwise."""
        return ("--" if self.default is True else "--no-") + self.name.replace("_", "-")

    @property
    def usage(self) -> str:
        """The flags with what follows them: ``-d, --devices N|auto|0,2``."""
        flags = f"{self.short}, {self.flag}" if self.short else self.flag
        if self.is_switch:
            return flags
        return f"{flags} [{self.metavar}]" if self.alone is not None else f"{flags} {self.metavar}"


def option(default: Any, help: str, check: Callable[[object], Any], **facts: Any) -> Any:
    """A field of `Options`; *facts* are the other attributes of `Option`."""
    return field(default=default, metadata={"help": help, "check": check, **facts})


def choice(default: str, help: str, *names: str) -> Any:
    """A field of `Options` that holds one of *names*."""
    facts = {"metavar": "|".join(names), "allowed": ", ".join(names), "example": names[-1], "choices": names}
    check = partial(checks.one_of, names=names)
    return option(default, help, check, default_help=default, **facts)


# fmt: off
# The table keeps the facts of an option side by side, not one argument a line.
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one run, checked: made by `parse_magic` and `from_keywords`."""

    devices: Devices = option(  # noqa: RUF009 (a description of the field, not a shared default)
        "auto", "how many devices (one rank each), all of them, or which ones", checks.devices,
        short="-d", metavar="N|auto|0,2", choices=("auto",), example=4,
        allowed=f"auto, a number from 1 to {MAX_DEVICES}, or different indices: 0,2 (just device 2: '2,')",
        default_help="auto (all GPUs; without a GPU, 2 CPU ranks)")
    accelerator: str = choice("auto", "where the ranks compute", "auto", "cuda", "cpu")
    backend: str | None = option(
        None, "any torch.distributed backend", checks.backend,
        metavar="NAME", choices=("nccl", "gloo"), example="gloo",
        allowed="a backend of the installed torch, or one for each device type: cpu:gloo,cuda:nccl",
        default_help="nccl on CUDA, gloo on CPU")
    start_method: str = choice(
        "auto", "how the ranks' processes are started", *START_METHODS)
    output: tuple[str, ...] | None = option(
        None, "bring back exactly these names, from rank 0", checks.names,
        short="-o", metavar="a,b", example=("model", "losses"),
        allowed="Python names, with commas and no spaces", default_help="what rank 0 changed")
    gather: tuple[str, ...] = option(
        (), "bring back these names as a list over ranks", checks.names, metavar="a,b", example=("loss",),
        allowed="Python names, with commas and no spaces", default_help="none")
    max_return: int | None = option(
        None, "largest new value brought back unasked; others are listed", checks.size,
        metavar="SIZE", example="500MB", allowed="bytes, or a number with a unit: 1MiB, 500MB, 2GB",
        default_help="what fits in memory")
    ranks: tuple[int, ...] | None = option(
        None, "run on these ranks only, in a process group of their own (live session)", checks.ranks,
        metavar="0,2", example=(0, 2), allowed="different ranks of the session, with commas: 0,2",
        default_help="all")
    logs: str = choice("all", "whose text goes into the cell's output", "all", "rank0", "none")
    seed: int | None = option(
        None, "seed python, numpy and torch with N + rank", partial(checks.whole, high=MAX_SEED),
        metavar="N", example=42,
        allowed=f"a whole number from 0 to {MAX_SEED}", default_help="the notebook's own state on every rank")
    timeout: float | None = option(
        None, "how long a collective may wait for the other ranks", checks.seconds,
        metavar="SECONDS", example=600,
        allowed=f"seconds from {MIN_TIMEOUT_S:g} to {MAX_TIMEOUT_S:,.0f}", default_help="torch's")
    strategy: str = choice(
        "ddp", "default for nbdist.setup(): how a model is trained on all ranks", *STRATEGIES)
    hang_timeout: float = option(
        30.0, "report ranks that stand still this long (0: never)", checks.patience,
        metavar="SECONDS", example=120,
        allowed=f"0 or seconds from {MIN_TIMEOUT_S:g} to {MAX_TIMEOUT_S:,.0f}", default_help="30")
    on_hang: str = choice(
        "report", "only report ranks that stand still, or end the cell too",
        "report", "stop")
    hold: bool = option(
        False, "keep the ranks after a failure, for %distributed debug, until the next cell on ranks",
        checks.true_or_false, example=True, allowed="True, False", default_help="off")
    name: str = option(
        "main", "which of several live sessions", checks.name, metavar="NAME", example="eval",
        allowed="a word of letters, digits, - and _", default_help="main")
    background: str | None = option(
        None, "return at once with a Run (bound to NAME, if that is given); the cell's text goes on below it",
        checks.background, metavar="NAME", alone="", example="run",
        allowed="a Python name, or nothing", default_help="off")
    dashboard: bool = option(
        True, "text only, no panel under the cell", checks.true_or_false, example=False,
        allowed="True, False", default_help="a panel where the front end can show one")
    init: bool = option(
        True, "leave init_process_group to the cell", checks.true_or_false, example=False,
        allowed="True, False", default_help="off")
# fmt: on


ALL_OPTIONS = tuple(Option(name=f.name, default=f.default, **f.metadata) for f in fields(Options))
PLAIN = Options()
"""What holds where nothing is said."""
OF_ONE_CELL = ("ranks", "output", "gather", "background")
"""Options that say something of one cell, not of a session or of a notebook."""
_BY_NAME = {opt.name: opt for opt in ALL_OPTIONS}
_BY_FLAG = {flag: opt for opt in ALL_OPTIONS for flag in (opt.short, opt.flag) if flag}
_BY_UNDO = {opt.undo: opt for opt in ALL_OPTIONS if opt.is_switch}


def split_line(line: str) -> list[str]:
    """The words of a magic's line.

    Raises:
        OptionError: a quotation mark is not closed.
    """
    try:
        return shlex.split(line)
    except ValueError:  # of shlex: no closing quotation, or nothing after a last backslash
        raise OptionError(f"{line.strip()}: a quotation mark is not closed. {NEXT_STEP}") from None


def parse_magic(line: str, base: Options = PLAIN) -> Options:
    """Read what follows ``%%distributed`` on its line. Of an option given twice the last counts.

    Args:
        base: what holds where the line says nothing.

    Raises:
        OptionError: a wrong value, an unknown option, a missing value or a stray word.

    Example:
        >>> parse_magic("-d 0,2 --seed=1").devices
        (0, 2)
    """
    return parse_words(split_line(line), base)


def parse_words(words: Sequence[str], base: Options = PLAIN) -> Options:
    """Read options that are split into words already, as a command line's are; else as `parse_magic`."""
    return replace(base, **given(words))


def given(words: Sequence[str]) -> dict[str, Any]:
    """The options that words give, and no others: values by name, checked; else as `parse_magic`.

    Example:
        >>> given(["-d", "4", "--hold"])
        {'devices': 4, 'hold': True}
    """
    values: dict[str, Any] = {}
    waiting = deque(words)
    while waiting:
        word = waiting.popleft()
        flag, text = _split_flag(word)
        opt = _BY_FLAG.get(flag, _BY_UNDO.get(flag))
        if opt is None:
            raise _unknown_word(word, is_first=not values)
        if opt.is_switch and text is not None:
            raise OptionError(f"{word}: {flag} takes no value. Write {flag} alone. {NEXT_STEP}")
        if opt.is_switch:
            values[opt.name] = opt.default if flag in _BY_UNDO else not opt.default
            continue
        spell = partial(_as_flag, flag)
        if text is None and opt.alone is not None and (not waiting or waiting[0].startswith("-")):
            values[opt.name] = opt.alone
            continue
        if text is None and (not waiting or _is_flag(waiting[0])):
            raise OptionError(f"{flag}: its value is missing. {_advice(opt, spell)}")
        values[opt.name] = _checked(opt, waiting.popleft() if text is None else text, spell)
    return values


def spelled(values: Mapping[str, Any]) -> str:
    """Options as a magic's line says them: what `given` gives of it is *values*.

    Example:
        >>> spelled({"devices": (0, 2), "hold": True})
        '--devices 0,2 --hold'
    """
    return " ".join(_spelled_one(_BY_NAME[name], value) for name, value in values.items())


def name_flag(name: str) -> str:
    """What names a session in a command: `` --name eval``; nothing for the one without a name of its own."""
    return "" if name == PLAIN.name else f" {spelled({'name': name})}"


def _spelled_one(opt: Option, value: object) -> str:
    if opt.is_switch:
        return opt.undo if value is opt.default else opt.flag
    if opt.alone is not None and value == opt.alone:
        return opt.flag
    return _as_flag(opt.flag, value)


def check_callable(call: str, function: object) -> None:
    """Refuse to call on ranks what is no function.

    Args:
        call: by which it was handed over.

    Raises:
        NotCallableError: it is none.
    """
    if not callable(function):
        raise NotCallableError(f"{call}({function!r}): not callable. Pass a function, then its arguments.")


def check_lasting(options: Options, what: str) -> None:
    """Refuse options that say something of one cell.

    Args:
        what: more than one cell is meant.

    Raises:
        OptionError: there is one.
    """
    for name in OF_ONE_CELL:
        if getattr(options, name) != getattr(PLAIN, name):
            told = spelled({name: getattr(options, name)})
            raise OptionError(
                f"{told}: says something of one cell, not of {what}. Write it on the cell's line: "
                f"%%distributed {told}."
            )


def from_keywords(base: Options = PLAIN, /, **keywords: object) -> Options:
    """Check the keywords of the Python interface; natural Python values are taken too.

    Args:
        base: what holds of options that are not among them.

    Raises:
        OptionError: a wrong value or an unknown keyword.

    Example:
        >>> from_keywords(devices=[0, 2], timeout=timedelta(minutes=5)).timeout
        300.0
    """
    values: dict[str, Any] = {}
    for name, value in keywords.items():
        if name not in _BY_NAME:
            guess = checks.did_you_mean(name, _BY_NAME, "{}=")
            allowed = ", ".join(f"{n}=" for n in _BY_NAME)
            raise OptionError(
                f"{_as_keyword(name, value)}: no such option{guess}. Allowed: {allowed}. "
                "Keywords of your own function go into it by functools.partial."
            )
        absent = value is None and _BY_NAME[name].default is None
        values[name] = None if absent else _checked(_BY_NAME[name], value, partial(_as_keyword, name))
    return replace(base, **values)


def _as_flag(flag: str, value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    text = f"{value:g}" if isinstance(value, float) else text
    return f"{flag} {shlex.quote(text if len(text) <= 80 else text[:77] + '...')}"


def _as_keyword(name: str, value: object) -> str:
    return f"{name}={checks.short.repr(value)}"


def _checked(opt: Option, value: object, spell: Callable[[object], str]) -> Any:
    try:
        return opt.check(value)
    except ValueError as wrong:
        raise OptionError(f"{spell(value)}: {wrong}. {_advice(opt, spell)}") from None


def _advice(opt: Option, spell: Callable[[object], str]) -> str:
    return f"Allowed: {opt.allowed}. Write, for example, {spell(opt.example)}."


def _split_flag(word: str) -> tuple[str, str | None]:
    """``--x=1`` -> (``--x``, ``1``); ``-d4`` and ``-d=4`` -> (``-d``, ``4``); ``--x`` -> (``--x``, None)."""
    if word.startswith("--"):
        flag, equals, text = word.partition("=")
        return flag, text if equals else None
    if len(word) > 2 and word[:2] in _BY_FLAG:
        return word[:2], word[2:].removeprefix("=")
    return word, None


def _is_flag(word: str) -> bool:
    flag = _split_flag(word)[0]
    return flag in _BY_FLAG or flag in _BY_UNDO


def _unknown_word(word: str, *, is_first: bool) -> OptionError:
    if word.startswith("#"):
        return OptionError(f"{word}: a comment stands below this line, in the cell. {NEXT_STEP}")
    bare = word.partition("=")[0].lstrip("-–—")  # dashes copied from a web page included
    guess = checks.did_you_mean(f"--{bare}", _BY_FLAG)
    if re.fullmatch(r"auto|[0-9]+(,[0-9]*)*", word) and is_first:
        guess = f" (did you mean --devices {word}?)"
    reason = "no such option" if word.startswith("-") else "belongs to no option"
    given = word or "''"
    advice = (
        "" if word.startswith("-") else "A value stands behind its option, without spaces: --devices 0,2. "
    )
    return OptionError(f"{given}: {reason}{guess}. {advice}{NEXT_STEP}")


def complete(line: str) -> list[str]:
    """What could stand for the last word of a magic's line: flags not yet used, or a flag's values.

    The last word begins after the last space or ``=``, as IPython's completer sees it.

    Example:
        >>> complete("%%distributed --logs ra")
        ['rank0']
    """
    before = line.split()
    last = "" if line != line.rstrip() or not before else before.pop()
    if last.startswith("%"):
        return []
    flag, equals, start = last.partition("=")
    opt = _BY_FLAG.get(flag if equals else before[-1] if before else "")
    if opt is not None and not opt.is_switch and (equals or opt.alone is None):
        return [choice for choice in opt.choices if choice.startswith(start if equals else last)]
    used = {_BY_FLAG[name] for name, _ in map(_split_flag, before) if name in _BY_FLAG}
    return [opt.flag for opt in ALL_OPTIONS if opt not in used and opt.flag.startswith(last)]
