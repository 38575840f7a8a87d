"""200 alternations of good, failing and interrupted cells on four live ranks: are all good cells right, and
do memory and descriptors, of the kernel and of the ranks, stay as they are?

    python benchmarks/recovery.py [ROUNDS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from notebook_kernel import NotebookKernel

RANKS = 4
EVERY = 20
GOOD = """%%distributed
x = torch.ones(1) * rank + kept
dist.all_reduce(x)
kept += 1
x.item()"""
FAILING = """%%distributed
sub = dist.new_group([0, 1])
if rank == 1:
    raise ValueError("on purpose")
dist.barrier()"""
INTERRUPTED = """%%distributed
print("up", flush=True)
dist.recv(torch.ones(1), src=0) if rank else time.sleep(1000)"""


def footprint(processes: Sequence[psutil.Process]) -> list[tuple[int, int, float]]:
    """Descriptors, threads and MB of memory of each process."""
    return [(one.num_fds(), one.num_threads(), one.memory_full_info().uss / 1e6) for one in processes]


def table(label: str, rows: list[tuple[int, int, float]]) -> str:
    """One line of the report."""
    return f"{label:>9}  " + "  ".join(
        f"{fds:3} fds {threads:2} thr {mb:6.1f} MB" for fds, threads, mb in rows
    )


def main() -> None:
    """Run the rounds, and print the footprint as they go."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with NotebookKernel() as kernel:
        kernel.run("%load_ext nbdist").check()
        kernel.run(f"%distributed start --devices {RANKS}").check()
        kernel.run("%%distributed\nimport time, torch, torch.distributed as dist\nkept = 0").check()
        processes = [psutil.Process(kernel.value("__import__('os').getpid()"))]
        processes += [
            process
            for process in kernel.processes().values()
            if process.num_threads() > 1 and process.cmdline() == processes[0].cmdline()
        ]
        print(f"{'round':>9}  the kernel, then its processes")
        good_s: list[float] = []
        for number in range(rounds):
            if number % EVERY == 0:
                print(table(str(number), footprint(processes)), flush=True)
            kind = number % 2 * (1 + number // 2 % 2)  # good, failing, good, interrupted
            if kind == 0:
                good_s.append(run_good(kernel, len(good_s)))
            elif kind == 1:
                run = kernel.run(FAILING)
                assert run.error is not None, run.describe()
                assert "on purpose" in run.error.evalue, run.describe()
            else:
                run = kernel.start_run(INTERRUPTED)
                run.wait_for_text("up")
                kernel.interrupt()
                assert run.finish(20).error is not None, run.describe()
                assert run.error.ename == "KeyboardInterrupt", run.describe()
        print(table(str(rounds), footprint(processes)))
        good_s.sort()
        print(
            f"{len(good_s)} good cells, all right; each after a recovery, from request to idle: "
            f"median {good_s[len(good_s) // 2] * 1000:.0f} ms, longest {good_s[-1] * 1000:.0f} ms"
        )
        kernel.run("%distributed stop").check()


def run_good(kernel: NotebookKernel, done: int) -> float:
    """A good cell, whose result says that nothing was lost; how long it took."""
    started_s = time.monotonic()
    run = kernel.run(GOOD).check()
    took_s = time.monotonic() - started_s
    expected = sum(range(RANKS)) + RANKS * done
    assert run.result is not None, run.describe()
    assert run.result["text/plain"] == str(float(expected)), run.describe()
    return took_s


if __name__ == "__main__":
    main()
