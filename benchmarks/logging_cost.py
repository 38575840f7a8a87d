"""What a call of `nbdist.log` costs its thread: in a rank, whose numbers travel, and where nobody listens.

python benchmarks/logging_cost.py
"""

from __future__ import annotations

import time

import nbdist

CALLS = 200_000


def microseconds_a_call() -> float:
    """CPU time, the mean over `CALLS` calls with one float, those of the empty loop not counted."""
    begun_s = time.thread_time()
    for _ in range(CALLS):
        pass
    empty_s = time.thread_time() - begun_s
    begun_s = time.thread_time()
    for step in range(CALLS):
        nbdist.log(step=step, loss=0.5)
    return (time.thread_time() - begun_s - empty_s) / CALLS * 1e6


def main() -> None:
    """Print the table."""
    nbdist.log(loss=0.5)
    print(f"{'plain process':20}{microseconds_a_call():6.2f} us")
    for ranks in (1, 2):
        best = min(nbdist.launch(microseconds_a_call, devices=ranks, accelerator="cpu") for _ in range(3))
        print(f"{f'rank 0 of {ranks}':20}{best:6.2f} us")


if __name__ == "__main__":
    main()
