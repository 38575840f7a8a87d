"""Cells that do what nobody should do to a rank, and machines that are full: the run says what happened."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from notebook_kernel import CellError, CellRun, NotebookKernel, poll_until, without_ansi

IMPORTS = "import os, sys, socket, subprocess, threading, time, torch, torch.distributed as dist"


@pytest.fixture(autouse=True)
def imports(kernel: NotebookKernel) -> None:
    kernel.run(f"{IMPORTS}\nimport nbdist").check()


def error_of(run: CellRun) -> CellError:
    assert run.error is not None, run.describe()
    assert run.error.ename == "RankFailedError", run.describe()
    for room in ("worker", "session", "training", "start"):
        assert f"nbdist/{room}" not in run.error.text + run.stderr, run.describe()
    return run.error


def on_two(cell: str) -> str:
    return f"%%distributed --devices 2\n{cell}"


# ── Cause and consequence ───────────────────────────────────────────────────────────────────────────────────


def test_ranks_that_were_freed_are_told_in_one_line(kernel: NotebookKernel) -> None:
    run = kernel.run(
        "%%distributed --devices 4\nif rank == 1:\n    raise ValueError('bad batch')\ndist.barrier()"
    )
    error = error_of(run)
    assert error.evalue == "rank 1 of 4 failed at line 3: ValueError: bad batch"
    assert re.search(r"^ranks 0,2-3: stopped while waiting in barrier, a consequence\.$", error.text, re.M)


def test_a_users_own_connection_error_is_no_consequence(kernel: NotebookKernel) -> None:
    run = kernel.run(
        on_two(
            """
if rank == 1:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = unused.getsockname()
    socket.create_connection(address)
else:
    dist.barrier()
"""
        )
    )
    assert error_of(run).evalue.startswith("rank 1 of 2 failed at line 7: ConnectionRefusedError")


def test_a_consequence_that_the_cell_wraps_stays_one(kernel: NotebookKernel) -> None:
    run = kernel.run(
        on_two(
            """
try:
    if rank == 1:
        os._exit(4)
    dist.barrier()
except RuntimeError as error:
    raise TypeError("training failed") from error
"""
        )
    )
    error = error_of(run)
    assert re.fullmatch(r"rank 1 of 2 failed: its process \(pid \d+\) ended with exit code 4.*", error.evalue)
    assert "rank 0: lost the connection to a failed rank, a consequence." in error.text


def test_the_earliest_is_the_cause_however_long_its_text_takes(kernel: NotebookKernel) -> None:
    run = kernel.run(
        on_two(
            """
class Slow(Exception):
    def __str__(self):
        time.sleep(0.3)
        return "first"
if rank == 1:
    raise Slow
time.sleep(0.1)
raise ValueError("second")
"""
        )
    )
    error = error_of(run)
    assert error.evalue == "rank 1 of 2 failed at line 8: Slow: first (and 1 other failure, above)"
    assert error.text.index("rank 1 of 2") < error.text.index("rank 0 of 2")


def test_the_same_error_with_another_number_is_told_once(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 3\nraise ValueError(f'bad file on rank {rank}')")
    assert error_of(run).text.count("Traceback") == 1
    assert error_of(run).evalue.startswith("ranks 0-2 of 3 failed at line 2")


@pytest.mark.parametrize(
    ("method", "how"), [("os._exit(7)", "ended with exit code 7"), ("os.kill(os.getpid(), 9)", "SIGKILL")]
)
def test_a_rank_that_dies_after_its_work_is_the_cause(kernel: NotebookKernel, method: str, how: str) -> None:
    run = kernel.run(
        on_two(
            f"""
def later():
    time.sleep(0.2)
    {method}
if rank == 1:
    threading.Thread(target=later, daemon=True).start()
else:
    dist.barrier()
"""
        )
    )
    assert error_of(run).evalue.startswith("rank 1 of 2 failed: its process (pid ")
    assert how in error_of(run).evalue


def test_a_session_whose_rank_was_killed_says_which(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        import psutil
        with nbdist.Session(devices=2) as session:
            pids = session.run(os.getpid)
            killed = psutil.Process(pids[1])
            killed.kill()
            while session._ranks.state.ranks[1].phase != "gone":
                time.sleep(0.01)
            session.run(os.getpid)
        """
    )
    pids = kernel.value("pids")
    died = f"rank 1 of this session has died: its process (pid {pids[1]}) was ended by SIGKILL"
    assert run.error is not None
    assert run.error.ename == "SessionError"
    assert run.error.evalue.startswith(died)


def test_a_rank_that_closes_its_connection_is_ended(kernel: NotebookKernel) -> None:
    run = kernel.run(
        "%%distributed --devices 2 --no-init\nif rank == 1:\n    os.closerange(3, 200)\n    time.sleep(1000)"
    )
    assert "rank 1 of 2 failed: its process (pid " in error_of(run).evalue
    assert "closed its connection to the notebook" in error_of(run).evalue


# ── Values and exceptions whose own code does odd things ────────────────────────────────────────────────────


@pytest.mark.parametrize("ending", ["failure", "interrupt"])
def test_what_takes_long_to_hand_over_is_waited_for(kernel: NotebookKernel, ending: str) -> None:
    run = kernel.start_run(
        on_two(
            f"""
names = [str(number) for number in range(3_000_000)]
dist.barrier()
print("ready", flush=True)
if rank == 1 and {ending == "failure"}:
    raise ValueError("bad batch")
time.sleep(1000)
"""
        ),
        allow_stdin=True,
    )
    run.wait_for_text("ready", 60)
    if ending == "interrupt":
        kernel.interrupt()
    run.finish()
    assert run.error is not None
    assert run.error.ename == {"failure": "RankFailedError", "interrupt": "KeyboardInterrupt"}[ending]
    assert kernel.value("len(names), names[-1]") == (3_000_000, "2999999")


def test_a_rank_that_does_not_come_out_of_its_work_is_told(kernel: NotebookKernel) -> None:
    run = kernel.run(
        on_two(
            """
changed = 1
dist.barrier()
if rank == 1:
    raise ValueError("bad batch")
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
"""
        )
    )
    assert error_of(run).evalue == "rank 1 of 2 failed at line 6: ValueError: bad batch"
    assert "what rank 0 had changed stays behind: it did not come out of its work" in run.stderr


def test_an_exception_whose_text_never_comes_is_named(kernel: NotebookKernel) -> None:
    run = kernel.run(
        on_two(
            """
class Silent(Exception):
    def __str__(self):
        time.sleep(1000)
if rank == 1:
    raise Silent
dist.barrier()
"""
        )
    )
    assert error_of(run).evalue.startswith("rank 1 of 2 failed: Silent: its text and its values could not")


def test_an_exception_that_ends_whoever_reads_it(kernel: NotebookKernel) -> None:
    run = kernel.run(
        on_two(
            """
class Trap(Exception):
    def __reduce__(self):
        return exec, ("raise SystemExit(3)",)
raise Trap("careful")
"""
        )
    )
    assert error_of(run).evalue == "ranks 0-1 of 2 failed at line 6: Trap: careful"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_exception_groups_are_shown_whole(kernel: NotebookKernel) -> None:
    run = kernel.run(on_two("raise ExceptionGroup('several', [ValueError('one'), TypeError('two')])"))
    error = error_of(run)
    assert error.evalue == "ranks 0-1 of 2 failed at line 2: ExceptionGroup: several (2 sub-exceptions)"
    for part in ("ValueError: one", "TypeError: two"):
        assert error.text.count(part) == 1
    assert run.stderr == ""
    assert "IPython/core" not in error.text


@pytest.mark.parametrize("who", ["True", "rank == 0"])
def test_a_good_exit_is_a_good_end(kernel: NotebookKernel, who: str) -> None:
    run = kernel.run(on_two(f"value = rank + 10\nif {who}:\n    sys.exit()\nvalue = 'not left'")).check()
    assert run.stderr == ""
    assert kernel.value("value") == 10


@pytest.mark.parametrize("status", ["3", "'enough'"])
def test_an_exit_shows_where(kernel: NotebookKernel, status: str) -> None:
    run = kernel.run(on_two(f"def leave():\n    sys.exit({status})\nleave()"))
    assert "To exit" not in run.stderr
    assert f"sys.exit({status})" in error_of(run).text
    assert error_of(run).evalue == f"ranks 0-1 of 2 failed at line 3: SystemExit: {eval(status)}"


def test_a_wrong_argument_is_the_callers_affair(kernel: NotebookKernel) -> None:
    run = kernel.run(on_two("nbdist.setup(torch.nn.Linear(1, 1), strategy='magic')"))
    assert error_of(run).evalue.startswith("ranks 0-1 of 2 failed at line 2: OptionError: setup() does not")


# ── Cells that go on ────────────────────────────────────────────────────────────────────────────────────────


def test_tracebacks_that_do_not_end_the_cell_are_shown(kernel: NotebookKernel) -> None:
    (kernel.working_folder / "broken.py").write_text("print('begun')\n1 / 0\n")
    run = kernel.run(
        on_two(
            """
%run broken.py
class Odd:
    def __repr__(self):
        raise KeyError("no name")
display(Odd())
try:
    [][0]
except IndexError:
    get_ipython().showtraceback()
get_ipython().run_cell("undefined_name")
print("went on")
"""
        )
    ).check()
    for name in ("ZeroDivisionError", "KeyError", "IndexError", "NameError"):
        assert without_ansi(run.stderr).count(f"{name}: ") == 1, run.stderr
    assert run.stdout == "begun\nwent on\n"


def test_forked_children_end_as_processes_do(kernel: NotebookKernel) -> None:
    run = kernel.run(
        on_two(
            """
codes = []
for way in (lambda: sys.exit(3), lambda: 1 / 0, lambda: None):
    child = os.fork()
    if child == 0:
        way()
        sys.exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
        )
    ).check()
    assert kernel.value("codes") == [3, 1, 0]
    assert "ZeroDivisionError" in run.stderr


@pytest.mark.parametrize("ending", ["os._exit(7)", "pass"])
def test_children_that_write_for_ever(kernel: NotebookKernel, ending: str) -> None:
    for _ in range(5):
        run = kernel.run(
            on_two(
                f"""
if rank == 1:
    subprocess.Popen(["yes"])
    subprocess.Popen("yes >&2", shell=True, start_new_session=True)
    time.sleep(0.05)
    {ending}
"""
            )
        )
        if ending == "pass":
            run.check()
        else:
            assert "rank 1 of 2 failed: its process" in error_of(run).evalue
        poll_until(lambda: kernel.processes() == {}, 10, lambda: f"still there: {kernel.processes()}")


def test_shared_memory_of_killed_ranks_is_removed(kernel: NotebookKernel) -> None:
    before = set(Path("/dev/shm").iterdir())
    kernel.run(
        on_two(
            """
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=1 << 16)
os.kill(os.getpid(), 9)
"""
        )
    )
    poll_until(
        lambda: set(Path("/dev/shm").iterdir()) <= before and kernel.processes() == {},
        10,
        lambda: f"left: {set(Path('/dev/shm').iterdir()) - before}",
    )


def test_a_killed_fork_server_is_started_anew(kernel: NotebookKernel) -> None:
    cell = "%%distributed --devices 2 --start-method forkserver\n"
    run = kernel.run(f"{cell}if rank == 1:\n    os.kill(os.getppid(), 9)\ntime.sleep(1000)")
    assert run.error is not None
    assert kernel.run(f"{cell}rank + 1").check().result == {"text/plain": "1"}
    kernel.run("%reload_ext nbdist").check()


# ── Machines that are full ──────────────────────────────────────────────────────────────────────────────────


def test_few_descriptors(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import resource
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, limits[1]))
        """
    ).check()
    try:
        run = kernel.run("%%distributed --devices 32\ndist.barrier()\nworld_size").check()
    finally:
        kernel.run("resource.setrlimit(resource.RLIMIT_NOFILE, limits)").check()
    assert run.result == {"text/plain": "32"}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_work_that_uses_up_its_descriptors_fails_and_no_more(kernel: NotebookKernel, method: str) -> None:
    kernel.run(f"%distributed start --devices 2 --accelerator cpu --start-method {method}").check()
    kernel.run(
        "%%distributed\nimport os, resource, torch\nkept = rank\nopened = []\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"
    ).check()
    run = kernel.run(
        "%%distributed\nnew = 5\nwhile True:\n    opened.append(os.open(os.devnull, os.O_RDONLY))"
    )
    assert run.error is not None, run.describe()
    assert run.error.ename == "RankFailedError", run.describe()
    assert "Too many open files" in run.error.evalue
    assert "line 4 of the cell" in run.error.text
    assert "nbdist/" not in run.stderr
    assert kernel.value("new") == 5
    run = kernel.run("%%distributed\nfor number in opened:\n    os.close(number)\nkept").check()
    assert run.result == {"text/plain": "0"}
    run = kernel.run("%%distributed\nx = torch.ones(1)\ntorch.distributed.all_reduce(x)\nx.item()").check()
    assert run.result == {"text/plain": "2.0"}
    kernel.run("%distributed stop").check()


SMALL_SHM = """
import nbdist, torch
from torch.utils.data import DataLoader, TensorDataset

def train(workers):
    loader = DataLoader(TensorDataset(torch.ones(2000, 1000)), batch_size=500, num_workers=workers)
    return sum(batch.sum().item() for batch, in loader)

print(nbdist.launch(train, 0, devices=2))
try:
    nbdist.launch(train, 2, devices=2)
except nbdist.RankFailedError as error:
    print(error.failures[0].hint)
"""


def test_a_small_dev_shm(tmp_path: Path) -> None:
    """As in a container by default: values travel all the same, and a data loader's error says what helps."""
    separate = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*separate, "true"], capture_output=True).returncode != 0:
        pytest.skip("this system lets nobody make a mount namespace")
    script = tmp_path / "small.py"
    script.write_text(SMALL_SHM)
    program = f"mount -t tmpfs -o size=1m tmpfs /dev/shm && {sys.executable} {script}"
    done = subprocess.run([*separate, "sh", "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [
        "2000000.0",
        "/dev/shm, through which worker processes send their batches, holds 1 MiB. Enlarge it "
        "(docker run --shm-size=8g), or use DataLoader(num_workers=0).",
    ], done.stderr


def test_no_folder_for_temporary_files(kernel: NotebookKernel) -> None:
    kernel.run("import tempfile\ntempfile.tempdir = '/proc/nowhere'").check()
    try:
        run = kernel.run("%%distributed --devices 2\n1")
    finally:
        kernel.run("tempfile.tempdir = None").check()
    assert run.error is not None
    assert run.error.ename == "LaunchError"
    assert "TMPDIR" in run.error.evalue


def test_a_path_without_programs(kernel: NotebookKernel) -> None:
    """The guard finds what it needs, and what ranks started ends."""
    kernel.run("path = os.environ['PATH']\nos.environ['PATH'] = '/nonexistent'").check()
    try:
        kernel.run(on_two("_ = subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True)")).check()
    finally:
        kernel.run("os.environ['PATH'] = path").check()
    poll_until(lambda: kernel.processes() == {}, 10, lambda: f"still there: {kernel.processes()}")


def test_an_abort_in_another_thread_shows_where_the_main_thread_was(kernel: NotebookKernel) -> None:
    cell = "threading.Timer(0.3, os.abort).start()\ntime.sleep(1000)"
    error = error_of(kernel.run(on_two(cell)))
    assert error.evalue.startswith("ranks 0-1 of 2 failed at line 3: its process")
    assert "line 3, in <module>" in error.text


def test_a_full_disk_for_the_logs(kernel: NotebookKernel) -> None:
    kernel.run("os.environ['NBDIST_LOG_DIR'] = '/proc/nowhere'").check()
    try:
        run = kernel.run(on_two("print('hello')\nrank + 5")).check()
    finally:
        kernel.run("del os.environ['NBDIST_LOG_DIR']").check()
    assert run.result == {"text/plain": "5"}
    assert run.stdout == "hello\n"
    assert "are not complete: " in run.stderr
    assert "NBDIST_LOG_DIR" in run.stderr
