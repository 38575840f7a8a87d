"""Progress bars and displays of several ranks in a cell's text, through `TextView` and the run's state."""

from __future__ import annotations

import pytest
from printing import batch, live, printed, text_of

from nbdist.messages import Died, Display, Progress
from nbdist.state import RunState, first_state, fold
from nbdist.views.bars import bar_line
from nbdist.views.text import Shown, Stream, TextView


class Ranks:
    """Ranks with bars: what the monitor does with their messages."""

    def __init__(self, view: TextView, world_size: int):
        self.view = view
        self.state: RunState = first_state(world_size)
        self.now_s = 0.0

    def say(
        self, *ranks: int, done: float, phase: str = "open", number: int = 1, name: str = "train"
    ) -> None:
        progress = Progress(
            name=name, number=number, order=number, label=name, done=done, total=10, detail=f"{done}/10",
            phase=phase,  # type: ignore[arg-type]
        )  # fmt: skip
        for rank in ranks:
            self.state = fold(self.state, rank, progress)
            if phase == "kept":
                self.view.bar_ended(rank, progress, self.now_s)
            self.view.bars(self.state.bars, self.now_s)

    def taken(self, after_s: float = 0.0) -> str:
        self.now_s += after_s
        return text_of(self.view.take(self.now_s))


def ranks_of(world_size: int, *, is_batch: bool = False) -> Ranks:
    return Ranks(batch(world_size) if is_batch else live(world_size), world_size)


def test_the_line_shows_the_rank_that_is_least_far():
    ranks = ranks_of(3)
    ranks.say(0, 1, 2, done=5)
    ranks.say(1, done=7)
    ranks.say(2, done=2)
    assert ranks.taken() == "\rtrain:  20%|██        | 2/10"
    assert ranks.view.next_due_s() is None
    ranks.say(2, done=9)
    assert ranks.view.next_due_s() == 0.0
    assert ranks.taken() == "\rtrain:  50%|█████     | 5/10"


def test_bars_of_nested_loops_stand_beside_each_other():
    ranks = ranks_of(2)
    ranks.say(0, 1, done=1, name="epochs")
    ranks.say(0, 1, done=4, name="steps")
    assert ranks.taken() == "\repochs:  10%|█         | 1/10  steps:  40%|████      | 4/10"


def test_of_ranks_that_are_out_of_step_the_last_is_shown():
    ranks = ranks_of(3)
    ranks.say(0, done=9, number=3)
    ranks.say(1, 2, done=4, number=1)
    assert ranks.taken() == "\r[1-2] train:  40%|████      | 4/10"


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_bar_that_has_ended_is_one_line_in_its_place(is_batch: bool):
    ranks = ranks_of(2, is_batch=is_batch)
    printed(ranks.view, "begin\n", "begin\n")
    ranks.say(0, 1, done=5)
    ranks.say(0, 1, done=10, phase="kept")
    printed(ranks.view, "end\n", "end\n")
    assert ranks.taken() == "begin\ntrain: 100%|██████████| 10/10\nend\n"
    assert ranks.view.close(0.0) == []


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_bar_is_one_line_however_far_apart_the_ranks_end_it(is_batch: bool):
    ranks = ranks_of(2, is_batch=is_batch)
    ranks.say(0, 1, done=5)
    ranks.say(0, done=10, phase="kept")
    ranks.taken()
    assert "100%" not in ranks.taken(after_s=60.0)
    ranks.say(0, done=10, phase="kept", number=2)  # the next one, which the other rank has not begun
    assert "100%" not in ranks.taken(after_s=60.0)
    ranks.say(1, done=10, phase="kept")
    assert "train: 100%|██████████| 10/10\n" in ranks.taken(after_s=60.0)


def test_a_bar_of_one_rank_carries_its_label():
    ranks = ranks_of(2)
    ranks.say(1, done=5)
    assert ranks.taken() == "\r[1] train:  50%|█████     | 5/10"
    ranks.say(1, done=10, phase="kept")
    ranks.taken()
    assert "[1] train: 100%" in ranks.taken(after_s=0.2)


def test_a_bar_that_leaves_nothing_behind():
    ranks = ranks_of(2)
    ranks.say(0, 1, done=5)
    ranks.taken()
    ranks.say(0, 1, done=10, phase="gone")
    assert ranks.taken().strip() == ""
    assert ranks.view.close(0.0) == []


def test_nobody_waits_for_the_bar_of_a_rank_that_died():
    ranks = ranks_of(2)
    ranks.say(0, 1, done=5)
    ranks.say(0, done=10, phase="kept")
    ranks.state = fold(ranks.state, 1, Died(time_s=0.0, pid=1, exit_code=-9))
    ranks.view.bars(ranks.state.bars, 0.0)
    ranks.view.finished(1)
    assert "[0] train: 100%" in ranks.taken()


def test_a_single_ranks_bar_stands_below_its_text():
    ranks = ranks_of(1)
    ranks.say(0, done=5)
    assert ranks.taken() == "\rtrain:  50%|█████     | 5/10"
    printed(ranks.view, "a line\n")
    assert ranks.taken() == f"\r{' ' * 28}\ra line\n\rtrain:  50%|█████     | 5/10"
    printed(ranks.view, "no end")
    assert ranks.taken().endswith("\rno end")  # it is not drawn over
    ranks.say(0, done=10, phase="kept")
    assert ranks.taken() == "\ntrain: 100%|██████████| 10/10\n"


def test_bars_of_ranks_that_are_not_shown_are_not_shown():
    for logs, expected in (("rank0", "\rtrain:  50%|█████     | 5/10"), ("none", "")):
        ranks = Ranks(live(2, logs=logs), 2)
        ranks.say(0, done=5)
        ranks.say(1, done=1)
        assert ranks.taken() == expected


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        ({"done": 0, "total": 8}, "  0%|          | 0/8 [00:00<?, ?it/s]"),
        ({"done": 3, "total": 8, "elapsed_s": 1.5}, " 38%|███▊      | 3/8 [00:01<00:02, 2.00it/s]"),
        ({"done": 1, "total": 4, "elapsed_s": 4000.0}, " 25%|██▌       | 1/4 [1:06:40<3:20:00, 4000.00s/it]"),
        ({"done": 9, "total": 8, "detail": "x"}, "100%|██████████| x"),
        ({"done": 5, "elapsed_s": 2.0}, "5it [00:02, 2.50it/s]"),
        ({"done": 5, "drawn": "as you like"}, "as you like"),
    ],
)
def test_a_bar_is_drawn_as_tqdm_draws_it(progress: dict[str, float], line: str):
    assert bar_line(Progress(name="", number=1, order=1, **progress)) == line  # type: ignore[arg-type]


# ── Displays with an id ─────────────────────────────────────────────────────────────────────────────────────


def shown(view: TextView) -> list[tuple[tuple[int, ...], str, str | None, str]]:
    """What has been shown: ranks, kind, id, text."""
    found = []
    for item in view.take(1e9):
        assert isinstance(item, Shown)
        display = item.display
        assert isinstance(display, Display)
        found.append((item.ranks, display.kind, display.display_id, display.data.get("text/plain", "")))
    return found


def show(view: TextView, rank: int, text: str, display_id: str, kind: str = "display") -> None:
    view.display(rank, Display(kind=kind, data={"text/plain": text}, display_id=display_id), 0.0)  # type: ignore[arg-type]


def test_equal_displays_are_one_whatever_their_ids_and_so_are_their_updates():
    view = batch(2)
    for rank in (0, 1):
        show(view, rank, "begun", f"id {rank}")
        show(view, rank, "done", f"id {rank}", "update")
    assert shown(view) == [((), "display", "id 0", "begun"), ((), "update", "id 0", "done")]


@pytest.mark.parametrize("ids", [("id 0", "id 1"), ("same", "same")])
def test_an_update_of_ones_own_gives_a_display_of_ones_own(ids: tuple[str, str]):
    view = batch(2)
    for rank in (0, 1):
        show(view, rank, "begun", ids[rank])
        show(view, rank, f"loss {rank}", ids[rank], "update")
        show(view, rank, f"at last {rank}", ids[rank], "update")
    own = "id 1" if ids[1] == "id 1" else "same of rank 1"
    first, *rest = shown(view)
    assert first == ((), "display", ids[0], "begun")
    assert [step for step in rest if step[2] == ids[0]] == [
        ((), "update", ids[0], "loss 0"),
        ((), "update", ids[0], "at last 0"),
    ]
    assert [step for step in rest if step[2] == own] == [
        ((1,), "display", own, "loss 1"),
        ((1,), "update", own, "at last 1"),
    ]


def test_a_rank_that_makes_the_same_updates_later_or_earlier_has_no_display_of_its_own():
    view = live(3)
    for rank in (0, 1, 2):
        show(view, rank, "begun", f"id {rank}")
    for rank, time_s in ((1, 1.0), (0, 2.0), (2, 3.0)):
        display = Display(kind="update", data={"text/plain": "step 1"}, display_id=f"id {rank}")
        view.display(rank, display, time_s)
    assert shown(view) == [((), "display", "id 0", "begun"), ((), "update", "id 0", "step 1")]


def test_an_update_that_the_lowest_rank_never_makes_is_shown_at_the_end():
    view = batch(2)
    for rank in (0, 1):
        show(view, rank, "begun", f"id {rank}")
    show(view, 1, "mine", "id 1", "update")
    assert [step[2:] for step in shown(view)] == [("id 0", "begun")]
    (item,) = view.close(1e9)
    assert isinstance(item, Shown)
    assert item.ranks == (1,)
    assert item.display == Display(kind="display", data={"text/plain": "mine"}, display_id="id 1")


def test_a_display_that_an_earlier_cell_made_is_the_first_ranks_and_others_have_one_of_their_own():
    view = batch(2)
    show(view, 1, "by one", "the notebook's", "update")
    for rank in (0, 1):
        show(view, rank, "by all", "the notebook's", "update")
    (mine, by_all), (other, by_one) = [step[2:] for step in shown(view)]
    assert (mine, by_all, by_one) == ("the notebook's", "by all", "by one")
    assert other != mine


def test_every_rank_clears_but_the_cell_is_cleared_once_a_step():
    view = live(2)
    for step in range(2):
        for rank in (0, 1):  # far apart in time
            view.display(rank, Display(kind="clear"), step + rank / 2)
            view.text(rank, "stdout", f"step {step}\n", step + rank / 2)
    items = view.close(10.0)
    assert [item.labelled if isinstance(item, Stream) else "clear" for item in items] == [
        "clear",
        *("[0] step 0\n", "[1] step 0\n"),
        "clear",
        *("[0] step 1\n", "[1] step 1\n"),
    ]
