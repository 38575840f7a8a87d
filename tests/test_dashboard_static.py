"""The dashboard as static HTML: what a saved notebook keeps, whatever the run has said."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from dashboard_pictures import (
    GIB,
    NOW_MS,
    a_bar,
    a_chart,
    a_failure,
    a_line,
    a_picture,
    a_rank,
    empty,
    failed,
    finished,
    gpu,
    heading,
    many,
)
from hostile_texts import ACTING, HOSTILE, LONG

from nbdist.views.dashboard.picture import Picture
from nbdist.views.dashboard.static import picture_html, picture_text
from nbdist.views.dashboard.styles import TONES
from nbdist.views.visible import one_line, shortened, visible, without_codes

MOST_BYTES = {False: 200_000, True: 60_000}
ELEMENTS = {
    *("b", "bdi", "code", "details", "div", "i", "img", "pre", "progress", "span", "summary"),
    *("table", "tbody", "td", "th", "thead", "tr"),
}
ATTRIBUTES = {
    "details": {"open"},
    "img": {"alt", "height", "src", "style", "width"},
    "progress": {"max", "style", "value"},
}
STYLES = {
    *("background", "background-color", "border", "border-bottom", "border-collapse", "border-left", "color"),
    *("cursor", "font-size", "font-style", "font-weight", "height", "line-height", "margin", "max-height"),
    *("max-width", "opacity", "overflow-wrap", "overflow-x", "overflow-y", "padding", "text-align"),
    *("text-decoration", "vertical-align", "white-space", "width", "word-break"),
}
"""What JupyterLab keeps of an untrusted output, and what is used of that."""


class Page(HTMLParser):
    """Parsed, and checked on the way: nothing is in it but what static HTML is made of."""

    def __init__(self, markup: str):
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.images: list[ET.Element] = []
        self.alts: list[str] = []
        self.counts: Counter[str] = Counter()
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS
        assert {name for name, _ in attrs} <= ATTRIBUTES.get(tag, set()) | {"style"}
        self.counts[tag] += 1
        given = dict(attrs)
        styles = [style.split(":")[0] for style in (given.get("style") or "").split(";") if style]
        assert set(styles) <= STYLES
        if tag == "img":
            source = given["src"] or ""
            assert source.startswith("data:image/svg+xml;base64,")
            self.images.append(ET.fromstring(base64.b64decode(source.partition(",")[2])))
            self.alts.append(given["alt"] or "")
        else:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        pytest.fail(f"a comment: {data!r}")

    def handle_decl(self, decl: str) -> None:
        pytest.fail(f"a declaration: {decl!r}")

    def unknown_decl(self, data: str) -> None:
        pytest.fail(f"a declaration: {data!r}")

    def handle_pi(self, data: str) -> None:
        pytest.fail(f"an instruction: {data!r}")


def page_of(picture: Picture, *, live: bool = False) -> Page:
    """The page, after a look at what holds for all."""
    markup = picture_html(picture, live=live, now_ms=NOW_MS if live else None)
    assert len(markup.encode()) < MOST_BYTES[live]
    assert not set(ACTING).intersection(markup)
    return Page(markup)


def with_everywhere(text: str) -> Picture:
    """A picture all of whose texts are this one."""
    rank = a_rank(
        told=text, device=text, text=text, function=text, metrics={text: 1.5}, rate=text, straggler=text
    )
    kinds = ("stdout", "stderr", "gap")
    return a_picture(
        heading=heading(title=text, told=text, devices=text, hint=text, logs=text, state="failed"),
        ranks={"0": rank, "1": rank},
        bars={text: a_bar(label=text, text=text, rate=text, ranks=text)},
        charts={text: a_chart(20, x_label=text)},
        lines=[a_line(text, text, [number % 2], kind) for number, kind in enumerate(kinds)],
        left_out=3,
        failures=[
            a_failure(text, title=text, traceback=text),
            a_failure(text, title=text, traceback=text, consequence=True),
        ],
    )


# ── Whatever it holds ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_ranks_say_is_shown_as_text(name: str, live: bool) -> None:
    text = HOSTILE[name]
    page = page_of(with_everywhere(text), live=live)
    assert len(page.images) == 1
    if name not in LONG:
        inner = [line for line in visible(without_codes(text)).split("\n") if len(line) < 200]
        assert [line for line in inner if line not in page.text] == []


@pytest.mark.parametrize("name", HOSTILE)
def test_one_line_stands_for_any_text(name: str) -> None:
    line = picture_text(with_everywhere(HOSTILE[name]))
    assert len(line) < 500
    assert not set(ACTING + "\n\r").intersection(line)
    assert line.encode()


def test_displays_stay_as_the_user_made_them() -> None:
    table = "<table class='mine'><script>x</script><tr><td>1</td></tr></table>"
    lines = [a_line("before"), a_line(table, kind="html"), a_line("after")]
    markup = picture_html(a_picture(lines=lines), live=False)
    before, _, after = markup.partition(table)
    assert "before" in before
    assert "after" in after
    Page(before + after)


def test_a_display_says_whose_it_is() -> None:
    page = page_of(
        a_picture(lines=[a_line("<b>mine</b>", "2", [2], "html"), a_line("<b>all</b>", kind="html")])
    )
    assert "[2] mine\n" in page.text
    assert "] all" not in page.text


def test_a_display_that_is_too_large_is_told() -> None:
    lines = [a_line("x" * 300_000, kind="html"), a_line("after")]
    assert "a display of 300,000 characters is not kept here" in page_of(a_picture(lines=lines)).text


LARGE: dict[str, Callable[[], dict[str, Any]]] = {
    "1,024 ranks": lambda: dict(many(1024)),
    "1,024 ranks that failed": lambda: {
        "ranks": {str(n): a_rank(n, state="failed", told="failed", text="x" * 500) for n in range(1024)},
        "failures": [
            a_failure(str(n), title="y" * 500, traceback="\x1b[31m<\x1b[0m" * 9999) for n in range(1024)
        ],
    },
    "64 ranks with much to say": lambda: {
        "ranks": {
            str(n): a_rank(
                n, told="😀" * 200, text="&" * 400, metrics={f"{'<' * 90}{m}": 1.0 for m in range(50)}
            )
            for n in range(64)
        }
    },
    "50 metrics": lambda: {"charts": {f"metric {n}": a_chart() for n in range(50)}},
    "5,000 metrics with long names": lambda: {
        "charts": {f"{'😀' * 100}{n}": a_chart(3) for n in range(5000)},
        "ranks": {"0": a_rank(metrics={f"{'m' * 100}{n}": 1.0 for n in range(5000)})},
    },
    "a chart of 100,000 points": lambda: {"charts": {"loss": a_chart(100_000)}},
    "100,000 lines": lambda: {"lines": [a_line(f"{n} &&&", "0", [n % 20]) for n in range(100_000)]},
    "long lines": lambda: {"lines": [a_line("\x1b[31m😀\x1b[0m&" * 5000, "", [n % 16]) for n in range(300)]},
    "many displays": lambda: {"lines": [a_line("d" * 9000, kind="html") for _ in range(100)]},
    "many bars": lambda: {"bars": {str(n): a_bar(label="<" * 500) for n in range(500)}},
}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("name", LARGE)
def test_a_page_has_bounds(name: str, live: bool) -> None:
    page_of(a_picture(**LARGE[name]()), live=live)


def test_what_is_left_out_is_told() -> None:
    ranks = {"0": a_rank(metrics={f"metric {n}": 0.5 for n in range(60)})}
    page = page_of(a_picture(ranks=ranks, charts={f"metric {n}": a_chart() for n in range(50)}))
    drawn = len(page.images)
    assert f"{60 - drawn} more metrics, not drawn here: metric {drawn}, metric {drawn + 1}" in page.text
    assert "metric 58, metric 59" in page.text  # those that are too many for the page have no chart at all
    page = page_of(a_picture(ranks={}, charts=dict.fromkeys(("a", "b"), a_chart(400))), live=True)
    assert "1 more metric, not drawn here: b" in page.text
    page = page_of(a_picture(lines=[a_line("x" * 990) for _ in range(200)], left_out=10))
    left_out = re.search(r"… (\d+) lines left out, all of it is in nbdist-logs/train-3", page.text)
    assert left_out
    assert page.text.count("x" * 990) == 210 - int(left_out[1])
    assert f"log: last {210 - int(left_out[1])} lines" in page.text


# ── What it says ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_has_finished() -> None:
    page = page_of(finished())
    assert page.text.split("\n")[1] == "train finished · 4 ranks · 4 × NVIDIA H200 · 2 min 23 s"
    assert [alt.split(";")[0] for alt in page.alts[:2]] == [
        "loss: 0.2893 at step 1,990",
        "accuracy: 0.2117 at step 1,990",
    ]
    assert page.counts["progress"] == 0
    assert "loss 0.4331, accuracy 0.881, 12.5 steps/s" in page.text
    assert "[2-3] UserWarning" in page.text


def test_a_run_that_goes_on_says_where_ranks_are_and_how_far() -> None:
    page = page_of(a_picture(), live=True)
    assert "epoch 1 · ranks 0-3 42% · 421 of 1,000 · 12.5 it/s · 46 s left" in page.text
    assert 'value="0.4210"' in picture_html(a_picture(), live=True)
    assert "running for 2.4 sline 12: loss.backward()" in page.text
    assert "train running · 4 ranks · 4 × NVIDIA H200 · 1 min 23 s" in page.text


def test_a_bar_whose_end_nobody_knows() -> None:
    markup = picture_html(a_picture(bars={"": a_bar(total=None, left_s=None)}), live=True)
    assert '<progress max="1" style' in markup
    assert "421 · 12.5 it/s" in Page(markup).text


def test_a_failure_opens_on_its_cause() -> None:
    picture = failed()
    assert "<details open>" not in picture_html(picture, live=False), "the cell's own error has it, too"
    picture["heading"]["log_is_open"] = True
    markup = picture_html(picture, live=False)
    assert "rank 1, line 4" in Page(markup).text
    cause = markup.index("<details open>")
    assert cause < markup.index("ValueError") < markup.index("Connection closed") < markup.index("<img")
    assert markup.count("<details open>") == 2  # the log is the other one
    assert "1 consequence of it" in markup


def test_ranks_to_64_have_a_row_each_and_more_are_counted() -> None:
    page = page_of(many(64))
    assert page.counts["tr"] == 65
    page = page_of(many(1024))
    assert page.counts["tr"] < 20
    assert "running909" in page.text
    assert "dead11023" in page.text
    assert "1023cuda:1023killed by SIGKILL" in page.text
    assert "straggler: 18 steps behind the others" in page.text
    assert "loss0.43810.4231 to 0.4531" in page.text


@pytest.mark.parametrize("live", [False, True])
def test_metrics_that_are_not_finite_are_told(live: bool) -> None:
    ranks = {str(rank): a_rank(rank, metrics={"loss": "nan", "norm": "-inf"}) for rank in range(2)}
    assert "loss nan, norm -inf" in page_of(a_picture(ranks=ranks), live=live).text
    several = many(1024)
    several["ranks"]["5"]["metrics"]["loss"] = "nan"
    text = page_of(several, live=live).text
    assert "lossnan0.4231 to 0.4531, nan on 1 rank" in text


def test_use_is_of_the_gpu_or_of_the_cores() -> None:
    ranks = {
        "0": a_rank(gpu=gpu(0.5, 2 * GIB)),
        "1": a_rank(gpu=None, cpu=1.5, memory_bytes=GIB),
        "2": a_rank(gpu=None, cpu=None, memory_bytes=None),
    }
    text = page_of(a_picture(ranks=ranks)).text
    assert "GPU\u00a050%3.0\u00a0of\u00a0139\u00a0GiB" in text  # in a narrow column, too
    assert "1.5\u00a0cores1.0\u00a0GiB" in text
    unknown = page_of(a_picture(ranks={"0": ranks["2"]})).text
    assert "use" not in unknown


@pytest.mark.parametrize("live", [False, True])
def test_a_run_of_which_nothing_is_known_yet(live: bool) -> None:
    assert "train starting · 0 ranks" not in page_of(empty(), live=live).text
    assert page_of(empty(), live=live).counts["table"] == 0


def test_the_log_is_open_where_it_is_what_one_wants_to_see() -> None:
    assert "<details open>" not in picture_html(finished(), live=False)
    picture = a_picture(heading=heading(log_is_open=True))
    assert "<details open><summary" in picture_html(picture, live=False)


def test_lines_that_single_ranks_wrote_stand_by_rank_too() -> None:
    text = page_of(finished()).text
    assert "log of each rank's own lines (0-3)" in text
    after = text.partition("log of each rank's own lines")[2]
    assert "rank 3: last 2 lines" in after
    assert "log of each rank's own lines" not in page_of(a_picture(lines=[a_line("all")])).text


# ── The line ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("picture", "line"),
    [
        (finished(), "train: finished on 4 ranks"),
        (a_picture(heading=heading(world_size=1)), "train: running on 1 rank"),
        (a_picture(heading=heading(state="interrupted", title="")), "run: interrupted on 4 ranks"),
        (failed(), "train: failed on rank 1 of 4: ValueError: loss is nan in batch 17"),
        (a_picture(heading=heading(state="failed")), "train: failed on 4 ranks"),
        (
            a_picture(
                heading=heading(state="failed"), failures=[a_failure("0-2", title="A: <B at 0x7f00aa10>\nx")]
            ),
            "train: failed on ranks 0-2 of 4: A: <B at …> x",
        ),
        (
            a_picture(
                heading=heading(state="failed"), failures=[a_failure("3", title="killed by SIGKILL (pid 77)")]
            ),
            "train: failed on rank 3 of 4: killed by SIGKILL (…)",
        ),
    ],
)
def test_one_line_says_the_same_whenever_the_same_happens(picture: Picture, line: str) -> None:
    assert picture_text(picture) == line


# ── How it looks ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tone", TONES)
@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
def test_signals_stand_out_on_light_and_dark_pages(tone: Any, page: str) -> None:
    lights = sorted([_luminance(TONES[tone]), _luminance(page)])
    assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.0


def _luminance(colour: str) -> float:
    def linear(value: float) -> float:
        return value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_texts_are_cut_with_a_word_on_what_is_left_out() -> None:
    assert one_line("a" * 1000, 100).endswith("… (1,000 characters in all)")
    assert len(one_line("a" * 1000, 100)) == 100
    assert one_line("a\tb\n\n c", 100) == "a b c"
    cut = shortened("head\n" + "x" * 10_000 + "\nthe end", 3000)
    assert cut.startswith("head\n")
    assert cut.endswith("\nthe end")
    assert len(cut) <= 3010
