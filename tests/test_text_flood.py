"""Too much text: what is shown of it, and what it costs."""

from __future__ import annotations

import re
import tracemalloc
import weakref
from collections.abc import Sequence
from itertools import pairwise

import pytest
from printing import batch, live, printed, text_of

from nbdist.views.text import Item, Shown, Stream, TextView


def flood(
    view: TextView, texts: Sequence[str], *, piece: int, length_s: float
) -> list[tuple[float, list[Item]]]:
    """Ranks print in pieces, evenly over a time; what is shown, taken ten times a second."""
    pieces = [(pos, rank) for pos in range(0, max(map(len, texts)), piece) for rank in range(len(texts))]
    taken: list[tuple[float, list[Item]]] = []
    for n, (pos, rank) in enumerate(pieces):
        now_s = length_s * n / len(pieces)
        view.text(rank, "stdout", texts[rank][pos : pos + piece], now_s)
        if not taken or now_s >= taken[-1][0] + 0.1:
            taken.append((now_s, view.take(now_s)))
    return taken


NOTICE = re.compile(r"… ([\d,]+) lines not shown here: they are whole in /logs/7")


def left_out(text: str) -> int:
    return sum(int(number.replace(",", "")) for number in NOTICE.findall(text))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_live_flood_keeps_to_the_rate_counts_what_it_leaves_out_and_ends_with_the_last_line(
    world_size: int,
):
    view = live(world_size)
    texts = ["".join(f"rank {rank} line {n}\n" for n in range(100_000)) for rank in range(world_size)]
    taken = flood(view, texts, piece=10_000, length_s=5.0)
    taken.append((5.0, view.close(5.0)))
    sizes = [(time_s, len(text_of(items).encode())) for time_s, items in taken]
    for time_s, _ in sizes[:-1]:
        assert sum(size for t, size in sizes if t <= time_s) <= 200_000 + time_s * 100_000 + 1_000
    assert sizes[-1][1] <= 200_000
    assert all(len(NOTICE.findall(text_of(items))) <= 1 for _, items in taken)
    notice_times = [time_s for time_s, items in taken if NOTICE.search(text_of(items))]
    assert len(notice_times) >= 4
    assert all(b - a >= 1.0 for a, b in pairwise(notice_times[:-1]))
    lines = "".join(text_of(items) for _, items in taken).splitlines()
    label = f"[{world_size - 1}] " if world_size > 1 else ""
    assert lines[-1] == f"{label}rank {world_size - 1} line 99999"
    told = [line for line in lines if not NOTICE.match(line)]
    assert all(re.fullmatch(r"(\[\d\] )?rank \d line \d+", line) for line in told)
    assert len(told) + left_out("\n".join(lines)) == world_size * 100_000


def test_a_live_flood_that_ends_shows_its_last_lines_without_more_text():
    view = printed(live(2), *["".join(f"line {n}\n" for n in range(50_000))] * 2)
    view.take(0.1)
    due_s = view.next_due_s()
    assert due_s == 1.0
    text = text_of(view.take(due_s)) + text_of(view.take(due_s + 0.1))
    assert text.endswith("line 49999\n")
    assert view.next_due_s() is not None  # the period after it, in which the flood has ended
    view.take(2.0)
    printed(view, "calm\n", "calm\n", now_s=2.1)
    assert text_of(view.take(2.1)) == "calm\n"


@pytest.mark.parametrize("padding", [0, 100])
@pytest.mark.parametrize("same", [False, True])
def test_a_batch_flood_shows_the_same_whatever_the_pieces(same: bool, padding: int):
    lines = [[f"{'' if same else rank} line {n:0{padding}}\n" for n in range(25_000)] for rank in range(3)]
    transcripts = set()
    for piece, length_s in ((10_000, 1.0), (333_333, 0.1), (5_000_000, 0.0)):
        view = batch(3)
        taken = flood(view, ["".join(own) for own in lines], piece=piece, length_s=length_s)
        transcripts.add("".join(text_of(items) for _, items in taken) + text_of(view.close(length_s)))
    (transcript,) = transcripts
    shown_lines = transcript.splitlines()
    (place,) = (n for n, line in enumerate(shown_lines) if NOTICE.match(line))
    assert len(shown_lines) - place - 1 == 200
    assert shown_lines[-1].endswith(lines[0][-1].split()[-1])
    assert len(transcript) < 1_030_000
    shown_times = 3 if same else 1
    assert place * shown_times + left_out(transcript) + (600 if same else 200) == 75_000


def test_what_a_batch_flood_leaves_out_stands_behind_the_displays():
    view = batch(1)
    view.text(0, "stdout", "x\n" * 600_000 + "before\n", 0.0)
    view.display(0, "figure", 0.0)
    view.text(0, "stdout", "after\n", 0.0)
    first, figure, told, last = view.close(0.0)
    assert isinstance(first, Stream)
    assert figure == Shown((), "figure")
    assert isinstance(told, Stream)
    assert told.left_out == left_out(told.text) == 600_001 - first.text.count("\n")
    assert last == Stream("stdout", "after\n")


def peak_bytes(view: TextView, text: str, times: int, *, every_s: float = 0.0) -> int:
    """How much memory a view takes while a rank prints."""
    tracemalloc.start()
    for n in range(times):
        view.text(0, "stdout", text, n * every_s)
        if every_s:
            view.take(n * every_s)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_memory_is_bounded(is_batch: bool, world_size: int):
    lines = "".join(f"line {n}\n" for n in range(10_000))
    assert peak_bytes(TextView(world_size, batch=is_batch), lines, 30) < 10_000_000  # all lines: 18 MB


@pytest.mark.parametrize("is_batch", [False, True])
def test_what_costs_little_each_does_not_pile_up(is_batch: bool):
    assert peak_bytes(batch(2) if is_batch else live(2), "\n" * 100, 8_000) < 5_000_000
    assert peak_bytes(batch(2) if is_batch else live(2), "x\n", 10_000, every_s=0.05) < 300_000


class Figure(set[str]):
    """A display that can be referred to weakly."""


def show_figure(view: TextView, now_s: float) -> weakref.ref[Figure]:
    figure = Figure()
    view.display(0, figure, now_s)
    view.take(now_s + 0.1)
    return weakref.ref(figure)


def test_displays_that_were_shown_are_not_kept():
    view = live(2)
    figures = [show_figure(view, now_s) for now_s in (0.0, 1.0, 2.0)]
    assert [figure() for figure in figures] == [None, None, None]


def test_too_many_lines_do_not_wait_for_the_window():
    view = batch(6, window_s=1e9)
    for rank in range(5):
        view.text(rank, "stdout", "".join(f"{n}\n" for n in range(rank, 85_000, 5)), 0.0)
        shown_lines = text_of(view.take(0.0)).count("\n")
        assert shown_lines == (0 if rank < 4 else 85_000)


def test_displays_are_never_left_out():
    view = live(2)
    view.text(0, "stdout", "x" * 200_000 + "\n", 0.0)
    view.display(0, -1, 0.0)
    for n in range(20):
        view.text(0, "stdout", "x\n" * 20_000, n / 20)
        view.display(0, n, n / 20)
    items = [*view.take(1.0), *view.close(1.0)]
    assert [item.display for item in items if isinstance(item, Shown)] == list(range(-1, 20))
