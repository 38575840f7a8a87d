"""What values cost on their way back: large tensors, many small objects, and data that nobody changed."""

from __future__ import annotations

from collections.abc import Iterator

from harness import NotebookKernel, Row, at_most, just, notebook

_ROUNDS = 5
_CELL = "%%distributed --devices 2 --accelerator cpu\n"

_RETURN = f"""\
{_CELL}
block = torch.ones(2**27)
made_s = time.monotonic()
"""

_CLONE = """
begin_s = time.monotonic()
copy = block.clone()
clone_s = time.monotonic() - begin_s
whole = bool((block == 1).all())
del block, copy
"""

# In a virtual machine, memory that nobody has used lately is first fetched from the host, which takes longer
# than all else. So both sides get memory used just now, enough for the rank's tensor and the notebook's.
_WARM = "used = torch.ones(3 * 2**27)\ndel used"

_OBJECTS = f"""\
{_CELL}
objects = [{{"name": str(n), "values": [n, n + 1]}} for n in range(33_334)]
made_s = time.monotonic()
"""

_PICKLE = """
import pickle
begin_s = time.monotonic()
pickle.loads(pickle.dumps(objects, 5))
pickle_s = time.monotonic() - begin_s
"""

_PEAK = """
def peak_mb():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return peak_mb()
"""


def measure() -> Iterator[Row]:
    """Marks: 1.5 clones, pickle's own time, 20 ms, the value once."""
    with notebook() as kernel:
        yield from _large(kernel)
        yield from _small(kernel)
        yield from _unchanged(kernel)
        yield from _peak(kernel)


def _large(kernel: NotebookKernel) -> Iterator[Row]:
    """In rounds: an empty cell, the value, and its clone beside it, so that all meet the same load."""
    returns, clones, ratios = [], [], []
    for _ in range(2 * _ROUNDS):
        [empty] = _cell_s(kernel, "made_s = time.monotonic()", rounds=1)
        kernel.run(_WARM).check()
        run = kernel.run(_RETURN).check()
        assert run.idle_s is not None
        returns.append(run.idle_s - float(kernel.value("made_s")))
        kernel.run(_WARM).check()
        kernel.run(_CLONE).check()
        assert kernel.value("whole"), "the tensor came back with other values"
        clones.append(float(kernel.value("clone_s")))
        ratios.append((returns[-1] - empty) / clones[-1])
    yield just("512 MB from rank 0: made in the rank to kernel idle", returns)
    yield just("tensor.clone() of the same 512 MB in the kernel", clones)
    yield at_most("512 MB from rank 0, beyond an empty cell's end, in clones beside it", ratios, 1.5, "")


def _cell_s(kernel: NotebookKernel, code: str, rounds: int = _ROUNDS) -> list[float]:
    """From the end of the ranks' work to the kernel's being idle."""
    ends = []
    for _ in range(rounds):
        run = kernel.run(f"{_CELL}{code}").check()
        assert run.idle_s is not None
        ends.append(run.idle_s - float(kernel.value("made_s")))
    return ends


def _small(kernel: NotebookKernel) -> Iterator[Row]:
    returns, pickles = [], []
    for _ in range(_ROUNDS):
        run = kernel.run(_OBJECTS).check()
        assert run.idle_s is not None
        returns.append(run.idle_s - float(kernel.value("made_s")))
        kernel.run(_PICKLE).check()
        pickles.append(float(kernel.value("pickle_s")))
        kernel.run("del objects").check()
    yield just("pickle.loads(pickle.dumps(...)) of 100,000 small objects", pickles)
    empty = _cell_s(kernel, "made_s = time.monotonic()")
    beyond = [back - min(empty) for back in returns]
    limit = sorted(pickles)[len(pickles) // 2]
    yield at_most("100,000 small objects from rank 0, beyond an empty cell", beyond, limit, why="pickle")


def _unchanged(kernel: NotebookKernel) -> Iterator[Row]:
    empty = []
    for what, data, limit_s in (
        ("1 GB of tensor that the cell does not change", "torch.ones(2**28)", 0.020),
        ("400,000 small lists that the cell does not change", "[[n, n] for n in range(400_000)]", None),
    ):
        kernel.run(f"data = {data}").check()
        beyond = []
        for _ in range(3 * _ROUNDS):
            empty.append(kernel.run(f"{_CELL}pass").check().duration_s)
            beyond.append(kernel.run(f"{_CELL}len(data);").check().duration_s - empty[-1])
        yield at_most(what, beyond, limit_s) if limit_s else just(what, beyond)
        kernel.run("del data").check()
    yield just("a cell that reads nothing, in turns with these two", empty)


def _peak(kernel: NotebookKernel) -> Iterator[Row]:
    kernel.run(_PEAK).check()
    for what, before, code, limit_mb in (
        ("512 MB, new", "", "new = torch.ones(2**27)", 540.0),
        ("512 MB, changed in place", "old = torch.ones(2**27)", "old += 1", 20.0),
    ):
        more = []
        for _ in range(_ROUNDS):
            kernel.run(before).check()
            start_mb = float(kernel.value("forget_peak()"))
            kernel.run(f"{_CELL}{code}").check()
            kernel.run(
                "total = sum(float(globals()[n].sum()) for n in ('new', 'old') if n in globals())"
            ).check()
            more.append(float(kernel.value("peak_mb()")) - start_mb)
            kernel.run("del globals()['new' if 'new' in globals() else 'old']").check()
        yield at_most(f"the kernel's peak memory for {what}", more, limit_mb, "MB")
