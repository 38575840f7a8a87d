"""Every way to fail × every start method × one-shot cells and sessions: an end in time, the cause, no leak."""

from __future__ import annotations

import re

import pytest
from notebook_kernel import NotebookKernel

WAYS = {
    "raises": ("raise ValueError('bad batch')", r"ValueError: bad batch"),
    "exits": ("sys.exit(3)", r"SystemExit: 3"),
    "ends": ("os._exit(7)", r"its process \(pid \d+\) ended with exit code 7"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", r"its process \(pid \d+\) was ended by SIGKILL"),
    "is terminated": (
        "os.kill(os.getpid(), signal.SIGTERM)",
        r"its process \(pid \d+\) was ended by SIGTERM",
    ),
    "crashes": ("ctypes.string_at(0)", r"its process \(pid \d+\) was ended by SIGSEGV"),
    "aborts": ("os.abort()", r"its process \(pid \d+\) was ended by SIGABRT"),
    "has no memory": (
        "resource.setrlimit(resource.RLIMIT_AS, (2**20, -1)) or bytearray(2**31)",
        r"MemoryError",
    ),
    "finishes alone": (
        "return",
        r"it waits in barrier, which can never complete: rank 1 finished without it",
    ),
    "waits elsewhere": ("return dist.recv(torch.ones(1), src=0)", r"each waits for the other"),
    "fails in a thread's hands": ("later(lambda: os._exit(9))", r"ended with exit code 9"),
}
"""What rank 1 does while the others wait for it in a barrier, and the failure's text."""

STAYING = {**WAYS, "has no memory": ("starve()", r"MemoryError")}
"""The same for ranks that go on afterwards."""

SETUP = """
import ctypes, os, resource, signal, sys, threading, time
import nbdist, torch, torch.distributed as dist

def later(step):
    threading.Timer(0.1, step).start()
    time.sleep(1000)

def starve():
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**20, before[1]))
    try:
        bytearray(2**31)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

def meet():
    dist.barrier()
    dist.barrier()
    if dist.get_rank() == 1:
        fail()
    else:
        dist.barrier()
"""


@pytest.fixture(params=["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def method(request: pytest.FixtureRequest, kernel: NotebookKernel) -> str:
    if request.param == "forkserver":  # it stays with the kernel: no test is to be blamed for it
        kernel.run("%reload_ext nbdist")
    return str(request.param)


GOOD = "x = torch.ones(1)\ndist.all_reduce(x)\nassert x.item() == 3"
"""What ranks that live on do after the fault."""

DIES = ("ends", "is killed", "is terminated", "crashes", "aborts", "fails in a thread's hands")
"""Ways after which rank 1 is gone."""


def start(kernel: NotebookKernel, form: str, method: str) -> None:
    """What comes before the cell under test."""
    if form == "live cell":
        kernel.run(f"%distributed start --devices 3 --start-method {method} --on-hang stop").check()


def cell_of(form: str, method: str) -> str:
    """The cell that fails, or is interrupted."""
    if form == "live cell":
        return "%%distributed\nmeet()"
    if form == "cell":
        return f"%%distributed --devices 3 --start-method {method} --on-hang stop\nmeet()"
    return (
        f"session = nbdist.Session(devices=3, start_method={method!r}, on_hang='stop')\n"
        "session.start()\nsession.run(meet)"
    )


def check_that_it_goes_on(kernel: NotebookKernel, form: str, *, dies: bool) -> None:
    """Ranks that stay are as good as before, unless one of them has died, which they say."""
    if form == "cell":
        return
    indented = GOOD.replace("\n", "\n    ")
    session_cell = f"def good():\n    {indented}\nsession.run(good)"
    run = kernel.run(f"%%distributed\n{GOOD}" if form == "live cell" else session_cell)
    if not dies:
        run.check()
        return
    assert run.error is not None, run.describe()
    assert run.error.ename == "SessionError"
    name = "" if form == "live cell" else " --name python-1"
    anew = rf"rank 1 of this session has died: .*%distributed start{name} begins anew"
    assert re.search(anew, run.error.evalue)


def end(kernel: NotebookKernel, form: str) -> None:
    """End what stays."""
    if form == "live cell":
        kernel.run("%distributed stop").check()
    elif form == "session":
        kernel.run("session.stop()").check()
    kernel.run("%reload_ext nbdist").check()  # ends the fork server


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", ["cell", "session", "live cell"])
def test_a_rank_fails(kernel: NotebookKernel, way: str, method: str, form: str) -> None:
    code, expected = (WAYS if form == "cell" else STAYING)[way]
    kernel.run(f"{SETUP}\ndef fail():\n    {code}").check()
    start(kernel, form, method)
    run = kernel.run(cell_of(form, method), timeout_s=40)
    assert run.error is not None, run.describe()
    assert run.error.ename == "RankFailedError", run.describe()
    assert re.search(expected, run.error.evalue), run.error.evalue
    waits = way in ("finishes alone", "waits elsewhere")  # then it is named by those that wait for it
    blamed = r"ranks? (0|2|0,2|0-1) of 3" if waits else r"rank 1 of 3"
    assert re.match(f"{blamed} failed", run.error.evalue), run.error.evalue
    check_that_it_goes_on(kernel, form, dies=way in DIES)
    end(kernel, form)
    assert kernel.processes() == {}


@pytest.mark.parametrize("form", ["cell", "session", "live cell"])
def test_an_interrupt(kernel: NotebookKernel, method: str, form: str) -> None:
    kernel.run(f"{SETUP}\ndef fail():\n    print('up', flush=True)\n    time.sleep(1000)").check()
    start(kernel, form, method)
    run = kernel.start_run(cell_of(form, method), allow_stdin=True)
    run.wait_for_text("up", 60)
    kernel.interrupt()
    run.finish(10)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt"
    check_that_it_goes_on(kernel, form, dies=False)
    end(kernel, form)
    assert kernel.processes() == {}
