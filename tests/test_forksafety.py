"""Whether a kernel may be forked: what is known, who said it, what is healed; and what users see of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import WARM_UP
from notebook_kernel import CellRun, NotebookKernel, poll_until

from nbdist.forksafety import ENVIRONMENT, ForkSafety

# ── What is known ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class FakeProbes:
    """A process in whatever state a test wants."""

    cuda: bool = False
    devices: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=lambda: ["MainThread"])
    bad: bool = False
    children: int = 0

    def cuda_initialized(self) -> bool:
        return self.cuda

    def open_devices(self) -> list[str]:
        return self.devices

    def thread_names(self) -> list[str]:
        return self.threads

    def bad_in_child(self) -> bool:
        self.children += 1
        return self.bad


def run_cell(safety: ForkSafety, label: str, source: str = "", **after: object) -> str:
    """What is known after a cell that leaves the process as `after` says; empty while it is safe."""
    safety.before_cell()
    for name, value in after.items():
        setattr(safety.probes, name, value)
    return str(safety.after_cell(label, source) or "")


STATES = {
    "CUDA was initialised": {"cuda": True},
    "CUDA was initialised by something else than torch": {"devices": ["/dev/null", "/dev/nvidia-uvm"]},
    "autograd's device threads": {"threads": ["MainThread", "pt_autograd_0"]},
}


@pytest.mark.parametrize("state", STATES)
def test_the_cell_that_made_a_kernel_unsafe_is_remembered(state: str) -> None:
    safety = ForkSafety(FakeProbes())
    assert run_cell(safety, "In[1]", "x = 1") == ""
    said = run_cell(safety, "In[2]", "y = model(x)", **STATES[state])
    assert said.startswith(state.removesuffix(" by something else than torch"))
    assert said.endswith(" by In[2]")


def test_what_does_not_make_a_kernel_unsafe() -> None:
    """NVML's devices, and the threads of anybody else."""
    probes = FakeProbes(
        devices=["/dev/nvidiactl", "/dev/nvidia0"], threads=["MainThread", "IOPub", "autograd"]
    )
    safety = ForkSafety(probes)
    assert run_cell(safety, "In[1]") == ""
    assert safety.before_launch() is None
    assert safety.unsafe is None


def test_modules_that_the_cell_imported_are_named() -> None:
    safety = ForkSafety(FakeProbes())
    safety.before_cell()
    assert isinstance(safety.probes, FakeProbes)
    safety.probes.cuda = True
    source = "import os\nimport quantized.kernels as k, another\nfrom third.part import x\nfrom . import near"
    assert (
        str(safety.after_cell("In[3]", source))
        == "CUDA was initialised by In[3] (it imported another, quantized, third)"
    )


@pytest.mark.parametrize("source", ["import os", "!nvidia-smi", "%%bash\nimport x", "import (", "\0"])
def test_a_cell_without_new_imports_is_named_alone(source: str) -> None:
    safety = ForkSafety(FakeProbes())
    assert run_cell(safety, "In[4]", source, cuda=True) == "CUDA was initialised by In[4]"


def test_the_first_reason_stays() -> None:
    safety = ForkSafety(FakeProbes())
    first = run_cell(safety, "In[1]", threads=["pt_autograd_0"])
    assert run_cell(safety, "In[2]", "import torch", cuda=True) == first
    assert run_cell(safety, "In[3]", cuda=False, threads=[]) == first
    assert str(safety.before_launch()) == str(safety.unsafe) == first


def test_only_a_launch_asks_a_child() -> None:
    probes = FakeProbes(bad=True)
    safety = ForkSafety(probes)
    assert run_cell(safety, "In[1]") == ""
    assert probes.children == 0
    assert str(safety.before_launch()) == "CUDA was initialised"
    assert run_cell(safety, "In[2]", bad=False) == "CUDA was initialised"
    assert str(safety.before_launch()) == "CUDA was initialised"
    assert probes.children == 1


def test_a_launch_that_knows_already_asks_no_child() -> None:
    probes = FakeProbes(cuda=True)
    assert str(ForkSafety(probes).before_launch()) == "CUDA was initialised"
    assert probes.children == 0


# ── In a program ────────────────────────────────────────────────────────────────────────────────────────────


def run_program(folder: Path, code: str, **environment: str) -> object:
    """A Python program's last line, as JSON; warnings are errors in it."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=folder,
        env={**os.environ, "NBDIST_LOG_DIR": str(folder / "logs"), **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])


def test_this_process_has_not_used_cuda(tmp_path: Path) -> None:
    assert run_program(
        tmp_path,
        """
        import json, torch
        from nbdist.forksafety import this_process
        this_process.before_cell()
        torch.ones(300, 300, requires_grad=True).sum().backward()
        known = this_process.after_cell("In[1]", "import torch"), this_process.before_launch()
        print(json.dumps(known))
        """,
        CUDA_VISIBLE_DEVICES="",
    ) == [None, None]


HEALED = """
import json, os, threading
import numpy as np, scipy.linalg, torch
from sklearn.ensemble import HistGradientBoostingClassifier
import nbdist

def threads():
    return len(os.listdir("/proc/self/task"))

def matmul():
    return (torch.ones(1000, 1000) @ torch.ones(1000, 1000))[0, 0].item()

def conv():
    conv = torch.nn.Conv2d(3, 8, 3)
    torch.manual_seed(0)
    conv(torch.ones(8, 3, 64, 64)).sum().backward()
    return conv.bias.grad[0].item()

def randperm():
    return torch.randperm(500_000).sum().item()

def sort():
    return torch.arange(500_000).flip(0).sort().values[0].item()

def fit():
    x = np.random.RandomState(0).rand(2000, 5)
    model = HistGradientBoostingClassifier(max_iter=3, random_state=0).fit(x, x[:, 0] > 0.5)
    return model.score(x, x[:, 0] > 0.5) > 0.9

def blas():
    return float((np.ones((800, 800)) @ np.ones((800, 800)))[0, 0]), float(scipy.linalg.inv(np.eye(300))[0, 0])

WORK = [matmul, conv, randperm, sort, fit, blas]

def all_work(order):
    started = threads()
    done = [WORK[k]() for k in order]
    return done, threads() - started, torch.get_num_threads()

order = list(range(len(WORK)))
expected, _, _ = all_work(order)
answers = []
for start in (0, 2, 4):
    # Each time another operation is the rank's first; and in between, the notebook uses its own threads.
    turned = order[start:] + order[:start]
    done, new_threads, torch_threads = nbdist.launch(all_work, turned, devices=2, start_method="fork")
    answers.append([done == [expected[k] for k in turned], new_threads >= 1, torch_threads])
    assert all_work(order)[0] == expected
print(json.dumps(answers))
"""


def test_ranks_use_threads_after_the_notebook_has(tmp_path: Path) -> None:
    """OpenMP's pools of torch and scikit-learn, and numpy's and scipy's BLAS, used before each fork and in
    the ranks, which really start threads."""
    assert run_program(tmp_path, HEALED, OMP_NUM_THREADS="2") == [[True, True, 2]] * 3


def test_cores_are_shared_out_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    code = """
        import json, os, torch, nbdist
        from nbdist.devices import usable_cpu_count
        cores = usable_cpu_count()
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(2 * cores)

        def own_word():
            torch.set_num_threads(7)
            return torch.get_num_threads()

        shared = [nbdist.launch(torch.get_num_threads, devices=n, start_method="fork") for n in (1, 2, 2 * cores)]
        own = nbdist.launch(own_word, devices=2, start_method="fork")
        torch.set_num_threads(1)
        notebooks_own = nbdist.launch(torch.get_num_threads, devices=1, start_method="fork")
        print(json.dumps([[cores, max(1, cores // 2), 1] == shared, shared, own, notebooks_own]))
        """
    shares, _, own, notebooks_own = run_program(tmp_path, code)  # type: ignore[misc]
    assert (shares, own, notebooks_own) == (True, 7, 1)
    _, shared, own, _ = run_program(tmp_path, code, OMP_NUM_THREADS="2")  # type: ignore[misc]
    assert (shared, own) == ([2, 2, 2], 7)


def test_pythons_warning_of_forks_is_silenced_for_ours_alone(tmp_path: Path) -> None:
    """Python 3.12 warns of a fork in a process with threads; the same words are said here by a hook."""
    said = run_program(
        tmp_path,
        """
        import json, os, threading, warnings
        import nbdist

        TEXT = "This process is multi-threaded, use of fork() may lead to deadlocks in the child."
        os.register_at_fork(before=lambda: warnings.warn(TEXT, DeprecationWarning))
        warnings.simplefilter("always")
        filters = list(warnings.filters)

        with warnings.catch_warnings(record=True) as ours:
            warnings.simplefilter("always")
            answer = nbdist.launch(os.getpid, devices=2, start_method="fork")
        with warnings.catch_warnings(record=True) as others:
            warnings.simplefilter("always")
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        told = [str(warning.message) for warning in others]
        print(json.dumps([len(ours), TEXT in told, warnings.filters == filters, answer != os.getpid()]))
        """,
    )
    assert said == [0, True, True, True]


def launches_beside_busy_threads(count: int, log: str = "stream=sys.stdout") -> str:
    """A program that launches ranks while threads print, log and import."""
    return f"""
        import importlib, json, logging, pathlib, sys, threading
        import nbdist

        logging.basicConfig({log}, level=logging.DEBUG, force=True)
        pathlib.Path("often.py").write_text("x = 1")
        stop, begun = threading.Event(), threading.Barrier(4)

        def keep_on(step):
            begun.wait()
            while not stop.wait(0.0005):
                step()

        def import_often():
            sys.modules.pop("often", None)
            return importlib.import_module("often").x

        def work(n):
            logging.info("rank")
            print("rank")
            return import_often() + n

        steps = [lambda: print("tick", flush=True), lambda: logging.info("tock"), import_often]
        threads = [threading.Thread(target=keep_on, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        begun.wait()
        try:
            answers = [nbdist.launch(work, n, devices=2, start_method="fork") for n in range({count})]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        print()
        print(json.dumps(answers == list(range(1, {count} + 1))))
        """


@pytest.mark.parametrize("log", ["stream=sys.stdout", "filename='log.txt'"])
def test_threads_that_print_log_and_import_do_not_disturb_forks(tmp_path: Path, log: str) -> None:
    assert run_program(tmp_path, launches_beside_busy_threads(20, log)) is True


# ── In a notebook ───────────────────────────────────────────────────────────────────────────────────────────

USE_CUDA = """
    import quantizers, nbdist.forksafety, torch

    class UsedCuda:
        def cuda_initialized(self): return True
        def open_devices(self): return []
        def thread_names(self): return []
        def bad_in_child(self): return True

    nbdist.forksafety.this_process.probes = UsedCuda()
    weights, small = torch.ones(3 << 20), torch.ones(3)
    """


@dataclass
class UnsafeNotebook:
    """A notebook in which a cell has used CUDA, so the injected probes say."""

    kernel: NotebookKernel
    cell: CellRun
    server: list[str]


@pytest.fixture(scope="module")
def unsafe() -> Iterator[UnsafeNotebook]:
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        (kernel.working_folder / "quantizers.py").write_text("")
        for cell in (*WARM_UP, "%load_ext nbdist", "x = 1"):
            kernel.run(cell).check()
        assert kernel.processes() == {}
        cell = kernel.run(USE_CUDA).check()
        # The child's exec is not announced.
        poll_until(
            lambda: any(map(is_server, commands(kernel))), 10, lambda: f"no server: {commands(kernel)}"
        )
        yield UnsafeNotebook(kernel, cell, commands(kernel))


def commands(kernel: NotebookKernel) -> list[str]:
    return [" ".join(process.cmdline()) for process in kernel.processes().values()]


def is_server(command: str) -> bool:
    return "nbdist.start.server" in command or "forkserver" in command


def test_auto_forks_a_safe_kernel_and_says_nothing(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 2\nimport os\nos.getppid()").check()
    assert run.result == {"text/plain": str(kernel.pid)}
    assert (run.stdout, run.stderr) == ("", "")
    assert kernel.processes() == {}


def test_the_fork_server_starts_after_the_unsafe_cell_without_a_word(unsafe: UnsafeNotebook) -> None:
    assert len(unsafe.server) == 1
    assert (unsafe.cell.stdout, unsafe.cell.stderr) == ("", "")


def test_auto_says_in_one_line_why_and_what_was_copied(unsafe: UnsafeNotebook) -> None:
    kernel = unsafe.kernel
    run = kernel.run("%%distributed --devices 2\nimport os\nweights += 1 + small.sum()\nos.getppid()").check()
    number = unsafe.cell.execution_count
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert f"CUDA was initialised by In[{number}] (it imported quantizers): " in run.stderr
    assert "weights (12 MiB)" in run.stderr
    assert "small" not in run.stderr
    assert run.result is not None
    assert run.result["text/plain"] != str(kernel.pid)
    assert kernel.value("weights[0].item(), weights[-1].item()") == (5, 5)
    again = kernel.run("%%distributed --devices 2\nrank").check()
    assert "Only small values are copied" in again.stderr


def test_fork_is_refused_with_the_same_explanation(unsafe: UnsafeNotebook) -> None:
    kernel = unsafe.kernel
    before = kernel.processes().keys()
    run = kernel.run("%%distributed --devices 2 --start-method fork\nprint('never')")
    assert run.error is not None, run.describe()
    assert run.error.ename == "LaunchError"
    assert f"CUDA was initialised by In[{unsafe.cell.execution_count}]" in run.error.evalue
    assert "--start-method fork" in run.error.evalue
    assert run.stdout == ""
    assert kernel.processes().keys() == before


def test_calls_and_sessions_take_the_fork_server_too(unsafe: UnsafeNotebook) -> None:
    run = unsafe.kernel.run(
        """
        import nbdist, os

        def parents(x):
            return os.getppid(), x + 1

        called = nbdist.launch(parents, 4, devices=2)
        with nbdist.Session(devices=2) as session:
            ran = session.run(parents, 5)
        """
    ).check()
    assert run.stderr.count("CUDA was initialised") == 2
    assert unsafe.kernel.value("called[1], [x for _, x in ran], len({called[0], *(p for p, _ in ran)})") == (
        5,
        [6, 6],
        1,
    )
    assert unsafe.kernel.value("called[0] != os.getpid()") is True


def test_a_fork_server_that_died_is_started_anew(unsafe: UnsafeNotebook) -> None:
    kernel = unsafe.kernel
    (server,) = kernel.processes().values()
    server.send_signal(signal.SIGKILL)
    failed = kernel.run("%%distributed --devices 2\nrank")
    if failed.status == "error":
        assert failed.error is not None
        assert "fork server" in failed.error.evalue
        kernel.run("%%distributed --devices 2\nrank").check()
    poll_until(lambda: len(commands(kernel)) == 1, 10, lambda: f"{commands(kernel)}")


def test_unloading_ends_the_fork_server(unsafe: UnsafeNotebook) -> None:
    kernel = unsafe.kernel
    assert any(map(is_server, commands(kernel)))
    kernel.run("%unload_ext nbdist").check()
    assert kernel.processes() == {}
    kernel.run("%load_ext nbdist").check()
    assert "CUDA was initialised by In[" in kernel.run("%%distributed --devices 2\nrank").check().stderr


def test_what_loading_sets_is_taken_back(kernel: NotebookKernel) -> None:
    names = sorted(ENVIRONMENT)
    assert names == ["PYTORCH_NVML_BASED_CUDA_CHECK", "THP_MEM_ALLOC_ENABLE"]
    read = f"[__import__('os').environ.get(name) for name in {names}]"
    assert kernel.value(read) == ["1", "1"]
    kernel.run("%unload_ext nbdist").check()
    assert kernel.value(read) == [None, None]
    kernel.run("import os\nos.environ['THP_MEM_ALLOC_ENABLE'] = '0'").check()
    loaded = kernel.run("%load_ext nbdist").check()
    assert (loaded.stdout, loaded.stderr) == ("", "")
    assert kernel.value(read) == ["1", "0"]
    kernel.run("%unload_ext nbdist").check()
    assert kernel.value(read) == [None, "0"]
    kernel.run("del os.environ['THP_MEM_ALLOC_ENABLE']\n%load_ext nbdist").check()


@pytest.mark.gpu
def test_a_kernel_that_used_a_gpu_takes_the_fork_server() -> None:
    with NotebookKernel() as kernel:
        kernel.run("%load_ext nbdist").check()
        used = kernel.run("import torch\nx = torch.ones(3, device='cuda')").check()
        run = kernel.run("%%distributed --devices 1\n(x * 2).sum().item()").check()
        assert f"CUDA was initialised by In[{used.execution_count}]" in run.stderr
        assert run.result == {"text/plain": "6.0"}
