"""The pictures of the dashboard in docs/images, drawn anew: `python docs/make_images.py [NAME ...]`.

Needs the `test` extra and Chromium (Debian: `apt-get install chromium`), no Jupyter: the page is fed with the
pictures of runs that its tests are fed with, the static one is what a saved notebook keeps.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import pictures  # noqa: E402
from dashboard_page import chromium, dashboard  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import Browser  # noqa: E402

from nbdist.views.dashboard.picture import Picture  # noqa: E402
from nbdist.views.dashboard.static import picture_html  # noqa: E402

FOLDER = ROOT / "docs" / "images"
MOST_BYTES = 200_000
_STILL = """<!doctype html><meta charset="utf-8"><body style="margin: 12px; font: 14px system-ui, sans-serif">
<div class="nbd-root" style="padding: 6px">{}</div></body>"""


def live(
    scene: Callable[[], Picture], width: int, *, theme: str = "light"
) -> Callable[[Browser, Path], None]:
    """Draws the widget."""

    def draw(browser: Browser, file: Path) -> None:
        with dashboard(browser, width + 24, scale=_scale(width)) as panel:
            panel.page.clock.set_fixed_time(pictures.NOW_MS / 1000)  # the same picture at each drawing
            panel.open(scene(), theme=theme)
            panel.page.locator(".nbd-root").screenshot(path=file, animations="disabled")
            assert not panel.errors

    return draw


def still(scene: Callable[[], Picture], width: int) -> Callable[[Browser, Path], None]:
    """Draws what a saved notebook keeps."""

    def draw(browser: Browser, file: Path) -> None:
        page = browser.new_page(
            viewport={"width": width + 24, "height": 900}, device_scale_factor=_scale(width)
        )
        page.set_content(_STILL.format(picture_html(scene(), live=False)))
        page.locator(".nbd-root").screenshot(path=file)
        page.close()

    return draw


def training() -> Picture:
    """Metrics that differ, as they do for users."""
    return pictures.running() | {"charts": curves(4)}


def training_on_gpus() -> Picture:
    """The same on a machine with GPUs."""
    return pictures.on_gpus() | {"charts": curves(8)}


def training_on_64() -> Picture:
    """The same on eight of them."""
    return pictures.many(64) | {"charts": {name: curves(64)[name] for name in ("loss", "tokens/s")}}


def trained() -> Picture:
    """What is left of it: no rank is anywhere any more."""
    picture = pictures.finished()
    charts = {name: curves(4)[name] for name in ("loss", "accuracy")}
    ranks = {
        rank: one
        | {"line": None, "text": "", "metrics": {name: charts[name]["lines"][rank][-1] for name in charts}}
        for rank, one in picture["ranks"].items()
    }
    return picture | {"charts": charts, "ranks": ranks}


def curves(ranks: int) -> dict[str, Any]:
    """A loss that falls, an accuracy that rises, a learning rate with a warm-up, a throughput that varies."""

    def drawn(value: Callable[[float, int], float]) -> dict[str, Any]:
        chart = pictures.chart(ranks)
        xs = chart["x"]
        lines = {str(rank): [value(x / xs[-1], rank) for x in xs] for rank in range(ranks)}
        columns = list(zip(*lines.values(), strict=True))
        means = [sum(column) / ranks for column in columns]
        return chart | {
            "lines": lines, "mean": means, "low": list(map(min, columns)), "high": list(map(max, columns)),
        }  # fmt: skip

    def wobble(share: float, rank: int) -> float:
        return math.sin(61 * share + 2.1 * rank) + 0.6 * math.sin(173 * share + 1.3 * rank * rank)

    return {
        "loss": drawn(lambda share, rank: 2.2 * math.exp(-5 * share) + 0.15 + 0.05 * wobble(share, rank)),
        "accuracy": drawn(
            lambda share, rank: 0.95 - 0.85 * math.exp(-6 * share) + 0.012 * wobble(share, rank)
        ),
        "tokens/s": drawn(lambda share, rank: 8200 - 40 * (rank % 8) + 90 * wobble(share, rank)),
        "lr": drawn(lambda share, _: 3e-4 * min(share * 10, 0.5 + 0.5 * math.cos(2.7 * share))),
    }


def _with_few_colours(image: Image.Image) -> Image.Image:
    """A third of the size: the 256 colours that it has most of are kept, others are the nearest of these."""
    pixels = np.asarray(image).reshape(-1, 3)
    colours, places, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    most = colours[np.argsort(-counts)[:256]]
    distances = ((colours[:, None].astype(np.int32) - most[None].astype(np.int32)) ** 2).sum(axis=-1)
    nearest = distances.argmin(axis=1).astype(np.uint8)
    small = Image.fromarray(nearest[places.reshape(image.height, image.width)])
    small.putpalette(most.astype(np.uint8).tobytes())
    return small


def _scale(width: int) -> float:
    return 2 if width <= 700 else 1.5


IMAGES: dict[str, Callable[[Browser, Path], None]] = {
    "running": live(training, 880),
    "waiting": live(pictures.waiting, 680),
    "failed": live(pictures.failed, 680),
    "finished": still(trained, 880),
    "ranks64": live(training_on_64, 1000),
    "dark": live(training_on_gpus, 1000, theme="dark"),
}


def main() -> None:
    """Draw those that were named, or all."""
    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser:
        for name in sys.argv[1:] or IMAGES:
            file = FOLDER / f"{name}.png"
            IMAGES[name](browser, file)
            with Image.open(file) as image:
                _with_few_colours(image.convert("RGB")).save(file, optimize=True)
            size = file.stat().st_size
            print(f"{file.relative_to(ROOT)}: {size // 1000} kB")
            assert size < MOST_BYTES, f"{file} is too large for a repository"


if __name__ == "__main__":
    main()
