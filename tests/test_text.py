"""What a cell shows of its ranks' text, through `TextView` alone: time is told, so nothing waits."""

from __future__ import annotations

import pytest
from printing import batch, live, printed, text_of

from nbdist.messages import Display
from nbdist.views.text import Shown, Stream, TextView


def test_a_line_of_all_ranks_is_bare_and_others_carry_their_ranks():
    texts = [f"start\n{own}\nend\n" for own in ("a", "b", "b", "b", "a", "c")]
    assert text_of(printed(batch(6), *texts).close(0.0)) == "start\n[0,4] a\n[1-3] b\n[5] c\nend\n"


def test_common_lines_are_shown_at_once_and_others_when_the_window_has_passed():
    view = printed(live(2), "loading\nloss 0\n", "loading\nloss 1\n", now_s=7.0)
    assert view.take(7.0) == [Stream("stdout", "loading\n")]
    assert view.next_due_s() == 7.1
    assert view.take(7.09) == []
    assert view.take(7.1) == [Stream("stdout", "loss 0\n", (0,)), Stream("stdout", "loss 1\n", (1,))]
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
    assert view.close(0.0) == [Stream("stdout", "x\n", (0,)), Stream("stderr", "x\n", (1,))]


def test_a_common_line_is_shown_at_once_whichever_rank_prints_it_first():
    view = live(3)
    for time_s, rank in ((0.0, 1), (0.03, 2), (0.06, 0)):
        view.text(rank, "stdout", "x\n", time_s)
    assert text_of(view.take(0.06)) == "x\n"


def test_a_row_has_one_line_of_each_rank():
    assert text_of(printed(batch(3), "a\nb\n", "x\ny\n", "x\nz\n").close(0.0)) == (
        "[0] a\n[1-2] x\n[0] b\n[1] y\n[2] z\n"
    )


def test_a_row_is_not_held_up_by_what_comes_after_its_window():
    view = batch(3)
    for time_s, rank in ((0.0, 0), (1.5, 1), (3.0, 2), (3.1, 0)):
        view.text(rank, "stdout", f"at {time_s}\n", time_s)
    assert text_of(view.take(3.5)) == "[0] at 0.0\n[1] at 1.5\n"
    assert text_of(view.take(5.2)) == "[0] at 3.1\n[2] at 3.0\n"


def test_a_rank_that_was_silent_gives_what_another_waits_behind():
    view = batch(2)
    view.text(0, "stdout", "early\n", 0.0)
    view.text(0, "stdout", "x\n", 5.0)
    view.text(0, "stdout", "own 0\n", 5.01)
    view.text(1, "stdout", "own 1\nx\n", 5.02)
    assert text_of(view.close(6.0)) == "[0] early\n[1] own 1\nx\n[0] own 0\n"


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


def test_lines_without_an_end_are_in_common_also_when_the_ranks_have_finished():
    view = printed(live(2), "bye", "bye")
    for rank in (0, 1):
        view.finished(rank)
    assert text_of(view.close(0.0)) == "bye"


def test_unfinished_lines_of_both_streams_come_in_the_order_in_which_they_began():
    view = batch(1)
    view.text(0, "stderr", "first", 0.0)
    view.text(0, "stdout", "second", 0.1)
    assert view.close(0.2) == [Stream("stderr", "first\n"), Stream("stdout", "second")]


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
    wiped = printed(batch(2), *(f"\r50%\r100%\r    \r0.{rank}\n" for rank in range(2)))
    assert text_of(over.close(0.0)) == "[0] rank 0 done\n[1] rank 1 done\n"
    assert text_of(wiped.close(0.0)) == "[0] 0.0\n[1] 0.1\n"


def test_a_colour_left_on_stays_in_its_ranks_lines():
    view = printed(batch(2), "\x1b[1;31mred\nstill\nplain\x1b[0m\nend\n", "x\ny\nz\nend\n")
    assert text_of(view.close(0.0)) == (
        "[0] \x1b[1m\x1b[31mred\x1b[0m\n[1] x\n".replace("\x1b[1m\x1b[31m", "\x1b[1;31m")
        + "[0] \x1b[1m\x1b[31mstill\x1b[0m\n[1] y\n[0] \x1b[1m\x1b[31mplain\x1b[0m\n[1] z\nend\n"
    )


def test_colours_that_are_switched_off_are_left_as_they_are():
    line = "\x1b[38;5;9mred\x1b[39m \x1b[1mbold\x1b[22m \x1b[7;44mpaper\x1b[0m"
    assert text_of(printed(batch(2), f"{line}\nnext\n").close(0.0)) == f"[0] {line}\n[0] next\n"


def test_a_single_ranks_colours_are_left_alone():
    text = "\x1b[31mred\nstill\n"
    assert text_of(printed(batch(1), text).close(0.0)) == text_of(printed(live(1), text).close(0.0)) == text


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


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_line_without_end_is_cut_with_a_mark_and_what_follows_it_is_whole(is_batch: bool, world_size: int):
    view = TextView(world_size, batch=is_batch)
    for text in [*["é" * 2**14] * 200, "lost\nnext\n"]:
        printed(view, *[text] * world_size)
    cut, rest = text_of([*view.take(1.0), *view.close(1.0)]).split("…")
    assert set(cut) == {"é"}
    assert len(cut.encode()) == 1_250_000
    assert rest == "[line goes on in the log]\nnext\n"


def test_of_very_many_draws_the_last_is_shown():
    view = live(1)
    view.text(0, "stdout", "".join(f"\r{n}%" for n in range(100_000)), 0.0)
    assert text_of(view.take(0.0)) == "\r99999%"


def terminal(text: str) -> list[str]:
    """The lines that stand on a screen after a text with returns."""
    lines = []
    for raw in text.split("\n"):
        line = ""
        for part in raw.split("\r"):
            line = part + line[len(part) :]
        lines.append(line.rstrip())
    return lines


def test_an_unfinished_line_that_stands_for_long_is_shown_in_place():
    view = printed(live(2), "\r 10%|█ |", "\r 12%|█ |")
    assert view.take(0.05) == []
    assert view.next_due_s() == 0.1
    assert view.take(0.1) == [Stream("stdout", "\r 10%|█ |")]
    assert view.next_due_s() is None
    printed(view, "\r9%", now_s=0.2)
    assert view.next_due_s() == 0.2
    assert view.take(0.2) == [Stream("stdout", "\r9%      ")]


def test_a_line_shown_in_place_has_room_in_a_narrow_terminal():
    view = printed(TextView(2, batch=False, status_chars=11), "\repoch 1 数据", "\rno")
    assert view.take(0.1) == [Stream("stdout", "\r…och 1 数据")]
    printed(view, "\r9%", now_s=0.2)
    assert view.take(0.2) == [Stream("stdout", "\r9%         ")]


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
    for time_s, cut in ((0.0, 40), (0.2, 40), (0.4, 1000)):
        for rank in (0, 1):
            view.text(rank, "stderr", whole[rank][:cut], time_s)
            whole[rank] = whole[rank][cut:]
            items = view.take(time_s + 0.1 * rank)
            if (time_s, rank) == (0.4, 0):
                assert items == []  # the last draw stays until the other rank's bar is at its end, too
            assert all(isinstance(item, Stream) and item.stream == "stderr" for item in items)
            text += text_of(items)
    assert terminal(text) == ["epoch: 100%|██   | 2/2 [00:02, 2.0it/s]", ""]


def test_a_status_does_not_outlive_its_line():
    view = printed(live(2), "\r 50%")
    text = text_of(view.take(0.1))
    for n in range(10):
        now_s = 0.2 + n * 0.05  # there always is a line that waits
        view.text(0, "stdout", "\r100%\n" if n == 0 else f"line {n}\n", now_s)
        text += text_of(view.take(now_s))
    assert terminal(text) == ["[0] 100%", *(f"[0] line {n}" for n in range(1, 8)), ""]


def test_the_status_of_another_rank_is_labelled():
    view = printed(live(2), "", "wait...")
    view.take(0.0)
    assert text_of(view.take(0.1)) == "\r[1] wait..."


def test_a_status_that_moves_to_the_other_stream_is_erased_where_it_was():
    view = live(2)
    view.text(1, "stderr", "\r 10%", 0.0)
    view.take(0.1)
    view.text(0, "stdout", "Working", 0.1)
    assert view.take(0.25) == [Stream("stderr", "\r        \r"), Stream("stdout", "\rWorking")]


def test_codes_that_move_the_cursor_are_no_part_of_the_status():
    view = printed(live(2), "\x1b[A\x1b[2K\x1b[32mok")
    view.take(0.0)
    assert text_of(view.take(0.1)) == "\r\x1b[32mok\x1b[0m"


def test_a_long_status_line_shows_its_end():
    view = printed(live(2), "." * 5000 + "end")
    view.take(0.0)
    assert text_of(view.take(0.1)) == "\r…" + "." * 196 + "end"


def test_a_batch_run_shows_no_status():
    view = printed(batch(2), "\r 10%", "\r 10%")
    assert view.next_due_s() is None
    assert view.take(60.0) == []


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


def test_a_first_display_waits_for_ranks_that_import_more_slowly():
    view = TextView(2, batch=False)
    printed(view, "", "loading\n")
    view.display(1, "figure", 0.0)
    assert text_of(view.take(0.2)) == "[1] loading\n"
    view.display(0, "figure", 1.5)
    assert view.take(1.5) == [Shown((), "figure")]


def test_a_first_display_waits_for_nobody_who_has_finished_and_not_for_ever():
    view = TextView(2, batch=False)
    view.display(0, "figure", 0.0)
    view.finished(1)
    assert view.take(0.0) == [Shown((), "figure")]
    view = TextView(2, batch=False)
    view.display(1, "figure", 0.0)
    assert view.take(2.0) == []
    assert view.next_due_s() == pytest.approx(2.1)
    assert view.take(2.2) == [Shown((1,), "figure")]


def test_a_later_display_is_shown_as_soon_as_text():
    view = TextView(2, batch=False)
    for rank in (0, 1):
        view.display(rank, Display(kind="clear", data={}), 0.0)
        view.display(rank, "first", 0.0)
    view.display(1, "second", 1.0)
    shown = [item.display for item in view.take(1.0) if item.display == "first"]
    assert shown == ["first"]
    assert view.take(1.2) == [Shown((1,), "second")]


def test_an_unfinished_line_comes_before_the_display_that_follows_it():
    for view in (live(2), batch(2)):
        for rank in (0, 1):
            view.text(rank, "stdout", "loss ", 0.0)
            view.display(rank, "figure", 0.0)
            view.text(rank, "stdout", "is 0.5", 0.0)
        assert view.take(0.0) == [Stream("stdout", "loss "), Shown((), "figure")]
        assert view.close(0.0) == [Stream("stdout", "is 0.5")]


def test_an_unfinished_line_of_one_rank_ends_at_its_display():
    view = printed(batch(2), "same", "same")
    view.display(0, "figure", 0.0)
    view.text(1, "stdout", " and more\n", 0.0)
    assert view.close(0.0) == [
        Stream("stdout", "same\n", (0,)),
        Stream("stdout", "same and more\n", (1,)),
        Shown((), "figure"),
    ]


def test_an_update_leaves_an_unfinished_line_alone():
    view = batch(2)
    for rank in (0, 1):
        view.text(rank, "stdout", "one ", 0.0)
        view.display(rank, Display(kind="update", data={"text/plain": "new"}, display_id="a"), 0.0)
        view.text(rank, "stdout", "line\n", 0.0)
    assert [item for item in view.close(0.0) if isinstance(item, Stream)] == [Stream("stdout", "one line\n")]


SVG = """<svg><dc:date>{date}</dc:date><defs><clipPath id="p{lot}"/></defs>
<g clip-path="url(#p{lot})" id="axes_1" style="fill: #ffaa00"><use xlink:href="#p{lot}"/>{text}</g></svg>"""


def test_markup_that_differs_in_dates_and_ids_alone_is_shown_once():
    view = batch(2)
    figures = [
        [
            {"image/svg+xml": SVG.format(date=f"12:0{rank}", lot=lot, text=text)}
            for text in ("a", f"own {rank}")
        ]
        for rank, lot in enumerate(("0f3a", "77ce"))
    ]
    for rank, (same, own) in enumerate(figures):
        view.display(rank, Display(kind="display", data=same), 0.0)
        view.display(rank, Display(kind="display", data=own), 0.0)
    assert view.close(0.0) == [
        Shown((), Display(kind="display", data=figures[0][0])),
        Shown((), Display(kind="display", data=figures[0][1])),
        Shown((1,), Display(kind="display", data=figures[1][1])),
    ]


def test_references_to_different_parts_of_markup_are_different():
    view = batch(2)
    for rank, to in enumerate("ab"):
        html = f"<p id='a{rank}'></p><p id='b{rank}'></p><a href='#{to}{rank}'>there</a>"
        view.display(rank, Display(kind="display", data={"text/html": html}), 0.0)
    assert [item.ranks for item in view.close(0.0) if isinstance(item, Shown)] == [(), (1,)]


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


def test_streams_with_displays_between_them_take_no_turns():
    view = live(1)
    for stream in ["stdout", "stderr"] * 5:
        view.text(0, stream, f"{stream}\n", 0.0)  # type: ignore[arg-type]
        view.display(0, "figure", 0.0)
    for stream in ("stderr", "stdout", "stderr"):
        view.text(0, stream, f"{stream}\n", 0.0)  # type: ignore[arg-type]
    streams = [item.stream for item in view.take(0.0) if isinstance(item, Stream)]
    assert streams == [*["stdout", "stderr"] * 5, "stderr", "stdout", "stderr"]


def test_streams_that_take_few_turns_stay_in_order():
    view = live(1)
    for stream in ("stdout", "stderr", "stdout", "stdout"):
        view.text(0, stream, f"{stream}\n", 0.0)  # type: ignore[arg-type]
    assert view.take(0.0) == [
        Stream("stdout", "stdout\n"),
        Stream("stderr", "stderr\n"),
        Stream("stdout", "stdout\nstdout\n"),
    ]
