"""What a cell sets in IPython for later cells: settings, aliases, formatters, magics, extensions."""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from nbdist.shell import current_shell
from nbdist.values.foreign import call_foreign

_PLAIN = (bool, int, float, str, bytes, type(None))
_SHELL = "InteractiveShell"  # in each process of a class of its own
_OWN = ("HistoryManager", "HistoryAccessor")  # of the process, not of the notebook


class _Known:
    """What was read last: from one cell to the next there is mostly nothing new, and between cells, when
    nothing of it is in a CPU's caches any more, to read it all takes 0.6 ms."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}
        self._owners: list[Any] = []  # whose settings these are; none after one was set
        self._functions: dict[str, tuple[dict[Any, Any], dict[Any, Any]]] = {}

    def settings(self) -> Mapping[str, Any]:
        """By title."""
        named = list(_configurables())
        owners = [one for _, one in named]
        if len(owners) != len(self._owners) or not all(map(operator.is_, owners, self._owners)):
            read: dict[str, Any] = {}
            for name, one in named:
                names, titles = _settings_of(type(one), name)  # type: ignore[arg-type]
                if names:  # none would be all
                    one.observe(self._forget, names)  # once, however often it is asked for
                read |= {title: getattr(one, own) for title, own in zip(titles, names, strict=True)}
            self._settings = {title: value for title, value in read.items() if _is_plain(value)}
            self._owners = owners
        return self._settings

    def _forget(self, _change: Any) -> None:
        self._owners = []

    def functions(self, title: str, table: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """The notebook's in a table of IPython's."""
        former, found = self._functions.get(title, ({}, {}))
        if former.keys() != table.keys() or not all(map(operator.is_, former.values(), table.values())):
            found = {key: value for key, value in table.items() if _is_notebooks(value)}
            self._functions[title] = dict(table), found
        return found


_known = _Known()


def read_settings() -> Mapping[str, Any]:
    """What ``%config`` can set, by class and name, as far as it is a plain value."""
    return _known.settings()


@functools.cache
def _settings_of(cls: Hashable, owner: str) -> tuple[Sequence[str], Sequence[str]]:
    """What can be configured of a class's objects: its names, and their titles. Traitlets looks through all
    traits for it."""
    names: Sequence[str] = cls.class_trait_names(config=True)  # type: ignore[attr-defined]
    return names, [f"{owner}.{name}" for name in names]


def write_settings(changed: Mapping[str, Any]) -> None:
    """Set what `read_settings` gave. Where something is not there, an inline backend say, nothing is set."""
    owners = dict(_configurables())
    for title, value in changed.items():
        owner, _, name = title.partition(".")
        if owner in owners and owners[owner].has_trait(name):
            call_foreign(partial(setattr, owners[owner], name, value))  # another kind of shell may refuse it


def changed_settings(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are to be set."""
    former = before or {}
    return {title: value for title, value in after.items() if title not in former or former[title] != value}


def _configurables() -> Iterator[tuple[str, Any]]:
    shell = current_shell()
    for configurable in shell.configurables if shell is not None else ():
        name = type(configurable).__name__ if configurable is not shell else _SHELL
        if name not in _OWN:
            yield name, configurable
    formatter = getattr(shell, "display_formatter", None)
    for mime, one in formatter.formatters.items() if formatter is not None else ():
        yield mime.replace(".", "_"), one


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN:
        return True
    return isinstance(value, (list, tuple, set, frozenset)) and all(map(_is_plain, value))


def read_traceback_mode() -> str:
    """What ``%xmode`` has set."""
    shell = current_shell()
    return str(shell.InteractiveTB.mode) if shell is not None else ""


def write_traceback_mode(mode: str) -> None:
    """As ``%xmode``."""
    shell = current_shell()
    if shell is not None:
        shell.InteractiveTB.set_mode(mode)


def read_aliases() -> dict[str, str]:
    """Commands by the names that ``%alias`` has given them."""
    shell = current_shell()
    return dict(shell.alias_manager.aliases) if shell is not None else {}


def write_aliases(changed: Mapping[str, str | None]) -> None:
    """As ``%alias`` and, where there is no command, ``%unalias``."""
    manager = current_shell().alias_manager
    for name, command in changed.items():
        if manager.is_alias(name):
            manager.undefine_alias(name)
        if command is not None:
            manager.define_alias(name, command)


def read_extensions() -> list[str]:
    """Names of the extensions that are loaded."""
    shell = current_shell()
    return sorted(shell.extension_manager.loaded) if shell is not None else []


def added_extensions(before: list[str] | None, after: list[str]) -> list[str]:
    """Those that are to be loaded."""
    return [name for name in after if name not in (before or ())]


def write_extensions(added: list[str]) -> None:
    """As ``%load_ext``."""
    for name in added:
        current_shell().extension_manager.load_extension(name)


def read_functions() -> dict[tuple[str, Any], Any]:
    """Functions of the notebook that IPython calls: to show objects of a class, and as magics."""
    found: dict[tuple[str, Any], Any] = {}
    for title, table in _tables():
        found |= {(title, key): value for key, value in _known.functions(title, table).items()}
    return found


def changed_functions(
    before: Mapping[tuple[str, Any], Any] | None, after: Mapping[tuple[str, Any], Any]
) -> dict[tuple[str, Any], Any]:
    """Those that are new; None for one that is gone. Functions are compared by identity: they may have no
    pickle of their own."""
    former = before or {}
    new = {place: value for place, value in after.items() if former.get(place) is not value}
    return {**new, **dict.fromkeys(former.keys() - after.keys())}


def write_functions(changed: Mapping[tuple[str, Any], Any]) -> None:
    """Put functions into IPython's tables, or take them out."""
    tables = dict(_tables())
    for (title, key), function in changed.items():
        if function is None:
            tables[title].pop(key, None)
        else:
            tables[title][key] = function


def _tables() -> Iterator[tuple[str, dict[Any, Any]]]:
    shell = current_shell()
    if shell is None:
        return
    for mime, formatter in shell.display_formatter.formatters.items():
        for kind in ("type_printers", "deferred_printers", "singleton_printers"):
            yield f"{mime} {kind}", getattr(formatter, kind)
    for kind in ("line", "cell"):
        yield f"{kind} magics", shell.magics_manager.magics[kind]


def _is_notebooks(function: Any) -> bool:
    return getattr(function, "__module__", None) == "__main__" and not hasattr(function, "__self__")
