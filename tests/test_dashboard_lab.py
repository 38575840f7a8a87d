"""The dashboard where users have it: in JupyterLab, from the first rank to the notebook that is opened again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import nbformat
import pytest
from dashboard_page import CHROMIUM
from jupyter_lab import Lab, LabBrowser, LabNotebook
from nbconvert import HTMLExporter
from playwright.sync_api import Locator, expect

pytestmark = [
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium: apt-get install chromium"),
    pytest.mark.slow,
]

expect.set_options(timeout=15_000)

TRAIN = """\
%%distributed -d 2 --background train
import time, nbdist
for step in nbdist.track(range(100_000), "train"):
    nbdist.log(step=step, loss=(1 + rank) / (1 + step))
    if step % 5 == 0:
        print(f"\\x1b[32mstep {step}\\x1b[0m on rank {rank}")
    time.sleep(0.05)
"""
"""Goes on until it is interrupted."""

SHORT = """\
%%distributed -d 2
import time, nbdist
for step in range(30):
    nbdist.log(step=step, loss=(1 + rank) / (1 + step))
    print(f"step {step} on rank {rank}")
    time.sleep(0.06)
"""
"""Long enough to have its panel."""

FAILING = """\
%%distributed -d 3 --background broken
def helper(x):
    return x / 0
if rank == 1:
    helper(3)
dist.barrier()
"""

HOSTILE = f"""\
%%distributed -d 2 --background hostile
import sys, nbdist
sys.path.insert(0, {str(Path(__file__).parent)!r})
from hostile_texts import HTML, TERMINAL, UNSEEN
texts = [*HTML.values(), *TERMINAL.values(), *UNSEEN.values()]
for text in texts:
    print(text.encode(errors="replace").decode())
nbdist.log({{text.encode(errors="replace").decode(): 0.5 for text in texts}})
if rank == 1:
    raise RuntimeError("\\n".join(HTML.values()))
dist.barrier()
"""

HAS_COLOUR = """
(canvas, name) => {
    const colour = getComputedStyle(canvas).getPropertyValue(name).trim();
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let found = 0;
    for (let at = 0; at < data.length; at += 4) {
        const distance = Math.abs(data[at] - red) + Math.abs(data[at + 1] - green) + Math.abs(data[at + 2] - blue);
        if (data[at + 3] > 200 && distance < 24) found += 1;
    }
    return found > 10;
}
"""
"""Whether a canvas has a line in the colour of this name."""

DIE = """() => {
    const { kernel } = window.jupyterapp.shell.currentWidget.sessionContext.session;
    kernel.requestExecute({ code: "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", silent: true });
}"""

Open = Callable[..., LabNotebook]


@pytest.fixture(scope="module")
def browser() -> Iterator[LabBrowser]:
    environment = {"NBDIST_DASHBOARD": None, "NBDIST_KEEP_WIDGET": None}
    with Lab(environment) as lab, lab.browser(viewport={"width": 1100, "height": 1300}) as browser:
        yield browser


@pytest.fixture(scope="module")
def kernel_id(browser: LabBrowser) -> str:
    """One kernel for all notebooks: to start one takes as long as a test."""
    notebook = browser.open("first.ipynb", ["%load_ext nbdist\nimport os, torch, torch.distributed as dist"])
    notebook.run_all(0)
    kernel_id = notebook.kernel_id
    notebook.close()
    return kernel_id


@pytest.fixture
def notebook(browser: LabBrowser, kernel_id: str, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a notebook with the cells that it is given."""
    opened: list[LabNotebook] = []
    numbers = count()

    def open_notebook(*cells: str) -> LabNotebook:
        name = f"{request.node.name}_{next(numbers)}.ipynb"
        opened.append(browser.open(name, cells, kernel_id=kernel_id))
        return opened[-1]

    yield open_notebook
    browser.lab.ask("POST", f"kernels/{kernel_id}/interrupt")  # of a test that failed while a cell ran
    opened[0].do("os.environ.pop('NBDIST_KEEP_WIDGET', None)\n%distributed stop --all")
    for one in opened:
        assert not one.dialogs
        one.close()


def expect_end(panel: Locator) -> None:
    """The run in the background has ended and given its ranks back: nothing is left to be clicked."""
    expect(panel.locator(".nbd-end")).to_be_hidden()


def values_of(panel: Locator) -> list[str]:
    return panel.locator(".nbd-card .nbd-metric-value").all_text_contents()


def wait_for_new_values(panel: Locator) -> None:
    panel.locator(".nbd-card .nbd-metric-value").first.wait_for()
    old = values_of(panel)
    expect(panel.locator(".nbd-card .nbd-metric-value").first).not_to_have_text(old[0])


def wait_for_lines(panel: Locator) -> None:
    """Until both ranks' charts stand on their canvas in the ranks' colours."""
    canvas = panel.locator(".nbd-canvas").first
    canvas.wait_for()
    handle = canvas.element_handle()
    for name in ("--nbd-rank-0", "--nbd-rank-1"):
        panel.page.wait_for_function(f"([canvas, name]) => ({HAS_COLOUR})(canvas, name)", arg=[handle, name])


def test_a_cell_has_its_panel_while_it_runs_and_its_page_afterwards(notebook: Open) -> None:
    lab = notebook(SHORT.replace("range(30)", "range(80)"))
    lab.run(0)
    panel = lab.output(0).locator(".nbd-root")
    expect(panel.locator(".nbd-card")).to_have_count(2)
    wait_for_new_values(panel)
    wait_for_lines(panel)
    expect(panel.locator(".nbd-code-text").first).not_to_be_empty()
    expect(panel.locator(".nbd-hint")).to_contain_text("stop button")
    expect(panel.locator(".nbd-end")).to_be_hidden()
    lab.wait_for_end(0)
    expect(panel).to_have_count(0)
    expect_page(lab.output(0))
    assert not lab.errors


def expect_page(output: Locator) -> None:
    """The static page of a run that has logged something, and all of it is seen."""
    expect(output.locator("table tbody tr")).to_have_count(2)
    expect(output.locator("table").first).to_be_visible()
    expect(output.locator("details").first).to_be_visible()
    image = output.locator("img[src^='data:image/svg+xml']").first
    expect(image).to_be_visible()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    expect(output.get_by_text("model not found")).to_have_count(0)
    expect(output.get_by_text("finished").first).to_be_visible()


def test_a_run_in_the_background_is_filtered_searched_and_interrupted(notebook: Open) -> None:
    lab = notebook(TRAIN)
    lab.run_all(0)
    panel = lab.output(0).locator(".nbd-root")
    lines = panel.locator(".nbd-line:visible")
    expect(lines.get_by_text("step 10 on rank 1")).to_be_visible()
    panel.get_by_label("show only the lines of these ranks").locator("visible=true").select_option("rank 0")
    expect(lines.filter(has_text="[1]")).to_have_count(0)
    expect(lines.filter(has_text="[0]").first).to_be_attached()
    search = panel.get_by_label("search the log")
    search.click()
    search.press_sequentially("step 10 ON")  # JupyterLab has commands on these keys, too
    expect(panel.locator(".nbd-count")).to_have_text("1 match")
    expect(lines.locator(".nbd-hit")).to_have_text(["step 10", " on"])  # of two colours
    expect(lab.cell(0)).to_have_count(1)
    panel.get_by_role("button", name="Interrupt").click()
    expect(panel).to_have_count(0)
    expect(lab.output(0).get_by_text("interrupted").first).to_be_visible()
    assert not lab.errors


def test_a_rank_that_fails_is_seen_with_its_traceback(notebook: Open) -> None:
    lab = notebook("%env NBDIST_KEEP_WIDGET=1", FAILING)
    lab.run_all(0, 1)
    trace = lab.output(1).locator(".nbd-trace:visible")
    expect(trace).to_have_count(1)
    expect(trace).to_contain_text("return x / 0")
    expect(lab.output(1).locator(".nbd-card[data-state=failed] .nbd-rank-name")).to_have_text("Rank 1")
    expect_end(lab.panel)  # a run that is seen to fail has ranks until its others have been stopped
    lab.do("os.environ.pop('NBDIST_KEEP_WIDGET')")
    lab.run_all(1)
    expect(lab.panel).to_have_count(0)
    page = lab.output(1).locator("details[open] pre").first
    expect(page).to_be_visible()
    expect(page).to_contain_text("return x / 0")
    expect(lab.output(1).get_by_text("has died")).to_have_count(0)  # though no process is left by now


def test_it_follows_the_theme(notebook: Open) -> None:
    lab = notebook(TRAIN)
    lab.run_all(0)
    panel = lab.output(0).locator(".nbd-root")
    paper = "root => getComputedStyle(root).backgroundColor"
    wait_for_lines(panel)
    light = panel.evaluate(paper)
    lab.set_theme("Dark")
    try:
        expect(panel).to_have_attribute("data-theme", "dark")
        expect(panel).not_to_have_css("background-color", light)
        wait_for_lines(panel)
    finally:
        lab.set_theme("Light")
    expect(panel).to_have_attribute("data-theme", "light")
    expect(panel).to_have_css("background-color", light)
    wait_for_lines(panel)


def test_a_reloaded_page_goes_on_with_a_run_in_the_background(notebook: Open) -> None:
    lab = notebook(TRAIN)
    lab.run_all(0)
    wait_for_new_values(lab.panel)
    lab.save()
    lab.reload()
    expect(lab.panel.locator(".nbd-card")).to_have_count(2)
    wait_for_new_values(lab.panel)
    wait_for_lines(lab.panel)
    lab.panel.get_by_role("button", name="Interrupt").click()
    expect(lab.panel.locator(".nbd-header .nbd-state")).to_contain_text("interrupted")
    expect_end(lab.panel)


def test_a_page_that_was_reloaded_while_a_cell_ran_shows_how_it_ended(notebook: Open, tmp_path: Path) -> None:
    gate = tmp_path / "go on"
    cell = SHORT + f"import os\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\n"
    lab = notebook(cell)
    lab.run(0)
    expect(lab.panel.locator(".nbd-card")).to_have_count(2)
    for rank in range(2):  # what came behind the save would make the page ask before it is reloaded
        expect(lab.output(0)).to_contain_text(f"step 29 on rank {rank}")
    lab.save()
    lab.reload()
    gate.touch()
    expect(lab.panel.locator(".nbd-header .nbd-state")).to_contain_text("finished")
    wait_for_lines(lab.panel)
    expect(lab.output(0).get_by_text("model not found")).to_have_count(0)


def test_a_panel_notices_that_its_kernel_is_gone(browser: LabBrowser) -> None:
    lab = browser.open("gone.ipynb", ["%load_ext nbdist", TRAIN])
    try:
        lab.run_all(0, 1)
        panel = lab.output(1).locator(".nbd-root")
        wait_for_new_values(panel)
        lab.command("kernelmenu:restart")
        lab.page.locator(".jp-Dialog .jp-mod-accept").click()
        expect(panel.locator(".nbd-header .nbd-state")).to_have_text("lostthe kernel has gone")
        expect(panel.locator(".nbd-end")).to_be_hidden()

        lab.page.wait_for_function(
            "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
        )
        lab.run_all(0, 1)
        wait_for_new_values(panel)
        lab.page.evaluate(DIE)
        expect(panel.locator(".nbd-header .nbd-state")).to_have_text("lostthe kernel has gone")
        expect(panel.locator(".nbd-end")).to_be_hidden()
    finally:
        lab.close()


def test_each_run_has_its_colours_and_each_view_of_it_its_own_filter(notebook: Open) -> None:
    lab = notebook(SHORT, TRAIN)
    lab.run_all(0, 1)
    wait_for_lines(lab.output(1).locator(".nbd-root"))
    lab.command("docmanager:clone")
    expect(lab.panel).to_have_count(2)
    for panel in lab.panel.all():
        wait_for_new_values(panel)
        wait_for_lines(panel)
    lab.panel.first.get_by_role("button", name="matches only").click()
    pressed = [panel.get_by_role("button", name="matches only") for panel in lab.panel.all()]
    expect(pressed[0]).to_have_attribute("aria-pressed", "true")
    expect(pressed[1]).to_have_attribute("aria-pressed", "false")


def test_a_saved_notebook_shows_it_to_whoever_does_not_trust_it(notebook: Open, browser: LabBrowser) -> None:
    lab = notebook(SHORT)
    lab.run_all(0)
    expect(lab.panel).to_have_count(0)
    saved = lab.save()
    saved.cells[0].source += "\n# from somebody else"  # the signature is another one's
    nbformat.write(saved, browser.lab.root / "sent.ipynb")
    sent = browser.open_file("sent.ipynb")
    expect(sent.page.locator(".jp-StatusBar-Widget [data-icon*=trusted]")).to_have_attribute(
        "data-icon", "ui-components:not-trusted"
    )
    expect_page(sent.output(0))
    sent.close()
    page, _ = HTMLExporter().from_notebook_node(saved)
    assert "application/vnd.jupyter.widget-view" not in page
    assert re.search(r'<img [^>]*src="data:image/svg\+xml', page)
    assert re.search(r"<summary[^>]*>log", page)
    assert re.search(r"<td[^>]*><b[^>]*>finished</b>", page)


def expect_nothing_of_theirs(output: Locator, elements: Sequence[str]) -> None:
    for element in elements:
        expect(output.locator(element)).to_have_count(0)
    assert output.page.evaluate("window.attacked") is None


def test_texts_with_markup_stay_texts(notebook: Open) -> None:
    lab = notebook("%env NBDIST_KEEP_WIDGET=1", HOSTILE)
    lab.run_all(0, 1)
    panel = lab.output(1).locator(".nbd-root")
    expect(panel.locator(".nbd-header .nbd-state")).to_contain_text("failed")
    expect(panel.locator(".nbd-line-text").filter(has_text="<script>").first).to_be_visible()
    expect(panel.locator(".nbd-chart-title").filter(has_text="onerror").first).to_be_visible()
    expect(panel.locator(".nbd-trace").filter(has_text="<iframe").first).to_be_visible()
    theirs = ["script", "iframe", "h1", "style", "a", "svg", "[onerror], [onload]"]
    expect_nothing_of_theirs(panel, [*theirs, "b", "img"])
    expect_end(panel)
    lab.do("os.environ.pop('NBDIST_KEEP_WIDGET')")
    lab.run_all(1)
    expect(lab.panel).to_have_count(0)
    expect(lab.output(1).locator("pre").filter(has_text="<iframe").first).to_be_visible()
    page = lab.output(1).locator(".jp-OutputArea-output")  # JupyterLab has icons around it
    expect_nothing_of_theirs(page, [*theirs, "img:not([src^='data:image/svg+xml'])"])
