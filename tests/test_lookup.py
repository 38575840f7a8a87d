"""Completion and help for names that live only on the ranks of a live session."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from notebook_kernel import NotebookKernel, poll_until, without_ansi

START = "%distributed start --accelerator cpu --devices 2 --start-method"
CELL = "%%distributed\n"
NET = """
%%distributed --max-return 1kB
import torch
class Net(torch.nn.Module):
    "Learns little."
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.Dropout(0.25))
        self.notes = {"first": 1}
    @property
    def shared(self):
        torch.distributed.barrier()
    def forward(self, images, scale=2):
        "Goes forward."
        return self.layers(images) * scale
network = Net()
"""


@pytest.fixture
def live(kernel: NotebookKernel, request: pytest.FixtureRequest) -> Iterator[NotebookKernel]:
    """A kernel with two live ranks that have a `network`, which the notebook has not."""
    kernel.run(f"{START} {getattr(request, 'param', 'fork')}").check()
    kernel.run(NET).check()
    assert kernel.value("'network' in globals()") is False
    yield kernel
    kernel.run("%reload_ext nbdist").check()  # ends the fork server, too


def offers(kernel: NotebookKernel, text: str, wanted: str, cursor_pos: int | None = None) -> bool:
    """Whether the tab key offers a name, soon: a rank that is slow to answer, on a busy machine, is not waited
    for, and what it said is there at the next try."""
    poll_until(
        lambda: wanted in kernel.complete(text, cursor_pos), 20, lambda: f"{wanted} is not offered: {text}"
    )
    return True


def helps(kernel: NotebookKernel, text: str, wanted: str) -> bool:
    """Whether the help says something, as soon as `offers`."""
    poll_until(lambda: wanted in kernel.inspect(text), 20, lambda: f"the help of {text} has no {wanted!r}")
    return True


@pytest.mark.parametrize("live", ["fork", "forkserver"], indirect=True)
def test_completion(live: NotebookKernel) -> None:
    assert offers(live, f"{CELL}netw", "network")
    assert offers(live, f"{CELL}world_", "world_size")
    assert offers(live, f"{CELL}loss = network.lay", "layers")
    assert offers(live, f"{CELL}network.layers[0].in_", "in_features")
    assert offers(live, f"{CELL}network.notes.ke", "keys")
    assert offers(live, f"{CELL}x = [network.", "layers")
    attributes = live.complete(f"{CELL}x = [network.")
    assert {"forward", "layers", "shared", "parameters"} <= set(attributes)
    assert not any(name.startswith("_") for name in attributes)
    assert offers(live, f"{CELL}network.__cl", "__class__")
    assert len(attributes) == len(set(attributes))
    inside = f"{CELL}network.lay = 1\nprint(2)"
    assert offers(live, inside, "layers", inside.index(" = 1"))


def test_nothing_is_offered_where_it_would_be_wrong(live: NotebookKernel) -> None:
    offered = {
        text: live.complete(text)
        for text in (
            "netw",
            "network.lay",
            "world_",
            "%%local\nnetw",
            f"{CELL}from torch import netw",
            f"{CELL}nothing.lay",
            f"{CELL}network.layers().lay",
            f"{CELL}x.network.lay",
            f"{CELL}network.nothing.lay",
            f"{CELL}network.shared.lay",  # a property, which here would wait for the other rank
            "%%distributed --name other\nnetw",
            "%%distributed --devices\nnetw",
        )
    }
    wrong = {"network", "layers", "world_size"}
    assert {text: found for text, found in offered.items() if wrong.intersection(found)} == {}
    assert live.run(f"{CELL}rank").check().result == {"text/plain": "0"}


def test_completion_everywhere_while_every_cell_runs_on_the_ranks(live: NotebookKernel) -> None:
    live.run("%distributed auto on").check()
    assert offers(live, "netw", "network")
    assert offers(live, "network.lay", "layers")
    assert "network" not in live.complete("%%local\nnetw")
    live.run("%distributed auto off").check()


def test_names_of_the_notebook_are_the_notebooks(live: NotebookKernel) -> None:
    live.run("network = 'here'").check()
    assert "layers" not in live.complete(f"{CELL}network.lay")
    assert offers(live, f"{CELL}network.upp", "upper")
    assert helps(live, "network", "str")


@pytest.mark.parametrize("live", ["fork", "forkserver"], indirect=True)
def test_help_and_signatures(live: NotebookKernel) -> None:
    assert helps(live, f"{CELL}network", "Learns little.")
    assert helps(live, f"{CELL}network.forward(", "Goes forward.")
    assert helps(live, "network.forward", "scale=2")
    assert live.inspect("network.nothing") == ""
    assert live.inspect("nothing") == ""
    for text, phrase in {
        "network.forward?": "Goes forward.",
        "network.forward??": "return self.layers(images) * scale",
        "?network": "Learns little.",
    }.items():
        reply = live.run(text).check().reply
        assert reply is not None
        (shown,) = reply["payload"]
        assert phrase in without_ansi(shown["data"]["text/plain"])
    reply = live.run("nothing?").check().reply
    assert reply is not None
    assert reply["payload"] == []
    assert live.value("'network' in globals()") is False


def test_help_within_a_cell_on_ranks_is_shown_once(live: NotebookKernel) -> None:
    run = live.run(f"{CELL}network.forward?\nrank").check()
    (shown,) = run.displays
    assert "Goes forward." in shown["text/plain"]


SLOW = """
%%distributed --max-return 1
import threading
class Slow(list):
    def __dir__(self):
        threading.Event().wait()
class Loud:
    def __dir__(self):
        raise RuntimeError("no")
class Endless:
    def __dir__(self):
        while True:
            try:
                threading.Event().wait(0.01)
            except Exception:
                pass
slow, loud, endless = Slow(range(100)), Loud(), Endless()
"""


def test_objects_that_take_their_time_or_raise_hold_nobody_up(live: NotebookKernel) -> None:
    assert offers(live, f"{CELL}network.lay", "layers")
    known = live.complete(f"{CELL}network.lay")
    live.run(SLOW).check()
    assert live.value("{'slow', 'loud', 'endless'}.intersection(globals())") == set()
    assert live.complete(f"{CELL}loud.app") == []
    for name in ("slow", "endless"):
        began_s = time.monotonic()
        assert "append" not in live.complete(f"{CELL}{name}.app")
        assert live.complete(f"{CELL}network.lay") == known  # as it was known last
        took_s = time.monotonic() - began_s
        assert took_s < 1, f"{took_s} s: as long as the rank tries"
        assert live.run(f"{CELL}rank").check().result == {"text/plain": "0"}
        assert live.complete(f"{CELL}network.lay") == known


def test_the_users_own_alarm_goes_off_all_the_same(live: NotebookKernel) -> None:
    live.run(
        """
        %%distributed
        import signal, threading
        rang = threading.Event()
        signal.signal(signal.SIGALRM, lambda *_: rang.set())
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        None
        """
    ).check()
    assert offers(live, f"{CELL}network.lay", "layers")
    assert live.run(f"{CELL}rang.wait(20)").check().result == {"text/plain": "True"}


def test_what_is_asked_goes_on_after_failures(live: NotebookKernel) -> None:
    live.run(f"{CELL}later = torch.zeros(100_000)").check()
    assert offers(live, f"{CELL}lat", "later")
    live.run(f"{CELL}del later, network").check()
    assert "later" not in live.complete(f"{CELL}lat")
    assert "layers" not in live.complete(f"{CELL}network.lay")


def test_a_session_by_hand_takes_no_part(kernel: NotebookKernel) -> None:
    kernel.run(
        "import nbdist\nsession = nbdist.Session(devices=2, accelerator='cpu')\nsession.start()"
    ).check()
    kernel.run("def bind():\n    globals()['network'] = [1]\n_ = session.run(bind)").check()
    assert "network" not in kernel.complete(f"{CELL}netw")
    kernel.run("session.stop()").check()


def test_a_name_that_lives_only_there_can_be_asked_for(live: NotebookKernel) -> None:
    live.run("%%distributed --max-return 1kB\nlater = list(range(1000))").check()
    assert live.value("'later' in globals()") is False
    live.run("%%distributed -o later\nlater[0] = -1").check()
    assert live.value("later[:2]") == [-1, 1]
