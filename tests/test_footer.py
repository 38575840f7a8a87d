"""What stands below a terminal's text does nothing to the text."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal_screen import TerminalScreen

from nbdist.views.footer import Footer

TABLE = ["train running", "\x1b[1mrank  state\x1b[0m", "0     running " + "数" * 40, "x" * 80]

COMMON = ["loss 0.4", "\n", "\n\n", "\x1b[31mpink", "\x1b[0m", "\x1b[41;1m", " " * 30, "line\n" * 30]
NARROW = ["\r50%", "\r    \r", "\r", "\b", "\t", "." * 79, "." * 80, "." * 200]
WIDE = ["数据", "数" * 39, "数" * 40, "数" * 100, "e\u0301e\u0301"]
# pyte neither writes over halves of wide characters nor wraps one that finds a single column.
texts_of_a_run = st.one_of(st.lists(st.sampled_from(COMMON + more), max_size=30) for more in (NARROW, WIDE))


class Written(io.TextIOWrapper):
    """A stream to a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="\r\n")

    def shown(self) -> TerminalScreen:
        """What the terminal shows of it."""
        self.flush()
        screen = TerminalScreen()
        assert isinstance(self.buffer, io.BytesIO)
        screen.feed(self.buffer.getvalue())
        return screen


@settings(deadline=None)
@given(texts=texts_of_a_run, height=st.integers(1, len(TABLE)))
def test_text_is_what_it_is_without_a_footer(texts: list[str], height: int) -> None:
    plain, written = Written(), Written()
    plain.write("".join(texts))
    footer = Footer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", written)
        for number, text in enumerate(texts):
            footer.write("stdout", text)
            footer.show(lambda columns, rows, n=number: TABLE[: n % height + 1])
        with footer.aside():
            alone, shown = plain.shown(), written.shown()
    assert shown.text == alone.text
    assert shown.cursor == alone.cursor
    assert shown.colours_at_cursor() == alone.colours_at_cursor()
    assert shown.cursor_is_seen


@settings(deadline=None)
@given(texts=texts_of_a_run)
def test_it_stands_below_the_text(texts: list[str]) -> None:
    written = Written()
    footer = Footer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", written)
        footer.show(lambda columns, rows: ["first", "last"])
        for text in texts:
            footer.write("stdout", text)
        footer.write("stdout", "\n!")
    screen = written.shown()
    line, _ = screen.cursor
    assert screen.text.split("\n")[line + 1 :] == ["first", "last"]


def standard_output(monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> Written:
    """What is written to standard output from now on."""
    written = Written(encoding)
    monkeypatch.setattr(sys, "stdout", written)
    return written


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("done\n", "done\nlast"),
        ("no end", "no end\nlast"),
        ("\r50%\r   \r", "last"),
        ("." * 80, "." * 80 + "\nlast"),
        ("50%\r", "50%\nlast"),
    ],
)
def test_what_it_leaves_is_lines_of_text(monkeypatch: pytest.MonkeyPatch, text: str, left: str) -> None:
    written = standard_output(monkeypatch)
    footer = Footer()
    footer.show(lambda columns, rows: TABLE)
    footer.write("stdout", text)
    footer.leave(lambda columns, rows: ["last"])
    assert written.shown().text == left
    footer.write("stdout", "next")
    assert written.shown().text == f"{left}\nnext"


def test_enter_leaves_nothing_of_it_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    written = standard_output(monkeypatch)
    footer = Footer()
    footer.show(lambda columns, rows: TABLE)
    footer.write("stdout", "text\nno end")
    written.write("\n")  # the terminal's echo
    footer.write("stdout", ", end\n")
    footer.show(lambda columns, rows: ["table"])
    assert written.shown().text == "text\nno end\n, end\n\ntable"


def test_it_stays_away_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    written = standard_output(monkeypatch)
    footer = Footer()
    footer.show(lambda columns, rows: ["first"])
    with footer.aside():
        footer.write("stdout", "from another thread\n")
        footer.show(lambda columns, rows: ["second"])
        print("question? ", end="")
        footer.follow("question? ")
        assert written.shown().text == "from another thread\nquestion?"
    assert written.shown().text == "from another thread\nquestion?\nsecond"


def test_text_of_the_other_stream_stands_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written = standard_output(monkeypatch)
    monkeypatch.setattr(sys, "stderr", written)
    footer = Footer()
    footer.show(lambda columns, rows: ["table"])
    footer.write("stderr", "warning\n")
    assert written.shown().text == "warning\n\ntable"


def test_a_terminal_without_its_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    written = standard_output(monkeypatch, "ascii")
    footer = Footer()
    footer.show(lambda columns, rows: ["50% ━━╌╌"])
    assert written.shown().text == "\n50% ????"


def test_of_a_low_terminal_a_line_is_left_to_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    written = standard_output(monkeypatch)
    footer = Footer()
    footer.show(lambda columns, rows: [str(row) for row in range(rows + 10)])
    footer.write("stdout", "text")
    assert written.shown().screen == ["text", *(str(row) for row in range(23))]
