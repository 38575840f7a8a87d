"""Progress bars and widgets that are made in ranks, with the libraries that people use."""

from __future__ import annotations

import re

import pytest
from notebook_kernel import CellRun, NotebookKernel
from test_output import logs_of, on_a_screen

WIDGET_MIME = "application/vnd.jupyter.widget-view+json"

LOOPS = {
    "tqdm": "from tqdm import tqdm\nfor n in tqdm(range(40), desc='train'):\n    work()",
    "tqdm.auto": "from tqdm.auto import tqdm\nfor n in tqdm(range(40), desc='train'):\n    work()",
    "tqdm.notebook": "from tqdm.notebook import tqdm\nfor n in tqdm(range(40), desc='train'):\n    work()",
    "trange": "from tqdm.notebook import trange\nfor n in trange(40, desc='train', file=sys.stderr):\n    work()",
    "by hand": """
from tqdm.notebook import tqdm
with tqdm(total=40) as bar:
    bar.set_description("train")
    for n in range(40):
        work()
        bar.update()
del bar""",
    "rich": "from rich.progress import track\nfor n in track(range(40), description='[red]train'):\n    work()",
    "rich's tasks": """
from rich.progress import Progress
with Progress() as progress:
    task = progress.add_task("train", total=40)
    while not progress.finished:
        work()
        progress.advance(task)
del progress""",
    "a widget": """
import ipywidgets
widget = ipywidgets.IntProgress(max=40, description="train")
display(widget)
for n in range(40):
    work()
    widget.value += 1
del widget""",
    "a widget in a box": """
import ipywidgets
widget, label = ipywidgets.FloatProgress(min=2, max=42, value=2), ipywidgets.Label("train")
display(ipywidgets.VBox([ipywidgets.HBox([label, widget])]))
for n in range(40):
    work()
    widget.value += 1
del widget, label""",
    "HTML": """
from IPython.display import HTML
def page(n):
    return HTML(f"<div><style>x {{}}</style><progress value='{n}' max='40'></progress> train {n}/40</div>")
handle = display(page(0), display_id=True)
for n in range(40):
    work()
    handle.update(page(n + 1))
del handle""",
}
"""Loops of 40 steps, each with the bar `train`."""

BEGIN = """\
import os, sys, time
def work():
    global n_done
    n_done += 1
    time.sleep(0.01)
    while rank == 0 and os.path.exists("stop") and n_done == 30:
        time.sleep(0.01)
"""


def no_widgets(run: CellRun) -> None:
    """A front end gets nothing that only a widget's own process could answer."""
    assert not [message.msg_type for message in run.messages if message.msg_type.startswith("comm")]
    data = [message.content.get("data", {}) for message in run.messages]
    assert not [bundle for bundle in data if WIDGET_MIME in bundle]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_bar_of_four_ranks_is_one_line(kernel: NotebookKernel, loop: str) -> None:
    run = kernel.run(f"%%distributed --devices 4\n{BEGIN}n_done = 0\n{LOOPS[loop]}\nprint('trained')").check()
    no_widgets(run)
    assert run.displays == []
    lines = (run.stdout + run.stderr).splitlines()
    assert lines.count("trained") == 1
    (bar,) = [line for line in lines if line != "trained"]
    assert "\r" not in bar
    assert re.search(r"100%\|█{10}\| ", bar)
    assert "train" in bar
    assert "40/40" in bar
    # The notebook's own widgets are as they were.
    assert kernel.terminal == ""


@pytest.mark.parametrize("loop", LOOPS)
def test_a_live_bar_of_four_ranks_is_one_line_that_updates(kernel: NotebookKernel, loop: str) -> None:
    stop = kernel.working_folder / "stop"
    stop.touch()
    cell = f"%%distributed --devices 4\n{BEGIN}n_done = 0\n{LOOPS[loop]}\nprint('trained')"
    run = kernel.start_run(cell, allow_stdin=True)
    half_way = re.compile(r"[1-9]\d%\|")  # of the last rank, which stands still there
    kernel.wait_for(lambda: bool(half_way.search(run.stdout + run.stderr)), 30, "a bar", run)
    stop.unlink()
    run.finish().check()
    no_widgets(run)
    assert run.displays == []
    lines = on_a_screen(run.stdout) + on_a_screen(run.stderr)
    assert [line for line in lines if line.endswith("trained")]
    bars = [line for line in lines if "trained" not in line and line]
    assert len(bars) == 1, lines
    assert "100%" in bars[0]
    assert all("100%" in log for log in logs_of(kernel))


def test_the_log_of_a_rank_has_its_bars(kernel: NotebookKernel) -> None:
    kernel.run(f"%%distributed --devices 2\n{BEGIN}n_done = 0\n{LOOPS['tqdm.notebook']}").check()
    for log in logs_of(kernel):
        assert log.startswith("\rtrain:   0%|          | 0/40 [")
        assert re.search(r"\rtrain: 100%\|█{10}\| 40/40 \[[^\r\n]*\]\n$", log)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_bars_in_ranks_that_are_no_forks_of_the_kernel(method: str) -> None:
    loops = "\n".join(LOOPS[name] for name in ("tqdm", "tqdm.notebook", "rich", "a widget"))
    cell = f"%%distributed --devices 2 --start-method {method}\n{BEGIN}n_done = 0\n{loops}"
    with NotebookKernel() as kernel:  # of its own: it keeps its fork server
        kernel.run("%load_ext nbdist").check()
        run = kernel.run(cell).check()
    no_widgets(run)
    bars = [line for line in (run.stdout + run.stderr).splitlines() if line]
    assert len(bars) == 4
    assert all(line.startswith("train: 100%|██████████| 40/40 [") for line in bars)


@pytest.mark.parametrize("module", ["tqdm", "tqdm.notebook"])
def test_nested_bars_leave_what_they_would_leave_in_an_ordinary_cell(
    kernel: NotebookKernel, module: str
) -> None:
    run = kernel.run(
        f"""
        %%distributed --devices 4
        from {module} import tqdm
        for epoch in tqdm(range(3), desc="epochs"):
            for n in tqdm(range(30), desc=f"epoch {{epoch}}", leave=epoch == 1):
                pass
            print("epoch", epoch)
        """
    ).check()
    assert re.sub(r"%.*", "%", run.stdout + run.stderr) in (
        "epoch 0\nepoch 1\nepoch 2\nepoch 1: 100%\nepochs: 100%\n",
        "epoch 0\nepoch 1: 100%\nepoch 1\nepoch 2\nepochs: 100%\n",
    )


def test_ranks_that_are_out_of_step_have_one_bar_all_the_same(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 4
        import time
        from tqdm.notebook import tqdm
        for epoch in range(2):
            for n in tqdm(range(20), desc=f"epoch {epoch}"):
                time.sleep(0.01 * (rank + 1))
        """,
        allow_stdin=True,
    ).check()
    bars = [line for line in on_a_screen(run.stdout) if line]
    assert [bar.partition("|")[0] for bar in bars] == ["epoch 0: 100%", "epoch 1: 100%"]


def test_a_bar_that_is_on_one_rank_alone_carries_its_label(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        from tqdm.auto import tqdm
        for n in tqdm(range(20), desc="mine", disable=rank != 1):
            pass
        """
    ).check()
    assert run.stdout.startswith("[1] mine: 100%|")


def test_a_bar_shows_how_far_it_came(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        from tqdm.notebook import tqdm
        for n in tqdm(range(10), desc="train"):
            if n == 4:
                raise ValueError("here")
        """
    )
    assert run.error is not None
    assert run.stdout.startswith("train:  40%|████      | 4/10 [")


def test_a_bar_that_is_left_by_break_ends_there(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        from tqdm.auto import tqdm
        for n in tqdm(range(10), desc="train"):
            if n == 4:
                break
        print("after it")
        """
    ).check()
    assert [line.partition("|")[0] for line in run.stdout.splitlines()] == ["train:  40%", "after it"]


def test_bars_say_what_tqdm_would_say(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        from tqdm.notebook import tqdm as widget_bar
        from tqdm import tqdm as text_bar
        for tqdm in (widget_bar, text_bar):
            with tqdm(total=2048, desc="<a> & b", unit="B", unit_scale=True, unit_divisor=1024) as bar:
                bar.set_postfix(loss=0.5)
                bar.update(2048)
            for n in tqdm(iter(range(7)), desc="endless"):
                pass
        for n in text_bar(range(3), bar_format="step {n} of {total}"):
            pass
        del bar
        """
    ).check()
    lines = [re.sub(r"\[.*?, *[^ ]*?/s", "[", line) for line in (run.stdout + run.stderr).splitlines()]
    assert lines == [
        "<a> & b: 100%|██████████| 2.00k/2.00k [, loss=0.5]",
        "endless: 7/? []",
        "<a> & b: 100%|██████████| 2.00k/2.00k [, loss=0.5]",
        "endless: 7it []",
        "step 3 of 3",
    ]


@pytest.mark.parametrize("module", ["tqdm", "tqdm.auto", "tqdm.notebook", "tqdm.asyncio"])
def test_a_bar_that_has_ended_comes_back(kernel: NotebookKernel, module: str) -> None:
    cell = f"""
        %%distributed --devices 2
        from {module} import tqdm
        with tqdm(total=3, desc="held") as bar:
            for step in range(3):
                bar.update()
        beside = [bar, tqdm([1], disable=True)]
        """
    run = kernel.run(cell).check()
    assert "stays behind" not in run.stderr
    after = (
        "bar.update()\nbar.close()\nprint(bar.n, bar.total, str(bar)[:10], beside[0] is bar, list(beside[1]))"
    )
    assert kernel.run(after).check().stdout == "3 3 held: 100% True [1]\n"
    assert kernel.run("from tqdm import tqdm as t\nt(range(3)).pos").check().result == {"text/plain": "0"}


def test_a_bar_that_is_open_says_why_it_stays(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 2\nfrom tqdm import tqdm\nbar = tqdm(range(3))").check()
    assert run.stderr.endswith(
        "nbdist: bar stays behind: a progress bar that is open works only on its own rank\n"
    )


def test_text_beside_a_bar_stays_text(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import io
        from tqdm import tqdm
        from rich.console import Console
        from rich.progress import track
        file = io.StringIO()
        for n in tqdm(range(3), file=file):
            tqdm.write(f"step {n}")
        print("100%" in file.getvalue())
        for n in track(range(3), description="quiet", transient=True):
            pass
        with Console().status("waiting"):
            print("in between")
        """
    ).check()
    assert run.stdout == "step 0\nstep 1\nstep 2\nTrue\n"
    assert [display["text/plain"] for display in run.displays] == ["in between\n"]


def test_the_last_state_of_a_live_table_is_shown(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        from rich.live import Live
        with Live("begun") as live:
            for n in range(3):
                live.update(f"step {'abc'[n]}", refresh=True)
        del live
        """
    ).check()
    assert [display["text/plain"] for display in run.displays] == ["step c\n"]


def test_what_columns_of_a_rich_bar_say_stands_behind_it(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}")
        with Progress(*columns) as progress:
            task = progress.add_task("train", total=4, loss=None)
            for loss in (4, 3, 2, 1):
                progress.update(task, advance=1, loss=loss)
        del progress, columns
        """
    ).check()
    assert run.stdout.rsplit("\r")[-1] == "train: 100%|██████████| 4/4 loss 1\n"


def test_an_html_page_that_holds_more_than_bars_is_shown(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        from IPython.display import HTML
        bar = "<progress value='1' max='4'></progress> 1/4"
        handle = display(HTML(bar), display_id="page")
        handle.update(HTML(f"<div>{bar}</div><table><tr><td>loss</td></tr></table>"))
        handle.update(HTML("<p>done</p>"))
        del handle
        """
    ).check()
    kinds = [
        (message.msg_type, message.content["data"]["text/html"])
        for message in run.messages
        if message.msg_type.endswith("display_data")
    ]
    assert [kind for kind, _ in kinds] == ["display_data", "update_display_data"]
    assert "<table>" in kinds[0][1]
    assert kinds[1][1] == "<p>done</p>"
    assert run.stdout == ""


# ── Other widgets ───────────────────────────────────────────────────────────────────────────────────────────


def test_other_widgets_say_once_that_they_stay_behind(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import ipywidgets
        for n in range(3):
            display(ipywidgets.IntSlider(), ipywidgets.HBox([ipywidgets.Button(), ipywidgets.Label("x")]))
        ipywidgets.interact(lambda x: print("x is", x), x=3);
        """
    ).check()
    no_widgets(run)
    what = "is not shown: a widget works only in the notebook's own process"
    assert [line.partition(" is not")[0] for line in run.stderr.splitlines() if what in line] == [
        "nbdist: IntSlider",
        "nbdist: Button",
    ]
    assert run.stdout == "x is 3\n"
    assert kernel.terminal == ""


def test_a_widget_as_the_cells_value_is_no_dead_view(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 2\nimport ipywidgets\nipywidgets.IntSlider()").check()
    no_widgets(run)
    assert "the result stays behind" in run.stderr
    for name in ("tqdm(range(2))", "ipywidgets.IntProgress(max=3)"):
        bar = kernel.run(f"%%distributed --devices 2\nfrom tqdm.notebook import tqdm\n{name}").check()
        no_widgets(bar)


def test_what_is_printed_in_an_output_widget_is_shown_in_the_cell(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import ipywidgets
        out = ipywidgets.Output()
        display(out)
        print("before")
        with out:
            print("in it")
            display("shown in it")
        out.clear_output()
        del out
        """
    ).check()
    no_widgets(run)
    assert "nbdist: Output is not shown" in run.stderr
    assert run.stdout == "before\nin it\n"
    assert [display["text/plain"] for display in run.displays] == ["'shown in it'"]
    assert not list(run.contents("clear_output"))


def test_widgets_of_the_notebook_can_be_used_and_stay_the_notebooks(kernel: NotebookKernel) -> None:
    kernel.run("import ipywidgets\nslider = ipywidgets.IntSlider(value=1)\nslider").check()
    run = kernel.run(
        "%%distributed --devices 2\nslider.value += 1\nprint(slider.value)\nslider.close()", timeout_s=60
    ).check()
    assert not [message for message in run.messages if message.msg_type.startswith("comm")]
    assert run.stdout == "2\n"
    here = kernel.run("slider.description = 'mine'").check()
    assert [message.msg_type for message in here.messages if message.msg_type == "comm_msg"] == ["comm_msg"]
    kernel.run("slider.close()").check()


def test_nothing_is_imported_for_widgets_that_are_not_used(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import sys
        before = set(sys.modules)
        from tqdm import tqdm
        for n in tqdm(range(2)):
            display("x")
        print(any(name.startswith(("ipywidgets", "rich", "tqdm.notebook")) for name in sys.modules.keys() - before))
        """
    ).check()
    assert run.stdout == "False\n"
