"""Interrupts while values are on their way between the notebook and the ranks of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_ranks import on_ranks, shown
from notebook_kernel import CellRun, NotebookKernel, poll_until


@pytest.fixture
def live(kernel: NotebookKernel) -> Iterator[NotebookKernel]:
    """A kernel with a live session of three ranks."""
    kernel.run("import torch\n%distributed start --devices 3 --accelerator cpu").check()
    on_ranks(kernel, "kept = 10 * rank").check()
    yield kernel
    kernel.run("%distributed stop").check()


def check_good(kernel: NotebookKernel) -> None:
    cell = "x = torch.ones(1) * (rank + 1)\ntorch.distributed.all_reduce(x)\nx.item(), kept"
    assert shown(on_ranks(kernel, cell)) == "(6.0, 0)"


def interrupt_in(kernel: NotebookKernel, cell: str, begun: str) -> CellRun:
    """Run a cell that goes on after a line, and interrupt it once a file of that name is there."""
    (kernel.working_folder / begun).unlink(missing_ok=True)
    run = kernel.start_run(f"{cell}\nwent_on = True")
    poll_until((kernel.working_folder / begun).exists, 20, lambda: run.describe())
    kernel.interrupt()
    return run.finish(20)


SLOW = """
class Slow:
    def __init__(self, name):
        self.name = name
    def __getstate__(self):
        return self.name
    def __setstate__(self, name):
        import time
        self.name = name
        open(name, "w").close()
        until = time.monotonic() + 1
        while time.monotonic() < until:
            pass
"""
"""A value that says when it is being read, and takes its time."""


def test_an_interrupt_while_names_are_pulled_leaves_the_notebook_as_it_was(live: NotebookKernel) -> None:
    live.run(f"{SLOW}\nfirst = 'the notebook\\'s'").check()
    on_ranks(live, "first, slow = 'the ranks\\'', (torch.ones(1_000_000), Slow('begun'))").check()
    run = interrupt_in(live, "first = 'the notebook\\'s'\n%distributed pull first slow", "begun")
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt"
    assert "nbdist/" not in run.error.text
    assert live.value("(first, 'slow' in globals(), 'went_on' in globals())") == (
        "the notebook's",
        False,
        False,
    )
    check_good(live)
    assert shown(on_ranks(live, "slow[0].sum().item(), slow[1].name")) == "(1000000.0, 'begun')"


def test_an_interrupt_while_names_are_pushed_ends_the_cell(live: NotebookKernel) -> None:
    live.run(SLOW).check()
    live.run("pushed = Slow('pushed')").check()
    run = interrupt_in(live, "%distributed push pushed", "pushed")
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt"
    assert live.value("'went_on' in globals()") is False
    check_good(live)
    live.run("%distributed push pushed").check()
    assert shown(on_ranks(live, "pushed.name")) == "'pushed'"


def test_a_second_interrupt_drops_what_comes_back(kernel: NotebookKernel) -> None:
    kernel.run(f"{SLOW}\nold = [0]").check()
    for begun in ("back", "again"):
        (kernel.working_folder / begun).unlink(missing_ok=True)
    run = kernel.start_run("%%distributed --devices 2\nold[0] = 1\nslow = Slow('back'), Slow('again')")
    for begun in ("back", "again"):
        poll_until((kernel.working_folder / begun).exists, 20, lambda: run.describe())
        kernel.interrupt()
    run.finish(20)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt"
    assert kernel.value("(old, 'slow' in globals())") == ([0], False)


# ── Sessions made in Python ─────────────────────────────────────────────────────────────────────────────────


PACKED_SLOWLY = """
class PackedSlowly:
    def __getstate__(self):
        import threading
        open("packed", "w").close()
        threading.Event().wait(600)
        return 1
    def __setstate__(self, state):
        pass
"""
"""A value that says when it is being packed, and is so for ever."""


@pytest.fixture(params=["fork", "forkserver"])
def session(kernel: NotebookKernel, request: pytest.FixtureRequest) -> Iterator[NotebookKernel]:
    """A kernel with a session of two ranks, `s`, made in Python."""
    kernel.run(
        "import nbdist, torch\n"
        f"s = nbdist.Session(devices=2, accelerator='cpu', name='s', start_method={request.param!r})\n"
        f"s.start()\n{SLOW}{PACKED_SLOWLY}"
    ).check()
    kernel.run("%%distributed --name s\nkept = [rank] * 10").check()
    yield kernel
    run = kernel.run(
        "%%distributed --name s\nt = torch.ones(1)\ntorch.distributed.all_reduce(t)\nt.item(), kept[0]"
    )
    assert run.check().result == {"text/plain": "(2.0, 0)"}
    kernel.run("s.stop()\n%reload_ext nbdist").check()  # which ends the fork server, too


def interrupted_in(kernel: NotebookKernel, cell: str, begun: str) -> str:
    """As `interrupt_in`: what KeyboardInterrupt says."""
    run = interrupt_in(kernel, cell, begun)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt", run.describe()
    assert kernel.value("'went_on' in globals()") is False
    return run.error.evalue


@pytest.mark.parametrize(
    "cell", ["s.push(big=big, slow=PackedSlowly())", "%%distributed --name s\nbig, slow"]
)
def test_an_interrupt_while_values_are_packed_sends_nothing(session: NotebookKernel, cell: str) -> None:
    session.run("big, slow = torch.ones(1_000_000), PackedSlowly()").check()
    assert interrupted_in(session, cell, "packed") == "nothing was sent to the ranks"
    assert session.run("%%distributed --name s\nbig.sum().item()").check().result == {
        "text/plain": "1000000.0"
    }


def test_an_interrupt_while_a_session_pushes_ends_the_cell(session: NotebookKernel) -> None:
    assert interrupted_in(session, "s.push(pushed=(torch.ones(1_000_000), Slow('read')))", "read")
    session.run("s.push(pushed=3)").check()
    assert session.run("%%distributed --name s\npushed").check().result == {"text/plain": "3"}


def test_an_interrupt_while_a_session_pulls_ends_the_cell(session: NotebookKernel) -> None:
    session.run("%%distributed --name s\nslow = torch.ones(1_000_000), Slow('here')").check()
    assert interrupted_in(session, "found = 'old'\nfound = s.pull('slow', rank=1)", "here")
    assert session.value("found") == "old"
    assert session.run("s.pull('slow', rank=1)[0].sum().item()").check().result == {"text/plain": "1000000.0"}


# ── Ranks that are sent what they need when they start ──────────────────────────────────────────────────────


@pytest.mark.parametrize("line", ["", "--background train", "--output slow"])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_an_interrupt_while_values_are_packed_starts_nothing(
    kernel: NotebookKernel, method: str, line: str
) -> None:
    kernel.run(f"{PACKED_SLOWLY}\nslow = PackedSlowly()").check()
    cell = f"%%distributed --devices 2 --start-method {method} {line}\nslow"
    assert interrupted_in(kernel, cell, "packed") == "nothing runs on the ranks"
    assert kernel.run("%distributed status").check().stdout.startswith("No ranks are up.")
