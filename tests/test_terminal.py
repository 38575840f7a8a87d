"""The dashboard in IPython's terminal: a table of the ranks below the text of a run that is waited for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ipython_terminal import IPythonTerminal

TRAINS = """
%%distributed --devices 2
import time, nbdist
for step in range(6):
    nbdist.log(step=step, loss=1 / (step + 1) + rank)
    if rank == 0:
        print("step", step)
    time.sleep(0.4)
print("no end", end="")
rank
""".strip()

PRINTS = r"""
%%distributed --devices {ranks} {options}
import sys, time
def say(*words, **how):
    if rank == 0:
        print(*words, **how)
for burst in range(5):
    say("\n".join(f"{{burst}} \x1b[3{{n % 8}}mline\x1b[0m {{n}} " + "ab " * 3 * n for n in range(12)))
    if burst == 0:
        say("to stderr", file=sys.stderr)
    for done in range(4):
        say(f"\r{{done}}/4 数据", end="", flush=True)
        time.sleep(0.1)
    say("." * 60, end="", flush=True)
    time.sleep(0.2)
    say("." * 60, end="")
say("\x1b[1mbold, no end", end="", flush=True)
""".strip()

SLEEPS = "%%distributed --devices 2\nimport time\nif rank == 0: print('here')\ntime.sleep({seconds})"

HEADING = re.compile(
    r"^cell (\w+)(?: on rank 1)?(?: · [12] ranks?)?(?: · CPU)? · (\d+\.?\d*) s$", re.MULTILINE
)
ROW = re.compile(r"^([01])     (\w+)(.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IPythonTerminal]:
    with IPythonTerminal(tmp_path_factory.mktemp("terminal")) as terminal:
        yield terminal


@pytest.fixture
def terminal(started: IPythonTerminal) -> Iterator[IPythonTerminal]:
    """A terminal, at its prompt; the test fails if a cursor is not to be seen after it."""
    yield started
    if not started.is_asking:  # the test has failed
        started.type("\x03")
        started.end()
    assert started.cursor_is_seen
    assert started.run("print('goes on')") == "goes on"


def states(text: str) -> list[tuple[str, str]]:
    """The ranks and their states in the last table."""
    return [(row[1], row[2]) for row in ROW.finditer(text)][-2:]


def without_table(output: str) -> str:
    """What has come of a cell without the table behind its text."""
    return HEADING.split(output)[0].rstrip("\n")


def test_a_table_stands_below_the_text(terminal: IPythonTerminal) -> None:
    terminal.begin(TRAINS)
    terminal.until(
        lambda: re.search(r"^rank .* use .*\n0 .* loss .*\n1 .* loss", terminal.output, re.MULTILINE)
    )
    text, _, table = terminal.output.partition("\n\n")
    assert text.splitlines()[:2] == ["[0] step 0", "[0] step 1"]
    heading, titles, *rows = table.splitlines()
    found = HEADING.match(heading)
    assert found is not None
    assert found[1] == "running"
    assert float(found[2]) >= 1
    assert titles.split() == ["rank", "state", "where", "use", "last", "metrics"]
    assert [row.split()[:4] for row in rows] == [
        ["0", "running", "line", "7:"],
        ["1", "running", "line", "7:"],
    ]
    assert ["loss" in row for row in rows] == [True, True]
    assert terminal.cursor_is_seen

    text, _, table = terminal.end().partition("\ncell ")
    assert text.splitlines() == [*(f"[0] step {step}" for step in range(6)), "no end"]
    heading, titles, *rows, result = table.splitlines()
    assert heading.startswith("finished · 2 ranks · CPU · ")
    assert titles.split() == ["rank", "state", "use", "last", "metrics"]
    assert re.fullmatch(r"0     finished  .*  loss 0\.1667", rows[0])
    assert re.fullmatch(r"1     finished  .*  loss 1\.167", rows[1])
    assert result == "Out[2]: 0" or re.fullmatch(r"Out\[\d+\]: 0", result)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_text_is_what_it_is_without_a_table(terminal: IPythonTerminal, ranks: int) -> None:
    plain = terminal.run(PRINTS.format(ranks=ranks, options="--no-dashboard"))
    output = terminal.run(PRINTS.format(ranks=ranks, options=""))
    assert "cell finished" in output
    assert without_table(output) == plain
    assert "cell finished" not in plain


def test_ctrl_c_interrupts(terminal: IPythonTerminal) -> None:
    terminal.begin(SLEEPS.format(seconds=60))
    terminal.until(lambda: states(terminal.output) == [("0", "running"), ("1", "running")])
    terminal.type("\x03")
    output = terminal.end()
    assert output.startswith("[0] here\ncell interrupted")
    assert states(output) == [("0", "interrupted"), ("1", "interrupted")]
    assert output.endswith("KeyboardInterrupt: all 2 ranks were stopped")


def test_the_table_steps_aside_for_a_question(terminal: IPythonTerminal) -> None:
    terminal.begin(
        "%%distributed --devices 2\nimport time\ntime.sleep(1.5)\n"
        "name = input('who? ') if rank == 0 else ''\ntime.sleep(1)\nif rank == 0: print('the', 'end')"
    )
    terminal.until(lambda: states(terminal.output) == [("0", "running"), ("1", "running")])
    terminal.until(lambda: terminal.output.endswith("who?"))
    assert terminal.output == "who?"
    terminal.type("me and you\r")
    terminal.until(lambda: states(terminal.output) == [("0", "running"), ("1", "running")])
    assert without_table(terminal.output) == "who? me and you"
    assert without_table(terminal.end()) == "who? me and you\n[0] the end"
    assert terminal.run("name") == f"Out[{terminal.number}]: 'me and you'"


def test_a_failure_comes_behind_the_table(terminal: IPythonTerminal) -> None:
    output = terminal.run(
        "%%distributed --devices 2\nimport time\ntime.sleep(1.5)\nif rank == 1: 1 / 0\nprint('after', 'it')"
    )
    table, _, failure = output.partition("\nrank 1 of 2, line 4 of the cell:")
    assert without_table(table) == "[0] after it"
    assert states(table)[1] == ("1", "failed")
    assert HEADING.search(table)[1] == "failed"
    assert "ZeroDivisionError: division by zero" in failure


def test_a_rank_that_is_killed(terminal: IPythonTerminal) -> None:
    output = terminal.run(
        "%%distributed --devices 2\nimport os, time\ntime.sleep(1.5)\nif rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(60)"
    )
    assert re.search(r"^1     has died", output, re.MULTILINE)
    assert HEADING.search(output)[1] == "failed"
    assert "RankFailedError" in output.rpartition("cell failed")[2]


def test_a_short_run_has_none(terminal: IPythonTerminal) -> None:
    assert terminal.run("%%distributed --devices 2\nrank") == f"Out[{terminal.number}]: 0"


@pytest.mark.parametrize(
    ("before", "option", "after"),
    [
        ("", "--no-dashboard", ""),
        ("os.environ['NBDIST_DASHBOARD'] = 'none'", "", "del os.environ['NBDIST_DASHBOARD']"),
        ("os.environ['TERM'] = 'dumb'", "", "os.environ['TERM'] = 'xterm'"),
        ("del os.environ['TERM']", "", "os.environ['TERM'] = 'xterm'"),
        ("sys.modules['rich'] = None", "", "del sys.modules['rich']"),
    ],
    ids=["not wanted", "none", "a dumb terminal", "an unknown terminal", "no rich"],
)
def test_where_there_is_none(terminal: IPythonTerminal, before: str, option: str, after: str) -> None:
    code = "import time\nif rank == 0: print('here')\ntime.sleep(1.7)\n"
    terminal.begin(
        f"import os, sys\n{before}\n"
        f"get_ipython().run_cell_magic('distributed', '--devices 2 {option}', {code!r})\n{after}\n'end'"
    )
    begin = len(terminal.raw)
    assert re.fullmatch(r"\[0\] here\nOut\[\d+\]: 'end'", terminal.end())
    assert b"running" not in terminal.raw[begin:]


def test_colours_only_where_they_are_wanted(terminal: IPythonTerminal) -> None:
    for before, has_colours in (("%env NO_COLOR=1", False), ("del os.environ['NO_COLOR']", True)):
        terminal.run("import os")
        terminal.run(before)
        begin = len(terminal.raw)
        terminal.run(SLEEPS.format(seconds=1.7))
        assert (b"\x1b[34mrunning" in terminal.raw[begin:]) == has_colours
        assert b"running" in terminal.raw[begin:]


def test_a_terminal_that_becomes_narrow_and_low(terminal: IPythonTerminal) -> None:
    terminal.begin(TRAINS.replace("range(6)", "range(12)"))
    terminal.until(lambda: "last metrics" in terminal.output)
    terminal.resize(32, 12)
    try:
        terminal.until(
            lambda: re.search(r"^cell running · 2 ranks · [\d.]+ s$", terminal.output, re.MULTILINE)
        )
        assert states(terminal.output) == [("0", "running"), ("1", "running")]
        assert "last metrics" in terminal.output
        text = without_table(terminal.end())
        assert text.splitlines()[-12:] == [*(f"[0] step {step}" for step in range(1, 12)), "no end"]
    finally:
        terminal.resize(80, 24)


def test_a_run_in_the_background_has_none(terminal: IPythonTerminal) -> None:
    begin = len(terminal.raw)
    terminal.run(SLEEPS.format(seconds=1.7).replace("--devices 2", "--devices 2 --background train"))
    terminal.run("train.wait()")
    assert "here" in terminal.text
    assert b"line 4" not in terminal.raw[begin:]


def test_into_a_file_goes_the_text_alone(tmp_path: Path) -> None:
    cells = tmp_path / "cells.ipy"
    cells.write_text(f"%load_ext nbdist\n_ = get_ipython().run_cell({SLEEPS.format(seconds=1.7)!r})\n")
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--colors=NoColor", str(cells)],
        env={**os.environ, "TERM": "xterm", "CUDA_VISIBLE_DEVICES": "", "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("[0] here\n", "")
