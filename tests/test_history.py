"""The notebook's history on the ranks: it can be read there, and is written by the kernel alone."""

from __future__ import annotations

from notebook_kernel import NotebookKernel

CELL = "%%distributed --devices 2\n"


def rows(kernel: NotebookKernel, table: str) -> list[tuple[str, ...]]:
    """What the notebook's history database holds."""
    kernel.run("get_ipython().history_manager.writeout_cache()").check()
    read = f"get_ipython().history_manager.db.execute('SELECT * FROM {table}')"
    found: list[tuple[str, ...]] = kernel.value(f"[tuple(map(str, row)) for row in {read}]")
    return found


def test_history_is_read_on_ranks_and_written_by_the_kernel(kernel: NotebookKernel) -> None:
    sessions = rows(kernel, "sessions")
    cells = []
    for number in range(5):  # the kernel's saving thread is at work when a cell begins
        cells.append(f"number = {number}")
        kernel.run(cells[-1]).check()
        run = kernel.run(f"{CELL}%history -l 1\n%recall number\nprint('done')")
        assert run.check().stdout == f"{cells[-1]}\ndone\n"
        assert run.stderr == ""
    assert rows(kernel, "sessions") == sessions
    written = [row[-1] for row in rows(kernel, "history")]
    assert [text for text in written if text in cells] == cells


def test_a_rank_that_forgets_its_names_begins_no_session(kernel: NotebookKernel) -> None:
    sessions = rows(kernel, "sessions")
    run = kernel.run(f"{CELL}%reset -f\nget_ipython().run_cell('x = 1', store_history=True)\nprint('done')")
    assert run.check().stdout == "done\n"
    assert rows(kernel, "sessions") == sessions
