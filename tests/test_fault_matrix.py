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

SETUP = """
import ctypes, os, resource, signal, sys, threading, time
import nbdist, torch, torch.distributed as dist

def later(step):
    threading.Timer(0.1, step).start()
    time.sleep(1000)

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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", ["cell", "session"])
def test_a_rank_fails(kernel: NotebookKernel, way: str, method: str, form: str) -> None:
    code, expected = WAYS[way]
    kernel.run(f"{SETUP}\ndef fail():\n    {code}").check()
    options = f"devices=3, start_method={method!r}, on_hang='stop'"
    if form == "cell":
        run = kernel.run(
            f"%%distributed --devices 3 --start-method {method} --on-hang stop\nmeet()", timeout_s=40
        )
    else:
        run = kernel.run(f"with nbdist.Session({options}) as session:\n    session.run(meet)", timeout_s=40)
    kernel.run("%reload_ext nbdist").check()  # ends the fork server
    assert run.error is not None, run.describe()
    assert run.error.ename == "RankFailedError", run.describe()
    assert re.search(expected, run.error.evalue), run.error.evalue
    waits = way in ("finishes alone", "waits elsewhere")  # then it is named by those that wait for it
    blamed = r"ranks? (0|2|0,2|0-1) of 3" if waits else r"rank 1 of 3"
    assert re.match(f"{blamed} failed", run.error.evalue), run.error.evalue
    assert kernel.processes() == {}


@pytest.mark.parametrize("form", ["cell", "session"])
def test_an_interrupt(kernel: NotebookKernel, method: str, form: str) -> None:
    kernel.run(f"{SETUP}\ndef fail():\n    print('up', flush=True)\n    time.sleep(1000)").check()
    if form == "cell":
        cell = f"%%distributed --devices 3 --start-method {method}\nmeet()"
    else:
        cell = f"with nbdist.Session(devices=3, start_method={method!r}) as session:\n    session.run(meet)"
    run = kernel.start_run(cell, allow_stdin=True)
    run.wait_for_text("up", 60)
    kernel.interrupt()
    run.finish(10)
    kernel.run("%reload_ext nbdist").check()
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt"
    assert kernel.processes() == {}
