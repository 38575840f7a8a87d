"""The user's own modules that the notebook has executed anew: live ranks have their new code, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_ranks import on_ranks, shown
from notebook_kernel import NotebookKernel

NET = """\
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return {factor} * x
def factor():
    return {factor}
"""

VALUES = "net(1), Net()(1), factor(), own_net.factor()"


@pytest.fixture
def live(kernel: NotebookKernel) -> Iterator[NotebookKernel]:
    """A kernel with two live ranks that have used a module which lies beside the notebook."""
    write(kernel, 1)
    kernel.run("import own_net, importlib, sys\nfrom own_net import Net, factor\nnet = Net()").check()
    kernel.run("%distributed start --devices 2 --accelerator cpu").check()
    assert shown(on_ranks(kernel, VALUES)) == "(1, 1, 1, 1)"
    yield kernel
    kernel.run("%distributed stop").check()
    kernel.run("del sys.modules['own_net']", store_history=False).check()


def write(kernel: NotebookKernel, factor: int) -> None:
    """The module's next version, which no cache takes for the one before."""
    path: Path = kernel.working_folder / "own_net.py"
    path.write_text(NET.format(factor=factor))
    os.utime(path, (1_700_000_000 + factor, 1_700_000_000 + factor))


def test_a_module_that_was_reloaded(live: NotebookKernel) -> None:
    write(live, 2)
    live.run("importlib.reload(own_net)").check()
    run = on_ranks(live, VALUES)
    assert shown(run) == "(1, 1, 1, 2)" == shown(live.run(VALUES))
    assert "reloaded on the ranks: own_net" in run.stderr
    live.run("from own_net import Net, factor\nnet = Net()").check()
    run = on_ranks(live, VALUES)
    assert shown(run) == "(2, 2, 2, 2)"
    assert "reloaded" not in run.stderr


def test_a_file_that_was_changed_and_not_reloaded(live: NotebookKernel) -> None:
    write(live, 2)
    run = on_ranks(live, VALUES)
    assert shown(run) == "(1, 1, 1, 1)" == shown(live.run(VALUES))
    assert "reloaded" not in run.stderr


def test_autoreload(live: NotebookKernel) -> None:
    live.run("%load_ext autoreload\n%autoreload 2").check()
    for version in (2, 3):
        write(live, version)
        run = on_ranks(live, VALUES)
        assert shown(run) == str((version,) * 4) == shown(live.run(VALUES))
        assert "reloaded on the ranks: own_net" in run.stderr
    live.run("%autoreload 0\n%unload_ext autoreload", store_history=False)


def test_a_module_that_was_imported_again(live: NotebookKernel) -> None:
    write(live, 2)
    live.run(
        "del sys.modules['own_net']\nimport own_net\nfrom own_net import Net, factor\nnet = Net()"
    ).check()
    assert shown(on_ranks(live, VALUES)) == "(2, 2, 2, 2)"
    session = "import nbdist\nsession = nbdist.session.session_named('main')"
    live.run(f"{session}\ntold = session.run(lambda: own_net.factor())").check()
    assert live.value("told") == [2, 2]
