"""Classes of the notebook travel by value. Where one is built anew, no code of the notebook's runs again:
what its metaclass or `__init_subclass__` did, entering it in a registry say, travels with the registry."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Mapping
from typing import Any

from cloudpickle import cloudpickle


def without_notebooks_code(obj: Any, reduced: Any) -> Any:
    """cloudpickle's way to rebuild a class, with our maker instead of its own, and its attributes as they
    stand in it: cloudpickle sorts them by name."""
    if not isinstance(reduced, tuple) or reduced[-1] is not cloudpickle._class_setstate:
        return reduced
    make, made_of, (attributes, slots), *rest = reduced
    in_order = {name: attributes[name] for name in vars(obj) if name in attributes}
    reduced = (make, made_of, ({**in_order, **attributes}, slots), *rest)
    if make is not cloudpickle._make_skeleton_class:  # an enumeration
        return reduced
    meta, name, bases, body, *rest = reduced[1]
    # Later they would change nothing. A base such as `NamedTuple`, which is no class, sets its own.
    if "__slots__" in vars(obj) and types.resolve_bases(bases) == bases:
        body = {**body, "__slots__": vars(obj)["__slots__"]}
    return (_make_class, (meta, name, bases, body, *rest), *reduced[2:])


def _make_class(
    meta: Any, name: str, bases: tuple[type, ...], body: Mapping[str, Any], tracker_id: Any, _extra: Any
) -> Any:
    """The class, still without its attributes; as `cloudpickle._make_skeleton_class`."""
    librarys: Any = next(cls for cls in meta.__mro__ if not _of_notebook(cls))
    resolved = types.resolve_bases(bases)  # `Generic[T]` and the like are no classes
    with _without_init_subclass(resolved):
        if librarys is meta:
            made = types.new_class(name, bases, {"metaclass": meta}, lambda space: space.update(body))
        else:
            made = librarys.__new__(meta, name, resolved, dict(body))
    return cloudpickle._lookup_class_or_track(tracker_id, made)


@contextlib.contextmanager
def _without_init_subclass(bases: tuple[type, ...]) -> Iterator[None]:
    hidden = {}
    for cls in {cls: None for base in bases for cls in base.__mro__}:
        if _of_notebook(cls) and "__init_subclass__" in vars(cls):
            hidden[cls] = vars(cls)["__init_subclass__"]
            type.__delattr__(cls, "__init_subclass__")
    try:
        yield
    finally:
        for cls, method in hidden.items():
            type.__setattr__(cls, "__init_subclass__", method)


def _of_notebook(cls: type) -> bool:
    return cls.__module__ == "__main__"
