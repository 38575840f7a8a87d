"""`nbdist.launch` and `nbdist.Session`, in a kernel and in plain Python programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from notebook_kernel import NotebookKernel, poll_until

MARKER = "NBDIST_TEST_PROGRAM"
"""Environment variable by which a program's descendants are known after its end."""


class Program:
    """A finished Python program that used nbdist."""

    def __init__(self, folder: Path, code: str):
        script = folder / "program.py"
        script.write_text("import json, sys\nimport nbdist\n" + textwrap.dedent(code))
        marker = f"{os.getpid()}-{folder}"
        environment = {
            **os.environ,
            MARKER: marker,
            "NBDIST_LOG_DIR": str(folder / "logs"),
            "PYTHONWARNINGS": "error",
        }
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=60, env=environment, cwd=folder
        )
        self.returncode, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr
        self._marker = marker

    def assert_nothing_left_running(self) -> None:
        """Its guard may take a moment longer than itself."""

        def left() -> list[psutil.Process]:
            return [process for process in psutil.process_iter() if _marker_of(process) == self._marker]

        poll_until(lambda: not left(), 10, lambda: f"still there: {left()}")

    def report(self) -> Any:
        """What the program printed last, as JSON; it must have ended well."""
        assert self.returncode == 0, self.stderr
        self.assert_nothing_left_running()
        return json.loads(self.stdout.splitlines()[-1])


def _marker_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARKER)
    except (psutil.Error, OSError):  # gone by now, or somebody else's
        return None


# ── launch ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_launch_in_a_program(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        import os, torch, torch.distributed as dist

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)

        def total(start, step=1):
            x = torch.tensor([float(start + step * dist.get_rank())])
            dist.all_reduce(x)
            print("summing")
            print("rank", dist.get_rank())
            return x.item()

        def train(model, history):
            with torch.no_grad():
                model.layer.weight.fill_(3 + dist.get_rank())
            history.append(os.getpid())
            return model, {"history": history, "net": Net}

        model, history = Net(), []
        weight = model.layer.weight
        before = dict(os.environ)
        same_model, rest = nbdist.launch(train, model, history, devices=2)
        report = {
            "total": nbdist.launch(total, 10, 5, devices=3),
            "pids differ": nbdist.launch(os.getpid, devices=2) != os.getpid(),
            "model": same_model is model and rest["history"] is history and rest["net"] is Net,
            "weights": weight.tolist() if model.layer.weight is weight else None,
            "history": len(history) == 1 and history[0] != os.getpid(),
            "nothing": nbdist.launch(print, "hello", devices=2, logs="rank0"),
            "environment": dict(os.environ) == before,
        }
        print(json.dumps(report))
        """,
    )
    assert program.report() == {
        "total": 45.0,
        "pids differ": True,
        "model": True,
        "weights": [[3, 3]],
        "history": True,
        "nothing": None,
        "environment": True,
    }
    lines = program.stdout.splitlines()
    assert lines[:-1] == ["summing", "[0] rank 0", "[1] rank 1", "[2] rank 2", "hello"]
    assert program.stderr == ""
    assert sorted(path.name for path in (tmp_path / "logs").glob("*/*"))[-3:] == [
        "rank-1.log",
        "rank-1.log",
        "rank-2.log",
    ]


def test_a_failed_launch_ends_a_program_with_the_ranks_traceback(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        import torch.distributed as dist

        def check(batch):
            if batch:
                raise ValueError(f"batch {batch} is bad")

        def work():
            check(dist.get_rank())
            dist.barrier()

        nbdist.launch(work, devices=2)
        """,
    )
    assert program.returncode == 1
    program.assert_nothing_left_running()
    _, _, said = program.stderr.partition("RankFailedError: ")
    assert "rank 1 of 2 failed: ValueError: batch 1 is bad" in said
    # Where it happened in the rank, without nbdist's own frames.
    assert "check(dist.get_rank())" in said
    assert "raise ValueError" in said
    assert "nbdist/" not in said


def test_what_launch_refuses(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        import os, threading

        forks = []
        os.register_at_fork(before=lambda: forks.append("fork"))

        def refusal(call, *args, **options):
            try:
                call(*args, **options)
            except nbdist.NbdistError as error:
                return f"{type(error).__name__}: {error}"

        def in_a_thread(call, *args, **options):
            answers = []
            thread = threading.Thread(
                target=lambda: answers.append(refusal(call, *args, **options)), name="a-worker"
            )
            thread.start()
            thread.join()
            return answers[0] if answers else None

        report = {
            "not callable": refusal(nbdist.launch, "train", devices=2),
            "called too early": refusal(nbdist.launch, print("training"), devices=2),
            "unknown option": refusal(nbdist.launch, print, device=2),
            "wrong devices": refusal(nbdist.launch, print, devices=0),
            "wrong type": refusal(nbdist.launch, print, devices=2.5),
            "no such gpu": refusal(nbdist.launch, print, accelerator="cuda", devices=1000),
            "wrong session": refusal(nbdist.Session, backend="carrier-pigeon"),
            "from a thread": in_a_thread(nbdist.launch, print, devices=2),
            "session from a thread": in_a_thread(nbdist.Session(devices=2).start),
            "forks": forks,
        }
        print(json.dumps(report))
        """,
    )
    report = program.report()
    assert report.pop("forks") == []
    said = {
        "not callable": ["NotCallableError", "launch('train')", "not callable", "Pass a function"],
        "called too early": ["NotCallableError", "launch(None)", "not callable"],
        "unknown option": ["OptionError", "device=2", "did you mean devices=?"],
        "wrong devices": ["OptionError", "devices=0", "out of range", "devices=4"],
        "wrong type": ["OptionError", "devices=2.5", "not a whole number"],
        "no such gpu": ["OptionError", "cpu"],
        "wrong session": ["OptionError", "backend='carrier-pigeon'"],
        "from a thread": ["LaunchError", "main thread", "a-worker"],
        "session from a thread": ["LaunchError", "main thread", "a-worker"],
    }
    assert report.keys() == said.keys()
    missing = {
        what: (report[what], phrase)
        for what, phrases in said.items()
        for phrase in phrases
        if phrase not in str(report[what])
    }
    assert missing == {}


def test_launch_in_a_kernel(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        import nbdist, torch, torch.distributed as dist

        class Meter:
            def __init__(self):
                self.values = []

        def work(meter, scale=1):
            print("rank", dist.get_rank())
            meter.values.append(dist.get_rank() * scale + OFFSET)
            return meter, Meter(), dist.get_world_size()

        OFFSET = 5
        meter = Meter()
        values = meter.values
        result = nbdist.launch(work, meter, 10, devices=2)
        """
    ).check()
    assert run.stdout == "[0] rank 0\n[1] rank 1\n"
    assert kernel.value("result[0] is meter and type(result[1]) is Meter and result[2]") == 2
    assert kernel.value("meter.values is values and values") == [5]


def test_a_value_that_cannot_travel_is_noted(kernel: NotebookKernel) -> None:
    run = kernel.run("import nbdist, threading\nresult = nbdist.launch(threading.Lock, devices=2)").check()
    assert kernel.value("result") is None
    assert "the result stays behind: it is a lock, which cannot leave its process" in run.stderr


def test_launch_takes_the_options_of_the_magic(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import datetime, nbdist, torch, torch.distributed as dist

        def draw():
            print("drawing")
            return torch.rand(1).item(), dist.get_backend(), dist.get_world_size()

        options = dict(devices=(0, 1, 2), seed=7, backend="gloo", timeout=datetime.timedelta(minutes=1))
        first = nbdist.launch(draw, logs="none", **options)
        second = nbdist.launch(draw, start_method="fork", accelerator="cpu", **options)
        uninitialised = nbdist.launch(dist.is_initialized, devices=2, init=False)
        torch.manual_seed(7)
        expected = torch.rand(1).item(), "gloo", 3
        """
    ).check()
    assert kernel.value("first == second == expected and uninitialised is False") is True


def test_a_run_in_the_background_of_a_program(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        import os, time

        found = []

        def work(name):
            while not os.path.exists(name):
                time.sleep(0.01)
            print("done by", os.environ["RANK"])
            found.append(name)
            return name * 2

        run = nbdist.launch(work, "go", devices=2, background=True)
        beside = nbdist.launch(work, __file__, devices=2)
        before = run.status, [os.path.basename(name) for name in found]
        open("go", "w").close()
        print(json.dumps([*before, run.wait(), found, run.status, run.logs(1), repr(run)]))
        """,
    )
    logged = "done by 1\n"
    last = "<nbdist.Run on 2 ranks: finished>"
    assert program.report() == ["running", ["program.py"], "gogo", ["go"], "finished", logged, last]
    assert sorted(program.stdout.splitlines()[:-1]) == 2 * ["[0] done by 0"] + 2 * ["[1] done by 1"]


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "os.kill(os.getpid(), 9)"])
def test_a_run_in_the_background_ends_with_its_program(tmp_path: Path, end: str) -> None:
    program = Program(
        tmp_path,
        f"""
        import os, time
        def work():
            print("here")
            time.sleep(600)
        run = nbdist.launch(work, devices=2, background=True)
        while "here" not in run.logs(1):
            time.sleep(0.01)
        {end}
        """,
    )
    assert program.returncode == {"": 0, "raise SystemExit(3)": 3}.get(end, -9), program.stderr
    said = (
        "nbdist: background run run-1 had not ended when the program did: it is ended, and what it has done is "
        "lost. Its wait() waits for it.\n"
    )
    assert program.stderr == ("" if "kill" in end else said)
    program.assert_nothing_left_running()


def test_a_failed_run_in_the_background_of_a_program_says_so(tmp_path: Path) -> None:
    program = Program(
        tmp_path,
        """
        def work():
            raise ValueError("bad batch")
        run = nbdist.launch(work, devices=2, background=True)
        try:
            run.wait()
        except nbdist.RankFailedError as error:
            print(json.dumps([run.status, type(error.__cause__).__name__]))
        """,
    )
    assert program.report() == ["failed", "ValueError"]
    assert program.stderr == "nbdist: the run in the background has failed: ValueError: bad batch\n"


# ── Session ─────────────────────────────────────────────────────────────────────────────────────────────────

SESSIONS = """
    import nbdist, os, torch, torch.distributed as dist

    def total(x, *, scale=1):
        y = torch.tensor([float(x * scale + dist.get_rank())])
        dist.all_reduce(y)
        return dist.get_rank(), y.item()

    def remember(x):
        global memory
        memory = x + dist.get_rank()

    def recall():
        return memory

    def fail():
        print("about to fail")
        if dist.get_rank() == 1:
            raise ValueError("in the session")

    def refusal(call, *args):
        try:
            call(*args)
        except nbdist.SessionError as error:
            return str(error)
    """


def test_a_session_runs_functions_on_all_ranks(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    run = kernel.run(
        """
        with nbdist.Session(devices=3) as session:
            pids = session.run(os.getpid)
            totals = session.run(total, 1, scale=10)
            session.run(remember, 5)
            memories = session.run(recall)
            same_pids = session.run(os.getpid)
            squares = session.run(lambda x: [x * x, torch.ones(2)], 7)
            nothing = session.run(print, "hello")
        """
    ).check()
    assert run.stdout == "hello\n"
    assert run.stderr == ""
    assert kernel.value("len(set(pids)) == 3 and pids == same_pids and os.getpid() not in pids") is True
    assert kernel.value("totals") == [(0, 33.0), (1, 33.0), (2, 33.0)]
    assert kernel.value("memories") == [5, 6, 7]
    assert kernel.value("[(number, tensor.tolist()) for number, tensor in squares]") == [(49, [1, 1])] * 3
    assert kernel.value("nothing") == [None] * 3
    assert kernel.value("'memory' in globals()") is False
    assert kernel.processes() == {}


def test_sessions_data_go_by_value(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    kernel.run(
        """
        config, weights = {"lr": 0.1}, torch.zeros(2)

        def change(config, weights):
            config["lr"] += dist.get_rank() + 1
            weights += dist.get_rank() + 1
            return config, weights

        with nbdist.Session(devices=2) as session:
            first = session.run(change, config, weights)
            second = session.run(change, config, weights)
        """
    ).check()
    assert kernel.value("(config, weights.tolist())") == ({"lr": 0.1}, [0, 0])
    for answers in ("first", "second"):
        assert kernel.value(f"[(c['lr'], w.tolist()) for c, w in {answers}]") == [
            (1.1, [1, 1]),
            (2.1, [2, 2]),
        ]


def test_a_session_that_is_not_running_says_so(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    kernel.run(
        """
        session = nbdist.Session(devices=2)
        early = refusal(session.run, total, 1)
        session.start()
        twice = refusal(session.start)
        between = session.run(total, 1)
        session.stop()
        late = refusal(session.run, total, 1)
        session.stop()
        session.start()
        again = session.run(total, 1)
        session.stop()
        """
    ).check()
    assert kernel.value("between == again == [(0, 3.0), (1, 3.0)]") is True
    assert "not running" in kernel.value("early")
    assert "started already" in kernel.value("twice")
    assert "not running" in kernel.value("late")


def test_a_session_lives_on_after_a_failure(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    run = kernel.run(
        """
        session = nbdist.Session(devices=2)
        session.start()
        pids = session.run(os.getpid)
        try:
            session.run(fail)
        except nbdist.RankFailedError as error:
            failure = error.failures[0]
            cause = error.__cause__
        after = session.run(total, 1)
        same = session.run(os.getpid) == pids
        session.stop()
        """
    ).check()
    assert run.stdout == "about to fail\n"
    assert kernel.value("(failure.rank, failure.summary, type(cause) is ValueError)") == (
        1,
        "ValueError: in the session",
        True,
    )
    assert kernel.value("(after, same)") == ([(0, 3.0), (1, 3.0)], True)
    assert kernel.processes() == {}


def test_a_failure_in_the_with_block_ends_the_ranks(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    run = kernel.run("with nbdist.Session(devices=2) as session:\n    session.run(fail)")
    assert run.error is not None
    assert run.error.ename == "RankFailedError"
    assert kernel.processes() == {}


def test_a_session_whose_rank_has_died_starts_anew(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    kernel.run(
        """
        session = nbdist.Session(devices=2)
        session.start()
        pids = session.run(os.getpid)
        try:
            session.run(lambda: os._exit(3) if dist.get_rank() else dist.barrier())
        except nbdist.RankFailedError as error:
            died = str(error)
        refused = refusal(session.run, total, 1)
        session.start()
        after = session.run(total, 1)
        new = not set(session.run(os.getpid)) & set(pids)
        session.stop()
        """
    ).check()
    assert "rank 1 of 2 failed: its process (pid" in kernel.value("died")
    assert "ended with exit code 3" in kernel.value("died")
    assert "rank 1 of this session has died" in kernel.value("refused")
    assert "start()" in kernel.value("refused")
    assert kernel.value("(after, new)") == ([(0, 3.0), (1, 3.0)], True)
    assert kernel.processes() == {}


def test_an_exception_in_the_with_block_ends_the_ranks(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    run = kernel.run("with nbdist.Session(devices=2) as session:\n    session.run(total, 1)\n    1 / 0")
    assert run.error is not None
    assert run.error.ename == "ZeroDivisionError"
    assert kernel.processes() == {}


def test_what_cannot_be_sent_to_a_session_is_refused_and_the_session_lives_on(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    kernel.run(
        """
        import threading
        with nbdist.Session(devices=2) as session:
            refused = refusal(session.run, total, threading.Lock())
            after = session.run(total, 1)
        """
    ).check()
    assert "sent to the ranks: args[0] is a lock, which" in kernel.value("refused")
    assert kernel.value("after") == [(0, 3.0), (1, 3.0)]


def test_an_answer_that_cannot_travel_leaves_the_others_in_their_places(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    kernel.run(
        """
        import threading
        with nbdist.Session(devices=3) as session:
            answers = session.run(lambda: threading.Lock() if dist.get_rank() == 1 else dist.get_rank())
        """
    ).check()
    assert kernel.value("answers") == [0, None, 2]


def test_a_session_lives_on_after_an_interrupt(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    kernel.run("session = nbdist.Session(devices=2)\nsession.start()\npids = session.run(os.getpid)").check()
    run = kernel.start_run(
        """
        def wait():
            print("ready", flush=True)
            dist.barrier() if dist.get_rank() else dist.recv(torch.ones(1), src=1)
        session.run(wait)
        """
    )
    run.wait_for_text("ready")
    kernel.interrupt()
    run.finish(30)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt"
    kernel.run("after = session.run(total, 1)\nsame = session.run(os.getpid) == pids\nsession.stop()").check()
    assert kernel.value("(after, same)") == ([(0, 3.0), (1, 3.0)], True)
    assert kernel.processes() == {}


def test_cells_run_beside_a_session(kernel: NotebookKernel) -> None:
    kernel.run(SESSIONS).check()
    kernel.run("session = nbdist.Session(devices=2)\nsession.start()").check()
    assert kernel.run("%%distributed --devices 2\ntotal(1)[1]").check().result == {"text/plain": "3.0"}
    assert kernel.value("session.run(total, 1)") == [(0, 3.0), (1, 3.0)]
    kernel.run("session.stop()").check()
    assert kernel.processes() == {}


@pytest.mark.parametrize("ending", ["", "session.run(lambda: 1 / 0)"])
def test_a_program_that_does_not_stop_its_session_leaves_nothing(tmp_path: Path, ending: str) -> None:
    program = Program(
        tmp_path,
        f"""
        session = nbdist.Session(devices=2)
        session.start()
        print(session.run(abs, -3), flush=True)
        {ending}
        """,
    )
    assert program.stdout.splitlines()[0] == "[3, 3]"
    assert program.returncode == (1 if "1 / 0" in ending else 0), program.stderr
    program.assert_nothing_left_running()


IN_A_NETWORK_WITHOUT_ANSWERS = """
import fcntl, socket, struct, subprocess, sys

# This process has a network of its own, in which the only name server hears all and says nothing.
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    IFF_UP, SIOCSIFFLAGS = 1, 0x8914
    fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/resolv.conf"], check=True)
name_server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
name_server.bind(("127.0.0.1", 53))
name_server.setblocking(False)

import nbdist
import torch, torch.distributed as dist

def add_up():
    x = torch.ones(1)
    dist.all_reduce(x)
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    dist.all_reduce(x)
    return x.item()

print(nbdist.launch(add_up, devices=4))
try:
    print("asked:", name_server.recv(512))
except BlockingIOError:
    print("nobody asked")
"""


def test_ranks_meet_without_asking_a_name_server(tmp_path: Path) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\n")
    separate = ["unshare", "--map-root-user", "--net", "--mount"]
    if subprocess.run([*separate, "true"], capture_output=True).returncode != 0:
        pytest.skip("this system lets nobody make a network namespace")
    command = [*separate, sys.executable, "-c", IN_A_NETWORK_WITHOUT_ANSWERS, str(resolver)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("16.0\nnobody asked\n", "", 0)
