"""What the dashboard costs: beside ranks that print and log all they can, beside a training, of 1,024."""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path

import harness
from harness import NotebookKernel, Row, at_most, just, notebook

from nbdist.figures import Logged, Usage
from nbdist.messages import Event, Ready, Standing
from nbdist.metrics import Metrics
from nbdist.state import first_state, fold
from nbdist.views.dashboard.composing import Composer, Facts
from nbdist.views.dashboard.picture import patch_between
from nbdist.views.items import Stream
from nbdist.views.tail import Tail

_FLOOD_RANKS = 8
_FLOOD_S = 10.0
_PAIRS = 8
_MANY = 1_024
_MANY_S = 10
_PICTURES_PER_S = 10

_FLOOD = f"""\
%%distributed --devices {_FLOOD_RANKS} --accelerator cpu --background flood
import nbdist
step = 0
while True:
    step += 1
    print("rank", rank, "at step", step)
    nbdist.log(step=step, loss=1 / step + rank, lr=0.1)
"""

_TRAIN = """\
%%distributed --devices 2 --accelerator cpu {options}
import time, torch, nbdist
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(256, 256), torch.randint(10, (256,))
begun_s = time.monotonic()
for step in range(500):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    nbdist.log(step=step, loss=loss.detach())
trained_s = time.monotonic() - begun_s
del model, optimizer, x, y, loss
"""

_CPU_S = "__import__('time').process_time()"
_THREADS = "{thread.name: thread.native_id for thread in __import__('threading').enumerate()}"


def measure() -> Iterator[Row]:
    """Marks: the monitor under 30 % of a core, training 1 % slower, 1,024 ranks under one core."""
    with notebook(NBDIST_DASHBOARD="widget", CUDA_VISIBLE_DEVICES="") as kernel:
        yield from _beside_a_flood(kernel)
        yield from _beside_a_training(kernel)
    yield from _of_many_ranks()


def _beside_a_flood(kernel: NotebookKernel) -> Iterator[Row]:
    kernel.run(_FLOOD, allow_stdin=True).check()
    threads = kernel.value(_THREADS)
    before = _cpu_s(kernel.pid, threads)
    time.sleep(_FLOOD_S)
    spent = {name: cpu_s - before[name] for name, cpu_s in _cpu_s(kernel.pid, threads).items()}
    kernel.run("flood.stop()", allow_stdin=True).check()
    what = f"{_FLOOD_RANKS} ranks print and log all they can: of a core, "
    yield at_most(f"{what}the monitor", [100 * spent["nbdist-monitor"] / _FLOOD_S], 30, "%")
    yield just(f"{what}the dashboard", [100 * spent["nbdist-dashboard"] / _FLOOD_S], "%")


def _cpu_s(pid: int, threads: Mapping[str, int]) -> dict[str, float]:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    spent = {}
    for name, thread in threads.items():
        fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
        spent[name] = (int(fields[11]) + int(fields[12])) / ticks_per_s
    return spent


def _beside_a_training(kernel: NotebookKernel) -> Iterator[Row]:
    """In pairs, the first of which is the other one each time, so that both meet the same load."""
    times: dict[str, list[float]] = {"": [], "--no-dashboard": []}
    shares: dict[str, list[float]] = {"": [], "--no-dashboard": []}
    for number in range(_PAIRS + 1):
        for options in sorted(times, reverse=number % 2 == 0):
            begun_s = float(kernel.value(_CPU_S))
            run = kernel.run(_TRAIN.format(options=options), allow_stdin=True).check()
            if number:  # the first ones warm up
                times[options].append(float(kernel.value("trained_s")))
                shares[options].append(100 * (float(kernel.value(_CPU_S)) - begun_s) / run.duration_s)
    yield just("500 steps of training without a dashboard", times["--no-dashboard"])
    slower = [
        100 * (with_ / none - 1) for with_, none in zip(times[""], times["--no-dashboard"], strict=True)
    ]
    yield at_most("the same with one: slower by", slower, 1, "%")
    yield just("the kernel's share of a core without a dashboard", shares["--no-dashboard"], "%")
    yield just("the same with one", shares[""], "%")


def _of_many_ranks() -> Iterator[Row]:
    """What a second of it takes the kernel, all in one thread: it must be less than a second."""
    state, metrics, tail = first_state(_MANY), Metrics(), Tail()
    facts = Facts(
        title="many", devices=["cpu"] * _MANY, models="CPU", cell=["step()"] * 20, runs_on=range(_MANY)
    )
    composer = Composer(facts, metrics)
    for rank in range(_MANY):
        state = fold(state, rank, Ready(pid=1_000 + rank))
    shown = composer.picture(state, tail)
    spent, sizes = {"fold": 0.0, "compose": 0.0, "patch": 0.0, "json": 0.0}, []
    for picture in range(_MANY_S * _PICTURES_PER_S):
        begun_s = time.thread_time()
        for rank in range(picture % _PICTURES_PER_S, _MANY, _PICTURES_PER_S):  # each rank once a second
            for event in _events(rank, picture):
                if isinstance(event, Logged):
                    metrics.add(rank, event)
                else:
                    state = fold(state, rank, event)
            tail.add([Stream("stdout", f"at step {picture}\n", (rank,))])
        folded_s = time.thread_time()
        new = composer.picture(state, tail)
        composed_s = time.thread_time()
        patch = patch_between(shown, new)
        patched_s = time.thread_time()
        sizes.append(len(json.dumps(patch)) / 1000)
        spent["fold"] += folded_s - begun_s
        spent["compose"] += composed_s - folded_s
        spent["patch"] += patched_s - composed_s
        spent["json"] += time.thread_time() - patched_s
        shown = new
    what = f"{_MANY:,} ranks at {_PICTURES_PER_S} pictures a second: "
    for name, seconds in spent.items():
        yield just(f"{what}{name}, of a core", [100 * seconds / _MANY_S], "%")
    yield at_most(f"{what}all of it, of a core", [100 * sum(spent.values()) / _MANY_S], 100, "%")
    yield just(f"{what}a patch", sizes, "kB")


def _events(rank: int, picture: int) -> list[Event]:
    now_s = time.monotonic()
    steps = range(10 * picture, 10 * picture + 10)
    numbers = array("d", [part for step in steps for part in (step, time.time(), 1 / (step + 1) + rank)])
    return [
        Standing(cell_line=1 + picture % 20, function="step", came_s=now_s),
        Usage(cpu=1 + picture % 7 / 10, memory_bytes=2**30 + picture),
        Logged(by_step={"loss": numbers.tobytes(), "rate": numbers.tobytes()}),
    ]


if __name__ == "__main__":
    print(harness.table(list(_of_many_ranks())))
