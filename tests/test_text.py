"""What a cell shows of its ranks' text, through `TextView` alone: time is told, so nothing waits."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest

from nbdist.views.text import Item, Shown, Stream, TextView

LABEL = re.compile(r"\[([0-9,-]+)\] ")


def live(world_size: int, **options: object) -> TextView:
    return TextView(world_size, batch=False, log_dir="/logs/7", **options)  # type: ignore[arg-type]


def batch(world_size: int, **options: object) -> TextView:
    return TextView(world_size, batch=True, log_dir="/logs/7", **options)  # type: ignore[arg-type]


def text_of(items: Iterable[Item]) -> str:
    return "".join(
        item.text if isinstance(item, Stream) else f"<{item.ranks} {item.display}>" for item in items
    )


def printed(view: TextView, *texts: str, now_s: float = 0.0) -> TextView:
    """Rank n prints the nth text."""
    for rank, text in enumerate(texts):
        view.text(rank, "stdout", text, now_s)
    return view


def terminal(text: str) -> list[str]:
    """The lines that stand on a screen after a text with returns."""
    lines = []
    for raw in text.split("\n"):
        line = ""
        for part in raw.split("\r"):
            line = part + line[len(part) :]
        lines.append(line.rstrip())
    return lines


# --- labels ---------------------------------------------------------------------------------------


def test_a_line_of_all_ranks_is_bare_and_others_carry_their_ranks():
    texts = [f"start\n{own}\nend\n" for own in ("a", "b", "b", "b", "a", "c")]
    assert text_of(printed(batch(6), *texts).close(0.0)) == "start\n[0,4] a\n[1-3] b\n[5] c\nend\n"


def test_common_lines_are_shown_at_once_and_others_when_the_window_has_passed():
    view = printed(live(2), "loading\nloss 0\n", "loading\nloss 1\n", now_s=7.0)
    assert view.take(7.0) == [Stream("stdout", "loading\n")]
    assert view.next_due_s() == 7.1
    assert view.take(7.09) == []
    assert view.take(7.1) == [Stream("stdout", "[0] loss 0\n[1] loss 1\n")]
    assert view.next_due_s() is None


def test_a_line_that_comes_after_the_window_is_not_common():
    view = live(2)
    view.text(0, "stdout", "late\n", 0.0)
    view.text(1, "stdout", "late\n", 0.11)
    assert text_of(view.close(0.11)) == "[0] late\n[1] late\n"


def test_nobody_waits_for_a_rank_that_has_finished():
    view = printed(live(2), "mine\n")
    view.finished(1)
    assert text_of(view.take(0.0)) == "[0] mine\n"


def test_the_same_text_on_different_streams_is_not_common():
    view = live(2)
    view.text(0, "stdout", "x\n", 0.0)
    view.text(1, "stderr", "x\n", 0.0)
    assert view.close(0.0) == [Stream("stdout", "[0] x\n"), Stream("stderr", "[1] x\n")]


def test_ranks_that_run_out_of_step_meet_again_at_the_next_common_line():
    assert (
        text_of(printed(batch(2), "warn\na\nb\n", "a\nb\nwarn\n").close(0.0)) == "[0] warn\na\nb\n[1] warn\n"
    )
    assert (
        text_of(printed(batch(2), "a\nb\nwarn\n", "warn\na\nb\n").close(0.0)) == "[1] warn\na\nb\n[0] warn\n"
    )


@pytest.mark.parametrize("is_batch", [False, True])
def test_rank0_and_none_choose_whose_text_is_shown(is_batch: bool):
    views = {logs: TextView(2, batch=is_batch, logs=logs) for logs in ("rank0", "none")}
    for view in views.values():
        printed(view, "zero\n", "one\n").display(1, "figure", 0.0)
    assert text_of(views["rank0"].close(0.0)) == "zero\n"
    assert views["none"].close(0.0) == []


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="world_size is 0"):
        live(0)
    with pytest.raises(ValueError, match="logs is 'some': pass 'all', 'rank0' or 'none'"):
        live(1, logs="some")


# --- one order, whatever the timing ---------------------------------------------------------------


class Event(NamedTuple):
    time_s: float
    rank: int
    stream: str  # or "display"
    text: str


def random_sequences(rng: random.Random) -> list[list[tuple[str, str]]]:
    """For each rank, lines of its own and lines that others print too, in similar order."""
    common = [
        (rng.choice(["stdout", "stderr"]), rng.choice(["", "a", "b", "epoch"]))
        for _ in range(rng.randrange(8))
    ]
    sequences = []
    for rank in range(rng.randrange(2, 6)):
        lines = [line for line in common if rng.random() < 0.8]
        for n in range(rng.randrange(6)):
            own = rng.choice([f"rank {rank} line {n}", f"odd {rank % 2}", "a"])
            lines.insert(rng.randrange(len(lines) + 1), (rng.choice(["stdout", "stderr"]), own))
        sequences.append(lines)
    return sequences


def torn(rng: random.Random, sequences: Sequence[Sequence[tuple[str, str]]], length_s: float) -> list[Event]:
    """The sequences as pieces of any length, at any times in `length_s`, each rank's in order."""
    events = []
    for rank, lines in enumerate(sequences):
        pieces = []
        for stream, line in lines:
            text = line if stream == "display" else line + "\n"
            cut = len(text) if stream == "display" else rng.randrange(len(text) + 1)
            pieces += [(stream, piece) for piece in (text[:cut], text[cut:]) if piece]
        times = sorted(rng.uniform(0.0, length_s) for _ in pieces)
        events += [Event(time_s, rank, *piece) for time_s, piece in zip(times, pieces, strict=True)]
    return in_time(events)


def in_time(events: Iterable[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event.time_s)


def shown(
    view: TextView, events: Sequence[Event], take_times: Sequence[float], end_s: float
) -> list[tuple[str, str]]:
    """Stream and line of all that a view shows, displays among them."""
    items: list[Item] = []
    for event in in_time([*events, *(Event(time_s, 0, "take", "") for time_s in take_times)]):
        if event.stream == "take":
            items += view.take(event.time_s)
        elif event.stream == "finished":
            view.finished(event.rank)
        elif event.stream == "display":
            view.display(event.rank, event.text, event.time_s)
        else:
            view.text(event.rank, event.stream, event.text, event.time_s)  # type: ignore[arg-type]
    items += view.close(end_s)
    return list(lines_of(items))


def lines_of(items: Iterable[Item]) -> Iterator[tuple[str, str]]:
    for item in items:
        if isinstance(item, Shown):
            yield "display", f"{item.ranks}{item.display}"
        else:
            assert item.text.endswith("\n")
            yield from ((item.stream, line) for line in item.text[:-1].split("\n"))


@pytest.mark.parametrize("seed", range(60))
def test_within_the_window_the_order_depends_only_on_what_each_rank_printed(seed: int):
    rng = random.Random(seed)
    sequences = random_sequences(rng)
    for lines in sequences:
        for _ in range(rng.randrange(3)):
            lines.insert(rng.randrange(len(lines) + 1), ("display", rng.choice(["figure", "table"])))
    world_size = len(sequences)
    expected = shown(batch(world_size), torn(rng, sequences, 0.0), [], 0.0)
    for _ in range(10):
        events = torn(rng, sequences, 1.99)
        for rank in range(world_size):
            last_s = max((event.time_s for event in events if event.rank == rank), default=0.0)
            events.append(Event(rng.choice([last_s, 1.99]), rank, "finished", ""))
        take_times = [rng.uniform(0.0, 10.0) for _ in range(rng.randrange(10))]
        assert shown(batch(world_size), in_time(events), take_times, 10.0) == expected


@pytest.mark.parametrize("seed", range(60))
def test_each_rank_finds_its_own_lines_in_its_own_order(seed: int):
    rng = random.Random(seed)
    sequences = random_sequences(rng)
    everybody = frozenset(range(len(sequences)))
    lines = shown(
        batch(len(sequences), window_s=0.3), torn(rng, sequences, rng.choice([0.2, 5.0])), [1.0, 3.0], 5.0
    )
    told: list[list[tuple[str, str]]] = [[] for _ in sequences]
    for stream, line in lines:
        label = LABEL.match(line)
        for rank in ranks_in(label[1]) if label else everybody:
            told[rank].append((stream, line[label.end() :] if label else line))
    assert told == sequences


def ranks_in(label: str) -> Iterator[int]:
    for span in label.split(","):
        first, _, last = span.partition("-")
        yield from range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("seed", range(60))
def test_the_order_does_not_depend_on_when_it_is_asked_for(seed: int):
    rng = random.Random(seed)
    sequences = random_sequences(rng)
    events = torn(rng, sequences, 8.0)
    transcripts = {
        tuple(shown(batch(len(sequences), window_s=0.5), events, take_times, 9.0))
        for take_times in ([], [n / 10 for n in range(90)], [rng.uniform(0.0, 9.0) for _ in range(20)])
    }
    assert len(transcripts) == 1


def test_ranks_that_were_silent_for_long_come_back_behind_what_was_printed_before_them():
    transcripts = set()
    for seed in range(50):
        rng = random.Random(seed)
        events = [
            Event(step / 10 + rng.uniform(-0.04, 0.04), 0, "stdout", f"step {step}\n") for step in range(60)
        ]
        events += [
            Event(6.2 + rng.uniform(-0.04, 0.04), rank, "stdout", f"rank {rank} done\n") for rank in range(4)
        ]
        transcripts.add(tuple(shown(batch(4), in_time(events), [n / 10 for n in range(90)], 9.0)))
    steps = [f"[0] step {step}" for step in range(60)]
    assert transcripts == {
        tuple(("stdout", line) for line in [*steps, *(f"[{r}] rank {r} done" for r in range(4))])
    }


# --- lines ----------------------------------------------------------------------------------------


def test_a_single_rank_is_passed_through_at_once_as_it_is():
    view = live(1)
    pieces = ["Working", "...", "\r 50%", "\r100%\n", "\x1b[31mred", "\r\n", "end"]
    assert [text_of(printed(view, piece).take(0.0)) for piece in pieces] == pieces
    assert view.close(0.0) == []


def test_a_last_line_without_an_end_gets_one_only_where_it_needs_it():
    assert text_of(printed(batch(2), "a\nb", "a\nb").close(0.0)) == "a\nb"
    assert text_of(printed(batch(1), "a\nb").close(0.0)) == "a\nb"
    assert text_of(printed(batch(2), "a\nb", "a\nc").close(0.0)) == "a\n[0] b\n[1] c\n"
    assert text_of(printed(batch(2), "a\nb", "a\nb\n").close(0.0)) == "a\nb\n"


def test_line_ends_of_other_systems_are_line_ends_even_when_they_come_apart():
    view = printed(batch(2), "a\r", "a\r\n")
    view.text(0, "stdout", "\nb\r\n", 0.0)
    view.text(1, "stdout", "b\n", 0.0)
    assert text_of(view.close(0.0)) == "a\nb\n"


def bar(name: str, *rates: str) -> str:
    """What tqdm writes: each draw over the one before it."""
    count = len(rates) - 1
    draws = (
        f"\r{name}: {n * 100 // count:3}%|{'█' * n:5}| {n}/{count} [00:0{n}, {rate}it/s]"
        for n, rate in enumerate(rates)
    )
    return "".join(draws) + "\n"


def test_finished_bars_of_all_ranks_are_one_line():
    view = printed(
        batch(3), *(f"begin\n{bar('train', '?', f'1.0{rank}', f'2.0{rank}')}end\n" for rank in range(3))
    )
    assert text_of(view.close(0.0)) == "begin\ntrain: 100%|██   | 2/2 [00:02, 2.00it/s]\nend\n"


def test_a_line_written_over_a_bar_is_no_bar():
    over = printed(batch(2), *(f"1/2\r2/2\rrank {rank} done\n" for rank in range(2)))
    wiped = printed(batch(2), *(f"\r50%\r100%\r    \rloss {rank}\n" for rank in range(2)))
    assert text_of(over.close(0.0)) == "[0] rank 0 done\n[1] rank 1 done\n"
    assert text_of(wiped.close(0.0)) == "[0] loss 0\n[1] loss 1\n"


def test_a_colour_left_on_stays_in_its_ranks_lines():
    view = printed(batch(2), "\x1b[1;31mred\nstill\nplain\x1b[0m\nend\n", "x\ny\nz\nend\n")
    assert text_of(view.close(0.0)) == (
        "[0] \x1b[1m\x1b[31mred\x1b[0m\n[1] x\n".replace("\x1b[1m\x1b[31m", "\x1b[1;31m")
        + "[0] \x1b[1m\x1b[31mstill\x1b[0m\n[1] y\n[0] \x1b[1m\x1b[31mplain\x1b[0m\n[1] z\nend\n"
    )


def test_colours_that_are_switched_off_are_left_as_they_are():
    line = "\x1b[38;5;9mred\x1b[39m \x1b[1mbold\x1b[22m \x1b[7;44mpaper\x1b[0m"
    assert text_of(printed(batch(2), f"{line}\nnext\n").close(0.0)) == f"[0] {line}\n[0] next\n"


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_line_of_one_megabyte_is_whole(is_batch: bool, world_size: int):
    line = "x" * 2**20 + "\n"
    view = TextView(world_size, batch=is_batch)
    for begin in range(0, len(line), 2**16):
        printed(view, *[line[begin : begin + 2**16]] * world_size)
    printed(view, *["next\n"] * world_size)
    items = [*view.take(1.0), *view.take(2.0), *view.close(2.0)]
    assert "".join(text_of(items)) == line + "next\n"


def test_a_line_without_end_is_cut_with_a_mark_and_what_follows_it_is_whole():
    view = batch(2)
    for _ in range(200):
        printed(view, "é" * 2**14, "é" * 2**14)
    printed(view, "lost\nnext\n", "lost\nnext\n")
    cut, rest = text_of(view.close(0.0)).split("…")
    assert set(cut) == {"é"}
    assert len(cut.encode()) == 1_250_000
    assert rest == "[line goes on in the log]\nnext\n"


# --- the status line ------------------------------------------------------------------------------


def test_an_unfinished_line_that_stands_for_long_is_shown_in_place():
    view = printed(live(2), "\r 10%|█ |", "\r 12%|█ |")
    assert view.take(0.05) == []
    assert view.next_due_s() == 0.1
    assert view.take(0.1) == [Stream("stdout", "\r 10%|█ |")]
    assert view.next_due_s() is None
    printed(view, "\r9%", now_s=0.2)
    assert view.next_due_s() == 0.2
    assert view.take(0.2) == [Stream("stdout", "\r9%      ")]


def test_a_bar_that_ends_its_draws_with_a_return_is_shown_in_place():
    view = printed(live(2), "5/10\r", "5/10\r")
    view.take(0.0)
    assert text_of(view.take(0.1)) == "\r5/10"
    assert text_of(printed(view, "12", now_s=0.2).take(0.2)) == "\r12  "


def test_lines_come_above_the_status_line():
    view = printed(live(2), "\r 50%", "\r 51%")
    text = text_of(view.take(0.1))
    view.text(1, "stdout", "\r    \rfirst\n\r 52%", 0.2)
    text += text_of(view.take(0.31))
    assert terminal(text) == ["[1] first", " 50%"]
    text += text_of(view.close(0.4))
    assert terminal(text) == ["[1] first", "[0]  50%", "[1]  52%", ""]


def test_a_finished_bar_takes_the_status_lines_place():
    view = live(2)
    text, whole = "", [bar("epoch", "?", "1.1", f"2.{rank}") for rank in range(2)]
    for time_s, cut in ((0.0, 60), (0.2, 70), (0.4, 1000)):
        for rank in (0, 1):
            view.text(rank, "stderr", whole[rank][:cut], time_s)
            whole[rank] = whole[rank][cut:]
            items = view.take(time_s + 0.1 * rank)
            assert all(isinstance(item, Stream) and item.stream == "stderr" for item in items)
            text += text_of(items)
    assert terminal(text) == ["epoch: 100%|██   | 2/2 [00:02, 2.0it/s]", ""]


def test_the_status_of_another_rank_is_labelled():
    view = printed(live(2), "", "wait...")
    view.take(0.0)
    assert text_of(view.take(0.1)) == "\r[1] wait..."


def test_a_long_status_line_shows_its_end():
    view = printed(live(2), "." * 5000 + "end")
    view.take(0.0)
    assert text_of(view.take(0.1)) == "\r…" + "." * 196 + "end"


def test_a_batch_run_shows_no_status():
    view = printed(batch(2), "\r 10%", "\r 10%")
    assert view.next_due_s() is None
    assert view.take(60.0) == []


# --- displays -------------------------------------------------------------------------------------


def test_displays_keep_their_place_and_equal_ones_are_shown_once():
    view = live(2)
    for rank in (0, 1):
        view.text(rank, "stdout", "before\n", 0.0)
        view.display(rank, {"text/plain": "same"}, 0.0)
        view.display(rank, {"text/plain": f"own {rank}"}, 0.0)
        view.text(rank, "stdout", "after\n", 0.0)
    assert view.close(0.0) == [
        Stream("stdout", "before\n"),
        Shown((), {"text/plain": "same"}),
        Shown((), {"text/plain": "own 0"}),
        Shown((1,), {"text/plain": "own 1"}),
        Stream("stdout", "after\n"),
    ]


# --- floods ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("same", [False, True])
def test_a_batch_flood_shows_the_same_whatever_the_pieces(same: bool):
    texts = ["".join(f"{'' if same else rank} line {n}\n" for n in range(30_000)) for rank in range(3)]
    transcripts = set()
    for piece, length_s in ((10_000, 1.0), (333_333, 0.1), (2_000_000, 0.0)):
        view = batch(3)
        taken = flood(view, texts, piece=piece, length_s=length_s)
        transcripts.add("".join(text_of(items) for _, items in taken) + text_of(view.close(length_s)))
    (transcript,) = transcripts
    lines = transcript.splitlines()
    (place,) = (n for n, line in enumerate(lines) if NOTICE.match(line))
    assert len(lines) - place - 1 == 200
    assert lines[-1].endswith(" line 29999")
    assert len(transcript) < 1_010_000
    shown_times = 3 if same else 1
    assert place * shown_times + left_out(transcript) + (600 if same else 200) == 90_000


def test_memory_is_bounded_while_one_rank_is_silent():
    text = "".join(f"line {n}\n" for n in range(20_000))
    for view in (live(2), batch(2)):
        tracemalloc.start()
        for _ in range(30):
            view.text(0, "stdout", text, 0.0)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 8_000_000  # a fifth of all the lines


def test_too_many_lines_do_not_wait_for_the_window():
    view = batch(6, window_s=1e9)
    for rank in range(5):
        view.text(rank, "stdout", "".join(f"{n}\n" for n in range(rank, 85_000, 5)), 0.0)
        shown_lines = text_of(view.take(0.0)).count("\n")
        assert shown_lines == (0 if rank < 4 else 85_000)


def test_displays_are_never_left_out():
    view = live(2)
    for n in range(20):
        view.text(0, "stdout", "x\n" * 20_000, n / 20)
        view.display(0, n, n / 20)
    items = [*view.take(1.0), *view.close(1.0)]
    assert [item.display for item in items if isinstance(item, Shown)] == list(range(20))


# --- messages -------------------------------------------------------------------------------------


def test_streams_that_take_turns_often_are_sorted_between_displays():
    view = live(2)
    for rank in (0, 1):
        for n in range(20):
            view.text(rank, "stdout", f"out {n}\n", 0.0)
            view.text(rank, "stderr", f"err {n}\n", 0.0)
            if n == 9:
                view.display(rank, "figure", 0.0)
    out, err = ["".join(f"{name} {n}\n" for n in range(20)) for name in ("out", "err")]
    assert view.take(0.0) == [
        Stream("stdout", out[: out.index("out 10")]),
        Stream("stderr", err[: err.index("err 10")]),
        Shown((), "figure"),
        Stream("stdout", out[out.index("out 10") :]),
        Stream("stderr", err[err.index("err 10") :]),
    ]


def test_streams_that_take_few_turns_stay_in_order():
    view = live(1)
    for stream in ("stdout", "stderr", "stdout", "stdout"):
        view.text(0, stream, f"{stream}\n", 0.0)  # type: ignore[arg-type]
    assert view.take(0.0) == [
        Stream("stdout", "stdout\n"),
        Stream("stderr", "stderr\n"),
        Stream("stdout", "stdout\nstdout\n"),
    ]
