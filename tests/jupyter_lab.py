"""JupyterLab in a browser for tests: what users of the dashboard have before them.

    with Lab() as lab, lab.browser() as browser:
        notebook = browser.open("a.ipynb", ["%load_ext nbdist", "..."])
        notebook.run(0)
        expect(notebook.output(0)).to_contain_text("...")

All that the server, its kernels and the browser keep is in one folder, gone at the end, and all processes that
they started are known by a marker in their environment. It listens on the loopback interface alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import psutil
from dashboard_page import CHROMIUM, FLAGS
from notebook_kernel import MARKER, poll_until
from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Locator, Page, expect, sync_playwright

START_S = 120
"""A server or a kernel that has not come up by then will not."""

_FOLDERS = {
    "HOME": "home",
    "IPYTHONDIR": "ipython",
    "JUPYTER_CONFIG_DIR": "config",
    "JUPYTER_DATA_DIR": "data",
    "JUPYTER_RUNTIME_DIR": "runtime",
    "JUPYTERLAB_SETTINGS_DIR": "settings",
    "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    "TMPDIR": "tmp",
}
_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
    # With subshells, a page that is not the kernel's first may send to one that the kernel does not know: JupyterLab
    # 4.6 with ipykernel 7.4 then loses what widgets say ("Cannot handle comm_msg: Unknown subshell_id").
    "@jupyterlab/apputils-extension:kernels-settings": {"commsOverSubshells": "disabled"},
}
_OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--IdentityProvider.token=",
    "--ServerApp.disable_check_xsrf=True",
    "--LabApp.extension_manager=readonly",
    "--LabApp.expose_app_in_browser=True",
)
_COUNTED = re.compile(r"\[\d+\]:")
_PANEL = "window.jupyterapp.shell.currentWidget"


class Lab:
    """A JupyterLab server.

    Args:
        environment: what its kernels' differs in from ours; None takes a variable away.
    """

    def __init__(self, environment: Mapping[str, str | None] | None = None):
        self._marker = uuid.uuid4().hex
        self._more = dict(environment or {})

    def __enter__(self) -> Lab:
        self.folder = Path(tempfile.mkdtemp(prefix="nbdist-lab-"))
        self.root = self.folder / "root"
        for name in ("root", *_FOLDERS.values()):
            (self.folder / name).mkdir()
        overrides = self.folder / "config" / "labconfig" / "default_setting_overrides.json"
        overrides.parent.mkdir()
        overrides.write_text(json.dumps(_SETTINGS))
        with (self.folder / "lab.log").open("wb") as log:
            command = [sys.executable, "-m", "jupyterlab", *_OPTIONS, f"--port={_free_port()}"]
            command.append(f"--ServerApp.root_dir={self.root}")
            self._server = subprocess.Popen(
                command, stdout=log, stderr=log, env=self._environment(), start_new_session=True
            )
        try:
            poll_until(self._is_up, START_S, lambda: self.log)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it and all that it started; the test fails where something of it stays."""
        self._server.send_signal(signal.SIGTERM)
        try:
            self._server.wait(30)
            poll_until(lambda: not self.processes(), 10, lambda: f"left behind: {self.processes()}")
        finally:
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            shutil.rmtree(self.folder, ignore_errors=True)
        assert not self.folder.exists(), f"{self.folder} could not be removed"

    @property
    def log(self) -> str:
        return (self.folder / "lab.log").read_text(errors="replace")[-3000:]

    def processes(self) -> list[psutil.Process]:
        """What it started and what these started: kernels, ranks, guards, the browser."""
        return [process for process in psutil.process_iter() if self._owns(process)]

    def ask(self, method: str, path: str, content: object = None) -> Any:
        """What the server's own interface answers."""
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.url}/api/{path}", body, method=method)
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    @contextlib.contextmanager
    def browser(self, **options: Any) -> Iterator[LabBrowser]:
        """Chromium, headless."""
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM, args=list(FLAGS), env=self._environment()
            )
            try:
                yield LabBrowser(self, browser.new_context(**options))
            finally:
                browser.close()

    def _is_up(self) -> bool:
        assert self._server.poll() is None, f"JupyterLab ended:\n{self.log}"
        for file in (self.folder / "runtime").glob("jpserver-*.json"):
            # The port may be another one than the one asked for, if somebody took that meanwhile.
            with contextlib.suppress(OSError, ValueError):
                self.url = json.loads(file.read_text())["url"].rstrip("/")
                self.ask("GET", "status")
                return True
        return False

    def _environment(self) -> dict[str, str]:
        own = {variable: str(self.folder / name) for variable, name in _FOLDERS.items()}
        own |= {MARKER: self._marker, "CUDA_VISIBLE_DEVICES": ""}
        wanted = {**os.environ, **own, **self._more}
        return {name: value for name, value in wanted.items() if value is not None}

    def _owns(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARKER) == self._marker
        except (psutil.Error, OSError):  # gone by now, or somebody else's
            return False


class LabBrowser:
    """A browser with notebooks of one `Lab`."""

    def __init__(self, lab: Lab, context: BrowserContext):
        self.lab = lab
        self._context = context

    def open(self, name: str, cells: Sequence[str], *, kernel_id: str | None = None) -> LabNotebook:
        """A new notebook with these cells, on a kernel of its own or on one that runs."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(notebook, self.lab.root / name)
        if kernel_id is not None:
            session = {"path": name, "name": name, "type": "notebook", "kernel": {"id": kernel_id}}
            self.lab.ask("POST", "sessions", session)
        return self.open_file(name)

    def open_file(self, name: str) -> LabNotebook:
        """A notebook that is there."""
        return LabNotebook(self.lab, self._context.new_page(), name)


class LabNotebook:
    """A notebook in a page of its own; `page` is Playwright's.

    Attributes:
        errors: what the page reported as such.
        dialogs: what it asked the user by a dialog of the browser's.
    """

    def __init__(self, lab: Lab, page: Page, name: str):
        self.lab, self.page, self.name = lab, page, name
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._take_console)
        page.on("dialog", self._take_dialog)
        page.goto(f"{lab.url}/lab/tree/{name}?reset", wait_until="domcontentloaded")
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Until the notebook is shown and its kernel is known to the page, be it busy or not."""
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Notebook .jp-CodeCell", timeout=1000 * START_S)
        self.page.wait_for_function(
            f"() => {_PANEL}?.sessionContext?.session?.kernel?.connectionStatus === 'connected'",
            timeout=1000 * START_S,
        )

    @property
    def kernel_id(self) -> str:
        return str(self.page.evaluate(f"{_PANEL}.sessionContext.session.kernel.id"))

    @property
    def panel(self) -> Locator:
        """The dashboards that live."""
        return self.page.locator(".nbd-root")

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(index)

    def output(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-Cell-outputWrapper")

    def run(self, index: int) -> None:
        """Start a cell; returns at once."""
        self.page.evaluate(f"index => {{ {_PANEL}.content.activeCellIndex = index; }}", index)
        self.command("notebook:run-cell")

    def wait_for_end(self, index: int, timeout_s: float = 60) -> None:
        """Until a cell that was started has ended."""
        expect(self.cell(index).locator(".jp-InputPrompt")).to_have_text(_COUNTED, timeout=1000 * timeout_s)

    def run_all(self, *indices: int) -> None:
        """Run these cells, each to its end."""
        for index in indices:
            self.run(index)
            self.wait_for_end(index)

    def do(self, code: str) -> None:
        """Run code in the kernel that no cell shows."""
        answer = self.page.evaluate(
            f"""async (code) => {{
                const request = {{ code, silent: true, store_history: false, stop_on_error: false }};
                const late = new Promise((done) => setTimeout(() => done({{ content: {{ status: "late" }} }}), 30_000));
                const {{ done }} = {_PANEL}.sessionContext.session.kernel.requestExecute(request);
                return (await Promise.race([done, late])).content;
            }}""",
            code,
        )
        assert answer["status"] == "ok", answer

    def command(self, name: str, **arguments: object) -> None:
        """Begin a command of JupyterLab's."""
        self.page.evaluate(
            "([name, given]) => { window.jupyterapp.commands.execute(name, given); }", [name, arguments]
        )

    def save(self) -> Any:
        """Save it; the notebook as the file has it."""
        self.page.evaluate(f"() => {_PANEL}.context.save()")
        return nbformat.read(self.lab.root / self.name, as_version=4)

    def reload(self) -> None:
        """The page, by the browser's own means."""
        self.page.reload(wait_until="domcontentloaded")
        self.wait_until_ready()

    def set_theme(self, name: str) -> None:
        """``Light`` or ``Dark``."""
        self.command("apputils:change-theme", theme=f"JupyterLab {name}")

    def close(self) -> None:
        self.page.close()

    def _take_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")

    def _take_dialog(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
