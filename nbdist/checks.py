"""What an option's value may be: checks from the magic's text, or a natural Python value, to what `Options`
holds. What is wrong is raised as a ValueError with a phrase that goes after ``--devices banana:``.
"""

from __future__ import annotations

import difflib
import keyword
import math
import operator
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Literal, TypeAlias

Devices: TypeAlias = Literal["auto"] | int | tuple[int, ...]

MAX_DEVICES = 1024  # a guard against a slip of the finger, well above any real machine
# torch counts timeouts in whole milliseconds and adds them to a clock that must not overflow.
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.001, 1e9

short = reprlib.Repr()
short.maxstring = short.maxother = 80


def one_of(value: object, names: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in names:
        return value
    raise ValueError("no such choice" + did_you_mean(value, names))


def whole(value: object, low: int = 0, high: int = MAX_DEVICES) -> int:
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


def devices(value: object) -> Devices:
    text = value.strip() if isinstance(value, str) else ""
    if text == "auto":
        return "auto"
    if "," not in text and (text or not isinstance(value, Sequence)):
        return whole(value, low=1)
    parts = _parts(text.removesuffix(",") or value)  # "2," is device 2 alone
    indices = tuple(whole(part, high=MAX_DEVICES - 1) for part in parts)
    if not indices:
        raise ValueError("no device at all")
    if len(set(indices)) < len(indices):
        raise ValueError("a device is named twice")
    return indices


def ranks(value: object) -> tuple[int, ...]:
    parts = [value] if isinstance(value, int) else _parts(value)
    numbers = tuple(whole(part, high=MAX_DEVICES - 1) for part in parts)
    if not numbers:
        raise ValueError("no rank at all")
    if len(set(numbers)) < len(numbers):
        raise ValueError("a rank is named twice")
    return tuple(sorted(numbers))


def names(value: object) -> tuple[str, ...]:
    names = []
    for part in _parts(value):
        if part == "":
            raise ValueError("a name is empty")
        if not isinstance(part, str) or not part.isidentifier() or keyword.iskeyword(part):
            raise ValueError(f"{short.repr(part)} is not a Python name")
        names.append(unicodedata.normalize("NFKC", part))  # as Python's own parser does
    return tuple(dict.fromkeys(names))


def name(value: object) -> str:
    if not isinstance(value, str) or not value.replace("-", "_").isidentifier():
        raise ValueError("not a name")
    return value


def background(value: object) -> str | None:
    """A name to bind; empty for none. None: not in the background."""
    if isinstance(value, bool):
        return "" if value else None
    (name,) = names([value])
    return name


def seconds(value: object) -> float:
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if math.isnan(seconds) or isinstance(value, bool):
        raise ValueError("not a number")
    if not MIN_TIMEOUT_S <= seconds <= MAX_TIMEOUT_S:
        raise ValueError("out of range")
    return seconds


def patience(value: object) -> float:
    nothing = value in ("0", 0) and not isinstance(value, bool)
    return 0.0 if nothing else seconds(value)


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


def size(value: object) -> int:
    """Bytes: a whole number, or a number with a unit such as ``500MB`` or ``1MiB``."""
    text = value.strip() if isinstance(value, str) else str(whole(value, high=10**18))
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt]?i?)b?", text, re.IGNORECASE)
    unit = found[2].lower() if found else ""
    if found is None or unit not in _UNITS:
        raise ValueError("not a size")
    return int(float(found[1]) * _UNITS[unit])


def true_or_false(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("neither True nor False")


def backend(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w-]+|[\w-]+:[\w-]+(,[\w-]+:[\w-]+)*", value):
        raise ValueError("not the form of a backend's name")
    known = _available_backends()  # loads torch, hence only where a backend is named
    for part in value.lower().split(","):  # torch ignores case too
        name = part.rpartition(":")[2]
        if known and name not in known:
            raise ValueError(
                f"{name} is not in the installed torch{did_you_mean(name, known)}; it has {', '.join(known)}"
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
    listed = (name for name in dist.Backend.backend_list if name not in (dist.Backend.UNDEFINED, "fake"))
    return tuple(name for name in listed if dist.is_backend_available(name))


def did_you_mean(word: object, candidates: Iterable[str], form: str = "{}") -> str:
    candidates = list(candidates)
    matches = [name for name in candidates if name.startswith(str(word))]  # it is cut short
    if len(matches) != 1 or len(str(word)) < 3:
        matches = difflib.get_close_matches(str(word), candidates, n=1, cutoff=0.7)  # "gpu" is no "cpu"
    return f" (did you mean {form.format(matches[0])}?)" if matches else ""
