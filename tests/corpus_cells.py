"""The corpus of cells: how its files are read, and what two kernels make of one cell.

A file `tests/corpus/*.ipy` holds cases:

    #%% name of the case
    #: differs state.cwd: Heading in docs/differences.md
    #: stays gen: Heading in docs/differences.md
    #: fault names.x: what is wrong today
    #: python 3.12
    #% setup
    (an ordinary cell)
    #% cell
    (the cell, run plainly in one kernel and under %%distributed in the other)
    #% after
    (an ordinary cell)
    #% undo
    (puts settings of the process back, in both kernels)
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from notebook_kernel import CellRun, NotebookKernel, without_ansi

FOLDER = Path(__file__).parent / "corpus"
DOCUMENT = Path(__file__).parent.parent / "docs" / "differences.md"
LINE = "%%distributed --devices 2"


@dataclass
class Case:
    """A cell with what comes before and after it, and how the two kernels are known to differ.

    Attributes:
        differs: key of a difference → the heading that documents it.
        stays: name of a value that stays behind, with a note → the heading.
        faults: key of a difference that is a fault → what is wrong.
    """

    name: str
    file: str = ""
    setup: str = ""
    cell: str = ""
    after: str = ""
    undo: str = ""
    differs: dict[str, str] = field(default_factory=dict)
    stays: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    python: tuple[int, ...] = (3, 10)

    def note(self, line: str) -> None:
        """Take a `#:` line."""
        word, _, rest = line.partition(" ")
        keys, _, text = rest.partition(": ")
        if word == "python":
            self.python = tuple(int(part) for part in rest.split("."))
            return
        table = {"differs": self.differs, "stays": self.stays, "fault": self.faults}[word]
        assert text, f"{self.name}: `#: {line}` gives no reason"
        table.update(dict.fromkeys(keys.split(", "), text))


def read_cases() -> list[Case]:
    """All cases, in order of files and lines."""
    return [case for path in sorted(FOLDER.glob("*.ipy")) for case in _cases_of(path)]


def _cases_of(path: Path) -> Iterator[Case]:
    for block in re.split(r"^#%% ", path.read_text(), flags=re.MULTILINE)[1:]:
        head, *parts = re.split(r"^#% (\w+)\n", block, flags=re.MULTILINE)
        name, *notes = head.strip().splitlines()
        case = Case(name, path.stem)
        for note in notes:
            assert note.startswith("#: "), f"{path.name}: {name}: {note}"
            case.note(note[3:].strip())
        for part, text in zip(parts[::2], parts[1::2], strict=True):
            assert part in ("setup", "cell", "after", "undo"), f"{path.name}: {name}: #% {part}"
            setattr(case, part, text.rstrip("\n"))
        yield case


# ── What a user sees ────────────────────────────────────────────────────────────────────────────────────────


class Page:
    """The outputs of cells as a front end shows them in the end: cleared, updated, bars overwritten."""

    def __init__(self) -> None:
        self.outputs: list[tuple[str, Any]] = []
        self.stderr: list[str] = []
        self._ids: dict[int, str] = {}
        self._clear_next = False

    def add(self, run: CellRun) -> None:
        """Apply a cell's messages."""
        self.outputs.append(("cell", ""))
        self._clear_next = False
        for message in list(run.messages):
            content = message.content
            if message.msg_type == "clear_output":
                self._clear_next = True
                if not content["wait"]:
                    self._clear()
            elif message.msg_type == "stream":
                self._clear()
                self._add_text(content["name"], content["text"])
            elif message.msg_type in ("display_data", "execute_result"):
                self._clear()
                self._add_data(message.msg_type, content)
            elif message.msg_type == "update_display_data":
                self._update(content)
            elif message.msg_type == "error":
                self.outputs.append(("error", ""))

    def _clear(self) -> None:
        if self._clear_next:
            while self.outputs[-1] != ("cell", ""):
                self.outputs.pop()
            self.stderr.clear()
            self._clear_next = False

    def _add_text(self, name: str, text: str) -> None:
        if name == "stderr":  # its place between the other outputs is left to chance by ipykernel
            self.stderr.append(text)
        elif self.outputs[-1][0] == "stdout":
            self.outputs[-1] = ("stdout", self.outputs[-1][1] + text)
        else:
            self.outputs.append(("stdout", text))

    def _add_data(self, kind: str, content: dict[str, Any]) -> None:
        display_id = (content.get("transient") or {}).get("display_id")
        if display_id:
            self._ids[len(self.outputs)] = display_id
        self.outputs.append((kind, (content["data"], content["metadata"])))

    def _update(self, content: dict[str, Any]) -> None:
        for at, display_id in self._ids.items():
            if display_id == content["transient"]["display_id"]:
                self.outputs[at] = (self.outputs[at][0], (content["data"], content["metadata"]))

    def shown(self) -> str:
        """Streams and displays, in order."""
        return "\n".join(f"{kind}: {readable(str(what))}" for kind, what in self.outputs)

    def errors(self) -> str:
        """What was written to stderr."""
        return readable("".join(self.stderr))


_PLACES = (
    (r"[^\s'\"]*ipykernel_\d+[/\\]\d+\.py", "<cell>"),
    (r"<(ipython-input|string)[^>]*>", "<cell>"),
    (r"0x[0-9a-fA-F]{6,}", "0x…"),
    (r"/[^\s'\"]*nbk-\w+/", "<kernel>/"),
)
_TIMES = (
    (r"\d+:\d\d<(\d+:\d\d|\?), +[\d.?]+\w+/s[^]]*", "<speed>"),
    (r"\b[\d.]+ (ns|µs|us|ms|s)\b( ± [\d.]+ (ns|µs|us|ms|s))?", "<time>"),
    (r"(\[[\d,-]+\] )?USDT:.*\n", ""),  # the profiler's own words
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.]?\d*", "<date>"),
)


def readable(text: str) -> str:
    """Text as it stands on the screen, without what changes from run to run."""
    text = without_ansi(text)
    text = "\n".join(_overwritten(line) for line in text.split("\n"))
    for pattern, name in _TIMES:
        text = re.sub(pattern, name, text)
    return without_places(text)


def without_places(text: str) -> str:
    """Text without what differs from kernel to kernel."""
    for pattern, name in _PLACES:
        text = re.sub(pattern, name, text)
    return text


def _overwritten(line: str) -> str:
    screen = ""
    for piece in line.split("\r"):
        screen = piece + screen[len(piece) :]
    return screen.rstrip(" ")


# ── Two kernels ─────────────────────────────────────────────────────────────────────────────────────────────


WARM_UP = """
import gc, matplotlib.pyplot, numpy, pandas, torch, torch._dynamo, torch.distributed, torch.fx
torch.optim.SGD([torch.ones(1, requires_grad=True)])
gc.collect()
%matplotlib inline
gc.freeze()  # every `%reset` collects garbage several times over
"""
PROBES = f"""
import importlib.util, sys
for _name in ("corpus_probe", "corpus_state"):
    _spec = importlib.util.spec_from_file_location(_name, {str(Path(__file__).parent)!r} + f"/{{_name}}.py")
    sys.modules[_name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_name])
"""
ENVIRONMENT: dict[str, str | None] = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",  # sums in the same order in both
    "PYTHONHASHSEED": "0",  # sets in the same order in both
    "PYTEST_CURRENT_TEST": None,  # ipykernel would leave what is written to descriptor 1 where it is
}


PUT_BACK = ("random", "files", "modules")
"""What is put back after each case, whatever it was."""


@dataclass
class Notebook:
    """One of the two kernels."""

    kernel: NotebookKernel
    distributed: bool

    def prepare(self) -> None:
        """Load what most cases need, and what describes the kernel."""
        self.kernel.run(f"{WARM_UP}%load_ext nbdist").check()
        self.kernel.run(PROBES).check()
        self.kernel.reset()

    def probe(self, module: str, call: str) -> Any:
        return self.kernel.value(f"__import__('sys').modules['corpus_{module}'].{call}")

    def state(self) -> dict[str, str]:
        found: dict[str, str] = self.probe("state", f"state({str(self.kernel.working_folder)!r})")
        return found

    def go_through(self, case: Case) -> dict[str, str]:
        """Run a case; what came of it, by key."""
        self.probe("state", "begin()")
        before = self.state()
        self.probe("state", "seed()")
        if case.setup:
            self.kernel.run(case.setup).check()
        run = self.kernel.run(self._as_run(case.cell))
        page = Page()
        page.add(run)
        seen = {"status": str(run.status), "error": "" if run.error is None else run.error.ename}
        after = self.state()
        found = self.probe("probe", "names(get_ipython().user_ns)")
        if case.after:
            page.add(self.kernel.run(case.after))
        seen |= {"shown": page.shown(), "stderr": page.errors()}
        seen |= {f"names.{name}": without_places(text) for name, text in found.items()}
        seen |= {f"state.{name}": text for name, text in after.items()}
        if case.undo:
            self.kernel.run(case.undo).check()
        self._tidy(case, before)
        return seen

    def _tidy(self, case: Case, before: dict[str, str]) -> None:
        for path in self.kernel.working_folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.kernel.reset()
        if self.distributed:
            assert not self.kernel.processes(), f"{case.name}: a process is left"
        self.probe("state", "begin()")
        state = self.state()
        left = {name: text for name, text in state.items() if text != before[name] and name not in PUT_BACK}
        assert not left, f"{case.name}: the case must put back {left}"

    def _as_run(self, cell: str) -> str:
        if self.distributed:
            return f"{LINE}\n{cell}"
        if cell.lstrip().startswith("%%"):  # a cell magic must stand on the first line
            return cell
        indent = cell[: len(cell) - len(cell.lstrip(" "))]
        return f"{indent}# so that lines have the same numbers\n{cell}"


def compare(case: Case, plain: Notebook, distributed: Notebook) -> dict[str, tuple[str, str]]:
    """What the two kernels do not agree on: key → (plain, distributed)."""
    with ThreadPoolExecutor(2) as pool:
        here, there = pool.map(lambda notebook: notebook.go_through(case), (plain, distributed))
    for name in case.stays:
        there["stderr"], notes = re.subn(
            rf"^nbdist: {re.escape(name)} stays behind: .*\n?", "", there["stderr"], flags=re.MULTILINE
        )
        assert notes == 1, f"{case.name}: no note says that {name} stays behind; {there['stderr']!r}"
    keys = sorted(here.keys() | there.keys())
    pairs = {key: (here.get(key, "(missing)"), there.get(key, "(missing)")) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
