"""What is known of a run as a picture."""

from __future__ import annotations

import json
import time
from array import array

import pytest
from printing import live, printed

from nbdist.errors import Failure
from nbdist.figures import GpuUsage, Logged, Usage
from nbdist.messages import Collective, Died, Display, Finished, Progress, Ready, Standing
from nbdist.metrics import Metrics
from nbdist.state import RunState, first_state, fold, stop_working
from nbdist.views.dashboard.composing import Composer, Ending, Facts, models_text
from nbdist.views.dashboard.picture import Picture, patch_between
from nbdist.views.dashboard.words import picture_text
from nbdist.views.items import Shown, Stream
from nbdist.views.tail import Tail
from nbdist.views.text import TextView

CELL = ["%%distributed -d 2", "import time", "dist.barrier()", "time.sleep(9)"]


def facts(world_size: int = 2, *, in_background: bool = False) -> Facts:
    return Facts(
        title="train",
        devices=[f"cuda:{rank}" for rank in range(world_size)],
        models="2 × NVIDIA H200",
        cell=CELL,
        logs="/logs",
        runs_on=range(world_size),
        in_background=in_background,
    )


def running(world_size: int = 2) -> RunState:
    state = first_state(world_size)
    for rank in range(world_size):
        state = fold(state, rank, Ready(pid=100 + rank))
    return state


def picture_of(state: RunState, tail: Tail | None = None, metrics: Metrics | None = None, **how) -> Picture:
    world_size = len(state.ranks)
    composer = Composer(how.pop("facts", facts(world_size)), metrics or Metrics())
    picture = composer.picture(state, tail or Tail(), pids=range(100, 100 + world_size), **how)
    json.dumps(picture, allow_nan=False)  # it can go to a page
    return picture


def test_a_rank_says_where_it_is_and_since_when():
    came_s = time.monotonic() - 5
    state = fold(running(), 0, Standing(cell_line=4, function="sleep", came_s=came_s))
    rank = picture_of(state)["ranks"]["0"]
    assert (rank["state"], rank["line"], rank["text"], rank["function"]) == (
        "running",
        4,
        "time.sleep(9)",
        "sleep",
    )
    assert rank["since_ms"] == pytest.approx(1000 * (time.time() - 5), abs=500)
    assert (rank["pid"], rank["device"]) == (100, "cuda:0")


@pytest.mark.parametrize("step", ["a number", "a bar"])
def test_a_rank_that_goes_on_in_a_loop_has_not_been_at_its_line_all_the_time(step):
    came_s = time.monotonic() - 60
    state, metrics = fold(running(), 0, Standing(cell_line=4, function="", came_s=came_s)), Metrics()
    if step == "a bar":
        state = fold(state, 0, Progress(name="x", number=1, order=1, label="x", done=1))
    composer = Composer(facts(), metrics)
    before = composer.picture(state, Tail())["ranks"]["0"]["since_ms"]
    if step == "a bar":
        state = fold(state, 0, Progress(name="x", number=1, order=1, label="x", done=2))
    else:
        metrics.add(0, Logged(by_step={"loss": array("d", [0, 0.0, 2.0]).tobytes()}))
    after = composer.picture(state, Tail())["ranks"]["0"]["since_ms"]
    assert after == composer.picture(state, Tail())["ranks"]["0"]["since_ms"]
    assert before == pytest.approx(1000 * (time.time() - 60), abs=500)
    assert after == pytest.approx(1000 * time.time(), abs=500)


def test_a_rank_in_the_cell_itself_is_in_no_function():
    state = fold(running(), 0, Standing(cell_line=4, function="<module>"))
    rank = picture_of(state)["ranks"]["0"]
    assert (rank["line"], rank["function"]) == (4, "")


def test_a_rank_that_others_wait_for_is_marked():
    barrier = Collective(name="barrier", ranks=(0, 1, 2))
    state = running(3)
    for rank in (0, 2):
        since_s = time.monotonic() - 4
        state = fold(state, rank, Standing(cell_line=3, function="", since_s=since_s, collective=barrier))
    ranks = picture_of(state)["ranks"]
    assert [ranks[rank]["told"] for rank in "012"] == ["waits in barrier", "running", "waits in barrier"]
    assert [ranks[rank]["straggler"] for rank in "012"] == ["", "ranks 0,2 wait for it", ""]


def test_nobody_is_a_straggler_while_others_have_waited_for_a_moment_only():
    barrier = Collective(name="barrier", ranks=(0, 1))
    standing = Standing(cell_line=3, function="", since_s=time.monotonic() - 0.2, collective=barrier)
    assert picture_of(fold(running(), 0, standing))["ranks"]["1"]["straggler"] == ""


def test_what_a_rank_uses():
    gpu = GpuUsage(use=0.5, memory_bytes=10, used_bytes=20, total_bytes=40, power_w=300.0)
    rank = picture_of(fold(running(), 1, Usage(cpu=1.234, memory_bytes=5, gpu=gpu)))["ranks"]["1"]
    assert (rank["cpu"], rank["memory_bytes"]) == (1.23, 5)
    assert rank["gpu"] == {
        "use": 0.5,
        "memory_bytes": 10,
        "used_bytes": 20,
        "total_bytes": 40,
        "power_w": 300.0,
        "temperature_c": None,
    }


def test_metrics_are_in_cards_and_charts_and_what_is_not_finite_too():
    metrics = Metrics()
    numbers = array("d", [0, 0.0, 2.0, 1, 0.1, 1.0]).tobytes()
    metrics.add(0, Logged(by_step={"loss": numbers, "odd": array("d", [0, 0.0, float("nan")]).tobytes()}))
    picture = picture_of(running(), metrics=metrics, ending=Ending(state="finished", at_s=time.time()))
    assert picture["ranks"]["0"]["metrics"] == {"loss": 1.0, "odd": "nan"}
    chart = picture["charts"]["loss"]
    assert (chart["x"], chart["mean"], chart["lines"]) == ([0, 1], [2.0, 1.0], {"0": [2.0, 1.0]})
    assert picture["charts"]["odd"]["mean"] == ["nan"]


def logged(view: TextView, now_s: float = 10.0) -> list[tuple[str, list[int], str, str]]:
    """The log of all that four ranks have printed and shown there."""
    tail = Tail()
    tail.add([*view.take(now_s / 2), *view.take(now_s)])
    lines = picture_of(running(4), tail)["log"]["lines"].values()
    return [(line["ranks"], line["of"], line["kind"], line["text"]) for line in lines]


def test_lines_of_the_log_know_who_printed_them_whatever_they_look_like():
    own = ["[0] of all\n", "[7] of all\n", "[1-3] of all\n"]
    view = printed(live(4), *("".join(own) + f"{'zero' if rank == 0 else '[0] some'}\n" for rank in range(4)))
    view.text(2, "stderr", "[0] own\n", 0.0)
    assert logged(view) == [
        *(("", [], "stdout", line[:-1]) for line in own),
        ("0", [0], "stdout", "zero"),
        ("1-3", [1, 2, 3], "stdout", "[0] some"),
        ("2", [2], "stderr", "[0] own"),
    ]


def test_lines_of_the_log_know_who_printed_them_in_colour_and_over_one_another():
    view = live(4)
    view.text(1, "stdout", "\x1b[31m[0] red\nstill red\x1b[0m\n", 0.0)
    view.text(3, "stdout", "\r[0] 10%\r[0] 20%\r[0] done\n\n", 0.0)
    assert logged(view) == [
        ("1", [1], "stdout", "\x1b[31m[0] red\x1b[0m"),
        ("3", [3], "stdout", "[0] done"),
        ("1", [1], "stdout", "\x1b[31mstill red\x1b[0m"),
        ("3", [3], "stdout", ""),
    ]


def test_a_line_that_is_not_ended_yet_is_its_ranks_and_what_takes_its_place_another_ones():
    view, tail = live(4), Tail()
    view.text(2, "stdout", "\r[0] 10%", 0.0)
    tail.add([*view.take(0.0), *view.take(0.2)])
    (line,) = picture_of(running(4), tail)["log"]["lines"].values()
    assert (line["of"], line["text"]) == ([2], "[0] 10%")
    view.text(3, "stdout", "\n", 0.3)
    tail.add([*view.take(0.3), *view.take(0.5)])
    lines = picture_of(running(4), tail)["log"]["lines"].values()
    assert [(line["of"], line["text"]) for line in lines] == [([3], ""), ([2], "[0] 10%")]


def test_a_display_of_another_rank_is_that_ranks_in_the_log():
    view = live(4)
    for rank in (0, 2):
        view.display(rank, Display(kind="display", data={"text/html": f"<b>{rank}</b>"}), 0.0)
    assert logged(view) == [
        ("", [], "html", "<div><b>0</b></div>"),
        ("2", [2], "html", "<div><b>2</b></div>"),
    ]


def test_lines_of_the_log_keep_their_numbers():
    tail = Tail()
    tail.add([Stream("stdout", "one\ntwo\n"), Stream("stderr", "three\n")])
    composer = Composer(facts(), Metrics())
    first = composer.picture(running(), tail)["log"]
    tail.add([Shown((), Display(kind="display", data={"text/html": "<b>x</b>"})), Stream("stdout", "more\n")])
    second = composer.picture(running(), tail)["log"]
    assert list(second["lines"])[:3] == list(first["lines"])
    assert [line["kind"] for line in second["lines"].values()][3:] == ["html", "stdout"]
    tail.add([Stream("stdout", "goes ")])
    (number, line) = list(composer.picture(running(), tail)["log"]["lines"].items())[-1]
    tail.add([Stream("stdout", "on\n")])
    assert composer.picture(running(), tail)["log"]["lines"][number] == {**line, "text": "goes on"}
    tail.add([Stream("stdout", "x\n" * 299)])
    last = composer.picture(running(), tail)["log"]
    assert last["first"] == min(map(int, last["lines"])) == 3  # the display is kept
    assert last["left_out"] + len(last["lines"]) - 1 == 304


def test_lines_that_a_flood_has_left_out_are_counted():
    view, tail = live(2), Tail()
    for second in range(1, 9):
        for rank in range(2):
            view.text(
                rank, "stdout", "".join(f"{second} {n} of {rank}\n" for n in range(20_000)), float(second)
            )
        tail.add(view.take(second + 0.5))
    tail.add(view.close(9.0))
    log = picture_of(running(), tail)["log"]
    assert log["left_out"] + len(log["lines"]) == 8 * 2 * 20_000


def test_a_bar_is_no_line_of_the_log():
    tail = Tail()
    tail.add([Stream("stdout", "one\n50%")])
    bar = Progress(name="train", number=1, order=1, label="train", done=3, total=6, elapsed_s=3.0)
    picture = picture_of(fold(running(), 0, bar), tail)
    assert [line["text"] for line in picture["log"]["lines"].values()] == ["one"]
    (told,) = picture["bars"].values()
    assert (told["label"], told["done"], told["total"], told["left_s"], told["rate"]) == (
        "train",
        3,
        6,
        3,
        "1 it/s",
    )
    assert picture["ranks"]["0"]["share"] == 0.5


def test_a_failed_run_says_who_failed_and_where():
    failure = Failure(
        rank=1,
        time_s=1.0,
        type_name="ValueError",
        message="bad",
        cell_line=4,
        traceback=("line 4", "ValueError: bad"),
    )
    state = fold(running(), 1, Finished(outcome="failed", failure=failure))
    state = fold(state, 0, Finished(outcome="interrupted"))
    picture = picture_of(state, ending=Ending(state="failed", at_s=time.time()))
    assert picture["heading"]["told"] == "failed on rank 1"
    assert [rank["state"] for rank in picture["ranks"].values()] == ["interrupted", "failed"]
    assert (picture["ranks"]["1"]["line"], picture["ranks"]["1"]["text"]) == (4, "time.sleep(9)")
    assert [(told["ranks"], told["title"], told["traceback"]) for told in picture["failures"]] == [
        ("1", "ValueError: bad", "line 4\nValueError: bad")
    ]


def test_ranks_that_fail_alike_are_told_in_the_same_order_whoever_is_first():
    def failed(rank: int, time_s: float, message: str) -> Finished:
        failure = Failure(rank=rank, time_s=time_s, type_name="ValueError", message=message, cell_line=4)
        return Finished(outcome="failed", failure=failure)

    told = []
    for times_s in ((1.3, 1.1, 1.2), (1.1, 1.3, 1.2)):
        state = running(4)
        for rank, time_s in enumerate(times_s):
            state = fold(state, rank, failed(rank, time_s, f"rank {rank} has {7 * rank} samples"))
        state = fold(state, 3, failed(3, 1.25, "something else"))
        picture = picture_of(state, ending=Ending(state="failed", at_s=time.time()))
        assert [failure["ranks"] for failure in picture["failures"]] == ["0", "1", "2", "3"]
        told.append(picture_text(picture))
    assert told == ["train: failed on rank 0 of 4: ValueError: rank 0 has 0 samples"] * 2
    state = fold(running(), 0, failed(0, 2.0, "the second"))
    state = fold(state, 1, failed(1, 1.0, "the first"))
    assert [failure["ranks"] for failure in picture_of(state)["failures"]] == ["1", "0"]


def test_a_run_in_the_background_has_a_button_and_another_one_a_hint():
    background = picture_of(running(), facts=facts(in_background=True))["heading"]
    assert (background["button"], background["hint"], background["log_is_open"]) == ("interrupt", "", True)
    again = picture_of(running(), facts=facts(in_background=True), interrupts=1)["heading"]
    assert again["button"] == "stop"
    waited_for = picture_of(running())["heading"]
    assert (waited_for["button"], waited_for["log_is_open"]) == (None, False)
    assert "stop button" in waited_for["hint"]


def test_work_that_has_ended_has_no_button_and_no_more_time():
    state, ends_s = running(), time.monotonic() + 3
    for rank in range(2):
        state = fold(state, rank, Finished(outcome="ok", time_s=ends_s + rank))
    told = {"told": "finished; what it changed waits", "hint": "train.wait() writes it over x"}
    waits = picture_of(state, facts=facts(in_background=True), **told)["heading"]
    assert (waits["button"], waits["hint"]) == (None, told["hint"])
    ended_s = time.time() + 60
    ended = picture_of(state, ending=Ending(state="finished", at_s=ended_s))["heading"]
    assert waits["ended_ms"] == pytest.approx(1000 * (time.time() + 4), abs=1000)
    assert ended["ended_ms"] == pytest.approx(waits["ended_ms"], abs=100)
    broken_off = picture_of(running(), ending=Ending(state="stopped", at_s=ended_s))["heading"]
    assert broken_off["ended_ms"] == 1000 * ended_s


def test_an_interrupted_run_whose_changes_wait_is_not_called_finished():
    state = stop_working(running())
    for rank in range(2):
        state = fold(state, rank, Finished(outcome="interrupted", time_s=time.monotonic()))
    assert picture_of(state, told="interrupted; what it changed waits")["heading"]["state"] == "interrupted"


def test_a_rank_that_is_ended_after_its_last_word_was_interrupted_and_did_not_fail():
    state = fold(stop_working(running()), 1, Finished(outcome="interrupted"))
    state = fold(state, 1, Died(pid=101, exit_code=-9, time_s=time.monotonic()))
    picture = picture_of(state)
    assert (picture["ranks"]["1"]["state"], picture["failures"]) == ("interrupted", [])
    finished = fold(running(), 1, Finished(outcome="ok"))
    died = picture_of(fold(finished, 1, Died(pid=101, exit_code=-9, time_s=time.monotonic())))
    assert [failure["ranks"] for failure in died["failures"]] == ["1"]  # nobody had asked for that


def test_what_does_not_change_is_in_no_patch():
    composer, state, tail = Composer(facts(8), Metrics()), running(8), Tail()
    before = composer.picture(state, tail)
    after = composer.picture(fold(state, 3, Usage(cpu=0.5, memory_bytes=7)), tail)
    assert patch_between(before, composer.picture(state, tail)) == {}
    assert patch_between(before, after) == {"ranks": {"3": {"cpu": 0.5, "memory_bytes": 7}}}


def test_devices_are_counted_in_words():
    assert models_text(["CPU", "CPU"]) == "CPU"
    assert models_text(["NVIDIA H200", "NVIDIA T4", "NVIDIA T4"]) == "NVIDIA H200, 2 × NVIDIA T4"
