"""`nbdist.log` and `nbdist.track`: what a rank records reaches the notebook, whole and in order."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import textwrap
import threading
import time
from array import array
from typing import Any

import numpy as np
import pytest

import nbdist
from nbdist.figures import Logged
from nbdist.metrics import Metrics


def logged(*triples: tuple[float, float, float], by_step: bool = True) -> Logged:
    packed = {"loss": array("d", [number for triple in triples for number in triple]).tobytes()}
    return Logged(by_step=packed) if by_step else Logged(by_call=packed)


def run_of(kernel: Any, body: str, after: str) -> Any:
    """What `after` prints of a run of `train`."""
    kernel.run("import nbdist, json, torch, numpy as np").check()
    kernel.run(f"def train():\n{textwrap.indent(textwrap.dedent(body), '    ')}").check()
    start = "run = nbdist.launch(train, devices=2, background=True)\n_ = run.wait()\n"
    return kernel.run(start + after).check().stdout


def test_values_arrive_by_rank_and_step(kernel: Any) -> None:
    body = """
    r = torch.distributed.get_rank()
    for step in range(3):
        nbdist.log(step=step, loss=r + step / 2, on=True, n=np.int64(4), t=torch.tensor([r], dtype=torch.bfloat16))
    nbdist.log({"m/x": r}, step=7, sync_dist=True)
    """
    rows = json.loads(
        run_of(kernel, body, "print(run.history.drop(columns='time_s').to_json(orient='records'))")
    )
    assert rows[:2] == [
        {"step": 0, "rank": 0, "loss": 0.0, "on": 1.0, "n": 4.0, "t": 0.0, "m/x": None},
        {"step": 0, "rank": 1, "loss": 1.0, "on": 1.0, "n": 4.0, "t": 1.0, "m/x": None},
    ]
    assert [row["m/x"] for row in rows[-2:]] == [0.5, 0.5]
    assert [row["step"] for row in rows] == [0, 0, 1, 1, 2, 2, 7, 7]


def test_nothing_is_lost_however_fast_a_rank_logs(kernel: Any) -> None:
    body = "for i in range(60_000): nbdist.log(a=float(i))"
    after = "h = run.history\nprint([sorted(h[h['rank'] == r].a) == list(map(float, range(60_000))) for r in (0, 1)])"
    assert run_of(kernel, body, after) == "[True, True]\n"


def test_export_is_json(kernel: Any, tmp_path: Any) -> None:
    path = tmp_path / "run.json"
    body = "nbdist.log(a=float('nan'))\nif torch.distributed.get_rank() == 1: raise ValueError('no')"
    kernel.run("import nbdist, torch").check()
    kernel.run(f"def train():\n{textwrap.indent(body, '    ')}").check()
    # In a batch run, as here, the call waits: the name leads to the run all the same.
    start = "nbdist.launch(train, devices=2, background='run')"
    kernel.run(f"try: {start}\nexcept nbdist.RankFailedError: pass").check()
    kernel.run(f"run.export({str(path)!r})").check()
    content = json.loads(path.read_text())
    assert content["outcome"] == "failed"
    assert content["begun"] < content["ended"]
    assert [rank["device"] for rank in content["ranks"]] == ["cpu", "cpu"]
    assert {(row["step"], row["rank"], row["a"]) for row in content["metrics"]} == {
        (1, 0, None),
        (1, 1, None),
    }
    assert [(failure["rank"], failure["type"]) for failure in content["failures"]] == [(1, "ValueError")]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, 2], "a is list"),
        ("1", "a is str"),
        (None, "a is NoneType"),
        (1j, "a is complex"),
        ({}, "a is dict"),
    ],
)
def test_what_is_no_number_is_named(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words) as refused:
        nbdist.log(ok=1.0, a=value)
    assert "Allowed: int, float, bool, numpy numbers" in str(refused.value)


def test_a_tensor_of_several_numbers_is_named_with_its_shape() -> None:
    import torch

    with pytest.raises(TypeError, match=r"a is a tensor of shape \(2, 3\) and dtype torch.float32 on cpu"):
        nbdist.log(a=torch.zeros(2, 3))


@pytest.mark.parametrize("name", ["step", "rank", "time_s"])
def test_names_of_the_tables_own_columns_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"cannot be called '{name}'"):
        nbdist.log({name: 1.0})


def test_a_step_is_finite() -> None:
    with pytest.raises(ValueError, match="step is nan"):
        nbdist.log(a=1.0, step=float("nan"))


SCRIPT = """
import nbdist, os
nbdist.log(a=1.0, step=0)
nbdist.log(b=float(os.environ.get("RANK", 0)), sync_dist=True)
assert list(nbdist.track(range(3), "t")) == [0, 1, 2]
assert list(nbdist.track(x for x in "ab")) == ["a", "b"]
print("done", flush=True)
"""


@pytest.mark.parametrize(
    "launcher", [[], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]]
)
def test_outside_of_a_run_there_is_nobody_to_show(launcher: list[str], tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, *launcher, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "done\n" * (2 if launcher else 1)
    assert done.stderr.count("t: 100%") == 1  # tqdm's, of rank 0


def test_track_is_one_bar_that_shows_the_slowest(kernel: Any) -> None:
    run = kernel.run(
        "%%distributed --devices 2\nimport nbdist, time\n"
        "for _ in nbdist.track(range(4), 'train'): time.sleep(0.35 * rank)"
    ).check()
    assert run.stdout.count("train: 100%") == 1
    assert "4/4 [00:01<00:00, 2." in run.stdout


def test_track_ends_where_the_loop_is_left(kernel: Any) -> None:
    run = kernel.run(
        "%%distributed --devices 2\nimport nbdist\n"
        "for i in nbdist.track(range(8), 'outer'):\n"
        "    for j in nbdist.track((n for n in range(3)), 'inner'): pass\n"
        "    if i == 1: break\n"
        "try:\n    for i in nbdist.track(range(8), 'bad'): raise KeyError\nexcept KeyError: pass\n"
        "print('after')"
    ).check()
    lines = [line.partition(" [")[0] for line in run.stdout.splitlines() if line]
    assert lines == [
        "inner: 3it",
        "inner: 3it",
        "outer:  12%|█▎        | 1/8",
        "bad:   0%|          | 0/8",
        "after",
    ]


def test_a_chart_of_few_numbers_is_exact() -> None:
    metrics = Metrics()
    metrics.add(0, logged((1, 0, 2.0), (2, 0, float("nan"))))
    metrics.add(1, logged((1, 0, 4.0), (3, 0, float("inf"))))
    assert metrics.chart("loss") == {
        "x": [1, 2, 3],
        "mean": [3.0, "nan", "inf"],
        "low": [2.0, "nan", "inf"],
        "high": [4.0, "nan", "inf"],
        "lines": {"0": [2.0, "nan", None], "1": [4.0, None, "inf"]},
        "points": 4,
        "x_label": "step",
    }


def test_a_number_that_is_not_finite_is_hidden_by_none_beside_it() -> None:
    metrics = Metrics()
    metrics.add(0, logged((1, 0, 2.0), (2, 0, float("nan"))))
    metrics.add(1, logged((1, 0, float("-inf")), (2, 0, 5.0)))
    chart = metrics.chart("loss")
    assert (chart["mean"], chart["low"], chart["high"]) == (["-inf", "nan"], [2.0, 5.0], [2.0, 5.0])


def test_the_mean_of_large_numbers_is_a_number() -> None:
    metrics = Metrics()
    metrics.add(0, logged((1, 0, 1.6e308)))
    metrics.add(1, logged((1, 0, 1.4e308)))
    assert metrics.chart("loss")["mean"] == [pytest.approx(1.5e308)]


def test_a_chart_of_many_numbers_keeps_their_extremes() -> None:
    metrics = Metrics()
    values = np.zeros(100_000)
    values[54_321], values[77_777] = 9.0, -9.0
    for rank in range(8):
        columns = np.stack([np.arange(100_000.0), np.zeros(100_000), values], axis=1)
        metrics.add(rank, Logged(by_step={"loss": columns.tobytes()}))
    chart = metrics.chart("loss")
    assert len(chart["x"]) == 300
    assert chart["x"] == sorted(set(chart["x"]))
    assert chart["x"][-1] == 99_999
    assert max(chart["high"]) == 9.0
    assert min(chart["low"]) == -9.0
    assert chart["points"] == 800_000
    assert list(chart["lines"]) == [str(rank) for rank in range(8)]
    assert metrics.chart("loss") is chart
    metrics.add(0, logged((100_000, 0, 1.0)))
    assert metrics.chart("loss")["points"] == 800_001


def test_charts_of_a_live_view_are_of_one_moment() -> None:
    metrics = Metrics()
    columns = np.stack([np.arange(300_000.0), np.zeros(300_000), np.zeros(300_000)], axis=1).tobytes()
    few = array("d", [0.0, 0.0, 1.0]).tobytes()
    metrics.add(0, Logged(by_step={"loss": columns, "lr": few}))
    first = metrics.charts(9, live=True)
    metrics.add(0, Logged(by_step={"loss": few, "lr": few, "late": few}))
    assert metrics.charts(9, live=True) == first  # it took long, and the view has others to draw
    anew = metrics.charts(9)
    assert {name: chart["points"] for name, chart in anew.items()} == {"loss": 300_001, "lr": 2, "late": 1}
    assert metrics.charts(1) == {"loss": anew["loss"]}


def test_memory_is_bounded_and_extremes_stay() -> None:
    metrics = Metrics(most=1_000)
    values = np.zeros(5_000)
    values[4_321] = 9.0
    for part in np.split(np.stack([np.arange(5_000.0), np.zeros(5_000), values], axis=1), 10):
        metrics.add(0, Logged(by_step={"loss": part.tobytes()}))
    chart = metrics.chart("loss")
    assert metrics.thinned
    assert metrics.points == chart["points"] == 5_000
    assert len(metrics.rows()) <= 1_000
    assert max(chart["high"]) == 9.0


def test_numbers_come_while_a_chart_is_drawn_and_all_objects_are_listed() -> None:
    """As a cell does that is forked: it must not keep what the numbers are read through."""
    metrics = Metrics()
    packed = array("d", [part for step in range(100) for part in (step, time.time(), 0.5)]).tobytes()
    metrics.add(0, Logged(by_step={"loss": packed}))
    has_ended = threading.Event()

    def draw() -> None:
        while not has_ended.is_set():
            metrics.chart("loss")

    def list_all() -> None:
        while not has_ended.is_set():
            kept = gc.get_objects()
            has_ended.wait(1e-4)
            del kept

    threads = [threading.Thread(target=work) for work in (draw, list_all)]
    for thread in threads:
        thread.start()
    try:
        while metrics.points < 2_000_000:
            metrics.add(0, Logged(by_step={"loss": packed}))
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()
    assert len(metrics.chart("loss")["x"]) == 100


def test_rate_is_of_the_last_seconds() -> None:
    metrics, now_s = Metrics(), time.time()
    assert metrics.rate(0) is None
    for second in range(30):
        metrics.add(0, logged((second * 100, now_s - 30 + second, 0.0)))
    assert metrics.rate(0, now_s) == pytest.approx(100)
    assert metrics.last(0) == {"loss": 0.0}
    assert metrics.rate(0, now_s + 60) is None
