"""The dashboard as a front end gets it from a real kernel: when it opens, what goes to it, what stays."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from notebook_kernel import CellRun, Message, NotebookKernel

VIEW = "application/vnd.jupyter.widget-view+json"

TRAIN = """\
%%distributed -d 2
import time, nbdist
for step in range(150):
    nbdist.log(step=step, loss=1 / (step + 1) + rank)
    if step % 50 == 0:
        print("at step", step)
    time.sleep(0.015)
print("the last line")
"""
"""Takes more than two seconds."""

LONG = "%%distributed -d 2\nimport time\nprint('up')\ntime.sleep(60)"

OPEN_WIDGETS = """\
(lambda module: len(module._instances if hasattr(module, "_instances") else module.Widget.widgets))(
    __import__("ipywidgets").widgets.widget)"""
OPEN_COMMS = "len(get_ipython().kernel.comm_manager.comms)"


@dataclass
class Page:
    """A page's part of a widget: keeps the picture as `dashboard.js` does.

    Attributes:
        patches_s: when each patch was sent, by the kernel's clock.
    """

    comm_id: str
    picture: dict[str, Any] = field(default_factory=dict)
    number: int = -1
    patches_s: list[float] = field(default_factory=list)
    is_closed: bool = False

    def take(self, message: Message) -> None:
        """Take a message of the widget's comm."""
        if message.msg_type == "comm_close":
            self.is_closed = True
            return
        data = message.content["data"]
        if "state" in data and "keyframe" in data["state"]:
            self.number, self.picture = (data["state"]["keyframe"][key] for key in ("number", "picture"))
        elif data.get("method") == "custom":
            patch = data["content"]
            assert patch["kind"] == "patch"
            assert patch["number"] == self.number + 1, "a patch was lost, or came twice"
            self.number = patch["number"]
            self.patches_s.append(patch["now_ms"] / 1000)
            before = json.loads(json.dumps(self.picture))
            self.picture = patched(before, patch["patch"])


def patched(target: Any, patch: Any) -> Any:
    """A JSON Merge Patch, as RFC 7396 writes it down."""
    if not isinstance(patch, dict):
        return patch
    target = target if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = patched(target.get(name), value)
    return target


def messages(kernel: NotebookKernel, since: CellRun) -> list[Message]:
    """All that has come since a cell was sent, whichever cell ipykernel filed it under."""
    runs = [run for run in list(kernel._runs.values()) if run.sent_s >= since.sent_s]
    return sorted((one for run in runs for one in list(run.messages)), key=lambda one: one.time_s)


def pages(run: CellRun) -> list[Page]:
    """The widgets that were opened since, as they are now."""
    found: dict[str, Page] = {}
    for message in messages(run.kernel, run):
        comm_id = message.content.get("comm_id", "")
        if message.msg_type == "comm_open":
            state = message.content["data"]["state"]
            if state.get("_model_module") == "anywidget":
                found[comm_id] = Page(comm_id)
        if comm_id in found:
            found[comm_id].take(message)
    return list(found.values())


def shows(run: CellRun) -> list[tuple[str, dict[str, Any]]]:
    """The displays of a cell and their updates, as message types and mime bundles."""
    return [
        (message.msg_type, message.content["data"])
        for message in messages(run.kernel, run)
        if message.msg_type in ("display_data", "update_display_data")
    ]


def watched(kernel: NotebookKernel, code: str) -> CellRun:
    """Run a cell as a front end does in which somebody looks on."""
    return kernel.run(code, allow_stdin=True)


def most_in_a_second(times_s: list[float]) -> int:
    return max((sum(begun <= one < begun + 1 for one in times_s) for begun in times_s), default=0)


def choose(kernel: NotebookKernel, code: str) -> None:
    kernel.run(f"import os, sys\n{code}", store_history=False).check()


@pytest.fixture
def widgets(kernel: NotebookKernel) -> Iterator[NotebookKernel]:
    """The kernel of a front end that shows widgets; no widget, comm or thread may be left when the
    extension is."""
    choose(kernel, "import anywidget\nos.environ['NBDIST_DASHBOARD'] = 'widget'")
    before = kernel.value(OPEN_WIDGETS), kernel.value(OPEN_COMMS)
    yield kernel
    kernel.run("%unload_ext nbdist").check()
    assert (kernel.value(OPEN_WIDGETS), kernel.value(OPEN_COMMS)) == before
    kernel.run("%load_ext nbdist").check()
    choose(kernel, "os.environ['NBDIST_DASHBOARD'] = 'none'")


@pytest.fixture
def plain(kernel: NotebookKernel) -> Iterator[NotebookKernel]:
    """The kernel of a front end of which nothing was said."""
    choose(kernel, "del os.environ['NBDIST_DASHBOARD']")
    yield kernel
    choose(kernel, "os.environ['NBDIST_DASHBOARD'] = 'none'")


def assert_stays(run: CellRun, text: str) -> str:
    """The last thing shown is a still page, in the place of the first one; its HTML."""
    kind, data = shows(run)[-1]
    assert kind == "update_display_data"
    assert set(data) == {"text/html", "text/plain"}
    assert data["text/plain"] == text
    return str(data["text/html"])


# ── As a widget ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cell_of_more_than_a_second_has_one_panel_and_nothing_is_lost(widgets: NotebookKernel) -> None:
    run = watched(widgets, TRAIN).check()
    (page,) = pages(run)
    first, last = shows(run)
    assert first == (
        "display_data",
        {
            VIEW: {"version_major": 2, "version_minor": 0, "model_id": page.comm_id},
            "text/plain": "cell: running on 2 ranks",
        },
    )
    assert last[0] == "update_display_data"
    html = assert_stays(run, "cell: finished on 2 ranks")
    assert "the last line" in html
    picture = page.picture
    assert picture["heading"]["state"] == "finished"
    assert [one["metrics"]["loss"] for one in picture["ranks"].values()] == [1 / 150, 1 / 150 + 1]
    assert picture["charts"]["loss"]["points"] == 300
    assert [line["text"] for line in picture["log"]["lines"].values()][-1] == "the last line"
    assert run.stdout.endswith("the last line\n")


def test_patches_come_ten_times_a_second_at_most_and_end_in_the_last_picture(widgets: NotebookKernel) -> None:
    run = watched(widgets, TRAIN).check()
    (page,) = pages(run)
    assert len(page.patches_s) >= 5
    assert most_in_a_second(page.patches_s) <= 11  # one more may be the last, which waits for nobody
    by_patches = Page(page.comm_id)
    for message in messages(widgets, run):
        if message.content.get("comm_id") == page.comm_id:
            is_keyframe = "keyframe" in message.content["data"].get("state", {})
            if not (is_keyframe and by_patches.picture):
                by_patches.take(message)
    assert without_none(by_patches.picture) == without_none(page.picture)


def test_the_log_knows_who_printed_a_line_that_looks_like_another_ranks(widgets: NotebookKernel) -> None:
    code = """\
%%distributed -d 4
import sys, time
print("[0] of all")
print("[2] of some" if rank else "mine")
if rank == 3:
    print("[0] 10%\\r[0] done", file=sys.stderr)
    print("\\x1b[32m[1] green\\x1b[0m")
time.sleep(1.5)
"""
    run = watched(widgets, code).check()
    green = "\x1b[32m[1] green\x1b[0m"
    assert run.stdout == f"[0] of all\n[0] mine\n[1-3] [2] of some\n[3] {green}\n"
    (page,) = pages(run)
    lines = [(one["of"], one["text"]) for one in page.picture["log"]["lines"].values()]
    assert lines[:3] == [([], "[0] of all"), ([0], "mine"), ([1, 2, 3], "[2] of some")]
    assert sorted(lines[3:]) == [([3], green), ([3], "[0] done")]
    html = assert_stays(run, "cell: finished on 4 ranks")
    own = [re.findall(r"mine|of all|of some|done|green", part) for part in html.split("<summary")[-4:]]
    assert own[:3] == [["mine"], ["of some"], ["of some"]]
    assert sorted(own[3]) == ["done", "green", "of some"]


def without_none(value: Any) -> Any:
    """For a patch what is None and what is not there are the same."""
    if isinstance(value, dict):
        return {name: without_none(inner) for name, inner in value.items() if inner is not None}
    return value


def test_a_short_cell_has_none_and_sends_nothing_more(widgets: NotebookKernel) -> None:
    run = watched(widgets, "%%distributed -d 2\nif rank == 0: print('short')").check()
    assert [one.msg_type for one in run.messages] == ["status", "execute_input", "stream", "status"]
    run = watched(widgets, "%%distributed -d 2\nimport nbdist\nnbdist.log(step=1, loss=0.5)").check()
    assert pages(run) == []
    ((kind, data),) = shows(run)
    assert (kind, set(data), data["text/plain"]) == (
        "display_data",
        {"text/html", "text/plain"},
        "cell: finished on 2 ranks",
    )


def test_nothing_of_it_is_imported_before() -> None:
    with NotebookKernel({"NBDIST_DASHBOARD": "widget", "CUDA_VISIBLE_DEVICES": ""}) as fresh:
        fresh.run("%load_ext nbdist").check()
        watched(fresh, "%%distributed -d 2\nprint('short')").check()
        loaded = "[name for name in ('anywidget', 'ipywidgets', 'rich') if name in __import__('sys').modules]"
        assert fresh.value(loaded) == []


def test_a_run_in_which_nothing_changes_gives_a_sign_of_life(widgets: NotebookKernel) -> None:
    run = watched(widgets, "%%distributed -d 1\nimport time\ntime.sleep(13)").check()
    (page,) = pages(run)
    words_s = [
        message.time_s for message in messages(widgets, run) if message.content.get("comm_id") == page.comm_id
    ]
    assert len(words_s) > 3
    assert max(after - before for before, after in pairwise(words_s)) < 6


def test_a_loss_that_is_not_finite_is_seen(widgets: NotebookKernel) -> None:
    code = TRAIN.replace("loss=1 / (step + 1) + rank", "loss=float('nan') if step > 10 else 1.0")
    run = watched(widgets, code).check()
    (page,) = pages(run)
    assert [one["metrics"] for one in page.picture["ranks"].values()] == [{"loss": "nan"}] * 2
    assert page.picture["charts"]["loss"]["mean"][10:] == [1.0, *["nan"] * 139]
    assert "loss nan" in re.sub("<[^>]*>", "", assert_stays(run, "cell: finished on 2 ranks"))


def test_a_failing_cell_ends_on_its_failure(widgets: NotebookKernel) -> None:
    code = (
        "%%distributed -d 2\nimport time\ntime.sleep(1.5)\nif rank == 1:\n    raise ValueError('bad batch')"
    )
    run = watched(widgets, code)
    assert run.error is not None
    assert run.error.ename == "RankFailedError"
    (page,) = pages(run)
    assert page.picture["heading"]["state"] == "failed"
    assert "bad batch" in assert_stays(run, "cell: failed on rank 1 of 2: ValueError: bad batch")


def test_an_interrupted_cell_ends_so(widgets: NotebookKernel) -> None:
    run = widgets.start_run(LONG, allow_stdin=True)
    widgets.wait_for(lambda: bool(pages(run)), 30, "the panel", run)
    widgets.interrupt()
    run.finish()
    assert run.error is not None
    assert run.error.ename == "KeyboardInterrupt"
    assert_stays(run, "cell: interrupted on 2 ranks")


@pytest.mark.parametrize("open_s", [0.9, 1.0, 1.02, 1.05, 1.1, 1.2])
def test_an_interrupt_while_it_opens_ends_the_cell(widgets: NotebookKernel, open_s: float) -> None:
    """Whenever it comes, it is neither lost nor does it leave half a panel."""
    run = widgets.start_run(LONG, allow_stdin=True).wait_for_text("up")
    due_s = run.sent_s + open_s
    with widgets._changed:  # no message ends this wait: the moment is what is wanted
        while (left_s := due_s - _now_s()) > 0:
            widgets._changed.wait(left_s)
    widgets.interrupt()
    pressed_s = _now_s()
    run.finish()
    assert run.error is not None
    assert run.error.ename == "KeyboardInterrupt"
    assert run.idle_s is not None
    assert run.idle_s - pressed_s < 2
    if shows(run):
        assert_stays(run, "cell: interrupted on 2 ranks")


def _now_s() -> float:
    return time.monotonic()


@pytest.mark.parametrize("which", ["heading", "close"])
def test_an_interrupt_while_it_closes_leaves_the_last_page(widgets: NotebookKernel, which: str) -> None:
    code = "%%distributed -d 2\nimport time\ntime.sleep(1.5)\nprint('done')"
    run = widgets.start_run(code, allow_stdin=True)

    def is_closing() -> bool:
        states = [page.picture["heading"]["state"] for page in pages(run)]
        return "finished" in states if which == "heading" else "done" in run.stdout

    widgets.wait_for(is_closing, 30, "the end", run)
    widgets.interrupt()
    pressed_s = _now_s()
    run.finish()
    assert run.idle_s is not None
    assert run.idle_s - pressed_s < 2
    assert shows(run)[-1][1]["text/plain"] in ("cell: finished on 2 ranks", "cell: interrupted on 2 ranks")
    assert_stays(run, shows(run)[-1][1]["text/plain"])
    assert watched(widgets, "%%distributed -d 2\n'next'").check().result == {"text/plain": "'next'"}


def test_widgets_stay_for_pages_that_come_late_but_not_for_ever(widgets: NotebookKernel) -> None:
    code = "%%distributed -d 2\nimport time\ntime.sleep(1.2)"
    runs = [watched(widgets, code).check() for _ in range(6)]
    first, *others = [page for run in runs for page in pages(run)]
    told = widgets.tell_widget(others[-1].comm_id, {"kind": "picture"})
    widgets.wait_for(lambda: told.idle_s is not None, 30, "the answer", told)
    (again,) = (one for one in told.messages if one.msg_type == "comm_msg")
    assert again.content["data"]["state"]["keyframe"]["picture"]["heading"]["state"] == "finished"
    closed = [one.content["comm_id"] for run in runs for one in run.messages if one.msg_type == "comm_close"]
    assert first.comm_id in closed
    assert others[-1].comm_id not in closed


def test_a_widget_can_be_kept() -> None:
    with NotebookKernel({"NBDIST_DASHBOARD": "widget", "NBDIST_KEEP_WIDGET": "1"}) as kept:
        kept.run("%load_ext nbdist").check()
        run = watched(kept, "%%distributed -d 2\nimport time\ntime.sleep(1.3)\nprint('end')").check()
        (page,) = pages(run)
        assert not page.is_closed
        assert page.picture["heading"]["state"] == "finished"
        assert [kind for kind, _ in shows(run)] == ["display_data"]
        told = kept.tell_widget(page.comm_id, {"kind": "picture"})  # a page that was loaded anew
        kept.wait_for(lambda: told.idle_s is not None, 30, "the answer", told)
        (again,) = (one for one in told.messages if one.msg_type == "comm_msg")
        assert again.content["data"]["state"]["keyframe"]["picture"] == page.picture


# ── A run in the background ─────────────────────────────────────────────────────────────────────────────────


def in_background(kernel: NotebookKernel, code: str) -> CellRun:
    return watched(kernel, f"%%distributed -d 2 --background train\n{code}").check()


def test_a_button_stops_a_run_in_the_background(widgets: NotebookKernel) -> None:
    run = in_background(widgets, "import time\ntime.sleep(60)")
    (page,) = pages(run)
    assert page.picture["heading"]["button"] == "interrupt"
    widgets.tell_widget(page.comm_id, {"kind": "interrupt"})
    widgets.wait_for(lambda: shows(run)[-1][0] == "update_display_data", 30, "the end of the run", run)
    assert pages(run)[0].picture["heading"]["state"] == "interrupted"
    assert_stays(run, "train: interrupted on 2 ranks")


def test_a_run_whose_changes_wait_says_how_to_go_on_until_they_are_bound(widgets: NotebookKernel) -> None:
    run = in_background(widgets, "import time\ntime.sleep(1)\nx = 7")
    widgets.run("x = 100").check()
    widgets.wait_for(lambda: pages(run)[0].picture["heading"]["hint"], 30, "the word", run)
    heading = pages(run)[0].picture["heading"]
    assert (heading["state"], heading["told"]) == ("finished", "finished; what it changed waits")
    assert heading.get("button") is None
    assert "train.wait() writes it over it" in heading["hint"]
    widgets.run("import time\ntime.sleep(3)\ntrain.wait()").check()
    html = assert_stays(run, "train: finished on 2 ranks")
    assert "waits" not in html
    assert 1000 <= heading["ended_ms"] - heading["begun_ms"] < 3000
    assert pages(run)[0].picture["heading"]["ended_ms"] == pytest.approx(heading["ended_ms"], abs=1)


def test_a_run_without_a_name_is_called_as_status_calls_it(widgets: NotebookKernel) -> None:
    run = watched(widgets, "%%distributed -d 2 --background\nimport time\ntime.sleep(60)").check()
    (page,) = pages(run)
    assert page.picture["heading"]["title"] == "run-1"
    (status,) = widgets.run("%distributed status").check().displays
    assert status["text/plain"].startswith("background run run-1: 2 ranks")
    widgets.run("%distributed stop --name run-1").check()
    assert_stays(run, "run-1: stopped on 2 ranks")


def test_a_page_that_was_loaded_anew_gets_the_whole_picture(widgets: NotebookKernel) -> None:
    run = in_background(widgets, "import time\nprint('up')\ntime.sleep(60)")
    (page,) = pages(run)
    told = widgets.tell_widget(page.comm_id, {"kind": "picture"})
    widgets.wait_for(lambda: told.idle_s is not None, 30, "the answer", told)
    states = [one.content["data"].get("state", {}) for one in told.messages if one.msg_type == "comm_msg"]
    assert any("keyframe" in state for state in states)
    watched(widgets, "train.stop()").check()
    assert_stays(run, "train: stopped on 2 ranks")


def test_ranks_fork_while_a_panel_is_written(widgets: NotebookKernel) -> None:
    flood = "import nbdist\nstep = 0\nwhile True:\n    step += 1\n    print(step)\n    nbdist.log(step=step, a=step)"
    background = in_background(widgets, flood)
    for number in range(20):
        cell = f"%%distributed -d 2\nif rank == 0:\n    print('cell', {number})\n{number}"
        run = watched(widgets, cell).check()
        assert (run.stdout, run.stderr) == (f"[0] cell {number}\n", "")
        assert run.result == {"text/plain": str(number)}
    watched(widgets, "train.stop()").check()
    assert_stays(background, "train: stopped on 2 ranks")


# ── Where there are no widgets ──────────────────────────────────────────────────────────────────────────────


def assert_html(run: CellRun) -> None:
    """It was shown as HTML that was written anew, not too often."""
    assert list(run.contents("comm_open")) == []
    kinds = [kind for kind, _ in shows(run)]
    assert 3 <= len(kinds) <= 2 * run.duration_s + 2  # the first and the last one wait for nobody
    assert kinds == ["display_data", *["update_display_data"] * (len(kinds) - 1)]
    assert all(set(data) == {"text/html", "text/plain"} for _, data in shows(run))
    assert "loss" in assert_stays(run, "cell: finished on 2 ranks")


def test_html_can_be_chosen(plain: NotebookKernel) -> None:
    choose(plain, "os.environ['NBDIST_DASHBOARD'] = 'html'")
    assert_html(watched(plain, TRAIN).check())


def test_a_choice_that_is_none_is_told_once(plain: NotebookKernel) -> None:
    choose(plain, "os.environ['NBDIST_DASHBOARD'] = 'hmtl'")
    first, again = (watched(plain, "%%distributed -d 2\nprint('up')").check() for _ in range(2))
    assert first.stderr == (
        "nbdist: NBDIST_DASHBOARD=hmtl: no such dashboard. Allowed: widget, html, none. What fits is taken.\n"
    )
    assert again.stderr == ""
    choose(plain, "os.environ['NBDIST_DASHBOARD'] = 'wigdet'")
    run = watched(plain, "%%distributed -d 2 --background train\nprint('up')").check()
    assert "NBDIST_DASHBOARD=wigdet: no such dashboard." in run.stderr
    plain.run("train.wait()").check()


def test_kaggle_gets_html(plain: NotebookKernel) -> None:
    choose(plain, "os.environ['KAGGLE_KERNEL_RUN_TYPE'] = 'Interactive'")
    run = watched(plain, TRAIN).check()
    choose(plain, "del os.environ['KAGGLE_KERNEL_RUN_TYPE']")
    assert_html(run)


def test_without_anywidget_there_is_html(plain: NotebookKernel) -> None:
    choose(plain, "former = sys.modules.get('anywidget')\nsys.modules['anywidget'] = None")
    run = watched(plain, TRAIN).check()
    choose(plain, "sys.modules['anywidget'] = former\nif former is None: del sys.modules['anywidget']")
    assert_html(run)


def test_another_version_of_anywidget_in_the_front_end_gets_html(plain: NotebookKernel) -> None:
    package = plain.working_folder / "prefix/share/jupyter/labextensions/anywidget/package.json"
    package.parent.mkdir(parents=True)
    package.write_text('{"name": "anywidget", "version": "0.0.1"}')
    choose(plain, "former = sys.prefix\nsys.prefix = os.path.abspath('prefix')")
    run = watched(plain, TRAIN).check()
    choose(plain, "sys.prefix = former\nimport shutil\nshutil.rmtree('prefix')")
    assert_html(run)


def test_a_front_end_that_never_answers_gets_html_the_third_time() -> None:
    cell = "%%distributed -d 2\nimport time\ntime.sleep(1.3)"
    with NotebookKernel({"NBDIST_DASHBOARD": None, "CUDA_VISIBLE_DEVICES": ""}) as silent:
        silent.run("%load_ext nbdist").check()
        assert [len(pages(watched(silent, cell).check())) for _ in range(3)] == [1, 1, 0]


def test_a_front_end_that_answers_keeps_its_widgets() -> None:
    with NotebookKernel({"NBDIST_DASHBOARD": None, "CUDA_VISIBLE_DEVICES": ""}) as answering:
        answering.run("%load_ext nbdist").check()
        for _ in range(3):
            run = in_background(answering, "import time\ntime.sleep(60)")
            (page,) = pages(run)
            told = answering.tell_widget(page.comm_id, {"kind": "hello"})
            answering.wait_for(lambda told=told: told.idle_s is not None, 30, "its being heard", told)
            watched(answering, "train.stop()").check()


def test_nobody_wants_one(widgets: NotebookKernel) -> None:
    cell = TRAIN.replace("-d 2", "-d 2 --no-dashboard")
    run = watched(widgets, cell).check()
    assert {one.msg_type for one in run.messages} == {"status", "execute_input", "stream"}


@pytest.mark.parametrize("seconds", [0.0, 1.5])
def test_a_batch_run_has_the_last_page_of_cells_that_log(seconds: float) -> None:
    cells = [
        "import os\nos.environ['NBDIST_DASHBOARD'] = ''\n%load_ext nbdist",
        f"%%distributed -d 2\nimport time, nbdist\ntime.sleep({seconds})\nnbdist.log(step=1, loss=0.5)\nprint('said')",
        f"%%distributed -d 2\nimport time\ntime.sleep({seconds})\nprint('silent')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert [one.output_type for one in outputs[1]] == ["stream", "display_data"]
    assert outputs[1][1].data["text/plain"] == "cell: finished on 2 ranks"
    assert "loss" in outputs[1][1].data["text/html"]
    assert "widgets" not in notebook.metadata
    assert [(one.output_type, one.text) for one in outputs[2]] == [("stream", "silent\n")]
