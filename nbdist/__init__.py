"""A notebook cell that runs on every GPU.

    %load_ext nbdist

    %%distributed --devices 4
    ...

Importing this package loads neither torch nor IPython: each name below comes with its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.errors import (
        LaunchError,
        NbdistError,
        OptionError,
        RankFailedError,
        RunStopped,
        SessionError,
    )
    from nbdist.session import Run, Session, launch
    from nbdist.training import (
        is_rank_zero,
        log,
        mean,
        print_rank_zero,
        seed_everything,
        setup,
        setup_loader,
        track,
    )

__version__ = "0.1.0.dev0"

_HOMES = {
    "launch": "session",
    "Session": "session",
    "Run": "session",
    "setup": "training",
    "setup_loader": "training",
    "log": "training",
    "track": "training",
    "is_rank_zero": "training",
    "print_rank_zero": "training",
    "mean": "training",
    "seed_everything": "training",
    "NbdistError": "errors",
    "OptionError": "errors",
    "LaunchError": "errors",
    "SessionError": "errors",
    "RankFailedError": "errors",
    "RunStopped": "errors",
}

__all__ = [  # noqa: RUF022  in the order of _HOMES
    "launch",
    "Session",
    "Run",
    "setup",
    "setup_loader",
    "log",
    "track",
    "is_rank_zero",
    "print_rank_zero",
    "mean",
    "seed_everything",
    "NbdistError",
    "OptionError",
    "LaunchError",
    "SessionError",
    "RankFailedError",
    "RunStopped",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'nbdist' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"nbdist.{home}"), name)
    globals()[name] = value  # the next use finds it at once: `log` is called in every step
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def load_ipython_extension(ipython: Any) -> None:
    """Called by ``%load_ext nbdist``."""
    from nbdist.magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Called by ``%unload_ext nbdist``."""
    from nbdist.magics import unload

    unload(ipython)
