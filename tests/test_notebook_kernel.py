"""The kernel helper itself, against cells that need nothing but IPython."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_kernel import (
    CellTimeoutError,
    Footprint,
    KernelDiedError,
    NotebookKernel,
    leaks,
    poll_until,
    without_ansi,
)

BUSY = "print('started', flush=True)\nwhile True:\n    pass"


@pytest.fixture(scope="module")
def plain_kernel() -> Iterator[NotebookKernel]:
    with NotebookKernel() as kernel:
        kernel.run("%%bash\ntrue").check()  # IPython's event loop for scripts stays once it is there
        yield kernel


@pytest.fixture
def plain(plain_kernel: NotebookKernel) -> NotebookKernel:
    plain_kernel.reset()
    return plain_kernel


def test_streams_are_joined_and_kept_apart(plain: NotebookKernel) -> None:
    run = plain.run(
        """
        import sys
        print("one")
        print("two", file=sys.stderr)
        print("three")
        """
    ).check()
    assert run.stdout == "one\nthree\n"
    assert run.stderr == "two\n"
    assert run.displays == []
    assert run.result is None
    assert run.error is None


def test_messages_are_in_order_with_times_within_the_run(plain: NotebookKernel) -> None:
    run = plain.run("print('text')\n'value'")
    assert [message.msg_type for message in run.messages] == [
        "status",
        "execute_input",
        "stream",
        "execute_result",
        "status",
    ]
    times = [run.sent_s, *(message.time_s for message in run.messages)]
    assert times == sorted(times)
    assert run.duration_s == times[-1] - times[0]


def test_displays_and_result(plain: NotebookKernel) -> None:
    run = plain.run(
        "display({'text/plain': 'a', 'text/html': '<b>a</b>'}, raw=True); display('second'); 6 * 7"
    )
    assert run.displays == [
        {"text/plain": "a", "text/html": "<b>a</b>"},
        {"text/plain": "'second'"},
    ]
    assert run.result == {"text/plain": "42"}


def test_error_is_given_whole_and_without_colours(plain: NotebookKernel) -> None:
    run = plain.run("def divide(x):\n    return x / 0\n\ndivide(1)")
    assert run.status == "error"
    assert run.error is not None
    assert (run.error.ename, run.error.evalue) == ("ZeroDivisionError", "division by zero")
    assert "return x / 0" in run.error.text
    assert without_ansi(run.error.text) == run.error.text
    assert "".join(run.error.traceback) != without_ansi("".join(run.error.traceback))
    with pytest.raises(AssertionError, match="ZeroDivisionError: division by zero"):
        run.check()


def test_a_cell_after_a_failed_one_runs(plain: NotebookKernel) -> None:
    for _ in range(20):
        assert plain.run("1 / 0").status == "error"
        assert plain.run("1").status == "ok"


def test_execution_count_and_history(plain: NotebookKernel) -> None:
    first = plain.run("'a'")
    unnumbered = plain.run("'b'", store_history=False)
    second = plain.run("'c'")
    assert first.execution_count is not None
    assert second.execution_count == first.execution_count + 1
    assert unnumbered.result == {"text/plain": "'b'"}


def test_value_reads_without_a_trace(plain: NotebookKernel) -> None:
    before = plain.run("x = {'a': [1, 2.5, None]}; 'last'")
    assert plain.value("x") == {"a": [1, 2.5, None]}
    assert plain.value("len(x['a'])") == 3
    assert plain.value("ValueError") == "<class 'ValueError'>"
    assert plain.value("'a\\n' * 3000") == "a\n" * 3000
    with pytest.raises(AssertionError, match="nowhere: NameError"):
        plain.value("nowhere")
    after = plain.run("_")
    assert after.result == {"text/plain": "'last'"}
    assert after.execution_count == (before.execution_count or 0) + 1


def test_only_code_after_a_line_break_is_dedented(plain: NotebookKernel) -> None:
    indented = "    x = 1\n    if x:\n        x = 2"
    assert plain.run("\n" + indented).check().code == "x = 1\nif x:\n    x = 2"
    assert plain.run(indented).check().code == indented


def test_completion_and_help(plain: NotebookKernel) -> None:
    plain.run("wallaby = 1").check()
    assert plain.complete("walla") == ["wallaby"]
    assert plain.complete("walla + 1", cursor_pos=5) == ["wallaby"]
    assert "Return the number of items in a container" in plain.inspect("len")
    assert plain.inspect("nowhere") == ""


def test_input_is_answered_in_order(plain: NotebookKernel) -> None:
    run = plain.run("first = input('first? '); first + input('second? ')", answers=["a", "b"]).check()
    assert run.result == {"text/plain": "'ab'"}

    asking = plain.start_run("input('name? ')", allow_stdin=True)
    assert asking.answer_input("Ada") == "name? "
    assert asking.finish().result == {"text/plain": "'Ada'"}


def test_input_is_refused_where_no_front_end_could_ask(plain: NotebookKernel) -> None:
    run = plain.run("input()")
    assert run.error is not None
    assert run.error.ename == "StdinNotImplementedError"


def test_a_cell_that_never_asks_is_told_so(plain: NotebookKernel) -> None:
    with pytest.raises(AssertionError, match="ended without asking for input"):
        plain.run("print('no question')", answers=["unasked"])


def test_interrupt_ends_a_busy_loop(plain: NotebookKernel) -> None:
    run = plain.start_run(BUSY).wait_for_text("started")
    assert not run.finished
    plain.interrupt()
    run.finish(timeout_s=10)
    assert run.error is not None
    assert run.error.ename == "KeyboardInterrupt"
    assert plain.run("1 + 1").result == {"text/plain": "2"}


def test_timeout_shows_what_came_until_then(plain: NotebookKernel) -> None:
    run = plain.start_run(BUSY).wait_for_text("started")
    with pytest.raises(CellTimeoutError, match=r"end of the cell did not come within 0\.01 s(.|\n)*started"):
        run.finish(timeout_s=0.01)
    assert plain.unfinished == [run]
    plain.interrupt()
    run.finish(timeout_s=10)
    assert plain.unfinished == []


def test_waiting_for_text_of_a_failed_cell_fails_at_once(plain: NotebookKernel) -> None:
    run = plain.start_run("print('something else'); 1 / 0")
    with pytest.raises(AssertionError, match=r"without the text 'never'(.|\n)*something else"):
        run.wait_for_text("never", timeout_s=300)


def test_text_that_comes_after_the_end_of_the_cell_is_kept(plain: NotebookKernel) -> None:
    run = plain.run(
        """
        import threading
        go = threading.Event()
        def speak():
            go.wait()
            print("late", flush=True)
        thread = threading.Thread(target=speak)
        thread.start()
        """
    ).check()
    assert run.stdout == ""
    release = plain.run("go.set(); thread.join()").check()
    assert (run.stdout + release.stdout) == "late\n"


@pytest.mark.parametrize(
    ("make", "found", "undo"),
    [
        pytest.param(
            "import subprocess; child = subprocess.Popen(['sleep', '600'])",
            r"process \d+: sleep 600",
            "child.kill(); child.wait()",
            id="child",
        ),
        pytest.param(
            # Made by a child that has ended, in a session of its own: nobody's descendant any more.
            "import os, signal, subprocess\n"
            "pid = int(subprocess.check_output('setsid sleep 601 >/dev/null 2>&1 & echo $!', shell=True))",
            r"process \d+: (setsid )?sleep 601",
            "os.kill(pid, signal.SIGKILL)",
            id="orphan",
        ),
        pytest.param(
            "import os\nchild = os.fork()\nif child == 0: os._exit(0)\n"
            "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)",
            r"process \d+: .*\(zombie\)",
            "os.waitpid(child, 0)",
            id="zombie",
        ),
        pytest.param(
            "import os; ends = os.pipe()",
            r"descriptor \d+ -> pipe:\[\d+\] \(2 more",
            "[os.close(end) for end in ends]",
            id="descriptor",
        ),
        pytest.param(
            "import os; memory = os.memfd_create('leak')",
            r"descriptor \d+ -> /memfd:leak",
            "os.close(memory)",
            id="memfd",
        ),
        pytest.param(
            "import threading\nstop = threading.Event()\n"
            "threading.Thread(target=stop.wait, name='leaked').start()",
            r"1 thread\(s\) 'leaked'",
            "stop.set()",
            id="thread",
        ),
        pytest.param(
            "import os; path = f'/dev/shm/leak-{os.getpid()}'; open(path, 'w').close()",
            r"shared memory: leak-\d+",
            "os.unlink(path)",
            id="shared-memory",
        ),
        pytest.param(
            "import socket; server = socket.create_server(('127.0.0.1', 0))",
            r"listening: 127\.0\.0\.1:\d+ of ",
            "server.close()",
            id="port",
        ),
        pytest.param(
            "import os; os.environ['LEAKED_NAME'] = 'x'",
            r"environment variable LEAKED_NAME was None, is 'x'",
            "del os.environ['LEAKED_NAME']",
            id="set-variable",
        ),
        pytest.param(
            "import os; folder = os.environ.pop('IPYTHONDIR')",
            r"environment variable IPYTHONDIR was '.*', is None",
            "os.environ['IPYTHONDIR'] = folder",
            id="unset-variable",
        ),
        pytest.param(
            "import os, tempfile; path = tempfile.mkstemp(prefix='leak-'); os.close(path[0])",
            r"temporary: leak-",
            "os.unlink(path[1])",
            id="temporary-file",
        ),
    ],
)
def test_leaks_are_found_and_gone_when_undone(
    plain: NotebookKernel, make: str, found: str, undo: str
) -> None:
    before = plain.footprint()
    plain.run(make).check()
    with pytest.raises(AssertionError, match=found):
        plain.assert_no_leaks(before, within_s=0.2)
    plain.run(undo).check()
    plain.assert_no_leaks(before)


@pytest.mark.parametrize(
    "code",
    [
        "print('text')",
        "1 / 0",
        "display('text')",
        "%%bash\necho 1",
        "!echo 1",
        "import asyncio\nawait asyncio.sleep(0)",
        "import threading\nthread = threading.Thread(target=print, args=('text',))\n"
        "thread.start()\nthread.join()",
        "import os\nchild = os.fork()\nif child == 0: os._exit(0)\nstatus = os.waitpid(child, 0)",
        "file = open('unclosed', 'w')",
    ],
)
def test_ordinary_cells_leave_nothing(plain: NotebookKernel, code: str) -> None:
    before = plain.footprint()
    plain.run(code)
    plain.reset()
    plain.assert_no_leaks(before)


def test_what_is_allowed_is_no_leak() -> None:
    nothing = Footprint({}, {}, {}, frozenset(), frozenset(), {}, frozenset())
    logs = Footprint(
        {}, {}, {}, frozenset(), frozenset(), {"KNOWN": "1"}, frozenset({"logs", "logs/0.txt", "x"})
    )
    assert leaks(nothing, logs, allow=["logs*", "KNOWN"]) == ["temporary: x"]


def test_reset_forgets_names_and_what_tracebacks_hold(plain: NotebookKernel) -> None:
    before = plain.footprint()
    plain.run("import socket\ndef hold():\n    pair = socket.socketpair()\n    1 / 0\nhold()")
    plain.reset()
    plain.assert_no_leaks(before)
    with pytest.raises(AssertionError, match="NameError"):
        plain.value("hold")


def test_death_is_reported_and_what_it_leaves_is_found() -> None:
    with NotebookKernel() as kernel:
        kernel.run("import subprocess; child = subprocess.Popen(['sleep', '602'])").check()
        child = kernel.value("child.pid")
        run = kernel.start_run(BUSY).wait_for_text("started")
        os.kill(kernel.pid, signal.SIGKILL)
        with pytest.raises(
            KernelDiedError, match=r"the kernel died before the end of the cell(.|\n)*started"
        ):
            run.finish()
        assert not kernel.alive
        assert list(kernel.processes()) == [child]
        folder = kernel.folder
    assert not folder.exists()
    poll_until(lambda: not Path(f"/proc/{child}").exists(), 5, lambda: f"process {child} is still there")


@pytest.mark.slow
def test_the_fixture_fails_the_test_that_leaks_and_no_other(pytester: pytest.Pytester) -> None:
    here = Path(__file__).parent
    pytester.makeconftest((here / "conftest.py").read_text())
    pytester.makeini(f"[pytest]\npythonpath = {here}\n")
    pytester.makepyfile(
        """
        def test_leaks(kernel):
            kernel.run("import os; os.environ['LEAKED_NAME'] = 'x'").check()

        def test_runs_on(kernel):
            run = kernel.start_run("print('started', flush=True)\\nwhile True: pass")
            run.wait_for_text("started")

        def test_finds_all_clean(kernel):
            assert kernel.value("'LEAKED_NAME' in os.environ if 'os' in dir() else None") is None
            assert kernel.run("import os; 'LEAKED_NAME' in os.environ").result == {"text/plain": "False"}
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(
        ["*environment variable LEAKED_NAME was None, is 'x'*", "*still running after the test*"]
    )
