"""Runs in the background: the notebook stays usable, and what they did arrives when nothing else runs."""

from __future__ import annotations

import os
import signal
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from notebook_kernel import CellRun, NotebookKernel, poll_until

METHODS = ["fork", "forkserver", "spawn"]

UNTIL_TOLD = """\
import os, time
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""
"""Ranks wait for a file that the test makes."""


def prepare(kernel: NotebookKernel) -> None:
    """Nobody has been told anything yet."""
    for path in kernel.working_folder.iterdir():
        path.unlink()
    kernel.run(UNTIL_TOLD).check()


def begin(kernel: NotebookKernel, code: str, options: str = "") -> CellRun:
    """Begin a run called ``train`` as a front end does in which somebody looks on."""
    prepare(kernel)
    return kernel.run(f"%%distributed -d 2 --background train {options}\n{code}", allow_stdin=True).check()


def tell(kernel: NotebookKernel, name: str = "go") -> None:
    (kernel.working_folder / name).touch()


def panels(run: CellRun) -> list[dict[str, Any]]:
    """All states of the displays under a cell, whichever cell ipykernel filed the updates under."""
    ids = {content["transient"].get("display_id") for content in run.contents("display_data")} - {None}
    runs = run.kernel._runs.values()
    updates = [
        (message.time_s, content)
        for any_run in list(runs)
        for message in list(any_run.messages)
        if message.msg_type in ("display_data", "update_display_data")
        and (content := message.content)["transient"].get("display_id") in ids
    ]
    return [content["data"] for _, content in sorted(updates, key=lambda update: update[0])]


def wait_for_panel(run: CellRun, text: str, mime: str = "text/html") -> None:
    """Sends nothing: the kernel does it by itself."""
    run.kernel.wait_for(lambda: text in panels(run)[-1][mime], 30, f"{text!r} under the cell", run)


# ── The notebook meanwhile ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", METHODS)
def test_the_notebook_is_usable_while_ranks_work(method: str) -> None:
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist").check()
        kernel.run("import torch\nmodel = torch.nn.Linear(1, 1)\ndata = [1]\nmine = model").check()
        begin(
            kernel,
            "wait_for('go')\nwith torch.no_grad():\n    model.weight.fill_(7)\nx = torch.full((2,), 5.0)\nx.sum().item()",
            f"--start-method {method}",
        )
        meanwhile = kernel.run("y = data[0] + 1\nprint(train.status, y, 'x' in globals())").check()
        assert meanwhile.stdout == "running 2 False\n"
        tell(kernel)
        run = kernel.run(
            "print(train.wait(), train.result, x.tolist(), mine.weight.item(), train.status)"
        ).check()
        assert run.stdout == "10.0 10.0 [5.0, 5.0] 7.0 finished\n"


def test_the_ranks_text_goes_on_under_the_cell_that_began_them(kernel: NotebookKernel) -> None:
    cell = begin(
        kernel, "print('first', rank)\nwait_for('go')\nprint('then')\nwait_for('again')\n'the value'"
    )
    wait_for_panel(cell, "[1] first 1")
    other = kernel.run("print('another cell')").check()
    tell(kernel)
    wait_for_panel(cell, "then")
    third = kernel.run("'a third one'").check()
    tell(kernel, "again")
    wait_for_panel(cell, "train, 2 ranks: finished", "text/plain")
    assert "[0] first 0\n[1] first 1\nthen" in panels(cell)[-1]["text/html"]
    assert other.stdout == "another cell\n"
    assert [run.stdout + run.stderr for run in (cell, third)] == ["", ""]
    assert other.displays == third.displays == []


def test_the_run_is_shown_again_where_it_is_asked_for(kernel: NotebookKernel) -> None:
    cell = begin(kernel, "print('hello')")
    assert len(cell.displays) == 1
    assert cell.result is None
    wait_for_panel(cell, "finished")
    again = kernel.run("train").check()
    assert again.displays == [panels(cell)[-1]]
    assert kernel.value("repr(train)") == "<nbdist.Run train on 2 ranks: finished>"


def test_figures_tables_and_bars_stand_under_the_cell(kernel: NotebookKernel) -> None:
    kernel.run(
        "from tqdm import tqdm\nfrom IPython.display import HTML, Image, display\nimport base64, sys"
    ).check()
    cell = begin(
        kernel,
        "for i in tqdm(range(4)):\n    if i == 2:\n        wait_for('go')\n"
        "display(HTML('<b>a table</b>'))\ndisplay(Image(b'GIF89a', format='gif'))\n"
        "print('\\x1b[31mred < green', file=sys.stderr)",
    )
    wait_for_panel(cell, "| 0/4 [")
    assert "<b>a table</b>" not in panels(cell)[-1]["text/html"]
    tell(kernel)
    wait_for_panel(cell, "finished")
    page = panels(cell)[-1]["text/html"]
    assert "100%|██████████| 4/4 [" in page
    assert "| 0/4 [" not in page
    assert "<div><b>a table</b></div>" in page
    assert "data:image/gif;base64,R0lGODlh" in page
    assert '<span style="color:#e75c58">red &lt; green</span>' in page


def test_a_flood_of_text_is_kept_short(kernel: NotebookKernel) -> None:
    cell = begin(kernel, "for i in range(50_000):\n    print('line', i)\nwait_for('go')")
    wait_for_panel(cell, "line 49999")
    tell(kernel)
    wait_for_panel(cell, "finished")
    page = panels(cell)[-1]["text/html"]
    assert page.count("line ") <= 200
    assert "lines not shown here: they are whole in" in page
    assert len(kernel.run("print(len(train.logs(1).splitlines()))").check().stdout.split()) == 1
    assert kernel.value("train.logs(1).splitlines()[49_999]") == "line 49999"


def test_logs_of_each_rank_can_be_read_while_it_works(kernel: NotebookKernel) -> None:
    cell = begin(kernel, "print('here is', rank)\nwait_for('go')")
    wait_for_panel(cell, "here is 1")
    assert kernel.run("train.logs(1)").check().result == {"text/plain": "here is 1"}
    refused = kernel.run("train.logs(2)")
    assert refused.error is not None
    assert refused.error.evalue == "logs(2): no such rank. Allowed: 0 to 1."
    tell(kernel)
    kernel.run("train.wait()").check()
    assert kernel.value("train.logs()") == "here is 0\n"


def test_a_rank_that_asks_is_told_that_nobody_is_there(kernel: NotebookKernel) -> None:
    begin(kernel, "if rank == 0:\n    input('name? ')")
    run = kernel.run("train.wait()", allow_stdin=True)
    assert run.error is not None
    assert "input(): a run in the background cannot ask." in run.error.evalue
    assert not run.input_requests


# ── What comes back, and when ───────────────────────────────────────────────────────────────────────────────


def test_results_arrive_by_themselves_when_no_cell_runs(kernel: NotebookKernel) -> None:
    cell = begin(kernel, "wait_for('go')\nx = 3")
    tell(kernel)
    wait_for_panel(cell, "finished")
    assert kernel.value("x") == 3


@pytest.mark.parametrize("pause", ["time.sleep(0.01)", "await asyncio.sleep(0.01)"])
def test_results_never_arrive_in_the_middle_of_a_cell(kernel: NotebookKernel, pause: str) -> None:
    kernel.run("import asyncio\nx, data = 1, [1]").check()
    begin(kernel, "wait_for('go')\nx = 2\ndata.append(2)")
    tell(kernel)
    run = kernel.run(
        f"while train.status == 'running':\n    {pause}\n"
        f"for _ in range(20):\n    {pause}\nprint(x, data, train.status)"
    ).check()
    assert run.stdout == "1 [1] finished\n"
    assert kernel.run("print(x, data)").check().stdout == "2 [1, 2]\n"


@pytest.mark.parametrize(
    ("change", "name", "mine", "theirs"),
    [
        ("x = 10", "x", "10", "5"),
        ("del x", "x", "None", "5"),
        ("x = 1", "", "5", "5"),  # the same object as before
        ("x = 5", "", "5", "5"),  # what the run makes of it, too
        ("import json", "", "5", "5"),
        ("data.append(10)", "data", "[1, 10]", "[1, 5]"),
        ("t.add_(10)", "t", "[10.0, 10.0]", "[5.0, 5.0]"),
        ("t.numpy()[:] = 10", "t", "[10.0, 10.0]", "[5.0, 5.0]"),
        ("a[0] = 10", "a", "[10, 0]", "[5, 0]"),
        ("net.note = 10", "net", "10", "5"),
        ("big.add_(10)", "big", "10.0", "5.0"),
        ("unrelated = 10", "", "5", "5"),
    ],
)
def test_what_the_notebook_changed_meanwhile_is_kept_until_it_is_asked_for(
    kernel: NotebookKernel, change: str, name: str, mine: str, theirs: str
) -> None:
    kernel.run(
        """
        import torch, numpy as np
        class Net: pass
        x, data, t, a, net = 1, [1], torch.zeros(2), np.zeros(2, int), Net()
        big, net.note = torch.zeros(20_000_000), 1
        look = dict(x="globals().get('x')", data="data", t="t.tolist()", a="a.tolist()", net="net.note",
                    big="big[-1].item()")
        """
    ).check()
    own = {
        "x": "import json\nx = 5",
        "data": "data.append(5)",
        "t": "t.add_(5)",
        "a": "a[0] = 5",
        "net": "net.note = 5",
        "big": "big.add_(5)",
    }
    looked_at = name or "x"
    cell = begin(kernel, f"wait_for('go')\n{own[looked_at]}")
    kernel.run(change).check()
    tell(kernel)
    if name:
        wait_for_panel(cell, f"{name} has been bound or changed in the notebook since this run began")
        assert panels(cell)[-1]["text/plain"] == "train, 2 ranks: finished; what it changed waits"
        assert "train.wait() writes it over it, train.stop() drops it." in panels(cell)[-1]["text/html"]
        assert str(kernel.value(f"eval(look[{name!r}])")) == mine
        kernel.run("train.wait()").check()
    wait_for_panel(cell, "finished")
    assert "has been bound" not in panels(cell)[-1]["text/html"]
    assert str(kernel.value(f"eval(look[{looked_at!r}])")) == theirs


def test_the_second_of_two_runs_that_change_the_same_asks(kernel: NotebookKernel) -> None:
    kernel.run("import torch\nbig, data = torch.zeros(20_000_000), []").check()
    first = begin(kernel, "wait_for('go')\nbig.add_(1)\ndata.append(1)")
    code = "wait_for('again')\nbig.add_(2)\ndata.append(2)"
    second = kernel.run(f"%%distributed -d 2 --background second\n{code}", allow_stdin=True).check()
    tell(kernel)
    wait_for_panel(first, "finished")
    tell(kernel, "again")
    wait_for_panel(second, "data, big have been bound or changed in the notebook")
    assert kernel.value("big[-1].item(), data, second.status") == (1.0, [1], "finished")
    kernel.run("second.wait()").check()
    assert kernel.value("big[-1].item(), data") == (2.0, [2])


def test_the_notebooks_surroundings_stay_its_own(kernel: NotebookKernel) -> None:
    kernel.run(
        "import os, random, torch\ntorch.manual_seed(1)\nbefore = os.getcwd(), torch.get_rng_state()"
    ).check()
    begin(kernel, "os.chdir('/')\ntorch.rand(3)\nrandom.random()\nos.environ['NBDIST_TEST'] = '1'")
    kernel.run("train.wait()").check()
    assert kernel.value("os.getcwd() == before[0] and torch.equal(torch.get_rng_state(), before[1])") is True
    assert kernel.value("os.environ.get('NBDIST_TEST')") is None


# ── Failures, interrupts, ends ──────────────────────────────────────────────────────────────────────────────


def test_a_failure_stands_under_the_cell_and_is_raised_by_waiting(kernel: NotebookKernel) -> None:
    cell = begin(kernel, "print('before')\nx = 1\nif rank == 1:\n    raise ValueError('bad batch')\n")
    wait_for_panel(cell, "train, 2 ranks: failed", "text/plain")
    assert "before" in panels(cell)[-1]["text/html"]
    assert (
        "RankFailedError: rank 1 of 2 failed at line 5: ValueError: bad batch"
        in panels(cell)[-1]["text/html"]
    )
    assert kernel.value("train.status, x") == ("failed", 1)
    for way in ("train.wait()", "train.result"):
        run = kernel.run(way)
        assert run.error is not None
        assert (run.error.ename, run.error.evalue) == (
            "RankFailedError",
            "rank 1 of 2 failed at line 5: ValueError: bad batch",
        )


def test_an_interrupt_from_the_run_itself_stops_it_and_keeps_its_changes(kernel: NotebookKernel) -> None:
    kernel.run("import torch.distributed as dist").check()
    cell = begin(kernel, "x = 3\nprint('on the way')\nif rank == 0:\n    dist.barrier()\nwait_for('never')")
    wait_for_panel(cell, "on the way")
    kernel.run("train.interrupt()").check()
    wait_for_panel(cell, "train, 2 ranks: interrupted", "text/plain")
    assert kernel.value("x, train.status") == (3, "interrupted")
    run = kernel.run("train.wait()")
    assert run.error is not None
    assert (run.error.ename, run.error.evalue) == (
        "RunStopped",
        "the run was interrupted: all 2 ranks were stopped",
    )


def test_stop_ends_the_ranks_and_drops_what_they_did(kernel: NotebookKernel) -> None:
    cell = begin(
        kernel,
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nx = 3\nprint('there')\nwait_for('never')",
    )
    wait_for_panel(cell, "there")
    kernel.run("train.stop()\ntrain.stop()").check()
    assert panels(cell)[-1]["text/plain"] == "train, 2 ranks: stopped"
    assert kernel.value("'x' in globals(), train.status") == (False, "stopped")
    run = kernel.run("train.wait()")
    assert run.error is not None
    assert run.error.evalue == "the run was stopped; nothing of it is in the notebook"
    kernel.run("import nbdist").check()
    caught = "try:\n    train.result\nexcept Exception as error:\n    caught = type(error)\n"
    assert kernel.run(f"{caught}issubclass(caught, nbdist.RunStopped)").check().result == {
        "text/plain": "True"
    }


def test_commands_know_it_by_its_name(kernel: NotebookKernel) -> None:
    cell = begin(kernel, "x = 3\nprint('there', rank)\nwait_for('never')")
    wait_for_panel(cell, "there")
    (shown,) = kernel.run("%distributed status").check().displays
    title, _, *rows = shown["text/plain"].splitlines()
    assert title.startswith("background run train: 2 ranks, running (gloo, started by ")
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert "rank 1:\nthere 1\n" in kernel.run("%distributed logs").check().stdout
    assert kernel.run("%distributed logs 1 --name train").check().stdout == "there 1\n"
    poll_until(lambda: "wait_for" in kernel.run("%distributed stacks").check().stdout, 10, lambda: "no stack")
    second = kernel.run("%%distributed --background train\n1").error
    assert second is not None
    assert "--background train: a run of that name has ranks already (running)." in second.text
    assert (
        "background run train: %distributed stop --name train ends it"
        in kernel.run("%distributed stop").stdout
    )
    assert kernel.value("train.status") == "running"
    stopped = kernel.run("%distributed stop --name train").check()
    assert stopped.stdout == "background run train has ended.\n"
    assert kernel.value("train.status, 'x' in globals()") == ("stopped", False)
    assert kernel.run("%distributed status").check().stdout.startswith("No ranks are up.")


@pytest.mark.parametrize("method", METHODS)
def test_the_stop_button_is_none_of_its_business(method: str) -> None:
    """Some front ends signal all processes that the kernel has started."""
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist").check()
        kernel.run("import torch.distributed as dist").check()
        cell = begin(
            kernel,
            "print(f'pid{rank}={os.getpid()};')\nif rank == 0:\n    dist.barrier()\n"
            "wait_for('go')\nif rank:\n    dist.barrier()\nx = 3",
            f"--start-method {method}",
        )
        for rank in (0, 1):
            wait_for_panel(cell, f"pid{rank}=")
        page = panels(cell)[-1]["text/html"]
        pids = [int(page.split(f"pid{rank}=")[1].split(";")[0]) for rank in (0, 1)]
        other = kernel.start_run("print('here')\nwait_for('never')")
        other.wait_for_text("here")
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        kernel.interrupt()
        assert other.finish().error is not None
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        assert kernel.run("train.status").check().result == {"text/plain": "'running'"}
        tell(kernel)
        assert kernel.run("train.wait()\nprint(x, train.status)").check().stdout == "3 finished\n"


def test_an_interrupted_wait_leaves_the_run_alone(kernel: NotebookKernel) -> None:
    begin(kernel, "wait_for('go')\nx = 3")
    waiting = kernel.start_run("print('waiting')\ntrain.wait()")
    waiting.wait_for_text("waiting")
    kernel.interrupt()
    error = waiting.finish().error
    assert error is not None
    assert error.evalue == "nobody waits any more; the run goes on, run.interrupt() ends it"
    late = kernel.run("train.wait(timeout=0.01)")
    assert late.error is not None
    assert late.error.ename == "StillRunning"
    tell(kernel)
    assert kernel.run("train.wait()\nprint(x)").check().stdout == "3\n"


def test_another_thread_cannot_wait(kernel: NotebookKernel) -> None:
    begin(kernel, "pass")
    run = kernel.run(
        """
        import threading
        def wait():
            try:
                train.wait()
            except Exception as error:
                print(error)
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        """
    ).check()
    assert run.stdout.startswith(
        "A run is waited for in the main thread, which alone writes into the notebook."
    )


def test_unloading_ends_it(kernel: NotebookKernel) -> None:
    cell = begin(kernel, "print('there')\nwait_for('never')")
    wait_for_panel(cell, "there")
    kernel.run("%unload_ext nbdist").check()
    assert panels(cell)[-1]["text/plain"] == "train, 2 ranks: stopped"
    kernel.run("%load_ext nbdist").check()


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_nothing_outlives_the_kernel(end: str) -> None:
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist").check()
        cell = begin(kernel, "print('there')\nwait_for('never')")
        wait_for_panel(cell, "there")
        if end == "kill":
            kernel.kill()
        else:
            kernel.start_run("exit")
            poll_until(lambda: not kernel.alive, 20, lambda: "the kernel goes on")
        poll_until(lambda: not kernel.processes(), 10, lambda: f"still there: {kernel.processes()}")
        assert not list((kernel.folder / "tmp").glob("nbdist-*"))


# ── Side by side ────────────────────────────────────────────────────────────────────────────────────────────


def test_two_runs_a_cell_and_a_session_at_once(kernel: NotebookKernel) -> None:
    kernel.run("import torch, torch.distributed as dist\ndata = []").check()
    kernel.run("%distributed start -d 2", allow_stdin=True).check()
    begin(kernel, "wait_for('go')\nt = torch.ones(1)\ndist.all_reduce(t)\nx = t.item()")
    second = kernel.run(
        "%%distributed -d 3 --background\nwait_for('go')\nt = torch.ones(1)\ndist.all_reduce(t)\ny = t.item()",
        allow_stdin=True,
    ).check()
    kernel.run("second = Out[len(In) - 2]").check()
    live = kernel.run("%%distributed\nt = torch.ones(1)\ndist.all_reduce(t)\nz = t.item()").check()
    assert live.stderr == ""
    kernel.run("%distributed stop").check()
    kernel.run("%%distributed -d 2\nw = dist.get_world_size()\ndata.append(w)").check()
    assert kernel.value("train.status, second.status, z, w, data") == ("running", "running", 2.0, 2, [2])
    tell(kernel)
    kernel.run("second.wait()\ntrain.wait()").check()
    assert kernel.value("x, y") == (2.0, 3.0)
    assert panels(second)[-1]["text/plain"] == "run-1, 3 ranks: finished"


def test_it_can_be_a_function(kernel: NotebookKernel) -> None:
    prepare(kernel)
    kernel.run(
        """
        import nbdist
        def work(a, found):
            wait_for('go')
            found.append(a)
            return a * 2
        """
    ).check()
    cell = kernel.run(
        "found = []\nrun = nbdist.launch(work, 21, found, devices=2, background=True)", allow_stdin=True
    )
    assert cell.check().displays[0]["text/plain"] == "run-1, 2 ranks: running"
    tell(kernel)
    assert kernel.run("print(run.wait(), found)").check().stdout == "42 [21]\n"


def test_a_name_of_a_sessions_ranks_is_pointed_out(kernel: NotebookKernel) -> None:
    kernel.run("%distributed start --devices 2 --accelerator cpu").check()
    kernel.run("%%distributed\nlarge = [rank] * 1_000_000").check()
    cell = begin(kernel, "print(len(large))")
    wait_for_panel(cell, "large lives on the ranks of session main")
    wait_for_panel(cell, "train, 2 ranks: failed", "text/plain")
    kernel.run("%distributed stop").check()


def test_ranks_that_fail_are_not_held_in_the_background(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed -d 2 --background --hold\n1", allow_stdin=True)
    assert run.error is not None
    assert run.error.evalue.startswith("--hold: the ranks of a run in the background are not kept")


# ── Batch runs ──────────────────────────────────────────────────────────────────────────────────────────────


def execute(*cells: str, allow_errors: bool = False) -> list[list[dict[str, Any]]]:
    """The outputs of a notebook's cells, as nbclient has them."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=allow_errors).execute()
    return [cell.outputs for cell in notebook.cells]


def test_in_a_batch_run_the_cell_waits_and_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    outputs = execute(
        "%load_ext nbdist",
        "%%distributed -d 2 --background train\nprint('hello')\nx = 4\nx + 1",
        "print(x, train.status, train.result)",
    )[1:]
    assert [[output.output_type for output in cell] for cell in outputs] == [
        ["stream", "execute_result"],
        ["stream"],
    ]
    assert outputs[0][0].text == "hello\n"
    assert outputs[0][1].data == {"text/plain": "<nbdist.Run train on 2 ranks: finished>"}
    assert outputs[1][0].text == "4 finished 5\n"


def test_in_a_batch_run_a_failure_is_the_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(CellExecutionError, match="ValueError: bad batch"):
        execute("%load_ext nbdist", "%%distributed -d 2 --background\nraise ValueError('bad batch')")
