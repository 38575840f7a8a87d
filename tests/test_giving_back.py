"""An interrupt while ranks are ended: they are, and all that was theirs is given back."""

from __future__ import annotations

import pytest
from notebook_kernel import NotebookKernel, poll_until

SLOW_TO_LEAVE = """\
import atexit, pathlib, time
def leave_late():
    pathlib.Path("leaving").touch()
    time.sleep(60)
atexit.register(leave_late)
"""

UNLOADING = "%unload_ext nbdist"

ENDS = {
    "the command": "%distributed stop",
    "all of them": "%distributed stop --all",
    "in Python": "session.stop()",
    "a with block": "with session_of_this_block:\n    pass",
    "unloading": UNLOADING,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_session(kernel: NotebookKernel, end: str) -> None:
    kernel.run(
        """
        import nbdist
        session = nbdist.Session(devices=2, accelerator="cpu", name="main")
        session.start()
        class Block:
            def __enter__(self): pass
            def __exit__(self, *error): session.__exit__(*error)
        session_of_this_block = Block()
        """
    ).check()
    kernel.run(f"%%distributed\n{SLOW_TO_LEAVE}").check()
    interrupt_while_leaving(kernel, ENDS[end])
    assert kernel.value("session.running") is False
    assert kernel.run("%distributed status").check().stdout.startswith("No ranks are up.")


@pytest.mark.parametrize("end", ["%distributed stop --name train", "train.stop()", UNLOADING])
def test_a_run_in_the_background(kernel: NotebookKernel, end: str) -> None:
    kernel.run("x = 1").check()
    kernel.run(
        f"%%distributed -d 2 --background train\nx = 2\n{SLOW_TO_LEAVE}\n"
        "while not pathlib.Path('bound').exists(): time.sleep(0.01)",
        allow_stdin=True,
    ).check()
    kernel.run("x = 3").check()  # so that what the run changed waits, and its ranks with it
    (kernel.working_folder / "bound").touch()
    poll_until(lambda: kernel.value("train.status") == "finished", 20, lambda: "the run has not ended")
    interrupt_while_leaving(kernel, end)
    assert kernel.value("train.status, x") == ("stopped", 3)


def interrupt_while_leaving(kernel: NotebookKernel, code: str) -> None:
    leaving = kernel.working_folder / "leaving"
    run = kernel.start_run(code)
    poll_until(leaving.exists, 20, lambda: f"no rank leaves; {run.describe()}")
    kernel.interrupt()
    run.finish(20)
    if code == UNLOADING:  # nothing is left to be interrupted; IPython is to know that it is unloaded
        kernel.run("%load_ext nbdist", store_history=False).check()
        return
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt", run.describe()
