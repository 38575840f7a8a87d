"""The command `nbdist`, as a shell starts it: the demo, the version, and what it says to wrong words."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import pexpect
import psutil
import pytest
from notebook_kernel import NotebookKernel

COMMAND = (sys.executable, "-m", "nbdist")
ENOUGH_S = 60
"""The demo's promise: less than a minute."""

ROOT = Path(__file__).parent.parent
LOGS = "NBDIST_LOG_DIR"
MARKER = "DEMO_UNDER_TEST"
"""Environment variable that the processes of a demo inherit."""


def run_nbdist(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in an empty folder, as one does who has just installed it."""
    environment = {**os.environ, LOGS: str(folder / "logs")}
    here = folder / "here"
    here.mkdir()
    return subprocess.run(
        [*COMMAND, *words], cwd=here, env=environment, capture_output=True, text=True, timeout=ENOUGH_S
    )


def accuracy_percent(output: str) -> float:
    """The accuracy that the demo printed."""
    found = re.search(r"^Accuracy on 450 digits it has never seen: (\d+\.\d)%$", output, re.MULTILINE)
    assert found is not None, output
    return float(found[1])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """A demo whose output goes into a pipe, ended."""
    return run_nbdist(tmp_path_factory.mktemp("demo"), "demo")


def test_the_demo_trains_to_over_95_percent(demo: subprocess.CompletedProcess[str]) -> None:
    assert (demo.returncode, demo.stderr) == (0, "")
    assert 95 <= accuracy_percent(demo.stdout) <= 100


def test_what_the_demo_proposes_works(demo: subprocess.CompletedProcess[str], kernel: NotebookKernel) -> None:
    _, _, proposal = demo.stdout.partition("What to do next, in a notebook:\n\n")
    load, cell = re.findall(r"(?:^    .+\n)+", proposal, re.MULTILINE)
    kernel.run("\n" + load).check()
    assert kernel.run("\n" + cell).check().result == {"text/plain": "1.0"}
    notebooks = re.findall(r"notebooks/\S+\.ipynb", proposal)
    assert notebooks
    assert [name for name in notebooks if not (ROOT / name).exists()] == []


def in_terminal(folder: Path) -> pexpect.spawn[str]:
    environment = {**os.environ, LOGS: str(folder), MARKER: str(folder)}
    words = [*COMMAND[1:], "demo"]
    with warnings.catch_warnings():
        # Python 3.12 warns of pexpect's fork while a thread watches a kernel.
        warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
        return pexpect.spawn(COMMAND[0], words, env=environment, encoding="utf-8", timeout=ENOUGH_S)


def processes_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile, or somebody else's
            if process.environ().get(MARKER) == str(folder):
                found.append(process)
    return found


def test_in_a_terminal_a_bar_advances_to_the_last_step(tmp_path: Path) -> None:
    with in_terminal(tmp_path) as terminal:
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0
    assert accuracy_percent(terminal.before.replace("\r\n", "\n")) >= 95
    shown: dict[str, list[tuple[int, int]]] = {}
    lines = re.findall(r"(\[1\] )?epoch +\d+/\d+ [█·]+ +(\d+)/(\d+) steps", terminal.before)
    for of_rank_1, done, steps in lines:  # whose line is shown when rank 0 has none, perhaps a step behind
        shown.setdefault(of_rank_1, []).append((int(done), int(steps)))
    assert all(of_rank == sorted(of_rank) for of_rank in shown.values())
    assert shown[""][0] < shown[""][-1]
    _, done, steps = lines[-1]
    assert done == steps


def test_ctrl_c_ends_the_demo_and_leaves_no_process(tmp_path: Path) -> None:
    with in_terminal(tmp_path) as terminal:
        terminal.expect("steps")
        assert len(processes_of(tmp_path)) > 2  # the command and its two ranks
        terminal.sendintr()
        terminal.expect("nbdist: interrupted\r\n")
        terminal.expect(pexpect.EOF)
    assert (terminal.exitstatus, terminal.before) == (130, "")
    assert processes_of(tmp_path) == []


def test_the_version_is_that_of_the_installed_package(tmp_path: Path) -> None:
    done = run_nbdist(tmp_path, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nbdist {version('nbdist')}\n", "")


def test_no_command_shows_the_help(tmp_path: Path) -> None:
    done = run_nbdist(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "demo" in done.stdout


@pytest.mark.parametrize(
    ("words", "named"),
    [(["trian"], ["trian", "demo"]), (["demo", "now"], ["now"])],
    ids=["an unknown command", "a word too much"],
)
def test_wrong_words_are_named_with_what_is_allowed(
    tmp_path: Path, words: list[str], named: list[str]
) -> None:
    done = run_nbdist(tmp_path, *words)
    usage, _, error = done.stderr.partition("\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert usage.startswith("usage: nbdist")
    assert [name for name in named if name not in error] == []
