"""Ranks on macOS: in a kernel, and in ranks, from which all that macOS lacks has been taken away.

`other_system/sitecustomize.py` takes it. No Mac is involved: what it does differently is not seen here.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import LIBRARY_SINGLETONS, OTHER_SYSTEM_PATH, WARM_UP
from notebook_checks import assert_all
from notebook_kernel import NotebookKernel, poll_until

MACOS = {"PYTHONPATH": OTHER_SYSTEM_PATH, "OTHER_SYSTEM": "darwin", "CUDA_VISIBLE_DEVICES": ""}

AUTO = "%%distributed --devices 2"
SPAWN = f"{AUTO} --start-method spawn"
EACH_METHOD = pytest.mark.parametrize("magic", [AUTO, pytest.param(SPAWN, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def macos() -> Iterator[NotebookKernel]:
    """A kernel that sees nothing of Linux, whose fork server is up."""
    with NotebookKernel(MACOS) as kernel:
        for cell in (*WARM_UP, "import time, numpy, torch\n%load_ext nbdist", f"{AUTO}\nrank"):
            kernel.run(cell).check()
        yield kernel


@pytest.fixture
def notebook(macos: NotebookKernel) -> Iterator[NotebookKernel]:
    """The kernel with an empty namespace; nothing but the fork server is left after the test."""
    macos.run("import time, numpy, torch").check()
    before = macos.footprint()
    yield macos
    macos.reset()
    macos.assert_no_leaks(before, allow=LIBRARY_SINGLETONS)


def test_the_kernel_and_its_ranks_lack_what_macos_lacks(notebook: NotebookKernel) -> None:
    """Else these tests would show nothing."""
    notebook.run(
        """
        def lacks():
            import ctypes, os, sys, time
            from multiprocessing.reduction import ACKNOWLEDGE
            gone = [hasattr(os, "pidfd_open"), hasattr(os, "memfd_create"), hasattr(os, "waitid"),
                    hasattr(time, "pthread_getcpuclockid"), hasattr(ctypes.CDLL(None), "prctl"),
                    os.path.exists("/proc/self")]
            try:
                open("/proc/self/maps")
            except FileNotFoundError:
                gone.append(False)
            return sys.platform, ACKNOWLEDGE, gone
        """
    ).check()
    expected = ("darwin", True, [False] * 7)
    assert notebook.value("lacks()") == expected
    notebook.run(f"{AUTO} --gather seen\nseen = lacks()").check()
    assert notebook.value("seen") == [expected] * 2


def test_the_fork_server_starts_with_the_extension() -> None:
    """As in a kernel that cannot be forked: the first launch need not wait for torch."""
    with NotebookKernel(MACOS) as kernel:
        assert kernel.processes() == {}
        kernel.run("%load_ext nbdist").check()
        [server] = kernel.processes()
        run = kernel.run(f"{AUTO} --gather parent\nimport os\nparent = os.getppid()").check()
        assert run.stdout == ""  # it is the rule there, and no news
        assert kernel.value("parent") == [server] * 2
        kernel.run("%unload_ext nbdist").check()
        assert kernel.processes() == {}


def test_fork_is_refused_before_anything_starts(notebook: NotebookKernel) -> None:
    processes = notebook.processes().keys()
    run = notebook.run(f"{AUTO} --start-method fork\nrank")
    assert run.error is not None, run.describe()
    assert run.error.ename == "LaunchError"
    assert "--start-method fork: on this system" in run.error.evalue
    assert "Allowed here: auto, forkserver, spawn." in run.error.evalue
    assert notebook.processes().keys() == processes


@EACH_METHOD
def test_a_cell_does_what_it_does_on_linux(notebook: NotebookKernel, magic: str) -> None:
    notebook.run(
        """
        model = torch.nn.Linear(4, 2)
        weights = model.weight
        before = weights.detach().clone()
        small, medium, large = torch.zeros(8), torch.zeros(60_000), torch.zeros(3_000_000)
        array = numpy.zeros(2_000_000)
        kept = id(model), id(large), large.data_ptr()
        """
    ).check()
    run = notebook.run(
        f"""{magic}
import torch.distributed as dist
total = torch.ones(1) * (rank + 1)
dist.all_reduce(total)
with torch.no_grad():
    model.weight += total
small[1], medium[2], large[3], array[4] = 1, 2, 3, 4
made = torch.full((2_000_000,), float(world_size))
print("the same on all", flush=True)
print("here is", rank)
total.item()
"""
    ).check()
    assert run.result == {"text/plain": "3.0"}
    assert sorted(run.stdout.splitlines()) == ["[0] here is 0", "[1] here is 1", "the same on all"]
    assert_all(
        notebook,
        "model.weight is weights and torch.equal(weights, before + 3)",
        "(id(model), id(large), large.data_ptr()) == kept",
        "(small[1], medium[2], large[3], array[4]) == (1, 2, 3, 4)",
        "(small.sum(), medium.sum(), large.sum(), array.sum()) == (1, 2, 3, 4)",
        "made.sum() == 4_000_000",
    )


def test_what_a_rank_did_not_change_is_not_written_back(notebook: NotebookKernel) -> None:
    """The notebook changes it meanwhile: what came back would undo that."""
    notebook.run(
        """
        import os, threading
        data = [torch.zeros(n) for n in (8, 60_000, 3_000_000)]
        written = threading.Event()

        def write_when_asked():
            while not os.path.exists("begun"):
                time.sleep(0.01)
            for tensor in data:
                tensor[0] = 7
            open("done", "w").close()

        threading.Thread(target=write_when_asked).start()
        """
    ).check()
    notebook.run(
        f"""{AUTO}
import os
if rank == 0:
    open("begun", "w").close()
while not os.path.exists("done"):
    time.sleep(0.01)
sums = [tensor.sum().item() for tensor in data]
data[0][1] = 1
"""
    ).check()
    assert notebook.value("sums") == [0, 0, 0]
    assert_all(notebook, "data[0][0] == 0 and data[0][1] == 1", "data[1][0] == 7", "data[2][0] == 7")


@EACH_METHOD
def test_a_failure_names_its_cause(notebook: NotebookKernel, magic: str) -> None:
    run = notebook.run(
        f"""{magic}
import torch.distributed as dist
begun = 1
if rank == 1:
    raise ValueError("no such batch")
dist.barrier()
"""
    )
    assert run.error is not None, run.describe()
    assert run.error.ename == "RankFailedError"
    assert "rank 1 of 2 failed at line 5: ValueError: no such batch" in run.error.text
    assert "rank 0: stopped while waiting in barrier, a consequence." in run.error.text
    assert notebook.value("begun") == 1


@EACH_METHOD
def test_a_death_says_how(notebook: NotebookKernel, magic: str) -> None:
    run = notebook.run(f"{magic}\nimport os, signal\nif rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)")
    assert run.error is not None, run.describe()
    assert "was ended by SIGKILL" in run.error.text
    run = notebook.run(f"{magic}\nimport os\nif rank == 0:\n    os._exit(7)")
    assert run.error is not None, run.describe()
    assert "ended with exit code 7" in run.error.text


@EACH_METHOD
def test_an_interrupt_ends_the_cell_inside_a_collective(notebook: NotebookKernel, magic: str) -> None:
    processes = notebook.processes().keys()
    run = notebook.start_run(
        f"{magic}\nimport torch.distributed as dist\nbegun = 1\nprint('ready', flush=True)\n"
        "time.sleep(1000) if rank else dist.barrier()"
    )
    run.wait_for_text("ready", 60)
    notebook.interrupt()
    run.finish(30)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt"
    assert notebook.value("begun") == 1
    assert notebook.processes().keys() == processes


def test_a_hang_is_told(notebook: NotebookKernel) -> None:
    run = notebook.run(f"{AUTO}\nimport torch.distributed as dist\nif rank == 0:\n    dist.barrier()")
    assert run.error is not None, run.describe()
    assert "it waits in barrier, which can never complete: rank 1 finished without it" in run.error.text


LEAVES_MUCH = """
import multiprocessing, subprocess, threading
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.Popen(["sleep", "1000"])
multiprocessing.get_context("fork").Process(target=threading.Event().wait).start()
print("up", flush=True)
"""


def test_what_a_dying_rank_leaves_is_ended(notebook: NotebookKernel) -> None:
    processes = notebook.processes().keys()
    run = notebook.run(f"{AUTO}\n{LEAVES_MUCH}import os\nos._exit(3)")
    assert run.error is not None, run.describe()
    poll_until(lambda: notebook.processes().keys() == processes, 10, lambda: str(notebook.processes()))


@EACH_METHOD
def test_nothing_outlives_the_kernel(magic: str) -> None:
    with NotebookKernel(MACOS) as kernel:
        kernel.run("%load_ext nbdist").check()
        run = kernel.start_run(f"{magic}\n{LEAVES_MUCH}while True:\n    pass")
        run.wait_for_text("up", 60)
        kernel.kill()
        poll_until(lambda: kernel.processes() == {}, 10, lambda: f"still there: {kernel.processes()}")
        temporary = kernel.folder / "tmp"
        poll_until(lambda: not any(temporary.glob("nbdist-*")), 10, lambda: str(list(temporary.iterdir())))


def test_python_interface(notebook: NotebookKernel) -> None:
    notebook.run(
        """
        import nbdist
        factor = 10

        def times(n):
            import os
            return n * factor + int(os.environ["RANK"])

        launched = nbdist.launch(times, 2, devices=2)
        with nbdist.Session(devices=2) as session:
            called = session.run(times, 3), session.run(torch.ones, 2_000_000)[1].sum().item()
        """
    ).check()
    assert notebook.value("(launched, called)") == (20, ([30, 31], 2_000_000))
