"""`%distributed auto`: every cell runs on the live ranks, and stays the user's own in all else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from notebook_kernel import CellRun, NotebookKernel

START = "%distributed start --accelerator cpu --devices 2"


@pytest.fixture
def live(kernel: NotebookKernel) -> Iterator[NotebookKernel]:
    """A kernel with two live ranks, on which every cell runs."""
    kernel.run(START).check()
    kernel.run("%distributed auto on").check()
    yield kernel
    kernel.run("%distributed auto off").check()
    kernel.run("%distributed stop --all").check()


def is_on(kernel: NotebookKernel) -> bool:
    text = kernel.run("%distributed auto").check().stdout
    assert ("auto is on" in text) is not ("auto is off" in text)
    return "auto is on" in text


def on_ranks(run: CellRun) -> bool:
    """Whether a cell that ends with `'rank' in dir(__builtins__)` or the like ran on ranks."""
    assert run.check().result is not None, run.describe()
    return run.result["text/plain"] == "True"


HERE = "hasattr(__import__('builtins'), 'world_size')"
"""Whether this runs on ranks: the ready-made names are lent there."""


def test_without_ranks_it_says_to_start_some(kernel: NotebookKernel) -> None:
    for line, name in (("on", "'main'"), ("on --name eval", "'eval'")):
        run = kernel.run(f"%distributed auto {line}")
        assert run.error is not None
        assert run.error.ename == "SessionError"
        assert f"no session {name} is up" in run.error.evalue
        assert "%distributed start" in run.error.evalue
    assert not is_on(kernel)


def test_a_wrong_switch_or_option_changes_nothing(live: NotebookKernel) -> None:
    for words, phrase in (
        ("onn", "auto onn: no such switch"),
        ("off now", "off now"),
        ("on --logs x", "--logs x"),
    ):
        run = live.run(f"%distributed auto {words}")
        assert run.error is not None
        assert phrase in run.error.evalue
        assert is_on(live)


def test_a_cell_runs_on_the_ranks_and_shows_what_it_would_show(live: NotebookKernel) -> None:
    run = live.run("import torch\nprint('rank', rank)\ndisplay('shown')\nrank + 41").check()
    assert sorted(run.stdout.splitlines()) == ["[0] rank 0", "[1] rank 1"]
    assert "'shown'" in [data["text/plain"] for data in run.displays]
    assert run.result == {"text/plain": "41"}
    assert live.run(f"_ + _{run.execution_count}").check().result == {"text/plain": "82"}
    assert live.run("x = 1").check().result is None
    assert live.run("x + 1;").check().result is None
    assert live.run("await __import__('asyncio').sleep(0)\nx + 1").check().result == {"text/plain": "2"}
    assert live.value("x") == 1
    live.run("%distributed auto off").check()
    assert not on_ranks(live.run(HERE))


def test_numbers_inputs_and_history_are_the_users_own(live: NotebookKernel) -> None:
    run = live.run("first = 1\nsecond = 2").check()
    number = run.execution_count
    assert live.value(f"In[{number}]").strip() == "first = 1\nsecond = 2"
    assert live.run("%history -l 1").check().stdout == "first = 1\nsecond = 2\n"
    live.run("third = 3", store_history=False).check()
    assert number is not None
    assert live.run("fourth = 4").check().execution_count == number + 2


def test_what_a_cell_defines_has_its_source(live: NotebookKernel) -> None:
    live.run("def half(x):\n    return x / 2").check()
    assert live.run("import inspect\ninspect.getsource(half)").check().result == {
        "text/plain": repr("def half(x):\n    return x / 2\n")
    }


def test_a_failure_names_the_cells_own_lines(live: NotebookKernel) -> None:
    run = live.run("def train():\n    # a comment\n    assert rank == 0\n\ntrain()")
    assert run.error is not None
    assert run.error.ename == "RankFailedError"
    assert "rank 1 of 2 failed at line 3" in run.error.evalue
    assert "----> 5 train()" in run.error.text
    assert "----> 3     assert rank == 0" in run.error.text
    assert "RanksCellMagics" not in run.error.text


def test_text_that_is_no_python_is_refused_as_ever(live: NotebookKernel) -> None:
    run = live.run("x = (1")
    assert run.error is not None
    assert run.error.ename == "SyntaxError"
    assert live.run("x = 2\nx").check().result == {"text/plain": "2"}


def test_cells_without_code_do_nothing(live: NotebookKernel) -> None:
    for text in ("", "\n \n", "# only a comment\n\n# and one more"):
        run = live.run(text).check()
        assert (run.stdout, run.stderr, run.result) == ("", "", None)


LOCAL_CELLS = (
    f"%%local\n{HERE}",
    f"\n \n%%local\n\n    x = 1\n    {HERE}",
    f"%%local\nawait __import__('asyncio').sleep(0)\n{HERE}",
)


@pytest.mark.parametrize("cell", LOCAL_CELLS, ids=["plain", "indented", "await"])
@pytest.mark.parametrize("auto", ["on", "off"])
def test_local_is_an_ordinary_cell(kernel: NotebookKernel, cell: str, auto: str) -> None:
    kernel.run(START).check()
    kernel.run(f"%distributed auto {auto}").check()
    run = kernel.start_run(cell).finish() if not cell.startswith("\n") else kernel.run(f"\n{cell}")
    assert not on_ranks(run)
    assert kernel.run("%history -l 1").check().stdout.strip().startswith("%%local")
    failed = kernel.run("%%local\n\n1 / 0")
    assert failed.error is not None
    assert "----> 3 1 / 0" in failed.error.text
    kernel.run("%distributed auto off").check()
    kernel.run("%distributed stop --all").check()


def test_magics_of_the_notebook_run_in_the_notebook(live: NotebookKernel) -> None:
    live.run("mark = 'theirs'").check()
    live.run("%%local\nimport os\nhere = os.getpid()").check()
    cells = {
        "%env NBDIST_TEST_LOCAL=1\n# and a comment\n!true": "__import__('os').environ['NBDIST_TEST_LOCAL']",
        "%%writefile note.txt\ntext": "open('note.txt').read().strip()",
    }
    found = {}
    for cell, expression in cells.items():
        live.run(cell).check()
        found[cell] = live.value(expression)
    assert found == dict(zip(cells, ("1", "text"), strict=True))
    live.run("%%local\nprint(os.environ.pop('NBDIST_TEST_LOCAL'))").check()
    assert live.run("!echo $PPID").check().stdout.strip() == str(live.value("here"))


def test_magics_that_run_python_run_it_on_the_ranks(live: NotebookKernel) -> None:
    assert on_ranks(live.run(f"%%time\n{HERE}"))
    timed = live.run("%timeit -n 1 -r 1 print('here is rank', rank)").check()
    assert "[1] here is rank 1" in timed.stdout
    live.run("%%capture caught\nprint('hidden')").check()
    assert live.run("caught.stdout").check().result == {"text/plain": repr("hidden\n")}
    assert on_ranks(live.run(f"%pwd\nx = 3\n{HERE}"))


def test_an_explicit_magic_keeps_its_options(live: NotebookKernel) -> None:
    assert live.run("%%distributed --logs rank0\nprint('rank', rank)").check().stdout == "rank 0\n"


def test_options_of_the_switch_hold_for_every_cell(live: NotebookKernel) -> None:
    live.run("%distributed auto on --logs rank0").check()
    assert live.run("print('rank', rank)").check().stdout == "rank 0\n"


def test_cells_that_run_cells(live: NotebookKernel) -> None:
    live.run("inner = 1\nget_ipython().run_cell('inner = world_size')\nNone").check()
    assert live.value("inner") == 2
    again = live.run("%rerun -l 1").check()
    assert "inner = world_size" in again.stdout
    run = live.run("%%local\nouter = get_ipython().run_cell('world_size').result")
    assert run.check().result is not None  # a cell that the notebook runs is a cell, and runs on the ranks
    assert live.value("outer") == 2
    live.run("%%local\nget_ipython().run_cell_magic('local', '', 'inner = 3')").check()
    assert live.value("inner") == 3


def test_what_a_front_end_runs_for_itself_runs_in_the_notebook(live: NotebookKernel) -> None:
    live.run("seen = 5").check()
    content = {
        "code": f"seen = [seen, {HERE}]",
        "silent": True,
        "store_history": False,
        "user_expressions": {"seen": "seen"},
        "allow_stdin": False,
    }
    reply = live._ask("execute_request", content, 30)
    assert reply["user_expressions"]["seen"]["data"]["text/plain"] == "[5, False]"


def test_the_end_of_the_ranks_switches_it_off(live: NotebookKernel) -> None:
    stopped = live.run("%distributed stop").check()
    assert "auto is off: the session 'main' has ended" in stopped.stdout
    assert not on_ranks(live.run(HERE))
    assert not is_on(live)


def test_a_session_that_is_stopped_by_the_cell_before_it_runs_is_no_reason_to_run_it_here(
    live: NotebookKernel,
) -> None:
    live.run(
        """
        %%local
        def stop(info=None):
            get_ipython().events.unregister("pre_run_cell", stop)
            get_ipython().run_line_magic("distributed", "stop")
        get_ipython().events.register("pre_run_cell", stop)
        """
    ).check()
    run = live.run("ran_here = True")
    assert run.error is not None
    assert run.error.ename == "SessionError"
    assert "The cell was not run" in run.error.evalue
    assert live.value("'ran_here' in globals()") is False
    assert not is_on(live)


def test_ranks_started_beside_run_their_cells_themselves(live: NotebookKernel) -> None:
    """They are forked while it is on."""
    live.run("%distributed start --accelerator cpu --devices 1 --name beside").check()
    run = live.run("%%distributed --name beside\nworld_size")
    assert run.check().result == {"text/plain": "1"}
    assert live.run("world_size").check().result == {"text/plain": "2"}
    live.run("%distributed auto on --name beside").check()
    assert live.run("world_size").check().result == {"text/plain": "1"}


def test_unloading_takes_it_back(kernel: NotebookKernel) -> None:
    look = (
        "(shell := get_ipython()) and [len(shell.ast_transformers), len(shell.input_transformers_cleanup), "
        "sum(map(len, shell.events.callbacks.values())), 'local' in shell.magics_manager.magics['cell'], "
        "shell.magics_manager.magics['line']['pinfo'].__self__.__class__.__name__]"
    )
    kernel.run("%unload_ext nbdist").check()
    before = kernel.value(look)
    kernel.run("%load_ext nbdist").check()
    kernel.run(START).check()
    kernel.run("%distributed auto on").check()
    kernel.run("%unload_ext nbdist").check()
    assert kernel.value(look) == before
    assert not on_ranks(kernel.run(HERE))
    kernel.run("%load_ext nbdist").check()


@pytest.mark.parametrize("wait", ["threading.Event().wait()", "await asyncio.sleep(600)"])
def test_the_stop_button(live: NotebookKernel, wait: str) -> None:
    run = live.start_run(f"import asyncio, threading\nprint('waiting')\n{wait}").wait_for_text("waiting")
    live.interrupt()
    run.finish(10)
    assert run.error is not None
    assert run.error.ename == "KeyboardInterrupt"
    assert live.run("%%local\n1 + 1").check().result == {"text/plain": "2"}


def test_every_expression_of_a_cell_is_shown_where_the_user_wants_that(live: NotebookKernel) -> None:
    live.run("%config InteractiveShell.ast_node_interactivity = 'all'").check()
    run = live.run("rank\n'last'").check()
    live.run("%config InteractiveShell.ast_node_interactivity = 'last_expr'").check()
    shown = [content["data"] for content in run.contents("execute_result")]
    assert shown == [{"text/plain": "0"}, {"text/plain": "'last'"}]


@pytest.mark.parametrize("cell", ["exit()", "quit"])
def test_exit_says_what_it_does_not_do(kernel: NotebookKernel, cell: str) -> None:
    kernel.run("%distributed start --devices 2").check()
    kernel.run("%distributed auto on").check()
    run = kernel.run(cell).check()
    assert run.stderr.startswith("nbdist: exit() and quit() end nothing here: ")
    assert run.stderr.count("\n") == 1
    assert kernel.run("kept = world_size\nkept").check().result == {"text/plain": "2"}
    kernel.run("%distributed stop").check()
