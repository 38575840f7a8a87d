"""The dashboard in a terminal, with rich and without."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from dashboard_pictures import NOW_MS, a_picture, a_rank, empty, failed, finished, many
from hostile_texts import ACTING, HOSTILE
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from test_dashboard_static import with_everywhere

from nbdist.views.dashboard.picture import Picture
from nbdist.views.dashboard.terminal import PictureRenderable, drawn_lines, picture_lines

PICTURES = {
    "running": a_picture(),
    "finished": finished(),
    "failed": failed(),
    "64 ranks": many(64),
    "1,024 ranks": many(1024),
    "nothing yet": empty(),
    "wide characters": a_picture(ranks={"0": a_rank(text="数据 = 模型(输入)" * 9)}),
}


def drawn(picture: Picture, *, width: int = 80, colours: bool = False) -> str:
    """What a terminal gets."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        height=60,
        force_terminal=colours,
        color_system="truecolor" if colours else None,
        legacy_windows=False,
        _environ={},
    )
    console.print(PictureRenderable(picture, now_ms=NOW_MS))
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", PICTURES)
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    for text in (drawn(PICTURES[name], width=width), "\n".join(picture_lines(PICTURES[name], width=width))):
        assert [line for line in text.split("\n") if cell_len(line) > width] == []
        assert len(text.split("\n")) < 30


def test_plain_lines() -> None:
    assert picture_lines(a_picture(), width=120, now_ms=NOW_MS) == [
        "train running · 4 ranks · 4 × NVIDIA H200 · 1 min 23 s",
        "rank  state    where                             use                      last metrics",
        "0     running  line 12: loss.backward() · 2.4 s  GPU 90% 62.0 of 139 GiB  loss 0.4231, accuracy 0.881, 12.5 steps/s",
        "1     running  line 12: loss.backward() · 2.4 s  GPU 91% 62.0 of 139 GiB  loss 0.4331, accuracy 0.881, 12.5 steps/s",
        "2     running  line 12: loss.backward() · 2.4 s  GPU 92% 62.0 of 139 GiB  loss 0.4431, accuracy 0.881, 12.5 steps/s",
        "3     running  line 12: loss.backward() · 2.4 s  GPU 93% 62.0 of 139 GiB  loss 0.4531, accuracy 0.881, 12.5 steps/s",
        "epoch 1   42% ━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌  421/1000  12.5 it/s  46 s left",
    ]


def test_metrics_that_are_not_finite_are_told() -> None:
    lines = picture_lines(a_picture(ranks={"0": a_rank(metrics={"loss": "nan", "norm": "inf"})}), width=120)
    assert lines[2].endswith("loss nan, norm inf, 12.5 steps/s")


def test_a_narrow_terminal_has_the_columns_that_matter() -> None:
    assert picture_lines(a_picture(), width=40, now_ms=NOW_MS)[:3] == [
        "train running · 4 ranks · 1 min 23 s",
        "rank  state    last metrics",
        "0     running  loss 0.4231, accuracy 0.…",
    ]


@pytest.mark.parametrize("most", [1, 6, 16])
@pytest.mark.parametrize("name", PICTURES)
def test_a_low_terminal_has_as_many_lines_as_it_bears(name: str, most: int) -> None:
    lines = drawn_lines(PICTURES[name], width=80, most=most, now_ms=NOW_MS)
    assert 1 <= len(lines) <= most
    assert PICTURES[name]["heading"]["title"] in lines[0]


def test_a_failure_is_told_in_a_line() -> None:
    for text in (drawn(failed()), "\n".join(picture_lines(failed()))):
        assert "rank 1: ValueError: loss is nan in batch 17" in text
        assert "Connection closed" not in text


def test_many_ranks_are_counted_and_the_odd_ones_shown() -> None:
    for text in (drawn(many(1024), width=120), "\n".join(picture_lines(many(1024), width=120))):
        assert "909 running" in text
        assert "killed by SIGKILL" in text
        assert "straggler: 18 steps" in text


def test_states_have_colours_where_colours_are_wanted() -> None:
    assert "\x1b[31mfailed" in drawn(failed(), colours=True)
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=80, _environ={"NO_COLOR": "1"}).print(
        PictureRenderable(failed())
    )
    assert "\x1b[31m" not in stream.getvalue()


def test_it_can_be_shown_live() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=40, _environ={})
    with Live(PictureRenderable(a_picture()), console=console, auto_refresh=False) as live:
        live.update(PictureRenderable(finished()), refresh=True)
    assert "finished" in stream.getvalue()


@pytest.mark.parametrize("name", HOSTILE)
def test_what_ranks_say_does_nothing_to_a_terminal(name: str) -> None:
    picture = with_everywhere(HOSTILE[name])
    for text in (drawn(picture), "\n".join(picture_lines(picture))):
        assert not set(ACTING).intersection(text)
        assert len(text) < 5_000
        assert text.encode()


def test_plain_lines_need_no_rich() -> None:
    code = """
import sys
sys.modules["rich"] = None
from nbdist.views.dashboard.terminal import picture_lines
from dashboard_pictures import a_picture
assert len(picture_lines(a_picture())) == 7
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="tests", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
