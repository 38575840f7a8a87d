"""What a live rank tells of its objects between works, for the notebook's completion and help.

Objects are the user's: their code may raise, and may take its time. It is ended by an alarm then, and
code that might wait for other ranks, a property's or an operator's, is not run at all.
"""

from __future__ import annotations

import ast
import inspect
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from nbdist.looks import Look, Looked, NameInfo
from nbdist.shell import current_shell
from nbdist.values.foreign import Refusal, call_foreign

T = TypeVar("T")

_LIMIT_S = 1.0
# Whose items may be looked up: it runs nothing that could wait for another rank.
_LIBRARIES = ("builtins", "collections", "numpy", "pandas", "torch")
_PLAIN = (bool, int, float, complex, str, bytes, bytearray)


def looked(message: Look, names: Mapping[str, Any]) -> Looked:
    """The answer to a question.

    Args:
        names: the rank's.
    """
    find = partial(_find, message, names)
    found = _within(_LIMIT_S, partial(call_foreign, find))
    return Looked(number=message.number, answer=None if isinstance(found, Refusal) else found)


def _find(message: Look, names: Mapping[str, Any]) -> tuple[str, ...] | Mapping[str, str]:
    if message.help is not None:
        return _help(message.expression, message.help)
    found = dir(_value(ast.parse(message.expression, mode="eval").body, names))
    return tuple(name for name in found if isinstance(name, str))


def _value(node: ast.AST, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            return names[name]
        case ast.Attribute(value=inner, attr=attribute):
            owner = _value(inner, names)
            if isinstance(inspect.getattr_static(type(owner), attribute, None), property):
                raise LookupError(attribute)
            return getattr(owner, attribute)
        case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
            owner = _value(inner, names)
            if type(owner).__module__.partition(".")[0] not in _LIBRARIES:
                raise LookupError(key)
            return owner[key]
    raise LookupError(ast.dump(node))


def _help(expression: str, facts: Mapping[str, Any]) -> Mapping[str, str]:
    shell = current_shell()
    # The notebook's own shell, which a fork has copied, asks the ranks.
    found: Mapping[str, str] = type(shell).object_inspect_mime(shell, expression, **facts)
    return found


class _TooLong(BaseException):
    """No `Exception`: the user's code shall not take it for one of its own."""


def _within(limit_s: float, step: Callable[[], T]) -> T | None:
    """The result of `step`, which is ended after a time: None. In the main thread."""
    going_on = True

    def strike(*_: object) -> None:
        if going_on:
            raise _TooLong

    before = signal.signal(signal.SIGALRM, strike)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s / 10)
    try:
        try:
            return step()
        finally:
            going_on = False
    except _TooLong:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # the user's own


class OwnNames:
    """Tells names that work on this rank has bound from those that the notebook gave it."""

    def __init__(self) -> None:
        self._notebooks: dict[str, Any] = {}

    def given(self, names: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """The notebook has bound these; of the rank's names those that are not as before."""
        old = before or {}
        self._notebooks |= {name: value for name, value in names.items() if old.get(name, self) is not value}

    def infos(self, names: Mapping[str, Any], skip: Callable[[str], bool]) -> tuple[NameInfo, ...]:
        """The rank's own among all its names."""
        # What has been bound anew is not kept alive here.
        gone = [name for name, value in self._notebooks.items() if names.get(name, self) is not value]
        for name in gone:
            del self._notebooks[name]
        own = names.keys() - self._notebooks.keys()
        return tuple(_info(name, names[name]) for name in sorted(own) if not skip(name))


def _info(name: str, value: object) -> NameInfo:
    size_bytes = call_foreign(partial(_size_bytes, value))
    if isinstance(size_bytes, Refusal):
        size_bytes = None
    return NameInfo(name=name, type_name=type(value).__name__, size_bytes=size_bytes)


def _size_bytes(value: Any) -> int | None:
    if isinstance(value, _PLAIN):
        return sys.getsizeof(value)
    torch = sys.modules["torch"]
    if isinstance(value, torch.nn.Module):
        return _sum_bytes([*value.parameters(), *value.buffers()])
    if isinstance(value, torch.Tensor):
        return _sum_bytes([value])
    if type(value).__module__ == "numpy":
        return int(value.nbytes)
    return None


def _sum_bytes(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
