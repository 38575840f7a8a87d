"""How long 512 MB take from rank 0 into the notebook."""

from __future__ import annotations

from collections.abc import Iterator

from harness import Row, at_most, just, notebook

_ROUNDS = 5

_RETURN = """\
%%distributed --devices 2 --accelerator cpu
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


def measure() -> Iterator[Row]:
    """Mark: 1.0 s."""
    returns, clones = [], []
    with notebook() as kernel:
        for _ in range(_ROUNDS):
            run = kernel.run(_RETURN).check()
            assert run.idle_s is not None
            returns.append(run.idle_s - float(kernel.value("made_s")))
            kernel.run(_CLONE).check()
            assert kernel.value("whole"), "the tensor came back with other values"
            clones.append(float(kernel.value("clone_s")))
    yield at_most("512 MB from rank 0: made in the rank to kernel idle", returns, 1.0)
    yield just("tensor.clone() of the same 512 MB in the kernel", clones)
