"""What all benchmarks share: a notebook kernel on this checkout, and the table."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # the tests' real kernel serves here too

from notebook_kernel import CellRun, NotebookKernel  # noqa: E402

__all__ = [
    "NOTE_START",
    "CellRun",
    "NotebookKernel",
    "Row",
    "at_most",
    "exactly",
    "just",
    "machine",
    "notebook",
    "table",
]

Samples = Sequence[float]

NOTE_START = """\
kernel_pid = os.getpid()
def note_start(*_):
    global started_s
    if os.getpid() == kernel_pid:  # in the ranks it fires again, for their copy of the cell
        started_s = time.monotonic()
get_ipython().events.register("pre_run_cell", note_start)
"""
"""A cell after which `started_s` in the notebook is when the last cell began, on the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `ok` is None where there is no mark."""

    what: str
    measured: str
    mark: str = ""
    ok: bool | None = None


def at_most(what: str, samples: Samples, limit: float, unit: str = "s", *, why: str = "") -> Row:
    """A row whose median must not be above `limit`; `why` says where the limit comes from."""
    mark = f"≤ {_number(limit, unit)}" + (f" ({why})" if why else "")
    return Row(what, _spread(samples, unit), mark, statistics.median(samples) <= limit)


def exactly(what: str, count: int, expected: int) -> Row:
    """A row that counts something which must not be one more or less."""
    return Row(what, f"{count:,}", f"= {expected:,}", count == expected)


def just(what: str, samples: Samples, unit: str = "s") -> Row:
    """A row without a mark: to compare with."""
    return Row(what, _spread(samples, unit))


def _spread(samples: Samples, unit: str) -> str:
    middle = _number(statistics.median(samples), unit)
    if len(samples) == 1:
        return middle
    return f"{middle} ({_number(min(samples), '')}–{_number(max(samples), '')}, n={len(samples)})"


def _number(value: float, unit: str) -> str:
    text = f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
    return f"{text} {unit}".rstrip()


def table(rows: Sequence[Row]) -> str:
    """The rows as a markdown table that also reads well in a terminal."""
    verdict = {None: "", True: "ok", False: "NOT OK"}
    lines = [("what", "measured: median (min–max)", "mark", "")]
    lines += [(row.what, row.measured, row.mark, verdict[row.ok]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def machine() -> str:
    """Where and beside what this is measured: a busy machine explains wide spreads."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "ipython", "ipykernel"))
    busy = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{os.cpu_count()} cores, load {busy} (1, 5, 15 min); Python {python}, {packages}"


@contextmanager
def notebook(**environment: str) -> Iterator[NotebookKernel]:
    """A kernel with torch imported and nbdist of this checkout loaded, after a first cell on ranks.

    Args:
        environment: variables to set for it.
    """
    # Its logs lie in its own home, gone at the end.
    own = {"PYTHONPATH": str(ROOT), "NBDIST_LOG_DIR": None, "XDG_CACHE_HOME": None}
    with NotebookKernel({**own, **environment}) as kernel:
        kernel.run("import os, time, torch, torch.distributed as dist\n%load_ext nbdist").check()
        kernel.run("%%distributed --devices 2 --accelerator cpu\npass").check()
        yield kernel
