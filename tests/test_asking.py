"""What a rank asks the user: `input()`, `getpass()`, breakpoints, and pdb after a failure."""

from __future__ import annotations

import re

import pytest
from notebook_kernel import CellRun, NotebookKernel

METHODS = ["fork", "forkserver", "spawn"]


def plain(text: str) -> str:
    """Text without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def error_of(run: CellRun) -> str:
    assert run.error is not None, run.describe()
    return f"{run.error.ename}: {run.error.evalue}"


# ── Questions ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", METHODS)
def test_rank_0_asks_in_the_notebook(method: str) -> None:
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist").check()
        asking = kernel.start_run(
            f"""
            %%distributed --devices 2 --start-method {method}
            import getpass, torch.distributed as dist
            print("who are you?")
            given = [None, None]
            if rank == 0:
                given = [input("Your name? "), getpass.getpass()]
            dist.broadcast_object_list(given)
            print("hello", given)
            """,
            allow_stdin=True,
        )
        asking.wait_for_text("who are you?\n")  # though nobody has answered
        assert asking.answer_input("Ada") == "Your name? "
        kernel.wait_for(lambda: bool(asking.input_requests), 30, "the second question", asking)
        assert asking.input_requests[0]["password"] is True
        assert asking.answer_input("secret") == "Password: "
        assert asking.finish().check().stdout.splitlines()[1:] == ["hello ['Ada', 'secret']"]
        assert kernel.value("given") == ["Ada", "secret"]


def test_functions_that_ask_may_have_been_bound_to_names_before(kernel: NotebookKernel) -> None:
    kernel.run("from getpass import getpass\nask = input").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        if rank == 0:
            given = [ask("name? "), getpass("word? ")]
        """,
        answers=["Ada", "secret"],
    ).check()
    assert run.stderr == ""
    assert kernel.value("given") == ["Ada", "secret"]


def test_another_rank_that_asks_is_told_who_may(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        if rank == 1:
            input('Your name? ')
        """,
        allow_stdin=True,
    )
    assert "input('Your name? '): rank 0 alone can ask, and this is rank 1" in error_of(run)
    assert not run.input_requests


def test_a_thread_of_rank_0_that_asks_is_told_so(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        from concurrent.futures import ThreadPoolExecutor
        if rank == 0:
            with ThreadPoolExecutor() as pool:
                pool.submit(input, "name? ").result()
        """,
        allow_stdin=True,
    )
    assert "only the main thread of a rank can ask" in error_of(run)


def test_where_nobody_can_be_asked_the_error_is_the_notebooks_own(kernel: NotebookKernel) -> None:
    alone = kernel.run("input('name? ')")
    run = kernel.run("%%distributed --devices 2\nif rank == 0:\n    input('name? ')")
    assert alone.error is not None
    assert alone.error.ename == "StdinNotImplementedError"
    assert error_of(run).endswith(f"{alone.error.ename}: {alone.error.evalue}")


def test_an_interrupt_ends_a_question(kernel: NotebookKernel) -> None:
    run = kernel.start_run(
        "%%distributed --devices 2\nx = 1\nif rank == 0:\n    input('name? ')", allow_stdin=True
    )
    kernel.wait_for(lambda: bool(run.input_requests), 30, "the question", run)
    kernel.interrupt()
    run.finish()
    assert error_of(run).startswith("KeyboardInterrupt")
    assert kernel.value("x") == 1


def test_a_failure_elsewhere_withdraws_a_question(kernel: NotebookKernel) -> None:
    run = kernel.start_run(
        """
        %%distributed --devices 2
        import os, time
        if rank == 0:
            input('name? ')
        while not os.path.exists('go'):
            time.sleep(0.01)
        raise ValueError('not now')
        """,
        allow_stdin=True,
    )
    kernel.wait_for(lambda: bool(run.input_requests), 30, "the question", run)
    (kernel.working_folder / "go").touch()
    run.finish()
    assert error_of(run).startswith("RankFailedError: rank 1 of 2 failed")
    (kernel.working_folder / "go").unlink()
    assert kernel.run("6 * 7").check().result == {"text/plain": "42"}


def test_ranks_that_wait_for_an_answer_do_not_hang(kernel: NotebookKernel) -> None:
    run = kernel.start_run(
        """
        %%distributed --devices 2 --hang-timeout 1 --on-hang stop
        import time, torch.distributed as dist
        if rank == 0:
            input('go on? ')
        else:
            time.sleep(3)
            open('waited', 'w').close()
        dist.barrier()
        x = rank
        """,
        allow_stdin=True,
    )
    kernel.wait_for((kernel.working_folder / "waited").exists, 30, "rank 1's sign", run)
    run.answer_input("yes")
    run.finish().check()
    (kernel.working_folder / "waited").unlink()
    assert run.stderr == ""
    assert kernel.value("x") == 0


# ── Debuggers ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_breakpoint_of_rank_0_opens_pdb(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        total = 0
        for step in range(3):
            total += step
            if rank == 0 and step == 1:
                breakpoint()
        """,
        answers=["p total", "total = 100", "c"],
    ).check()
    assert re.search(r"^\[0\] 1$", plain(run.stdout), re.MULTILINE)
    assert kernel.value("total") == 102


def test_a_breakpoint_of_another_rank_is_refused(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 2\nif rank == 1:\n    breakpoint()", allow_stdin=True)
    assert "breakpoint(): rank 0 alone can ask, and this is rank 1" in error_of(run)


KEPT_HAVE_ENDED = "The ranks that were kept after a failure have ended.\n"
FAILING = """
%%distributed --devices 2 --hold
def divide(a):
    b = a - 1
    return 1 / b
import torch.distributed as dist
x = "from the cell"
y = divide(rank)
dist.barrier()
"""


def test_kept_ranks_can_be_looked_into(kernel: NotebookKernel) -> None:
    failed = kernel.run(FAILING)
    assert error_of(failed).startswith("RankFailedError: rank 1 of 2 failed at line 4")
    assert "%distributed debug opens pdb where rank 1 failed" in failed.stderr
    assert kernel.value("x") == "from the cell"
    assert kernel.run("%distributed stacks").check().stdout == "rank 0 was stopped\nrank 1 has failed\n"
    for command in ("%distributed debug", "%debug"):
        run = kernel.run(command, answers=["p (a, b)", "u", "p (rank, x)", "q"]).check()
        shown = plain(run.stdout).splitlines()
        assert "[1] (1, 0)" in shown
        assert "[1] (1, 'from the cell')" in shown
        assert "[1] ----> 4     return 1 / b" in shown
    other = kernel.run("%distributed debug 0", answers=["u", "u", "u", "p (rank, y)", "q"]).check()
    assert "[0] (0, -1.0)" in plain(other.stdout).splitlines()
    assert kernel.run("%distributed stop").check().stdout == KEPT_HAVE_ENDED
    assert kernel.run("%distributed stop").check().stdout == "No ranks are up.\n"


def test_an_interrupt_leaves_the_debugger_and_the_ranks_stay(kernel: NotebookKernel) -> None:
    kernel.run(FAILING)
    run = kernel.start_run("%distributed debug", allow_stdin=True)
    kernel.wait_for(lambda: bool(run.input_requests), 30, "pdb's prompt", run)
    kernel.interrupt()
    run.finish()
    again = kernel.run("%distributed debug", answers=["p b", "q"]).check()
    assert "[1] 0" in plain(again.stdout).splitlines()
    kernel.run("%distributed stop").check()


def test_a_rank_that_ends_while_it_is_looked_into_is_named(kernel: NotebookKernel) -> None:
    kernel.run(FAILING)
    run = kernel.run("%distributed debug", answers=["import os; os._exit(3)"]).check()
    assert "rank 1 has ended: its process" in run.stderr
    assert "exit code 3" in run.stderr
    kernel.run("%distributed stop").check()


def test_the_next_cell_on_ranks_ends_those_that_are_kept(kernel: NotebookKernel) -> None:
    kernel.run(FAILING)
    kernel.run("%%distributed --devices 2\nx = rank").check()
    run = kernel.run("%distributed debug", allow_stdin=True)
    assert error_of(run).startswith("SessionError: No ranks are kept whose last cell failed")


def test_unloading_ends_ranks_that_are_kept_and_gives_debug_back(kernel: NotebookKernel) -> None:
    kernel.run(FAILING)
    kernel.run("%unload_ext nbdist").check()
    kernel.run("1 / 0")
    run = kernel.run("%debug", answers=["p 6 * 7", "q"]).check()
    assert "42" in plain(run.stdout).splitlines()
    kernel.run("%load_ext nbdist").check()


def test_a_cell_that_ends_well_keeps_nothing(kernel: NotebookKernel) -> None:
    kernel.run("%%distributed --devices 2 --hold\nx = rank").check()
    assert kernel.run("%distributed stop").check().stdout == "No ranks are up.\n"


@pytest.mark.parametrize("words", ["debug 7", "debug 0 1", "debug one", "debag"])
def test_wrong_words_say_what_is_allowed(kernel: NotebookKernel, words: str) -> None:
    kernel.run(FAILING)
    run = kernel.run(f"%distributed {words}", allow_stdin=True)
    assert f"%distributed {words}: " in error_of(run)
    assert "Allowed: " in error_of(run)
    kernel.run("%distributed stop").check()


def test_debug_after_a_failure_explains_what_to_do(kernel: NotebookKernel) -> None:
    kernel.run("%%distributed --devices 2\n1 / 0")
    run = kernel.run("%debug", allow_stdin=True).check()
    assert "%%distributed --hold" in run.stdout
    assert "%distributed stacks" in run.stdout
    kernel.run("1 / 0")
    own = kernel.run("%debug", answers=["p 6 * 7", "q"]).check()
    assert "42" in plain(own.stdout).splitlines()


def test_pdb_on_opens_pdb_on_the_rank_that_failed(kernel: NotebookKernel) -> None:
    kernel.run("%pdb on").check()
    failing = FAILING.replace(" --hold", "")
    run = kernel.run(failing, answers=["p (a, b)", "q"])
    assert error_of(run).startswith("RankFailedError: rank 1 of 2 failed at line 4")
    assert "[1] (1, 0)" in plain(run.stdout).splitlines()
    assert kernel.run("%distributed stop").check().stdout == KEPT_HAVE_ENDED
    nobody = kernel.run(failing)  # where nobody can be asked
    assert "%%distributed --hold" in nobody.stdout
    assert kernel.run("%distributed stop").check().stdout == "No ranks are up.\n"
    own = kernel.run("1 / 0", answers=["p 6 * 7", "q"])
    assert "42" in plain(own.stdout).splitlines()
    kernel.run("%pdb off").check()


def test_where_nobody_can_be_asked_debug_says_so(kernel: NotebookKernel) -> None:
    kernel.run(FAILING)
    assert "this front end has no input box" in error_of(kernel.run("%distributed debug"))
    kernel.run("%distributed stop").check()
