"""Large new values: they come with one copy, into memory that is the notebook's own, also where the system does
not let the kernel read a rank's memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from notebook_checks import DROP_RIGHT_TO_TRACE, NOT_TO_BE_READ, assert_all
from notebook_kernel import NotebookKernel

METHODS = ["fork", "forkserver", "spawn"]


@pytest.fixture(params=["readable", "not to be read"])
def notebook(request: pytest.FixtureRequest) -> Iterator[tuple[NotebookKernel, str]]:
    """A notebook, and what the ranks' cells begin with."""
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist\nimport resource, numpy as np, torch").check()
        if request.param == "readable":
            yield kernel, ""
        else:
            kernel.run(DROP_RIGHT_TO_TRACE).check()
            yield kernel, NOT_TO_BE_READ


def test_large_values_are_right_and_go_on_sharing_memory(notebook: tuple[NotebookKernel, str]) -> None:
    kernel, first = notebook
    run = kernel.run(
        f"""%%distributed --devices 2 --gather each
{first}
big = torch.arange(16_000_000, dtype=torch.int32)
view, array = big[1:1_000_001].view(1000, 1000).T, big.numpy()
columns = np.asfortranarray(np.arange(1_200_000.0).reshape(3, 400_000))
column, on_it = columns[:, 5], torch.from_numpy(columns.T)
fixed = np.arange(100_000)
fixed.flags.writeable = False
tied = torch.nn.Linear(300, 300), torch.nn.Linear(300, 300)
tied[1].weight = tied[0].weight
each = torch.full((100_000,), float(rank))
"""
    ).check()
    assert run.stderr == ""
    assert_all(
        kernel,
        "torch.equal(big, torch.arange(16_000_000, dtype=torch.int32))",
        "view.untyped_storage().data_ptr() == big.data_ptr() == array.ctypes.data",
        "torch.equal(view, torch.arange(1, 1_000_001, dtype=torch.int32).view(1000, 1000).T)",
        "np.array_equal(columns, np.arange(1_200_000.0).reshape(3, 400_000)) and columns.flags.f_contiguous",
        "np.shares_memory(column, columns) and on_it.data_ptr() == columns.ctypes.data",
        "not fixed.flags.writeable and fixed[-1] == 99_999",
        "tied[0].weight is tied[1].weight",
        "[(e[0].item(), e[-1].item()) for e in each] == [(0, 0), (1, 1)]",
    )
    kernel.run("big += 1; columns += 1").check()
    assert_all(kernel, "view[0, 0] == 2 and array[-1] == 16_000_000", "column[0] == 6 and on_it[5, 0] == 6")


def test_their_memory_is_the_notebooks_own(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        def shared_mappings():
            with open("/proc/self/maps") as maps:
                return [line for line in maps if "/memfd:" in line]
        """
    ).check()
    kernel.run(
        """
        %%distributed --devices 2
        import numpy as np, torch
        big, array = torch.ones(8_000_000), np.ones(8_000_000)
        """
    ).check()
    assert kernel.value("shared_mappings()") == []
    assert_all(kernel, "array.flags.owndata and big.untyped_storage().resizable()")
    kernel.run("big.resize_(9_000_000); array.resize(9_000_000, refcheck=False)").check()
    assert_all(kernel, "big[:8_000_000].sum() == 8_000_000 and array.sum() == 8_000_000")


@pytest.mark.parametrize("method", METHODS)
def test_the_kernels_peak_memory_is_the_values_once(method: str) -> None:
    """Whether it is one large tensor or many of a middling size."""
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist\nimport resource, torch").check()
        peak = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024"
        cell = f"%%distributed --devices 2 --start-method {method}\nimport numpy as np, torch\n"
        kernel.run(f"{cell}small = torch.ones(1_000_000), np.ones(1_000_000)").check()
        before = kernel.value(peak)
        kernel.run(
            f"{cell}big, array = torch.ones(2**25), np.ones(2**23)\n"
            "many = [torch.full((2**18,), float(n)) for n in range(128)]"
        ).check()
        assert kernel.value("float(sum(t.sum().item() for t in (big, *many)) + array.sum())") == (
            2**25 + 2**23 + 2**18 * 127 * 64
        )
        assert kernel.value(peak) - before < 1.1 * 320 * 2**20


def test_arrays_that_exist_only_while_they_are_pickled(kernel: NotebookKernel) -> None:
    """They are held until the kernel has read them."""
    kernel.run(
        """
        import weakref
        import numpy as np
        instead = []
        def take_its_place():
            instead.append(np.full(12_500, -1))
        class Packed:
            def __init__(self, number):
                self.number = number
            def __getstate__(self):
                state = np.full(12_500, self.number)
                weakref.finalize(state, take_its_place)
                return state
            def __setstate__(self, state):
                self.state = state
        """
    ).check()
    run = kernel.run("%%distributed --devices 2\npacked = [Packed(n) for n in range(200)]").check()
    assert run.stderr == ""
    assert kernel.value("all((p.state == n).all() and len(p.state) == 12_500 for n, p in enumerate(packed))")


def test_a_rank_that_dies_while_its_values_are_read(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import os, signal, torch
        def end_rank(pid):
            if os.getpid() != pid:
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        class Deadly:
            def __reduce__(self):
                return end_rank, (os.getpid(),)
        old, gone = [0], 1
        """
    ).check()
    run = kernel.run(
        "%%distributed --devices 2\nold[0] = 1\ndel gone\ndeadly = Deadly(), torch.ones(1_000_000)"
    )
    assert "what rank 0 had changed stays behind: its process ended" in run.stderr
    assert kernel.value("(old, gone, 'deadly' in globals())") == ([0], 1, False)
