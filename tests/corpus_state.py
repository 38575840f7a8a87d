"""What a kernel's process holds besides its namespace: settings, random state, folders. Runs in the kernel."""

from __future__ import annotations

import decimal
import hashlib
import locale
import logging
import os
import random
import sys
import warnings
from pathlib import Path
from typing import Any


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def begin() -> None:
    """Close what the last case left open; counters that torch keeps go on from a round number."""
    import torch
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    shell.compile.reset_compiler_flags()  # `from __future__ import ...` holds for all later cells
    sys.modules["matplotlib.pyplot"].close("all")
    torch.utils.hooks.RemovableHandle.next_id = 100


def seed() -> None:
    """The same random state in each kernel."""
    import numpy
    import torch

    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)


def _random() -> str:
    import numpy
    import torch

    kind, keys, *rest = numpy.random.get_state()
    states = (random.getstate(), kind, keys.tolist(), rest, torch.get_rng_state().tolist())
    return _digest(states)


def _torch() -> str:
    import torch

    return repr(
        {
            "default dtype": torch.get_default_dtype(),
            "grad": torch.is_grad_enabled(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "anomaly": torch.is_anomaly_enabled(),
            "matmul": torch.get_float32_matmul_precision(),
            "print": vars(torch._tensor_str.PRINT_OPTS),
            "default device": str(torch.get_default_device()),
        }
    )


def _numpy() -> str:
    import numpy

    return repr((numpy.get_printoptions(), numpy.geterr()))


def _pandas() -> str:
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return "not loaded"
    return repr((pandas.get_option("display.max_rows"), pandas.get_option("display.precision")))


def _matplotlib() -> str:
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is None or "matplotlib.pyplot" not in sys.modules:
        return "not loaded"
    changed = {
        name: value
        for name, value in matplotlib.rcParams.items()
        if name != "backend" and matplotlib.rcParamsDefault[name] != value
    }
    return repr((changed, matplotlib.get_backend(), sys.modules["matplotlib.pyplot"].get_fignums()))


def _logging() -> str:
    names = sorted(name for name in logging.root.manager.loggerDict if name.startswith("corpus"))
    loggers = [logging.root, *map(logging.getLogger, names)]
    handlers = {
        log.name: (log.level, [type(handler).__name__ for handler in log.handlers])
        for log in loggers
        if log.level or log.handlers
    }
    return repr((handlers, logging.root.manager.disable))


def _files(folder: Path) -> str:
    files = {
        str(path.relative_to(folder)): path.read_text(errors="replace") if path.stat().st_size < 2000 else ""
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return repr(files)


def state(home: str) -> dict[str, str]:
    """A text for each part of the process' state; `home` is the kernel's working folder."""
    return {
        "cwd": os.path.relpath(Path.cwd(), home),
        "environ": repr({name: value for name, value in os.environ.items() if "CORPUS" in name}),
        "path": repr([entry for entry in sys.path if "corpus_" in entry]),
        "random": _random(),
        "torch": _torch(),
        "numpy": _numpy(),
        "pandas": _pandas(),
        "matplotlib": _matplotlib(),
        "logging": _logging(),
        "warnings": _digest([(entry[0], str(entry[1]), entry[2].__name__) for entry in warnings.filters]),
        "decimal": str(decimal.getcontext().prec),
        "locale": str(locale.setlocale(locale.LC_NUMERIC)),
        "recursion": str(sys.getrecursionlimit()),
        "files": _files(Path(home)),
    }
