"""What a cell finds around the notebook's names and may change: the working folder, the environment, the
state of random generators, defaults of libraries.

A worker that is no fork of the kernel is given them, and what rank 0's work changed of them is changed in
the notebook. What belongs to a rank's own process stays out: threads, signal handlers, limits.
"""

from __future__ import annotations

import operator
import os
import pickle
import random
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nbdist.shell import current_shell
from nbdist.values import ipython
from nbdist.values.foreign import Refusal, call_foreign

Surroundings = Mapping[str, Any]
"""What there is, by title."""

PATH = "sys.path"
ENVIRONMENT = "the environment"
GRAD_MODE = "torch's grad mode"
_RANDOM = frozenset({"random's state", "numpy's random state", "torch's random state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    """One thing around the names.

    Attributes:
        read: its value now.
        write: makes it as it is in another process; takes what `difference` gave.
        difference: what is to be written, from the value before (None if there was none) and after.
        same: whether nothing is to be written.
        module: which must have been imported; else there is nothing to look at.
        given: whether a worker that is no fork of the kernel is given it.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]
    difference: Callable[[Any, Any], Any] = lambda _, after: after
    same: Callable[[Any, Any], bool] = lambda before, after: _same(before, after)
    module: str = "sys"
    given: bool = True

    @property
    def can_be_written(self) -> bool:
        """Whether its library is loaded, though perhaps not yet the part of it in question."""
        return self.module.partition(".")[0] in sys.modules


def _write_environment(changed: Mapping[str, str | None]) -> None:
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _changed_items(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """The items that changed alone; None for one that is gone."""
    former = before or {}
    names = [*after, *(former.keys() - after.keys())]
    return {name: after.get(name) for name in names if not _same(former.get(name), after.get(name))}


def _changed_filters(before: list[Any] | None, after: list[Any]) -> tuple[list[Any], list[Any]]:
    """Those that were added, the first one first, and those that were taken away: a process has filters
    of its own, too."""
    former = before or []
    return [new for new in after if new not in former], [old for old in former if old not in after]


def _write_filters(changed: tuple[list[Any], list[Any]]) -> None:
    added, removed = changed
    kept = [old for old in warnings.filters if old not in removed and old not in added]
    warnings.resetwarnings()  # modules remember what they have warned of: this makes them ask again
    warnings.filters[:] = [*added, *kept]  # type: ignore[index]


def _numpy() -> Any:
    return sys.modules["numpy"]


def _torch() -> Any:
    return sys.modules["torch"]


def _pandas_options() -> dict[str, Any]:
    pandas = sys.modules["pandas"]
    return {
        f"{group}.{name}": value
        for group, options in pandas.options.d.items()
        for name, value in options.items()
        if not isinstance(value, dict)
    }


def _write_pandas_options(changed: Mapping[str, Any]) -> None:
    for name, value in changed.items():
        sys.modules["pandas"].set_option(name, value)


def _matplotlib_settings() -> dict[str, Any]:
    settings = dict(sys.modules["matplotlib"].rcParams.copy())
    del settings["backend"]  # the notebook's: a rank's figures are shown there
    return settings


def _torch_settings() -> dict[str, Any]:
    torch = _torch()
    return {
        "dtype": torch.get_default_dtype(),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "anomaly.nan": torch.is_anomaly_check_nan_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "printing": vars(torch._tensor_str.PRINT_OPTS).copy(),
        "device": _default_device(),
    }


def _default_device() -> str:
    """That of new tensors. A GPU is none for the notebook, which never touches one."""
    device = getattr(_torch(), "get_default_device", lambda: None)()  # torch 2.3 and later
    return str(device) if device is not None and device.type in ("cpu", "meta") else ""


def _write_torch_settings(changed: Mapping[str, Any]) -> None:
    torch = _torch()
    if "dtype" in changed:
        torch.set_default_dtype(changed["dtype"])
    if "matmul" in changed:
        torch.set_float32_matmul_precision(changed["matmul"])
    if "deterministic" in changed or "warn_only" in changed:
        mode = changed.get("deterministic", torch.are_deterministic_algorithms_enabled())
        warn_only = changed.get("warn_only", torch.is_deterministic_algorithms_warn_only_enabled())
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
    if "anomaly" in changed or "anomaly.nan" in changed:
        mode = changed.get("anomaly", torch.is_anomaly_enabled())
        torch.autograd.set_detect_anomaly(
            mode, changed.get("anomaly.nan", torch.is_anomaly_check_nan_enabled())
        )
    if changed.get("device"):
        # None takes back what makes each function of torch ask for the device.
        torch.set_default_device(changed["device"] if changed["device"] != "cpu" else None)
    for name in ("benchmark", "deterministic"):
        if f"cudnn.{name}" in changed:
            setattr(torch.backends.cudnn, name, changed[f"cudnn.{name}"])
    vars(torch._tensor_str.PRINT_OPTS).update(changed.get("printing", {}))


def _write_hook_count(count: int) -> None:
    handle = _torch().utils.hooks.RemovableHandle
    handle.next_id = max(handle.next_id, count)


def _compiler_flags() -> int:
    shell = current_shell()
    return shell.compile.flags if shell is not None else 0


def _write_compiler_flags(flags: int) -> None:
    shell = current_shell()
    if shell is not None:
        shell.compile.flags = flags


_FACTS: dict[str, _Fact] = {
    PATH: _Fact(
        read=lambda: list(sys.path),
        write=lambda path: sys.path.__setitem__(slice(None), path),
    ),
    "sys.argv": _Fact(
        read=lambda: list(sys.argv),
        write=lambda argv: sys.argv.__setitem__(slice(None), argv),
    ),
    "the working folder": _Fact(read=os.getcwd, write=os.chdir),
    ENVIRONMENT: _Fact(read=lambda: dict(os.environ), write=_write_environment, difference=_changed_items),
    "warnings' filters": _Fact(
        read=lambda: list(warnings.filters), write=_write_filters, difference=_changed_filters
    ),
    "the recursion limit": _Fact(read=sys.getrecursionlimit, write=sys.setrecursionlimit),
    "features of later cells": _Fact(  # from __future__ import ...
        module="IPython", read=_compiler_flags, write=_write_compiler_flags
    ),
    "IPython's settings": _Fact(
        module="IPython",
        read=ipython.read_settings,
        write=ipython.write_settings,
        difference=ipython.changed_settings,
    ),
    "IPython's mode of tracebacks": _Fact(
        module="IPython", read=ipython.read_traceback_mode, write=ipython.write_traceback_mode
    ),
    "IPython's aliases": _Fact(
        module="IPython", read=ipython.read_aliases, write=ipython.write_aliases, difference=_changed_items
    ),
    "IPython's extensions": _Fact(
        module="IPython",
        read=ipython.read_extensions,
        write=ipython.write_extensions,
        difference=ipython.added_extensions,
        given=False,
    ),
    "IPython's formatters and magics": _Fact(
        module="IPython",
        read=ipython.read_functions,
        write=ipython.write_functions,
        difference=ipython.changed_functions,
        same=lambda before, after: not ipython.changed_functions(before, after),
        given=False,
    ),
    "decimal's context": _Fact(
        module="decimal",
        read=lambda: sys.modules["decimal"].getcontext().copy(),
        write=lambda context: sys.modules["decimal"].setcontext(context),
    ),
    "random's state": _Fact(read=random.getstate, write=random.setstate),
    "numpy's random state": _Fact(
        module="numpy.random",
        read=lambda: _numpy().random.get_state(),
        write=lambda state: _numpy().random.set_state(state),  # numpy loads this part when it is needed
    ),
    "torch's random state": _Fact(
        module="torch",
        read=lambda: _torch().get_rng_state().numpy(),
        write=lambda state: _torch().set_rng_state(_torch().from_numpy(state)),
    ),
    "numpy's print options": _Fact(
        module="numpy",
        read=lambda: _numpy().get_printoptions(),
        write=lambda options: _numpy().set_printoptions(**options),
    ),
    "numpy's handling of errors": _Fact(
        module="numpy",
        read=lambda: _numpy().geterr(),
        write=lambda handling: _numpy().seterr(**handling),
    ),
    GRAD_MODE: _Fact(
        module="torch",
        read=lambda: _torch().is_grad_enabled(),
        write=lambda enabled: _torch().set_grad_enabled(enabled),
    ),
    "torch's settings": _Fact(
        module="torch", read=_torch_settings, write=_write_torch_settings, difference=_changed_items
    ),
    "torch's count of hooks": _Fact(  # two with one number would be one
        module="torch",
        read=lambda: _torch().utils.hooks.RemovableHandle.next_id,
        write=_write_hook_count,
    ),
    "pandas' options": _Fact(
        module="pandas", read=_pandas_options, write=_write_pandas_options, difference=_changed_items
    ),
    "matplotlib's settings": _Fact(
        module="matplotlib",
        read=_matplotlib_settings,
        write=lambda changed: sys.modules["matplotlib"].rcParams.update(changed),
        difference=_changed_items,
    ),
}
"""In the order in which they are written: what is imported comes from ``sys.path``."""


def surroundings(*, given: bool = False, live: bool = False) -> Surroundings:
    """What can be told of this process now, by title.

    Args:
        given: only what other processes are given of it.
        live: of ranks that stay, which draw their own random numbers.
    """
    told = {title: call_foreign(_FACTS[title].read) for title in _titles(given=given, live=live)}
    return {title: value for title, value in told.items() if not isinstance(value, Refusal)}


def is_all(told: Surroundings, *, live: bool) -> bool:
    """Whether nothing is missing in it: a library that has been loaded since may have something to tell."""
    return told.keys() == set(_titles(given=False, live=live))


def _titles(*, given: bool, live: bool) -> list[str]:
    left_out = _RANDOM if live else ()
    return [
        title
        for title, fact in _FACTS.items()
        if (fact.given or not given) and title not in left_out and fact.module in sys.modules
    ]


def difference(before: Surroundings, after: Surroundings) -> Surroundings:
    """What must be written where all is as `before`, so that it becomes as `after`."""
    changed: dict[str, Any] = {}
    for title, value in after.items():
        former = before.get(title)
        if not _FACTS[title].same(former, value):
            changed[title] = _FACTS[title].difference(former, value)
    return changed


def _same(one: Any, other: Any) -> bool:
    """As far as their pickles tell, where they do not say so themselves; what has none cannot be sent."""
    if one is other or call_foreign(partial(operator.eq, one, other)) is True:
        return True
    pickles = [call_foreign(partial(pickle.dumps, value)) for value in (one, other)]
    return pickles[0] == pickles[1] or any(isinstance(made, Refusal) for made in pickles)


def write(title: str, value: Any) -> None:
    """Make one fact of this process so, as `difference` gave it; nothing where its module is not loaded."""
    fact = _FACTS[title]
    if fact.can_be_written:
        fact.write(value)


unsettled: dict[str, Any] = {}
"""What this process was given when it began, and could not write: of libraries that it had not loaded."""


class Waiting:
    """What a process that lives on is told of another one's surroundings, until it can be written: a library
    that only the other one has loaded may be loaded here later.

    Args:
        own: variables of the environment that are this process's own.
    """

    def __init__(self, own: Collection[str]):
        self._own = own
        self._told = dict(unsettled)

    def tell(self, title: str, value: Any) -> None:
        """Take what `difference` gave, and write it if that can be."""
        if title == ENVIRONMENT:
            value = {name: text for name, text in value.items() if name not in self._own}
        if title in self._told and isinstance(value, dict):
            value = {**self._told[title], **value}
        self._told[title] = value
        self.write()

    def write(self) -> None:
        """Write what can be written by now."""
        for title in [title for title in self._told if _FACTS[title].can_be_written]:
            write(title, self._told.pop(title))


def settle(wanted: Surroundings) -> Surroundings:
    """Make a new process's surroundings those of another one.

    Returns:
        Those whose module is not loaded here: try again when it may be.
    """
    ready = {title: value for title, value in wanted.items() if _FACTS[title].can_be_written}
    for title, value in difference(surroundings(), ready).items():
        write(title, value)
    return {title: value for title, value in wanted.items() if title not in ready}
