"""Ranks' lines have one order, whatever the timing."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pytest
from printing import batch, text_of

from nbdist.views.text import Item, Shown, TextView

LABEL = re.compile(r"\[([0-9,-]+)\] ")


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
            yield from ((item.stream, line) for line in item.labelled[:-1].split("\n"))


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


@pytest.mark.parametrize("last_ranks", [range(4), range(1, 4)])
def test_ranks_that_were_silent_for_long_come_back_behind_what_was_printed_before_them(last_ranks: range):
    transcripts = set()
    for seed in range(50):
        rng = random.Random(seed)
        events = [
            Event(step / 10 + rng.uniform(-0.04, 0.04), 0, "stdout", f"step {step}\n") for step in range(60)
        ]
        events += [
            Event(6.2 + rng.uniform(-0.04, 0.04), rank, "stdout", f"done {rank}\nbye {rank}\n")
            for rank in last_ranks
        ]
        transcripts.add(tuple(shown(batch(4), in_time(events), [n / 10 for n in range(90)], 9.0)))
    steps = [f"[0] step {step}" for step in range(60)]
    ends = [f"[{rank}] {word} {rank}" for word in ("done", "bye") for rank in last_ranks]
    assert transcripts == {tuple(("stdout", line) for line in [*steps, *ends])}


def test_ranks_that_were_silent_together_come_back_in_rows():
    view = batch(3)
    view.text(0, "stdout", "start\n", 0.0)
    for time_s, rank, line in ((10.0, 1, "a 1"), (10.6, 2, "a 2"), (11.0, 1, "b 1"), (11.6, 2, "b 2")):
        view.text(rank, "stdout", f"{line}\n", time_s)
    assert text_of(view.close(20.0)) == "[0] start\n[1] a 1\n[2] a 2\n[1] b 1\n[2] b 2\n"


def test_a_rank_that_was_passed_over_may_print_what_others_wait_for_in_the_same_row():
    view = batch(3)
    for time_s, rank, text in ((0.0, 2, "x\n"), (1.5, 1, "q\nx\n"), (2.5, 0, "own\nq\nx\n"), (2.6, 2, "q\n")):
        view.text(rank, "stdout", text, time_s)
    assert text_of(view.close(20.0)) == "[0] own\n[0-1] q\nx\n[2] q\n"


def test_lines_that_end_together_are_taken_to_belong_together():
    view = batch(2)
    view.text(0, "stdout", "step 1\n", 0.0)
    view.text(0, "stdout", "step 2\nstep 3\ndone 0\n", 5.00)
    view.text(1, "stdout", "done 1\n", 5.01)
    assert text_of(view.close(6.0)) == "[0] step 1\n[0] step 2\n[0] step 3\n[0] done 0\n[1] done 1\n"
