"""The dashboard's page without Jupyter: Chromium with the module, fed by a model that stands for anywidget's."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pictures import NOW_MS
from playwright.sync_api import Browser, Page, Route, sync_playwright

import nbdist

FOLDER = Path(nbdist.__file__).parent / "views" / "dashboard"
URL = "http://dashboard.test/"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")

_HTML = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="/dashboard.css">
<style>body {{ margin: 12px; {variables} }}</style>
<body data-jp-theme-light="{is_light}"><div id="host"></div><script type="module">
import load from "/dashboard.js";
class Model {{
  constructor(model) {{ Object.assign(this, {{ values: {{}}, handlers: {{}}, sent: [] }}); }}
  get(name) {{ return this.values[name]; }}
  set(name, value) {{ this.values[name] = value; for (const call of this.handlers["change:" + name] ?? []) call(); }}
  on(name, call) {{ (this.handlers[name] ??= new Set()).add(call); }}
  off(name, call) {{ this.handlers[name]?.delete(call); }}
  send(message) {{ this.sent.push(message); }}
  save_changes() {{}}
  cut() {{ for (const call of this.handlers["comm_live_update"] ?? []) call(); }}
  receive(message) {{ for (const call of this.handlers["msg:custom"] ?? []) call(message, []); }}
}}
// How long each frame's work took, and when each began.
window.frames_ms = [];
const request = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (call) => request((now) => {{
  const begun = performance.now(); call(now); window.frames_ms.push(performance.now() - begun);
}});
window.model = new Model();
window.begin = async (keyframe) => {{
  if (keyframe) model.set("keyframe", keyframe);
  window.widget = await load();
  window.finish = await widget.initialize({{ model: Object.create(model) }});
  window.remove = await widget.render({{ model: Object.create(model), el: document.querySelector("#host") }});
}};
window.settled = () => new Promise((done) => request(() => request(done)));
window.ready = true;
</script></body>"""

_LIGHT = {"layout-color1": "white", "ui-font-color1": "rgba(0,0,0,.87)", "border-color2": "#e0e0e0"}
_DARK = {"layout-color1": "#212121", "ui-font-color1": "rgba(255,255,255,.87)", "border-color2": "#424242"}


class DashboardPage:
    """One page with one dashboard; `page` is Playwright's."""

    def __init__(self, page: Page):
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)

    def open(self, picture: Mapping[str, Any] | None, *, theme: str = "light", number: int = 1) -> None:
        """Show a picture, if any, where the front end has this theme: ``light``, ``dark``, or ``none``."""
        colours = {"light": _LIGHT, "dark": _DARK, "none": {}}[theme]
        variables = "".join(f"--jp-{name}: {value};" for name, value in colours.items())
        text = _HTML.format(
            variables=f"{variables} background: var(--jp-layout-color1, transparent);",
            is_light={"light": "true", "dark": "false", "none": ""}[theme],
        )
        self.page.route("**/*", lambda route: _serve(route, text))
        self.page.goto(URL)
        self.page.wait_for_function("window.ready")
        keyframe = picture and {"number": number, "now_ms": NOW_MS, "picture": picture}
        # As text: Playwright's own way into the page loses a key called __proto__.
        self.page.evaluate("text => begin(JSON.parse(text))", json.dumps(keyframe or None))
        self.settle()

    def keyframe(self, number: int, picture: Mapping[str, Any], now_ms: float = NOW_MS) -> None:
        value = {"number": number, "now_ms": now_ms, "picture": picture}
        self.page.evaluate("text => model.set('keyframe', JSON.parse(text))", json.dumps(value))
        self.settle()

    def patch(self, number: int, patch: Mapping[str, Any], now_ms: float = NOW_MS) -> None:
        message = {"kind": "patch", "number": number, "now_ms": now_ms, "patch": patch}
        self.page.evaluate("text => model.receive(JSON.parse(text))", json.dumps(message))
        self.settle()

    def settle(self) -> None:
        """Wait until what was fed is drawn."""
        self.page.evaluate("settled()")

    def sent(self) -> list[str]:
        """The kinds of the messages to the kernel."""
        return [message["kind"] for message in self.page.evaluate("model.sent")]


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's browser, headless."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def dashboard(
    browser: Browser, width: int = 1000, scale: float = 1, **options: Any
) -> Iterator[DashboardPage]:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, device_scale_factor=scale, **options
    )
    try:
        yield DashboardPage(context.new_page())
    finally:
        context.close()


def _serve(route: Route, html: str) -> None:
    path = route.request.url.removeprefix(URL)
    if path in ("dashboard.js", "dashboard.css"):
        kind = "text/javascript" if path.endswith(".js") else "text/css"
        route.fulfill(body=(FOLDER / path).read_text(), content_type=kind)
    elif not path:
        route.fulfill(body=html, content_type="text/html")
    else:
        route.fulfill(status=204)
