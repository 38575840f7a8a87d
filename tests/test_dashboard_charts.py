"""Charts as images: any numbers give a picture that a browser can draw."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from dashboard_pictures import a_chart
from hostile_texts import HOSTILE

from nbdist.metrics import shown
from nbdist.views.dashboard.charts import PALETTE, alt_text, chart_html, chart_svg
from nbdist.views.dashboard.picture import ChartPicture

INF, NAN = math.inf, math.nan
SVG = "{http://www.w3.org/2000/svg}"


def of(values: list[float | None], **more: Any) -> ChartPicture:
    """A chart of one rank."""
    listed = [shown(value) if value is not None else None for value in values]
    made = {"x": [float(x) for x in range(len(values))], "mean": listed, "low": listed, "high": listed}
    return {**made, "lines": {}, "points": len(values), "x_label": "step", **more}  # type: ignore[typeddict-item]


def drawn(chart: ChartPicture, **how: bool) -> ET.Element:
    """The image, after a look at its numbers: all are there, and inside."""
    svg = chart_svg("loss", chart, **how)
    assert not re.search(r"nan|inf\b|\de[+-]?\d+[ \"]", re.sub(r">[^<]*<", "><", svg))
    image = ET.fromstring(svg)
    width, height = (float(image.attrib[side]) for side in ("width", "height"))
    for path in image.iter(f"{SVG}path"):
        for x, y in _points(path.attrib["d"]):
            assert -0.2 <= x <= width + 0.2
            assert -0.2 <= y <= height + 0.2
    for text in image.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= width
    return image


def _points(path: str) -> list[tuple[float, float]]:
    if "H" in path:
        return [tuple(map(float, path[1:].partition("H")[0].split()))]  # type: ignore[list-item]
    start, _, steps = path.removesuffix("z")[1:].partition("l")
    x, y = map(float, start.split())
    points, numbers = [(x, y)], list(map(float, steps.split()))
    for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
        x, y = x + dx, y + dy
        points.append((x, y))
    return points


def texts(image: ET.Element) -> list[str]:
    return [text.text or "" for text in image.iter(f"{SVG}text")]


VALUES: dict[str, list[float | None]] = {
    "nothing": [],
    "no number": [None, NAN, INF, -INF],
    "one point": [0.5],
    "zeros": [0.0] * 5,
    "constant": [3.25] * 5,
    "constant and huge": [1e300] * 3,
    "constant and negative": [-1e-300] * 3,
    "huge": [1e308, -1e308, 1.7e308],
    "tiny": [1e-308, 2e-308, 5e-324],
    "from tiny to huge": [5e-324, 1.0, 1.7e308],
    "close together": [1e6 + n * 1e-9 for n in range(5)],
    "next to each other": [1.0, math.nextafter(1.0, 2)],
    "gaps": [1.0, None, 2.0, 3.0, NAN, 4.0],
    "four decades": [10.0**-n for n in range(5)],
    "negative": [-5.0, -1000.0, -1e6],
    "through zero": [-1.0, 0.0, 1e6],
    "one far away": [1.0] * 50 + [1e12],
}


@pytest.mark.parametrize("name", VALUES)
def test_any_numbers_can_be_drawn(name: str) -> None:
    image = drawn(of(VALUES[name]))
    assert texts(image)[-1] != ""
    drawn(of(VALUES[name], x=[1e300 * n for n in range(len(VALUES[name]))]))
    drawn(of(VALUES[name], x=[7.0] * len(VALUES[name])))
    assert alt_text("loss", of(VALUES[name])).startswith("loss: ")


def test_a_chart_without_numbers_says_so() -> None:
    assert "no values" in texts(drawn(of([None, None])))
    assert alt_text("loss", of([])) == "loss: no values"


def test_what_is_not_finite_is_told() -> None:
    diverged = of([2.0, 1.0, NAN, NAN])
    assert texts(drawn(diverged))[-2:] == ["nan", "loss"]
    assert alt_text("loss", diverged) == "loss: nan at step 3; from 1 to 2; 4 values"
    assert "no finite values" in texts(drawn(of([None, NAN])))
    assert alt_text("loss", of([INF])) == "loss: inf at step 0; none is finite; 1 values"


def test_a_cross_is_where_a_line_stops_being_finite() -> None:
    image = drawn(of([2.0, 1.0, NAN, NAN, 3.0, INF]))
    middle = [text for text in image.iter(f"{SVG}text") if text.attrib.get("text-anchor") == "middle"]
    ticks = {text.text: float(text.attrib["x"]) for text in middle if (text.text or "").isdigit()}
    crosses = [float(text.attrib["x"]) for text in middle if text.text == "×"]
    assert crosses == [pytest.approx(ticks["2"], abs=0.2), pytest.approx(330, abs=0.2)]
    assert [text.text for text in middle if text.text in ("nan", "inf")] == ["nan", "inf"]


def test_gaps_are_not_bridged_and_single_points_are_dots() -> None:
    image = drawn(of([1.0, None, 2.0, 3.0, NAN, 4.0]))
    assert len(list(image.iter(f"{SVG}circle"))) == 2
    lines = [path for path in image.iter(f"{SVG}path") if path.attrib.get("fill") == "none"]
    assert [len(_points(line.attrib["d"])) for line in lines] == [2]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.0, 1.0], ["0.0", "0.5", "1.0"]),
        ([0.0, 100.0], ["0", "50", "100"]),
        ([1e-5, 1.0], ["1e-5", "0.001", "0.1"]),
        ([1.0, 1e12], ["1", "1000", "1e6", "1e9", "1e12"]),
        ([2.0, 2.0], ["1.8", "1.9", "2.0", "2.1", "2.2"]),
        ([0.0, 3e-7], ["0", "1e-7", "2e-7", "3e-7"]),
        ([0.0, 3e9], ["0", "1e9", "2e9", "3e9"]),
    ],
)
def test_ticks_are_round_numbers(values: list[float | None], ticks: list[str]) -> None:
    image = drawn(of(values))
    ends = [text for text in image.iter(f"{SVG}text") if text.attrib.get("text-anchor") == "end"]
    assert [text.text for text in ends][: len(ticks)] == ticks


def test_a_scale_is_logarithmic_beyond_three_decades_of_positive_values() -> None:
    assert "log" in texts(drawn(of([1.0, 1001.0])))
    assert "log" not in texts(drawn(of([1.0, 999.0])))
    assert "log" not in texts(drawn(of([0.0, 1e6])))


def test_each_rank_has_a_line_or_there_are_mean_and_band() -> None:
    def strokes(image: ET.Element) -> list[str]:
        return [
            path.attrib["stroke"] for path in image.iter(f"{SVG}path") if path.attrib.get("fill") == "none"
        ]

    assert strokes(drawn(a_chart(ranks=4))) == list(PALETTE[:4])
    assert {"0", "1", "2", "3", "rank"} < set(texts(drawn(a_chart(50, ranks=4))))
    for image in (drawn(a_chart(ranks=4), by_rank=False), drawn(a_chart(ranks=9)), drawn(a_chart(lines={}))):
        assert strokes(image) == [PALETTE[0]]
        assert [path.attrib.get("fill") for path in image.iter(f"{SVG}path")].count(PALETTE[0]) == 1


@pytest.mark.parametrize("chart", [a_chart(ranks=4), a_chart(ranks=8), of([1.0, 1e12]), of([0.123456])])
def test_a_long_name_gives_way_to_what_stands_beside_it(chart: ChartPicture) -> None:
    image = ET.fromstring(chart_svg("a_rather_long_metric_name_here_" * 2, chart))
    *beside, name = [text for text in image.iter(f"{SVG}text") if text.attrib["y"] == "16"]
    ends = 8 + 7 * len(name.text or "")
    assert all(float(text.attrib["x"]) - 6 * len(text.text or "") > ends for text in beside)
    assert (name.text or "").startswith("a_rather_lo")


def test_an_image_takes_little_room() -> None:
    assert len(chart_html("loss", a_chart(400, ranks=8))) < 40_000
    assert len(chart_html("loss", a_chart(400), by_rank=False)) < 15_000
    assert len(chart_html("loss", a_chart(100_000), by_rank=False)) < 15_000


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_can_stand_there(name: str) -> None:
    text = HOSTILE[name]
    image = ET.fromstring(chart_svg(text, a_chart(5, x_label=text, lines={text: [1.0], "b": [2.0]})))
    assert {element.tag.removeprefix(SVG) for element in image.iter()} <= {"svg", "text", "path", "circle"}
    assert chart_html(text, a_chart(5)).count("<") == 1
