"""Whose ranks are: one thread's at a time, and nobody's in a process that was forked from theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_ranks import on_ranks, shown
from notebook_kernel import NotebookKernel, poll_until

HELPERS = """\
import os, pathlib, signal, threading, time, nbdist
def until(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)
def hold(name):
    pathlib.Path("up").touch()
    until(name)
    return name
told = {}
def in_thread(name, call):
    def work():
        try:
            told[name] = call()
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    thread = threading.Thread(target=work, name=name)
    thread.start()
    return thread
"""


@pytest.fixture
def live(kernel: NotebookKernel) -> Iterator[NotebookKernel]:
    """A kernel with a live session of two ranks, ``session``, that is the main one."""
    kernel.run(HELPERS).check()
    kernel.run("session = nbdist.Session(devices=2, accelerator='cpu', name='main')\nsession.start()").check()
    yield kernel
    kernel.run("session.stop()").check()


def started(kernel: NotebookKernel, name: str) -> None:
    poll_until((kernel.working_folder / name).exists, 20, lambda: f"no file {name}")


def test_calls_of_several_threads_do_not_mix(live: NotebookKernel) -> None:
    live.run(
        """
        def many(name):
            return [session.run(lambda n: (name, n), n) for n in range(12)]
        threads = [in_thread(name, lambda name=name: many(name)) for name in ("first", "second")]
        told["main"] = many("main")
        for thread in threads:
            thread.join()
        """
    ).check()
    calls = live.value("told")
    assert calls == {name: [[(name, n)] * 2 for n in range(12)] for name in ("first", "second", "main")}


def test_a_cell_waits_for_the_call_of_a_thread(live: NotebookKernel) -> None:
    live.run("thread = in_thread('other', lambda: session.run(hold, 'go'))").check()
    started(live, "up")
    run = live.start_run("%%distributed\nmine = 10 * rank\nmine")
    run.wait_for_text("nbdist: waits: the ranks are busy with run(hold) of thread other")
    (live.working_folder / "go").touch()
    run.finish(20)
    assert shown(run) == "0"
    live.run("thread.join()").check()
    assert live.value("told") == {"other": ["go", "go"]}
    assert shown(on_ranks(live, "mine")) == "0"


def test_the_stop_button_ends_the_wait_and_not_the_other_call(live: NotebookKernel) -> None:
    live.run("thread = in_thread('other', lambda: session.run(hold, 'go'))").check()
    started(live, "up")
    run = live.start_run("%%distributed\n1")
    run.wait_for_text("nbdist: waits: the ranks are busy with run(hold) of thread other")
    live.interrupt()
    run.finish(20)
    assert run.error is not None
    assert "nothing was sent: the ranks are busy with run(hold) of thread other, which" in run.error.text
    (live.working_folder / "go").touch()
    live.run("thread.join()").check()
    assert live.value("told") == {"other": ["go", "go"]}
    assert shown(on_ranks(live, "rank")) == "0"


def test_a_stop_ends_the_call_of_a_thread(live: NotebookKernel) -> None:
    live.run("thread = in_thread('other', lambda: session.run(hold, 'never'))").check()
    started(live, "up")
    live.run("%distributed stop").check()
    live.run("thread.join()").check()
    stopped = "SessionError: This session was stopped meanwhile, by another thread."
    assert live.value("told") == {"other": stopped}
    assert live.run("%distributed status").check().stdout.startswith("No ranks are up.")


def test_a_thread_may_end_the_ranks_of_a_running_cell(live: NotebookKernel) -> None:
    live.run("in_thread('other', lambda: (until('up'), session.stop()))", store_history=False).check()
    error = on_ranks(live, "hold('never')").error
    assert error is not None
    assert "SessionError: This session was stopped meanwhile, by another thread." in error.text
    assert live.run("%distributed status").check().stdout.startswith("No ranks are up.")


def test_a_call_in_the_midst_of_another_is_refused(live: NotebookKernel) -> None:
    run = live.run(
        """
        def again(*_):
            try:
                session.run(os.getpid)
            except nbdist.SessionError as error:
                told["again"] = str(error)
            pathlib.Path("done").touch()
        before = signal.signal(signal.SIGUSR1, again)
        kernel_pid = os.getpid()
        def signal_it():
            if os.environ["RANK"] == "0":
                os.kill(kernel_pid, signal.SIGUSR1)
            return hold("done")
        print(session.run(signal_it))
        signal.signal(signal.SIGUSR1, before)
        """
    ).check()
    assert run.stdout == "['done', 'done']\n"
    assert live.value("told") == {
        "again": "run(getpid): the ranks are busy with run(signal_it), in this same thread. "
        "Call it when that has returned."
    }


# ── Forked processes ────────────────────────────────────────────────────────────────────────────────────────


def test_a_forked_child_leaves_the_ranks_alone(live: NotebookKernel) -> None:
    live.run("%%distributed\nkept = 7 + rank").check()
    begin = "run = nbdist.launch(hold, 'go', devices=2, accelerator='cpu', background=True)"
    live.run(begin, allow_stdin=True).check()
    started(live, "up")
    live.run(
        """
        pid = os.fork()
        if not pid:
            code = 1
            try:
                texts = []
                for call in (lambda: session.run(os.getpid), session.status, lambda: run.wait(1)):
                    try:
                        call()
                    except nbdist.SessionError as error:
                        texts.append(str(error))
                run.interrupt()
                run.stop()
                session.stop()
                get_ipython().run_line_magic("distributed", "stop --all")
                pathlib.Path("texts").write_text("\\n".join(texts))
                code = 0
            finally:
                os._exit(code)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        """
    ).check()
    assert live.value("ended") == 0
    texts = (live.working_folder / "texts").read_text().splitlines()
    assert len(texts) == 3
    assert all(text.startswith("These ranks belong to another process") for text in texts)
    (live.working_folder / "go").touch()
    assert live.value("run.wait(20)") == "go"
    assert shown(on_ranks(live, "kept")) == "7"


SCRIPT = """\
import os, pathlib, sys, time, nbdist
def rank_of():
    return int(os.environ["RANK"])
def rank_after(word):
    while not pathlib.Path(word).exists():
        time.sleep(0.01)
    return rank_of()
if __name__ == "__main__":
    run = nbdist.launch(rank_after, "go", devices=2, accelerator="cpu", background=True)
    with nbdist.Session(devices=2, accelerator="cpu") as session:
        assert run.status == "running"
        pid = os.fork()
        if pid:
            print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            print("ranks", session.run(rank_of))
            pathlib.Path("go").touch()
        else:
            sys.exit(3)  # leaves the block of the session, and calls what atexit has
    print("run", run.wait())
"""


def test_the_end_of_a_forked_child_is_not_that_of_the_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.stdout.splitlines() == ["child 3", "ranks [0, 1]", "run 0"], done.stderr
