"""Values that are too large: for `--max-return`, or for the memory that is free."""

from __future__ import annotations

import re

import pytest
from notebook_kernel import NotebookKernel

METHODS = ["fork", "forkserver", "spawn"]

# In the rank: all but little of the machine's memory is taken.
FULL = "import psutil, types\npsutil.virtual_memory = lambda: types.SimpleNamespace(available=2_000_000)\n"


@pytest.fixture
def torch_kernel(kernel: NotebookKernel) -> NotebookKernel:
    kernel.run("import torch").check()
    return kernel


def test_new_values_above_max_return_are_listed(torch_kernel: NotebookKernel) -> None:
    torch_kernel.run("changed = torch.zeros(1_000_000)").check()
    run = torch_kernel.run(
        """
        %%distributed --devices 2 --max-return 1MiB
        large, small = torch.ones(1_000_000), torch.ones(1000)
        changed += 1
        rows = [str(n) for n in range(500_000)]
        """
    ).check()
    assert torch_kernel.value("(small.sum().item(), changed.sum().item())") == (1000, 1_000_000)
    assert torch_kernel.value("'large' in globals() or 'rows' in globals()") is False
    notes = run.stderr.splitlines()
    assert len(notes) == 2
    assert (
        "nbdist: large stays behind: it has 3.8 MiB, more than --max-return 1.0 MiB; --output brings it"
        in notes
    )
    assert any(re.match(r"nbdist: rows stays behind: it has \d+\.\d MiB, more than", note) for note in notes)


def test_what_is_asked_for_comes_whatever_its_size(torch_kernel: NotebookKernel) -> None:
    run = torch_kernel.run(
        """
        %%distributed --devices 2 --max-return 1000 -o large --gather each
        large, each = torch.ones(1_000_000), torch.full((100_000,), float(rank))
        """
    ).check()
    assert run.stderr == ""
    assert torch_kernel.value("(large.sum().item(), [e[0].item() for e in each])") == (1_000_000, [0.0, 1.0])


def test_a_result_above_max_return_is_shown_all_the_same(torch_kernel: NotebookKernel) -> None:
    run = torch_kernel.run("%%distributed --devices 2 --max-return 0.1MB\ntorch.ones(1_000_000)").check()
    assert run.result == {"text/plain": "tensor([1., 1., 1.,  ..., 1., 1., 1.])"}
    assert "the result stays behind: it has 3.8 MiB, more than --max-return 97.7 KiB" in run.stderr


@pytest.mark.parametrize("method", METHODS)
def test_values_that_memory_cannot_take_are_saved_beside_the_logs(method: str) -> None:
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist\nimport torch\nold = torch.zeros(3)").check()
        run = kernel.run(
            f"%%distributed --devices 2 --start-method {method}\n{FULL}"
            "large = torch.arange(1_000_000.0)\n"
            "view, small = large[10:20], torch.ones(3)\n"
            "old += 1\n"
        ).check()
        assert kernel.value("(small.tolist(), old.tolist())") == ([1, 1, 1], [1, 1, 1])
        said = re.search(
            r"large stays behind: it needs 3\.8 MiB of memory, and 1\.9 MiB are free; (.*)\n", run.stderr
        )
        assert said, run.stderr
        load = re.fullmatch(r"it is saved: (torch\.load\(.*\)\['large'\])", said[1])
        assert load, run.stderr
        assert kernel.value(f"{load[1]}.sum().item() == torch.arange(1_000_000.0).sum().item()") is True


@pytest.mark.parametrize("method", METHODS)
def test_what_is_changed_in_place_comes_all_or_none(method: str) -> None:
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist\nimport torch").check()
        kernel.run(
            """
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(1000, 500), torch.nn.Linear(500, 1))
            optimizer = torch.optim.Adam(model.parameters())
            before = [p.detach().clone() for p in model.parameters()]
            """
        ).check()
        run = kernel.run(
            f"%%distributed --devices 2 --start-method {method}\n{FULL}"
            "model(torch.ones(4, 1000)).sum().backward()\n"
            "optimizer.step()\n"
            "first = model[0].weight[0, 0].item()\n"
        ).check()
        assert kernel.value("all(map(torch.equal, before, model.parameters()))") is True
        assert kernel.value("(len(optimizer.state), model[0].weight.grad)") == (0, None)
        notes = [line for line in run.stderr.splitlines() if "(its new content) stays behind" in line]
        assert sorted(note.split()[1] for note in notes) == ["model", "optimizer"]
        loads = re.findall(r"it is saved: (torch\.load\('.*', weights_only=False\))\['(\w+)'\]", run.stderr)
        assert sorted(name for _, name in loads) == ["model", "optimizer"]
        kernel.run(f"saved = {loads[0][0]}").check()
        assert kernel.value("saved['model'][0].weight[0, 0].item() == first") is True
        assert kernel.value("len(saved['optimizer'].state)") == 4
        assert (
            kernel.value("saved['optimizer'].param_groups[0]['params'][0] is saved['model'][0].weight")
            is True
        )


@pytest.mark.parametrize("size", ["banana", "-1", "1XB", "1.5.2GB", "MB"])
def test_a_wrong_size_says_what_is_allowed(kernel: NotebookKernel, size: str) -> None:
    run = kernel.run(f"%%distributed --max-return {size}\npass")
    assert run.error is not None
    assert run.error.ename == "OptionError"
    assert f"--max-return {size}: " in run.error.evalue
    assert "1MiB, 500MB, 2GB" in run.error.evalue


@pytest.mark.parametrize(
    ("size", "large_comes"),
    [("4096000", True), ("4096", False), ("4.1MB", True), ("3.9MiB", True), ("3MiB", False)],
)
def test_sizes_are_bytes_or_have_units(torch_kernel: NotebookKernel, size: str, large_comes: bool) -> None:
    torch_kernel.run(f"%%distributed --devices 1 --max-return {size}\nlarge = torch.ones(1_000_000)").check()
    assert torch_kernel.value("'large' in globals()") is large_comes


def test_what_cannot_be_saved_with_others_does_not_hinder_them() -> None:
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist\nimport torch").check()
        run = kernel.run(
            f"%%distributed --devices 2 --gather each\n{FULL}"
            "class Shy:\n"
            "    def __reduce_ex__(self, protocol):\n"
            "        import torch\n"
            "        if protocol < 5:\n"
            "            raise TypeError('not to be saved')\n"
            "        return torch.ones, (1_000_000,), None\n"
            "    def __init__(self):\n"
            "        self.data = torch.ones(1_000_000)\n"
            "large, other = torch.arange(1_000_000.0), torch.ones(900_000)\n"
            "each = torch.full((1_000_000,), float(rank))\n"
            "lock = [Shy(), torch.zeros(1_000_000)]\n"
        ).check()
        loads = dict(
            re.findall(
                r"nbdist: ([\w ]+) stays behind: .*?it is saved: (torch\.load\(.*\)\['\w+'\])", run.stderr
            )
        )
        assert sorted(loads) == ["each", "each of rank 1", "large", "other"], run.stderr
        assert "it could not be saved either: not to be saved" in run.stderr
        last = ", ".join(f"{loads[name]}[-1].item()" for name in sorted(loads))
        assert kernel.value(f"({last})") == (0.0, 1.0, 999_999.0, 1.0)
