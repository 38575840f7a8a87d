"""Every option once: its type, default, help and what is allowed.

The magic's parser, the keywords of the Python interface, the help text, tab completion and the README's
table (`help`) are all made from the fields of `Options`. A new option is one more field, and perhaps
a check.
"""

from __future__ import annotations

import difflib
import keyword
import math
import operator
import re
import reprlib
import shlex
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeAlias

from nbdist.errors import OptionError

Devices: TypeAlias = Literal["auto"] | int | tuple[int, ...]

MAX_DEVICES = 1024  # a guard against a slip of the finger, well above any real machine
MAX_SEED = 2**32 - 2**16  # seed + rank stays in numpy's range (below 2**32) for 65,536 ranks
# torch counts timeouts in whole milliseconds and adds them to a clock that must not overflow.
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.001, 1e9

STRATEGIES = ("ddp", "ddp_find_unused_parameters_true", "ddp_static_graph")
START_METHODS = ("auto", "fork", "forkserver", "spawn")

NEXT_STEP = "%%distributed? shows all options."

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


# Checks: the magic's text or a natural Python value -> what `Options` holds. What is wrong is
# raised as a ValueError with a phrase that goes after "--devices banana: ".


def _choice(value: object, names: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in names:
        return value
    raise ValueError("no such choice" + _did_you_mean(value, names))


def _whole(value: object, low: int = 0, high: int = MAX_DEVICES) -> int:
    # int() alone would also take "1_0", and a number too long to be anything but a slip.
    digits = isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,30}\s*", value)
    try:
        number = int(digits[0]) if digits else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError("not a whole number") from None
    if isinstance(value, bool):
        raise ValueError("not a whole number")
    if not low <= number <= high:
        raise ValueError("out of range")
    return number


def _parts(value: object) -> list[object]:
    """What ``a,b`` or a list, a tuple or a range holds."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return list(value)
    raise ValueError(f"{type(value).__name__} is neither text nor a list")


def _devices(value: object) -> Devices:
    text = value.strip() if isinstance(value, str) else ""
    if text == "auto":
        return "auto"
    if "," not in text and (text or not isinstance(value, Sequence)):
        return _whole(value, low=1)
    parts = _parts(text.removesuffix(",") or value)  # "2," is device 2 alone
    indices = tuple(_whole(part, high=MAX_DEVICES - 1) for part in parts)
    if not indices:
        raise ValueError("no device at all")
    if len(set(indices)) < len(indices):
        raise ValueError("a device is named twice")
    return indices


def _names(value: object) -> tuple[str, ...]:
    names = []
    for part in _parts(value):
        if part == "":
            raise ValueError("a name is empty")
        if not isinstance(part, str) or not part.isidentifier() or keyword.iskeyword(part):
            raise ValueError(f"{_short.repr(part)} is not a Python name")
        names.append(unicodedata.normalize("NFKC", part))  # as Python's own parser does
    return tuple(dict.fromkeys(names))


def _seconds(value: object) -> float:
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if math.isnan(seconds) or isinstance(value, bool):
        raise ValueError("not a number")
    if not MIN_TIMEOUT_S <= seconds <= MAX_TIMEOUT_S:
        raise ValueError("out of range")
    return seconds


def _patience(value: object) -> float:
    nothing = value in ("0", 0) and not isinstance(value, bool)
    return 0.0 if nothing else _seconds(value)


_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


def _size(value: object) -> int:
    """Bytes: a whole number, or a number with a unit such as ``500MB`` or ``1MiB``."""
    text = value.strip() if isinstance(value, str) else str(_whole(value, high=10**18))
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt]?i?)b?", text, re.IGNORECASE)
    unit = found[2].lower() if found else ""
    if found is None or unit not in _UNITS:
        raise ValueError("not a size")
    return int(float(found[1]) * _UNITS[unit])


def _true_or_false(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("neither True nor False")


def _backend(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w-]+|[\w-]+:[\w-]+(,[\w-]+:[\w-]+)*", value):
        raise ValueError("not the form of a backend's name")
    known = _available_backends()  # loads torch, hence only where a backend is named
    for part in value.lower().split(","):  # torch ignores case too
        name = part.rpartition(":")[2]
        if known and name not in known:
            raise ValueError(
                f"{name} is not in the installed torch{_did_you_mean(name, known)}; it has {', '.join(known)}"
            )
    return value.lower()


def _available_backends() -> tuple[str, ...]:
    """Backends of the installed torch, plugins' included; empty where torch cannot tell."""
    try:
        import torch.distributed as dist
    except ImportError:
        return ()
    if not dist.is_available():
        return ()
    listed = (name for name in dist.Backend.backend_list if name != dist.Backend.UNDEFINED)
    return tuple(name for name in listed if dist.is_backend_available(name))


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

    @property
    def is_switch(self) -> bool:
        """Whether it is a flag without a value."""
        return isinstance(self.default, bool)

    @property
    def flag(self) -> str:
        """The long flag: ``--devices``, or ``--no-init`` for a switch that is on by default."""
        return ("--no-" if self.default is True else "--") + self.name.replace("_", "-")

    @property
    def usage(self) -> str:
        """The flags with what follows them: ``-d, --devices N|auto|0,2``."""
        flags = f"{self.short}, {self.flag}" if self.short else self.flag
        return flags if self.is_switch else f"{flags} {self.metavar}"


def option(default: Any, help: str, check: Callable[[object], Any], **facts: Any) -> Any:
    """A field of `Options`; *facts* are the other attributes of `Option`."""
    return field(default=default, metadata={"help": help, "check": check, **facts})


def choice(default: str, help: str, *names: str) -> Any:
    """A field of `Options` that holds one of *names*."""
    facts = {"metavar": "|".join(names), "allowed": ", ".join(names), "example": names[-1], "choices": names}
    check = partial(_choice, names=names)
    return option(default, help, check, default_help=default, **facts)


# fmt: off
# The table keeps the facts of an option side by side, not one argument a line.
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one run, checked: made by `parse_magic` and `from_keywords`."""

    devices: Devices = option(  # noqa: RUF009 (a description of the field, not a shared default)
        "auto", "how many devices (one rank each), all of them, or which ones", _devices,
        short="-d", metavar="N|auto|0,2", choices=("auto",), example=4,
        allowed=f"auto, a number from 1 to {MAX_DEVICES}, or different indices: 0,2 (just device 2: '2,')",
        default_help="auto (all GPUs; without a GPU, 2 CPU ranks)")
    accelerator: str = choice("auto", "where the ranks compute", "auto", "cuda", "cpu")
    backend: str | None = option(
        None, "any torch.distributed backend", _backend,
        metavar="NAME", choices=("nccl", "gloo"), example="gloo",
        allowed="a backend of the installed torch, or one for each device type: cpu:gloo,cuda:nccl",
        default_help="nccl on CUDA, gloo on CPU")
    start_method: str = choice(
        "auto", "how the ranks' processes are started", *START_METHODS)
    output: tuple[str, ...] | None = option(
        None, "bring back exactly these names, from rank 0", _names,
        short="-o", metavar="a,b", example=("model", "losses"),
        allowed="Python names, with commas and no spaces", default_help="what rank 0 changed")
    gather: tuple[str, ...] = option(
        (), "bring back these names as a list over ranks", _names, metavar="a,b", example=("loss",),
        allowed="Python names, with commas and no spaces", default_help="none")
    max_return: int | None = option(
        None, "largest new value brought back unasked; others are listed", _size,
        metavar="SIZE", example="500MB", allowed="bytes, or a number with a unit: 1MiB, 500MB, 2GB",
        default_help="what fits in memory")
    logs: str = choice("all", "whose text goes into the cell's output", "all", "rank0", "none")
    seed: int | None = option(
        None, "seed python, numpy and torch with N + rank", partial(_whole, high=MAX_SEED),
        metavar="N", example=42,
        allowed=f"a whole number from 0 to {MAX_SEED}", default_help="the notebook's own state on every rank")
    timeout: float | None = option(
        None, "how long a collective may wait for the other ranks", _seconds, metavar="SECONDS", example=600,
        allowed=f"seconds from {MIN_TIMEOUT_S:g} to {MAX_TIMEOUT_S:,.0f}", default_help="torch's")
    strategy: str = choice(
        "ddp", "default for nbdist.setup(): how a model is trained on all ranks", *STRATEGIES)
    hang_timeout: float = option(
        30.0, "report ranks that stand still this long (0: never)", _patience, metavar="SECONDS", example=120,
        allowed=f"0 or seconds from {MIN_TIMEOUT_S:g} to {MAX_TIMEOUT_S:,.0f}", default_help="30")
    on_hang: str = choice(
        "report", "what to do about ranks that stand still: tell of them, or stop the cell too",
        "report", "stop")
    hold: bool = option(
        False, "keep the ranks after a failure, for %distributed debug, until the next cell on ranks",
        _true_or_false, example=True, allowed="True, False", default_help="off")
    init: bool = option(
        True, "leave init_process_group to the cell", _true_or_false, example=False,
        allowed="True, False", default_help="off")
# fmt: on


ALL_OPTIONS = tuple(Option(name=f.name, default=f.default, **f.metadata) for f in fields(Options))
_BY_FLAG = {flag: opt for opt in ALL_OPTIONS for flag in (opt.short, opt.flag) if flag}


def parse_magic(line: str) -> Options:
    """Read what follows ``%%distributed`` on its line. Of an option given twice the last counts.

    Raises:
        OptionError: a wrong value, an unknown option, a missing value or a stray word.

    Example:
        >>> parse_magic("-d 0,2 --seed=1").devices
        (0, 2)
    """
    try:
        words = shlex.split(line)
    except ValueError:  # of shlex: no closing quotation, or nothing after a last backslash
        raise OptionError(f"{line.strip()}: a quotation mark is not closed. {NEXT_STEP}") from None
    return parse_words(words)


def parse_words(words: Sequence[str]) -> Options:
    """Read options that are split into words already, as a command line's are; else as `parse_magic`."""
    values: dict[str, Any] = {}
    waiting = deque(words)
    while waiting:
        word = waiting.popleft()
        flag, text = _split_flag(word)
        opt = _BY_FLAG.get(flag)
        if opt is None:
            raise _unknown_word(word)
        if opt.is_switch and text is not None:
            raise OptionError(f"{word}: {flag} takes no value. Write {flag} alone. {NEXT_STEP}")
        if opt.is_switch:
            values[opt.name] = not opt.default
            continue
        spell = partial(_as_flag, flag)
        if text is None and (not waiting or _split_flag(waiting[0])[0] in _BY_FLAG):
            raise OptionError(f"{flag}: its value is missing. {_advice(opt, spell)}")
        values[opt.name] = _checked(opt, waiting.popleft() if text is None else text, spell)
    return Options(**values)


def from_keywords(**keywords: object) -> Options:
    """Check the keywords of the Python interface; natural Python values are taken too.

    Raises:
        OptionError: a wrong value or an unknown keyword.

    Example:
        >>> from_keywords(devices=[0, 2], timeout=timedelta(minutes=5)).timeout
        300.0
    """
    known = {opt.name: opt for opt in ALL_OPTIONS}
    values: dict[str, Any] = {}
    for name, value in keywords.items():
        if name not in known:
            guess = _did_you_mean(name, known, "{}=")
            allowed = ", ".join(f"{n}=" for n in known)
            raise OptionError(
                f"{_as_keyword(name, value)}: no such option{guess}. Allowed: {allowed}. "
                "Keywords of your own function go into it by functools.partial."
            )
        absent = value is None and known[name].default is None
        values[name] = None if absent else _checked(known[name], value, partial(_as_keyword, name))
    return Options(**values)


def _as_flag(flag: str, value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{flag} {shlex.quote(text if len(text) <= 80 else text[:77] + '...')}"


def _as_keyword(name: str, value: object) -> str:
    return f"{name}={_short.repr(value)}"


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


def _unknown_word(word: str) -> OptionError:
    bare = word.partition("=")[0].lstrip("-–—")  # dashes copied from a web page included
    guess = _did_you_mean(f"--{bare}", _BY_FLAG)
    reason = "no such option" if word.startswith("-") else "belongs to no option"
    given = word or "''"
    return OptionError(f"{given}: {reason}{guess}. Lists are written without spaces: 0,2. {NEXT_STEP}")


def _did_you_mean(word: object, candidates: Iterable[str], form: str = "{}") -> str:
    matches = difflib.get_close_matches(str(word), candidates, n=1, cutoff=0.7)  # "gpu" is no "cpu"
    return f" (did you mean {form.format(matches[0])}?)" if matches else ""


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
    if opt is not None and not opt.is_switch:
        return [choice for choice in opt.choices if choice.startswith(start if equals else last)]
    used = {_BY_FLAG[name] for name, _ in map(_split_flag, before) if name in _BY_FLAG}
    return [opt.flag for opt in ALL_OPTIONS if opt not in used and opt.flag.startswith(last)]
