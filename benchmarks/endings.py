"""How long until a cell has ended: after the stop button, and after a rank's exception."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from harness import NotebookKernel, Row, at_most, notebook

_ROUNDS = 5

_ASLEEP = """\
%%distributed --devices 4 --accelerator cpu
print("ready")
time.sleep(600)
"""

_IN_COLLECTIVE = """\
%%distributed --devices 4 --accelerator cpu
print("ready")
if rank == 0:
    time.sleep(600)
dist.all_reduce(torch.ones(1))
"""

_ONE_FAILS = """\
%%distributed --devices 4 --accelerator cpu
if rank == 1:
    time.sleep(0.2)  # until the others wait for it
    raise ValueError(f"at {time.monotonic()} s")
dist.all_reduce(torch.ones(1))
"""


def measure() -> Iterator[Row]:
    """Marks: 2 s after an interrupt, 1 s after an exception."""
    with notebook() as kernel:
        asleep = [_interrupted_s(kernel, _ASLEEP) for _ in range(_ROUNDS)]
        waiting = [_interrupted_s(kernel, _IN_COLLECTIVE) for _ in range(_ROUNDS)]
        failing = [_failed_s(kernel) for _ in range(_ROUNDS)]
    yield at_most("interrupt to idle: 4 ranks asleep", asleep, 2)
    yield at_most("interrupt to idle: 1 rank asleep, 3 in an all_reduce", waiting, 2)
    yield at_most("exception to idle: 1 rank raises, 3 in an all_reduce", failing, 1)


def _interrupted_s(kernel: NotebookKernel, cell: str) -> float:
    run = kernel.start_run(cell, allow_stdin=True).wait_for_text("ready")
    pressed_s = time.monotonic()
    kernel.interrupt()
    run.finish()
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt", run.describe()
    assert run.idle_s is not None
    return run.idle_s - pressed_s


def _failed_s(kernel: NotebookKernel) -> float:
    run = kernel.run(_ONE_FAILS, allow_stdin=True)
    assert run.error is not None, run.describe()
    raised = re.search(r"at ([\d.]+) s", run.error.evalue)
    assert raised is not None, run.describe()
    assert run.idle_s is not None
    return run.idle_s - float(raised[1])
