"""Why a value stays behind, in plain words: what inside it belongs to its process, where, and what to do."""

from __future__ import annotations

import re
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.kind import ATOMS, attributes_of

_MOST_OBJECTS = 20_000  # that are looked at for the place of one
_MOST_PLACE_CHARS = 80

# How pickle, copyreg, multiprocessing and torch say that objects of a class cannot be pickled.
_REFUSED = (
    re.compile(r"cannot pickle '([\w.]+)' object"),
    re.compile(r"cannot pickle ([\w.]+) object"),
    re.compile(r"(\w+) objects should only be shared between processes through inheritance"),
    re.compile(r"\('\{\} cannot be pickled', '(\w+)'\)"),
    re.compile(r"[Cc]an ?not pickle ([\w.]+)$"),
    re.compile(r"Pickling an? (\w+) object is disallowed"),
)

_ANEW = "Make it anew in the notebook"
_KEEP = "Keep what you need of it: text, numbers, arrays"
_RESULT = "Keep what it gave"
_LOCK = ("a lock", _ANEW)
_GENERATOR = ("a generator", "Keep what it gives, in a list say")
_FILE = ("an open file", "Close it in the cell, or open it anew in the notebook")
_DATABASE = ("a connection to a database", "Fetch what you need, or connect anew in the notebook")
_QUEUE = ("a queue between threads or processes", "Take what it holds into a list")
_SHARED = ("memory shared between processes", "Keep its value")
_LOADER = ("an iterator over a DataLoader", "Begin anew: iter(loader)")
_TRACEBACK = ("a traceback", "Keep its text: traceback.format_exc()")
_GROUP = ("a part of the ranks' process group", "It ends with them: keep no name for it")
_LOOP = ("a part of an event loop", _ANEW)

_WORDS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("lock", "RLock", "Lock", "Condition", "Semaphore", "SemLock", "Event", "Barrier"), _LOCK
    ),
    **dict.fromkeys(("generator", "async_generator"), _GENERATOR),
    "coroutine": ("a coroutine", "Await it in the cell"),
    **dict.fromkeys(("traceback", "frame"), _TRACEBACK),
    **dict.fromkeys(("TextIOWrapper", "BufferedReader", "BufferedWriter", "BufferedRandom", "FileIO"), _FILE),
    **dict.fromkeys(("reader", "writer"), ("bound to an open file", _ANEW)),
    "mmap": ("a file in memory", "Keep its bytes, or map it anew in the notebook"),
    **dict.fromkeys(("socket", "SSLContext"), ("a network connection", "Connect anew in the notebook")),
    **dict.fromkeys(("Connection", "Cursor"), _DATABASE),
    **dict.fromkeys(("SimpleQueue", "Queue", "JoinableQueue"), _QUEUE),
    **dict.fromkeys(("Synchronized", "SynchronizedArray", "SynchronizedString"), _SHARED),
    **dict.fromkeys(("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"), _LOADER),
    "AuthenticationString": ("a started program", _RESULT),
    **dict.fromkeys(("HASH", "HMAC"), ("a hash in the making", "Keep its digest()")),
    **dict.fromkeys(("ProcessGroup", "HashStore", "TCPStore", "FileStore", "Work"), _GROUP),
    **dict.fromkeys(("epoll", "Context"), _LOOP),
}
"""What objects are that cannot be pickled, and what to do, by the last word of their class."""
_WHOLES: Mapping[str, tuple[str, str]] = {
    "threading.Thread": ("a thread", _RESULT),
    **dict.fromkeys(("threading.Condition", "threading.Semaphore", "threading.Event"), _LOCK),
    "threading.Barrier": _LOCK,
    "subprocess.Popen": ("a started program", _RESULT),
    "multiprocessing.BaseProcess": ("a started program", _RESULT),
    "multiprocessing.Pool": ("a pool of processes", _RESULT),
    "concurrent.Executor": ("a pool of threads or processes", _RESULT),
    "concurrent.Future": ("a future", "Keep its result()"),
    "asyncio.AbstractEventLoop": ("an event loop", _ANEW),
    "logging.Handler": ("a logging handler", _ANEW),
}
"""The same of objects that hold such a one and are known as a whole, by their package and class."""


def explain(name: str, value: Any, reason: str, *, advise: bool = True) -> str:
    """What to say of a value that could not be pickled.

    Args:
        name: how the notebook calls it.
        reason: what pickle, or the value's own code, said; where that is no word of pickle's, it stays.
        advise: whether to say what to do.

    Example:
        >>> explain("steps", {"left": (n for n in "ab")}, "cannot pickle 'generator' object")
        "steps['left'] is a generator, which cannot leave its process. Keep what it gives, in a list say"
    """
    refused = next((match[1] for match in (form.search(reason) for form in _REFUSED) if match), None)
    if refused is None:
        return reason
    short = refused.rpartition(".")[2]
    found = call_foreign(partial(_find, name, value, short))
    place, whole = ("", None) if isinstance(found, Refusal) else found
    what, advice = whole or _WORDS.get(short, (_with_article(short), _KEEP))
    subject = "it holds" if not place else "it is" if place == name else f"{place} is"
    is_said = whole is not None or short not in _WORDS or short.lower() in what
    kind = "" if is_said else f" ({refused})"
    fact = f"{subject} {what}{kind}, which cannot leave its process"
    return f"{fact}. {advice}" if advise else fact


def explain_parts(parts: Mapping[str, Any], reason: str) -> str:
    """As `explain`, of the first of several values, each by its name, that holds what could not be pickled.

    Example:
        >>> explain_parts({"rate": 0.1, "steps": (n for n in "ab")}, "cannot pickle 'generator' object")
        'steps is a generator, which cannot leave its process'
    """
    for name, value in parts.items():
        told = explain(name, value, reason, advise=False)
        if told.startswith((name, "it is")):
            return told if told.startswith(name) else f"{name}{told.removeprefix('it')}"
    return reason


def _with_article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def _find(name: str, value: Any, class_name: str) -> tuple[str, tuple[str, str] | None]:
    """How one gets from a name to the first object of a class, or to the whole that it is a part of, and
    what that whole is; empty where it is out of sight."""
    seen = {id(value): value}
    todo: deque[tuple[str, Any, tuple[str, tuple[str, str]] | None]] = deque([(name, value, None)])
    while todo and len(seen) < _MOST_OBJECTS:
        place, obj, whole = todo.popleft()
        if whole is None and (known := _whole(type(obj))) is not None:
            whole = place, known
        if type(obj).__name__ == class_name:
            return whole or (place, None)
        for step, part in _steps(obj):
            if type(part) not in ATOMS and id(part) not in seen:
                seen[id(part)] = part
                there = place + step if place and len(place) < _MOST_PLACE_CHARS else ""
                todo.append((there, part, whole))
    return "", None


def _whole(cls: type) -> tuple[str, str] | None:
    names = (f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in cls.__mro__)
    return next((_WHOLES[name] for name in names if name in _WHOLES), None)


def _steps(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        yield from ((f"[{key!r:.40}]", part) for key, part in dict.items(obj))
    elif isinstance(obj, (list, tuple)):
        yield from ((f"[{at}]", part) for at, part in enumerate(obj))
    elif isinstance(obj, types.FunctionType):
        cells: Sequence[Any] = obj.__closure__ or ()
        names = obj.__code__.co_freevars
        yield from ((f"'s {name}", cell.cell_contents) for name, cell in zip(names, cells, strict=True))
    elif not isinstance(obj, (type, types.ModuleType)):
        yield from ((f".{name}", part) for name, part in attributes_of(obj).items())
        yield from ((f".{name}", getattr(obj, name)) for name in ("__self__", "func") if hasattr(obj, name))
