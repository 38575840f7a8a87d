"""What stands under a cell whose ranks work in the background: the last text and displays, as HTML."""

from __future__ import annotations

import pytest

from nbdist.messages import Display
from nbdist.views.colours import text_html
from nbdist.views.flood import LATEST_CHARS, LATEST_LINES
from nbdist.views.html import tail_html
from nbdist.views.items import Item, Shown, Stream
from nbdist.views.tail import LATEST_DISPLAYS, Line, Tail


def tail_of(*items: Item) -> Tail:
    tail = Tail()
    for item in items:
        tail.add([item])
    return tail


def texts(tail: Tail) -> list[str]:
    return [entry.text if isinstance(entry, Line) else str(entry.display.data) for entry in tail.entries]


def shown(text: str, display_id: str | None = None, kind: str = "display", **more: object) -> Shown:
    data = {"text/plain": text}
    return Shown((), Display(kind=kind, data=data, display_id=display_id, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        (["one\ntwo\n"], ["one", "two"]),
        (["o", "ne\nt", "wo"], ["one", "two"]),
        (["\n\nx\n"], ["", "", "x"]),
        (["10%", "\r20%", "\r100%\n", "done\n"], ["100%", "done"]),
        (["\r50%", "\r   \r", "a line\n", "\r60%"], ["a line", "60%"]),
        (["\r50%", "\r   \r"], [""]),
        (["windows\r\nend\r\n"], ["windows", "end"]),
        (["\r", "50%", "\r", "60%\n"], ["60%"]),
        (["kept  \n"], ["kept  "]),
    ],
)
def test_lines_stand_as_a_terminal_shows_them(pieces: list[str], lines: list[str]) -> None:
    assert texts(tail_of(*(Stream("stdout", piece) for piece in pieces))) == lines


def test_streams_that_take_turns_do_not_share_a_line() -> None:
    tail = tail_of(Stream("stdout", "a"), Stream("stderr", "b"), Stream("stdout", "c\n"))
    assert texts(tail) == ["a", "b", "c"]


def test_a_status_that_was_wiped_leaves_no_line_before_a_display() -> None:
    tail = tail_of(Stream("stdout", "\r50%"), Stream("stdout", "\r   \r"), shown("figure"))
    assert texts(tail) == ["{'text/plain': 'figure'}"]


def test_an_update_goes_where_its_display_stands() -> None:
    tail = tail_of(shown("old", "id"), Stream("stdout", "text\n"), shown("new", "id", "update"))
    assert texts(tail) == ["{'text/plain': 'new'}", "text"]


def test_clear_output_clears_at_once_or_with_what_comes_next() -> None:
    assert texts(tail_of(Stream("stdout", "a\n"), shown("", kind="clear"))) == []
    waiting = tail_of(Stream("stdout", "a\n"), shown("", kind="clear", wait=True))
    assert texts(waiting) == ["a"]
    waiting.add([Stream("stdout", "b\n")])
    assert texts(waiting) == ["b"]


def test_only_the_last_is_kept() -> None:
    tail = tail_of(*(Stream("stdout", f"{n}\n") for n in range(LATEST_LINES + 5)))
    assert texts(tail)[0] == "5"
    assert len(tail.entries) == LATEST_LINES
    assert "… 5 lines not shown here: they are whole in /logs" in tail_html(tail, "/logs")
    assert len(tail_of(*(shown(str(n)) for n in range(LATEST_DISPLAYS + 3))).entries) == LATEST_DISPLAYS
    assert len(tail_of(*(Stream("stdout", "x" * LATEST_CHARS + "\n") for _ in range(3))).entries) == 1


def test_lines_and_displays_say_whose_they_are() -> None:
    of_one = Shown((1,), Display(kind="display", data={"text/html": "<b>x</b>"}))
    tail = tail_of(Stream("stdout", "[0] all\n"), Stream("stdout", "[0] some\n", (1, 2, 3)), of_one)
    page = tail_html(tail, "")
    assert ">[0] all\n[1-3] [0] some</pre>" in page
    assert page.endswith(">[1]</pre>\n<div><b>x</b></div>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("\x1b[31mred\x1b[0m plain", '<span style="color:#e75c58">red</span> plain'),
        ("\x1b[1;92mx\x1b[22my\x1b[39mz", '<span style="font-weight:bold;color:#007427">x</span>'
         '<span style="color:#007427">y</span>z'),
        ("\x1b[38;5;196mx", '<span style="color:rgb(255,0,0)">x</span>'),
        ("\x1b[48;5;244mx", '<span style="background-color:rgb(128,128,128)">x</span>'),
        ("\x1b[38;2;1;2;3mx", '<span style="color:rgb(1,2,3)">x</span>'),
        ("\x1b[2K\x1b[Ax", "x"),
        ("\x1b[38;5m\x1b[38mx", "x"),
    ],
)  # fmt: skip
def test_a_terminals_colours(text: str, expected: str) -> None:
    assert text_html(text) == expected


def test_displays_in_the_richest_form_that_needs_no_help() -> None:
    svg = Display(kind="display", data={"image/svg+xml": "<svg/>", "text/plain": "?"})
    png = Display(
        kind="display",
        data={"image/png": "aGk=\n", "text/plain": "?"},
        metadata={"image/png": {"width": 10}},
    )
    widget = Display(kind="display", data={"application/x-unknown": {}, "text/plain": "a < b"})
    page = tail_html(tail_of(*(Shown((), display) for display in (svg, png, widget))), "")
    assert 'src="data:image/svg+xml;base64,PHN2Zy8+"' in page
    assert 'width="10" src="data:image/png;base64,aGk="' in page
    assert "a &lt; b</pre>" in page
    assert "?" not in page
