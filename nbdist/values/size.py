"""How large a value is, without copying or pickling it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from nbdist.errors import bytes_text
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.kind import ATOMS
from nbdist.values.kinds import KindCache


def size_of(
    value: Any, at_most: float = float("inf"), key_of_id: Callable[[int], int | None] = lambda _: None
) -> int:
    """Bytes of all that a value holds, on whatever device; counting ends once there are more than `at_most`.

    Modules, functions and classes that travel by name, and what has a key, count as next to nothing.
    """
    kinds = KindCache()
    if key_of_id(id(value)) is not None:
        return 0
    seen = {id(value): value}
    waiting, total = [value], 0
    while waiting and total <= at_most:
        obj = waiting.pop()
        total += _own_size(obj)
        if type(obj) in ATOMS or _travels_by_name(obj):
            continue
        parts = call_foreign(partial(kinds[type(obj)].parts, obj))
        for part in () if isinstance(parts, Refusal) else parts:
            if id(part) not in seen and key_of_id(id(part)) is None:
                seen[id(part)] = part
                waiting.append(part)
    return total


def _travels_by_name(obj: Any) -> bool:
    return issubclass(type(obj), (types.ModuleType, types.FunctionType, type))


def _own_size(obj: Any) -> int:
    for module, name in (("torch", "Tensor"), ("numpy", "ndarray")):
        cls: Any = getattr(sys.modules.get(module), name, None)
        if cls is not None and issubclass(type(obj), cls):  # not what an object says of itself
            size = call_foreign(lambda: int(obj.nbytes))
            return 0 if isinstance(size, Refusal) else size
    size = call_foreign(partial(sys.getsizeof, obj))
    return 0 if isinstance(size, Refusal) else size


def described(value: Any) -> str:
    """A value's type and size, for messages: ``Net, 4.2 MiB``."""
    return f"{type(value).__name__}, {bytes_text(size_of(value))}"
