"""Failures and interrupts: who failed, why and where, and that nothing is left running."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

import psutil
import pytest
from notebook_kernel import CellError, CellRun, NotebookKernel, poll_until

import nbdist

PACKAGE = Path(nbdist.__file__).parent


def failure_of(run: CellRun) -> CellError:
    """The error of a cell that failed on its ranks, with nothing of nbdist's own in its traceback."""
    assert run.status == "error", run.describe()
    assert run.error is not None, run.describe()
    assert run.error.ename == "RankFailedError", run.describe()
    for frame in ("File " + str(PACKAGE), "nbdist/worker", "nbdist/session", "run_cell_magic"):
        assert frame not in run.error.text
    assert run.error.text.rstrip().endswith(f"RankFailedError: {run.error.evalue}")
    return run.error


# ── Exceptions ──────────────────────────────────────────────────────────────────────────────────────────────


def test_one_rank_raises(kernel: NotebookKernel) -> None:
    kernel.run(
        "def check(batch):\n    if batch > 0:\n        raise ValueError(f'batch {batch} is bad')"
    ).check()
    error = failure_of(
        kernel.run(
            """
            %%distributed --devices 3
            import torch

            check(rank if rank == 1 else 0)
            """
        )
    )
    assert error.evalue == "rank 1 of 3 failed at line 4: ValueError: batch 1 is bad"
    lines = error.text.splitlines()
    assert lines[0] == "rank 1 of 3, line 4 of the cell:"
    assert "----> 4 check(rank if rank == 1 else 0)" in error.text
    assert "raise ValueError(f'batch {batch} is bad')" in error.text
    assert error.text.count("Traceback (most recent call last)") == 1


def test_all_ranks_raise_the_same(kernel: NotebookKernel) -> None:
    error = failure_of(kernel.run("%%distributed --devices 4\nx = {}\nx['weights']"))
    assert error.evalue == "ranks 0-3 of 4 failed at line 3: KeyError: 'weights'"
    assert error.text.splitlines()[0] == "ranks 0-3 of 4, line 3 of the cell:"
    assert error.text.count("Traceback (most recent call last)") == 1


def test_ranks_raise_different_errors(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 3
        import torch.distributed as dist
        dist.barrier()
        if rank == 0:
            raise ValueError("the first")
        if rank == 2:
            raise TypeError("the other")
        """
    )
    error = failure_of(run)
    assert error.evalue.endswith("(and 1 other failure, above)")
    assert "rank 0 of 3, line 5 of the cell:" in error.text
    assert "rank 2 of 3, line 7 of the cell:" in error.text
    assert "ValueError: the first" in error.text
    assert "TypeError: the other" in error.text
    assert "rank 1" not in error.text


def test_a_failure_while_the_others_wait_in_a_collective(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 3
        import torch, torch.distributed as dist
        if rank == 1:
            raise RuntimeError("out of data")
        dist.all_reduce(torch.ones(1))
        """
    )
    error = failure_of(run)
    assert error.evalue == "rank 1 of 3 failed at line 4: RuntimeError: out of data"
    assert error.text.count("Traceback (most recent call last)") == 1
    assert "RuntimeError: out of data" in error.text


def test_a_failure_while_the_others_work_on(kernel: NotebookKernel) -> None:
    """They are stopped: a loop without end, one that catches all it can, and one that waits."""
    run = kernel.run(
        """
        %%distributed --devices 4
        import threading
        if rank == 0:
            1 / 0
        while rank == 1:
            pass
        while rank == 2:
            try:
                threading.Event().wait()
            except BaseException:
                pass
        threading.Event().wait()
        """
    )
    assert failure_of(run).evalue == "rank 0 of 4 failed at line 4: ZeroDivisionError: division by zero"
    assert kernel.processes() == {}


def test_chained_exceptions_are_shown_whole(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        try:
            {}["lr"]
        except KeyError as missing:
            raise RuntimeError("no learning rate") from missing
        """
    )
    error = failure_of(run)
    assert error.evalue == "ranks 0-1 of 2 failed at line 5: RuntimeError: no learning rate"
    assert "KeyError: 'lr'" in error.text
    assert "The above exception was the direct cause of the following exception" in error.text


@pytest.mark.parametrize(
    ("cell", "evalue"),
    [
        ("raise SystemExit(3)", "ranks 0-1 of 2 failed at line 2: SystemExit: 3"),
        ("import sys\nsys.exit('no data')", "ranks 0-1 of 2 failed at line 3: SystemExit: no data"),
        ("assert rank > 5", "ranks 0-1 of 2 failed at line 2: AssertionError"),
        (
            "undefined_name",
            "ranks 0-1 of 2 failed at line 2: NameError: name 'undefined_name' is not defined",
        ),
        ("%no_such_magic", "UsageError: Line magic function `%no_such_magic` not found."),
        ("await nothing()", "NameError: name 'nothing' is not defined"),
        ("raise BaseException('the root')", "ranks 0-1 of 2 failed at line 2: BaseException: the root"),
    ],
)
def test_exceptions_of_all_kinds(kernel: NotebookKernel, cell: str, evalue: str) -> None:
    assert evalue in failure_of(kernel.run(f"%%distributed --devices 2\n{cell}")).evalue


def test_an_exception_that_cannot_say_what_it_is(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        class Shy(Exception):
            def __str__(self):
                raise RuntimeError("not telling")
        raise Shy
        """
    )
    assert "at line 5: Shy" in failure_of(run).evalue


def test_unused_parameters_are_named_with_what_helps(kernel: NotebookKernel) -> None:
    cell = """
        %%distributed --devices 2 {option}
        import nbdist, torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
            def forward(self, x):
                return self.used(x)
        net, sgd = Net(), None
        model = nbdist.setup(net)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        trained = net.used.weight.grad.tolist()
        """
    error = failure_of(kernel.run(cell.format(option="")))
    assert "ranks 0-1 of 2, line 12 of the cell:" in error.text
    hint = "These parameters got no gradient: head.weight, head.bias. If that is meant, use nbdist.setup"
    assert error.text.count(hint) == 1
    option = "--strategy ddp_find_unused_parameters_true"
    assert option in error.text
    kernel.run(cell.format(option=option)).check()
    assert kernel.value("trained") == [[2, 2], [2, 2]]


@pytest.mark.parametrize("option", ["", " --hold"])
def test_a_syntax_error_ends_the_cell_before_ranks_start(kernel: NotebookKernel, option: str) -> None:
    run = kernel.run(f"%%distributed --devices 2{option}\nx = 1\ny = = 2")
    assert run.error is not None
    assert run.error.ename == "CellSyntaxError"
    assert run.error.evalue == "line 3 of the cell: SyntaxError: invalid syntax. Nothing was started."
    assert "    y = = 2\n        ^" in run.error.text
    assert "nbdist/" not in run.error.text
    assert kernel.value("'x' in globals()") is False
    assert run.stderr == ""
    assert kernel.run("%distributed stop").check().stdout == "No ranks are up.\n"


def test_statements_before_one_that_does_not_compile_run_as_in_an_ordinary_cell(
    kernel: NotebookKernel,
) -> None:
    run = kernel.run("%%distributed --devices 2\nx = 1\nreturn x")
    assert failure_of(run).evalue.startswith("ranks 0-1 of 2 failed at line 3: SyntaxError: 'return' outside")
    assert kernel.value("x") == 1
    kernel.run("del x").check()


def test_text_before_a_failure_is_shown_and_the_logs_are_named(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 2\nprint('step', rank)\nprint('tail', end='')\n1 / 0")
    error = failure_of(run)
    assert run.stdout == "[0] step 0\n[1] step 1\ntail"
    folder = Path(error.text.split("Each rank's whole output is in ")[1].splitlines()[0])
    assert (folder / "rank-1.log").read_text() == "step 1\ntail"


def test_the_cell_after_a_failure_runs(kernel: NotebookKernel) -> None:
    for _ in range(3):
        failure_of(kernel.run("%%distributed --devices 2\n1 / 0"))
        assert kernel.run("%%distributed --devices 2\nworld_size").check().result == {"text/plain": "2"}


# ── What Python code gets of it ─────────────────────────────────────────────────────────────────────────────

CATCH = """
    import nbdist

    def caught(function, **options):
        try:
            nbdist.launch(function, **options)
        except nbdist.RankFailedError as error:
            return error
    """


def test_the_exception_holds_all_failures(kernel: NotebookKernel) -> None:
    kernel.run(
        CATCH
        + """
    import torch, torch.distributed as dist

    class BadBatch(Exception):
        def __init__(self, number):
            super().__init__(f"batch {number}")
            self.number = number
        def __reduce__(self):
            return BadBatch, (self.number,)

    def work():
        dist.barrier()
        if dist.get_rank() == 2:
            raise BadBatch(7)
        if dist.get_rank() == 0:
            raise ValueError("mine")

    error = caught(work, devices=3)
    """
    ).check()
    assert kernel.value("sorted((f.rank, f.type_name, f.message) for f in error.failures)") == [
        (0, "ValueError", "mine"),
        (2, "BadBatch", "batch 7"),
    ]
    assert kernel.value("error.world_size") == 3
    assert kernel.value("isinstance(error, nbdist.NbdistError) and isinstance(error, RuntimeError)") is True
    assert kernel.value("error.failures[0].time_s <= error.failures[1].time_s") is True
    # The cause is the first failure's own exception, of the notebook's own class.
    causes = {0: "ValueError('mine')", 2: "BadBatch('batch 7')"}
    assert kernel.value("repr(error.__cause__)") == causes[kernel.value("error.failures[0].rank")]


def test_the_cause_is_the_notebooks_own_exception(kernel: NotebookKernel) -> None:
    kernel.run(
        CATCH
        + """
    class BadBatch(Exception):
        pass

    error = caught(lambda: (_ for _ in ()).throw(BadBatch("seven")), devices=2)
    """
    ).check()
    assert kernel.value("type(error.__cause__) is BadBatch and error.__cause__.args") == ("seven",)


SIGNATURES = """
import subprocess, threading

class Coded(Exception):
    def __init__(self, code, detail):
        super().__init__(f"code {code}: {detail}")
        self.code, self.detail = code, detail

class Named(OSError):
    def __init__(self, *, path):
        super().__init__(2, "no such file", path)
        self.path = path

class Locked(Exception):
    def __init__(self, code):
        super().__init__("locked", threading.Lock())
        self.code, self.lock = code, threading.Lock()
"""


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("Coded(3, 'late')", "(e.args, e.code, e.detail, type(e) is Coded)"),
        ("Named(path='x')", "(e.errno, e.filename, e.path, type(e) is Named)"),
        ("subprocess.CalledProcessError(3, ['x'])", "(e.returncode, e.cmd, str(e))"),
        ("UnicodeDecodeError('utf-8', b'x', 0, 1, 'odd')", "(e.object, e.reason, str(e))"),
    ],
)
def test_an_exception_with_arguments_of_its_own_is_the_cause_and_comes_back(
    kernel: NotebookKernel, made: str, told: str
) -> None:
    kernel.run(f"{SIGNATURES}\ne = {made}").check()
    expected = kernel.value(told)
    failure_of(kernel.run(f"%%distributed --devices 2\nraise {made}"))
    kernel.run("import sys\ne = sys.last_value.__cause__").check()
    assert kernel.value(told) == expected
    kernel.run(f"%%distributed --devices 2\ne = {made}").check()
    assert kernel.value(told) == expected


def test_what_of_a_cause_cannot_be_pickled_is_left_out(kernel: NotebookKernel) -> None:
    kernel.run(SIGNATURES).check()
    failure_of(kernel.run("%%distributed --devices 2\nraise Locked(7)"))
    kernel.run("import sys\ne = sys.last_value.__cause__").check()
    told = "(type(e) is Locked, e.args[0], e.args[1][:9], e.code, hasattr(e, 'lock'))"
    assert kernel.value(told) == (True, "locked", "<unlocked", 7, False)


def test_a_failed_cells_exception_can_be_had_afterwards(kernel: NotebookKernel) -> None:
    kernel.run("class BadBatch(Exception):\n    pass").check()
    failure_of(kernel.run("%%distributed --devices 2\nif rank == 1:\n    raise BadBatch('seven')"))
    kernel.run("import sys\nerror = sys.last_value").check()
    assert kernel.value("[(f.rank, f.summary, f.cell_line) for f in error.failures]") == [
        (1, "BadBatch: seven", 3)
    ]
    assert kernel.value("type(error.__cause__) is BadBatch") is True


# ── Deaths ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ending", "at", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "", "was ended by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "", "was ended by SIGTERM"),
        ("ctypes.string_at(0)", " at line 6", "was ended by SIGSEGV"),
        ("os.abort()", " at line 6", "was ended by SIGABRT"),
        ("os._exit(7)", "", "ended with exit code 7"),
        ("os._exit(0)", "", "ended with exit code 0"),
    ],
)
def test_a_rank_that_dies_says_how(kernel: NotebookKernel, ending: str, at: str, how: str) -> None:
    run = kernel.run(
        f"""
        %%distributed --devices 3
        import ctypes, os, signal, torch, torch.distributed as dist
        dist.barrier()
        print("last words of", rank, flush=True)
        if rank == 2:
            {ending}
        dist.all_reduce(torch.ones(1))
        """
    )
    error = failure_of(run)
    expected = (
        rf"rank 2 of 3 failed{at}: its process \(pid \d+\) {how}(; it was last seen at line 3 of the cell)?"
    )
    assert re.fullmatch(expected, error.evalue)
    if at:  # Python itself writes where it was
        assert re.search(r"line 6, in <module>$", error.text, re.MULTILINE)
        assert not re.search("IPython/core|nbdist/worker", error.text)
    assert "[2] last words of 2\n" in run.stdout
    assert kernel.processes() == {}


def test_a_rank_that_dies_before_the_others_meet_it(kernel: NotebookKernel) -> None:
    """The others wait for it in the making of the process group."""
    run = kernel.run(
        """
        %%distributed --devices 2 --no-init
        import os, torch.distributed as dist
        if rank == 1:
            os._exit(9)
        dist.init_process_group("gloo")
        """
    )
    expected = r"rank 1 of 2 failed: its process \(pid \d+\) ended with exit code 9"
    assert re.fullmatch(expected, failure_of(run).evalue)


def test_a_dead_ranks_last_line_is_known(kernel: NotebookKernel) -> None:
    run = kernel.start_run(
        """
        %%distributed --devices 2 --hang-timeout 0.5
        import os, threading
        print(rank, "has pid", os.getpid(), flush=True)
        threading.Event().wait()
        """,
        allow_stdin=True,
    )
    run.wait_for_text("may hang")
    found = re.search(r"1 has pid (\d+)", run.stdout)
    assert found is not None
    psutil.Process(int(found[1])).kill()
    error = failure_of(run.finish())
    assert error.evalue.endswith("was ended by SIGKILL; it was last seen at line 4 of the cell")


def test_ranks_that_cannot_be_started_leave_nothing(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import os, resource
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1]))
        """
    ).check()
    try:
        run = kernel.run("%%distributed --devices 32\nworld_size")
    finally:
        kernel.run("resource.setrlimit(resource.RLIMIT_NOFILE, limits)").check()
    assert run.error is not None, run.describe()
    assert run.error.ename == "LaunchError"
    for phrase in ("of 32 could not be", "Too many open files", "--devices", "ulimit -n"):
        assert phrase in run.error.evalue
    assert run.error.text.strip() == f"LaunchError: {run.error.evalue}"
    assert kernel.processes() == {}


def test_children_of_a_failed_rank_are_ended(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import subprocess, threading, torch

        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 100
            def __getitem__(self, index):
                threading.Event().wait()
        """
    ).check()
    run = kernel.run(
        """
        %%distributed --devices 2
        children = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
        loader = iter(torch.utils.data.DataLoader(Slow(), num_workers=2))
        if rank == 1:
            raise RuntimeError("enough")
        next(loader)
        """
    )
    assert failure_of(run).evalue == "rank 1 of 2 failed at line 5: RuntimeError: enough"
    poll_until(lambda: kernel.processes() == {}, 10, lambda: f"still there: {kernel.processes()}")


HELPERS = """
import os, subprocess, sys, threading, time, torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        threading.Event().wait()

def start_helpers():
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1001"], start_new_session=True)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    if os.fork() == 0:
        os.setpgid(0, 0)
        time.sleep(1000)
    return iter(torch.utils.data.DataLoader(Slow(), num_workers=1))
"""


@pytest.mark.parametrize(
    "ending", ["pass", "1 / 0", "os._exit(3)", "os.kill(os.getpid(), 9)", "rank or os.abort()"]
)
def test_what_ranks_started_ends_with_them(kernel: NotebookKernel, ending: str) -> None:
    """Whatever session it is in, and however the ranks end."""
    kernel.run(HELPERS).check()
    kernel.run(f"%%distributed --devices 2\n_batches = start_helpers()\n{ending}")
    poll_until(lambda: kernel.processes() == {}, 10, lambda: f"still there: {kernel.processes()}")


def scratch_of(kernel: NotebookKernel) -> list[Path]:
    return list((kernel.folder / "tmp").glob("nbdist-*"))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_nothing_outlives_the_kernel(method: str) -> None:
    with NotebookKernel() as kernel:
        kernel.run("%load_ext nbdist").check()
        kernel.run(HELPERS).check()
        run = kernel.start_run(
            f"%%distributed --devices 2 --start-method {method}\n"
            "batches = start_helpers()\nprint('up')\nthreading.Event().wait()"
        )
        run.wait_for_text("up", 60)
        assert len(kernel.processes()) >= 12
        kernel.kill()
        poll_until(lambda: kernel.processes() == {}, 10, lambda: f"still there: {kernel.processes()}")
        poll_until(lambda: not scratch_of(kernel), 10, lambda: f"still there: {scratch_of(kernel)}")


# ── Interrupts ──────────────────────────────────────────────────────────────────────────────────────────────

WAYS_TO_WAIT = {
    "sleep": "time.sleep(1000)",
    "loop": "while True: pass",
    "collective": "torch.zeros(1) if rank else dist.all_reduce(torch.zeros(1))\nif rank: time.sleep(1000)",
    "lock": "threading.Lock().__enter__(); threading.Event().wait()",
    "stubborn": "while True:\n    try: time.sleep(1000)\n    except KeyboardInterrupt: pass",
    "await": "await asyncio.sleep(1000)",
    "shell": "!sleep 1000",
    "loader": "next(iter(torch.utils.data.DataLoader(Waiting(), num_workers=1)))",
}


@pytest.mark.parametrize("way", WAYS_TO_WAIT)
def test_an_interrupt_ends_the_cell(kernel: NotebookKernel, way: str) -> None:
    kernel.run(
        """
        import asyncio, threading, time, torch, torch.distributed as dist

        class Waiting(torch.utils.data.Dataset):
            def __len__(self):
                return 1
            def __getitem__(self, index):
                time.sleep(1000)
        """
    ).check()
    run = kernel.start_run(f"%%distributed --devices 2\nprint('ready', flush=True)\n{WAYS_TO_WAIT[way]}")
    run.wait_for_text("ready")
    kernel.interrupt()
    run.finish(30)
    assert run.status == "error", run.describe()
    assert run.error is not None
    assert run.error.ename == "KeyboardInterrupt"
    assert "nbdist/" not in run.error.text
    assert kernel.processes() == {}
    assert kernel.run("%%distributed --devices 2\nworld_size").check().result == {"text/plain": "2"}


def test_changes_come_back_after_an_interrupt(kernel: NotebookKernel) -> None:
    kernel.run("import time\nhistory = []").check()
    run = kernel.start_run(
        """
        %%distributed --devices 2
        history.append("begun")
        epoch = 3
        print("ready", flush=True)
        time.sleep(1000)
        """
    )
    run.wait_for_text("ready")
    kernel.interrupt()
    assert run.finish(30).status == "error"
    assert kernel.value("(history, epoch)") == (["begun"], 3)


def test_an_interrupt_while_the_ranks_start(kernel: NotebookKernel) -> None:
    for _ in range(2):
        run = kernel.start_run("%%distributed --devices 8\nimport threading\nthreading.Event().wait()")
        poll_until(lambda: kernel.processes() != {}, 30, lambda: "no rank was started")
        kernel.interrupt()
        run.finish(30)
        assert run.error is not None, run.describe()
        assert run.error.ename == "KeyboardInterrupt", run.describe()
        assert kernel.processes() == {}


def test_a_second_interrupt_kills_at_once_and_discards_changes(kernel: NotebookKernel) -> None:
    kernel.run("import time\nhistory = []").check()
    run = kernel.start_run(
        """
        %%distributed --devices 2
        history.append("begun")
        while True:
            try:
                print("ready", flush=True)
                time.sleep(1000)
            except KeyboardInterrupt:
                print("will stay", flush=True)
        """
    )
    run.wait_for_text("ready")
    kernel.interrupt()
    run.wait_for_text("will stay")
    kernel.interrupt()
    run.finish(30)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt"
    assert kernel.value("history") == []


def test_an_interrupt_that_the_cell_handles_is_its_own_affair(kernel: NotebookKernel) -> None:
    """As training loops do: stop early, keep the weights."""
    kernel.run("import time").check()
    run = kernel.start_run(
        """
        %%distributed --devices 2
        try:
            print("ready", flush=True)
            time.sleep(1000)
        except KeyboardInterrupt:
            stopped = "early"
        print("kept")
        """
    )
    run.wait_for_text("ready")
    kernel.interrupt()
    run.finish(30)
    assert run.stdout == "ready\nkept\n"
    assert kernel.value("stopped") == "early"


def test_a_cell_may_make_its_group_anew_after_an_interrupt(kernel: NotebookKernel) -> None:
    """Many times: what frees the ranks from the old group must never come late and hit the new one."""
    for _ in range(10):
        run = kernel.start_run(
            """
            %%distributed --devices 2
            import torch, torch.distributed as dist
            x = torch.ones(1)
            try:
                print("ready", flush=True)
                dist.recv(x, src=1 - rank)
            except BaseException:
                dist.destroy_process_group()
                dist.init_process_group("gloo")
                dist.all_reduce(x)
            """,
            allow_stdin=True,
        )
        run.wait_for_text("ready")
        kernel.interrupt()
        run.finish()
        assert run.error is not None, run.describe()
        assert run.error.ename == "KeyboardInterrupt"
        assert kernel.value("x.item()") == 2, run.describe()
        kernel.run("del x").check()


def test_a_keyboard_interrupt_of_the_cells_own(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 2\nif rank == 1:\n    raise KeyboardInterrupt\nprint('on')")
    assert run.status == "error", run.describe()


def test_the_front_end_may_signal_the_ranks_too(kernel: NotebookKernel) -> None:
    """Some stop buttons signal every child process, and the kernel as well."""
    kernel.run("import time").check()
    run = kernel.start_run("%%distributed --devices 2\nprint('ready', flush=True)\ntime.sleep(1000)")
    run.wait_for_text("ready")
    processes = kernel.processes().values()
    kernel.interrupt()
    for process in [*processes] * 3:
        with contextlib.suppress(psutil.NoSuchProcess):  # an earlier signal has ended it
            process.send_signal(signal.SIGINT)
    run.finish(30)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt"


def test_ranks_that_print_much_and_die_at_once_are_dead_and_not_mute(kernel: NotebookKernel) -> None:
    # Their last text is read together with their end; another rank takes its time.
    run = kernel.run(
        """
        %%distributed --devices 8
        import os, signal, time
        if rank:
            print("x" * 3_000_000, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(1)
        """
    )
    assert run.error is not None
    assert run.error.ename == "RankFailedError", run.describe()
    assert "was ended by SIGKILL" in run.error.evalue
