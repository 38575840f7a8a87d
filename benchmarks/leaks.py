"""What many runs leave in the kernel, and what watching the ranks costs them."""

from __future__ import annotations

from collections.abc import Iterator

from harness import NotebookKernel, Row, at_most, exactly, just, notebook

_RUNS = 200
_ENDINGS = ("pass", "pass", "1 / 0", "os._exit(3)", "x = torch.ones(1000)")

_COUNT = """\
import gc
def held():
    gc.collect()
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon:"):
            return len(os.listdir("/proc/self/fd")), int(line.split()[1]) / 1000
"""

_TRAIN = """\
%%distributed --devices 2 --accelerator cpu --gather share_percent
import threading
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
model = torch.nn.parallel.DistributedDataParallel(net)
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    sgd.zero_grad()
    model(torch.ones(32, 64)).sum().backward()
    sgd.step()
def over():  # for all ranks at the same step
    vote = torch.tensor(float(time.monotonic() >= start_s + 5))
    dist.all_reduce(vote)
    return vote.item() > 0
step()
start_s, steps = time.monotonic(), 0
while steps % 50 or not over():
    step()
    steps += 1
watch = next(thread for thread in threading.enumerate() if thread.name == "nbdist-watch")
used_s = time.clock_gettime(time.pthread_getcpuclockid(watch.ident))
share_percent = 100 * used_s / (time.monotonic() - start_s)
"""


def measure() -> Iterator[Row]:
    """Marks: no descriptor more, memory flat, under 0.5 % of the time of a training."""
    with notebook() as kernel:
        kernel.run(_COUNT).check()
        for ending in _ENDINGS:  # what is loaded once is loaded now
            _run(kernel, ending)
        fds, memory_mb = kernel.value("held()")
        for at in range(_RUNS):
            _run(kernel, _ENDINGS[at % len(_ENDINGS)])
        fds_later, memory_mb_later = kernel.value("held()")
    yield exactly(
        f"descriptors more after {_RUNS} runs that ended in {len(_ENDINGS)} ways", fds_later - fds, 0
    )
    yield at_most(f"kernel memory more after {_RUNS} runs", [memory_mb_later - memory_mb], 5, "MB")
    with notebook() as kernel:
        kernel.run(_TRAIN).check()
        shares = kernel.value("share_percent")
        steps = kernel.value("steps")
    yield at_most("watching 2 ranks in training: share of their time", shares, 0.5, "%")
    yield just("its steps a second", [steps / 5], "")


def _run(kernel: NotebookKernel, ending: str) -> None:
    kernel.run(f"%%distributed --devices 2 --accelerator cpu\nprint(rank)\n{ending}")
