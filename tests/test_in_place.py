"""The notebook's own objects that a cell changed: changed in the notebook too, and the same objects still."""

from __future__ import annotations

import pytest
from notebook_checks import DROP_RIGHT_TO_TRACE, NOT_TO_BE_READ, assert_all
from notebook_kernel import NotebookKernel

TRAINING = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.body(x))

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    inputs, targets = torch.randn(64, 4), torch.randint(0, 2, (64,))

    def train(model, optimizer, steps=3):
        for _ in range(steps):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        return loss.item()
    """


# ── Models and optimizers ───────────────────────────────────────────────────────────────────────────────────


def test_a_model_trained_in_place_is_trained_in_the_notebook(kernel: NotebookKernel) -> None:
    kernel.run(TRAINING).check()
    kernel.run(
        """
        def everything():
            return [model, optimizer, scheduler, *model.parameters(), *model.buffers()]

        kept = everything()
        addresses = [p.data_ptr() for p in model.parameters()]
        old = {name: value.clone() for name, value in model.state_dict().items()}
        """
    ).check()
    run = kernel.run(
        """
        %%distributed --devices 2
        loss = train(model, optimizer)
        scheduler.step()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        """
    ).check()
    assert run.stderr == ""
    assert_all(
        kernel,
        "all(a is b for a, b in zip(kept, everything()))",
        "[p.data_ptr() for p in model.parameters()] == addresses",
        "all(torch.equal(value, state[name]) for name, value in model.state_dict().items())",
        "[name for name, value in model.state_dict().items() if torch.equal(value, old[name])] == []",
        "model.body[1].num_batches_tracked == 3",
        "set(optimizer.state) == set(model.parameters())",
        "all(s['step'] == 3 and s['exp_avg'].abs().sum() > 0 for s in optimizer.state.values())",
        "all(p is q for p, q in zip(optimizer.param_groups[0]['params'], model.parameters()))",
        "optimizer.param_groups[0]['lr'] == 0.005 and scheduler.get_last_lr() == [0.005]",
        "scheduler.optimizer is optimizer",
        "all(p.grad is not None for p in model.parameters())",
    )
    # Training goes on here as if it had begun here: the same steps without ranks give the same loss.
    kernel.run("later_loss = train(model, optimizer, steps=20)").check()
    assert kernel.value("later_loss < loss") is True
    kernel.run(TRAINING + "\n    _ = train(model, optimizer)\n    scheduler.step()").check()
    assert kernel.value("abs(train(model, optimizer, steps=20) - later_loss) < 1e-5") is True


def test_batch_norm_statistics_alone(kernel: NotebookKernel) -> None:
    """They change without any version counter of the parameters, and without gradients."""
    kernel.run("import torch\nnorm = torch.nn.BatchNorm1d(3)\nmean, same = norm.running_mean, norm").check()
    kernel.run("%%distributed --devices 2\nwith torch.no_grad():\n    norm(torch.ones(8, 3) * 5);").check()
    assert_all(
        kernel,
        "norm is same and norm.running_mean is mean",
        "torch.allclose(norm.running_mean, torch.full((3,), 0.5))",
        "norm.num_batches_tracked == 1",
    )


def test_a_models_make_up_changes_in_place(kernel: NotebookKernel) -> None:
    kernel.run(TRAINING + "\n    same, body, weight = model, model.body, model.body[0].weight").check()
    kernel.run(
        """
        %%distributed --devices 2
        model.eval()
        model.head = nn.Linear(8, 5)
        model.extra = nn.Dropout(0.5)
        model.note = {"epochs": 3}
        model.body[0].weight.requires_grad_(False)
        model.body[0].bias = nn.Parameter(torch.zeros(8))
        """
    ).check()
    assert_all(
        kernel,
        "model is same and model.body is body and model.body[0].weight is weight",
        "not model.training and not model.body[1].training",
        "model.head.out_features == 5 and model(inputs).shape == (64, 5)",
        "isinstance(model.extra, nn.Dropout) and 'extra' in dict(model.named_children())",
        "model.note == {'epochs': 3}",
        "not weight.requires_grad and model.body[0].bias.abs().sum() == 0",
    )


@pytest.mark.parametrize("wrap", ["DDP(model)", "nbdist.setup(model, optimizer)[0]"])
def test_a_wrapped_model_comes_back_unwrapped(kernel: NotebookKernel, wrap: str) -> None:
    kernel.run(
        TRAINING + "\n    same, first = model, model.head.weight\n    old = first.detach().clone()"
    ).check()
    run = kernel.run(
        f"""
        %%distributed --devices 2
        import nbdist
        from torch.nn.parallel import DistributedDataParallel as DDP
        wrapped = {wrap}
        model = wrapped
        by_name = {{"model": wrapped}}
        train(wrapped, optimizer)
        wrapped
        """
    ).check()
    assert run.stderr == ""
    assert_all(
        kernel,
        "model is same and wrapped is same and by_name['model'] is same and _ is same",
        "model.head.weight is first and not torch.equal(first, old)",
        "set(optimizer.state) == set(model.parameters())",
        "isinstance(train(model, optimizer), float)",
    )


def test_a_new_model_and_its_optimizer_come_back_together(kernel: NotebookKernel) -> None:
    kernel.run(TRAINING).check()
    kernel.run(
        """
        %%distributed --devices 2
        import nbdist
        net = Net()
        adam = torch.optim.Adam(net.parameters(), lr=0.1)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=2)
        wrapped, adam = nbdist.setup(net, adam)
        train(wrapped, adam)
        cosine.step()
        """
    ).check()
    assert_all(
        kernel,
        "type(net) is Net and wrapped is net",
        "all(p is q for p, q in zip(adam.param_groups[0]['params'], net.parameters()))",
        "set(adam.state) == set(net.parameters())",
        "cosine.optimizer is adam and abs(adam.param_groups[0]['lr'] - 0.05) < 1e-9",
        "isinstance(train(net, adam), float)",
    )


def test_output_of_a_model_trained_in_place(kernel: NotebookKernel) -> None:
    kernel.run(TRAINING + "\n    same = model\n    before = model.head.weight.detach().clone()").check()
    kernel.run("%%distributed --devices 2 -o model,loss\nloss = train(model, optimizer)").check()
    assert_all(
        kernel,
        "model is same and not torch.equal(model.head.weight, before)",
        "isinstance(loss, float)",
    )


def test_gathered_models_are_each_ranks_own(kernel: NotebookKernel) -> None:
    kernel.run(TRAINING).check()
    kernel.run(
        """
        %%distributed --devices 2 --gather replica
        torch.nn.init.constant_(model.head.bias, rank + 1)
        replica = model
        """
    ).check()
    assert_all(
        kernel,
        "len(replica) == 2 and all(type(m) is Net for m in replica)",
        "[m.head.bias[0].item() for m in replica] == [1, 2]",
        "model.head.bias[0].item() == 1",
    )


def test_tied_weights_stay_tied(kernel: NotebookKernel) -> None:
    tied = """
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder = nn.Embedding(10, 4)
                self.decoder = nn.Linear(4, 10, bias=False)
                self.decoder.weight = self.encoder.weight
        """
    kernel.run(
        "\n        import torch\n        from torch import nn" + tied + "\n        old = Tied()"
    ).check()
    kernel.run(
        """
        %%distributed --devices 2
        import torch
        new = Tied()
        with torch.no_grad():
            for model in (old, new):
                model.encoder.weight.fill_(7)
        """
    ).check()
    assert_all(
        kernel,
        "all(m.decoder.weight is m.encoder.weight for m in (old, new))",
        "all(m.decoder.weight.eq(7).all() for m in (old, new))",
    )


def test_tensors_that_share_memory_go_on_sharing_it(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import numpy as np, torch
        flat = torch.zeros(10)
        window, column = flat[2:5], flat.view(5, 2)[:, 1]
        array = flat.numpy()
        base = np.zeros(6)
        half = base[3:]
        """
    ).check()
    kernel.run(
        """
        %%distributed --devices 2
        window += 1
        column[4] = 9
        half[:] = 4
        fresh = torch.zeros(6)
        part = fresh[2:4]
        both = {"whole": fresh, "part": part}
        """
    ).check()
    assert_all(
        kernel,
        "flat.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 9] and array.tolist() == flat.tolist()",
        "base.tolist() == [0, 0, 0, 4, 4, 4] and half.base is base",
        "window.data_ptr() == flat.data_ptr() + 8",
        "both['whole'] is fresh and both['part'] is part",
    )
    kernel.run("window[0], part[0] = 5, 6").check()
    assert_all(kernel, "flat[2] == 5 and array[2] == 5", "fresh[2] == 6")


def test_new_arrays_that_share_memory_go_on_sharing_it(kernel: NotebookKernel) -> None:
    kernel.run(
        "%%distributed --devices 2\nimport numpy as np\ngrid = np.zeros((2, 2))\nrow = grid[0]"
    ).check()
    kernel.run("row[0] = 7").check()
    assert kernel.value("grid.tolist()") == [[7, 0], [0, 0]]


# ── Data ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_arrays_and_tensors_change_in_place(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import numpy as np, torch
        array, objects = np.zeros(5), np.array([1, "a"], dtype=object)
        big = torch.zeros(1_000_000)
        leaf, hidden = torch.ones(3, requires_grad=True), torch.zeros(3)
        kept = [array, objects, big, leaf, hidden]
        """
    ).check()
    kernel.run(
        """
        %%distributed --devices 2
        array[2] = 3
        objects[1] = "b"
        big[777_777] = 1
        (leaf * 2).sum().backward()
        hidden.data[0] = 8
        """
    ).check()
    assert_all(
        kernel,
        "all(a is b for a, b in zip(kept, [array, objects, big, leaf, hidden]))",
        "array.tolist() == [0, 0, 3, 0, 0] and list(objects) == [1, 'b']",
        "big[777_777] == 1 and big.sum() == 1",
        "leaf.grad.tolist() == [2, 2, 2] and leaf.tolist() == [1, 1, 1]",
        "hidden.tolist() == [8, 0, 0]",
    )


def test_containers_change_in_place(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import collections
        history, config, seen, text = [1], {"lr": 0.1, "deep": {"list": [1]}}, {1}, bytearray(b"ab")
        queue = collections.deque([1, 2, 3], maxlen=3)
        groups, counts = collections.defaultdict(list), collections.Counter("aab")
        frozen = ([1], [2])
        many = list(range(200_000))
        alias, inner = history, config["deep"]["list"]

        def everything():
            return [history, config, config["deep"]["list"], seen, text, queue, groups, counts, frozen[0], many]

        kept = everything()
        """
    ).check()
    kernel.run(
        """
        %%distributed --devices 2
        history.append(2)
        config["lr"] = 0.2
        config["deep"]["list"].append(2)
        config["new"] = history
        del text[0]
        seen.add(2)
        queue.append(4)
        groups["a"].append(1)
        counts.update("ab")
        frozen[0].clear()
        many[123_456] = -1
        """
    ).check()
    assert_all(
        kernel,
        "all(a is b for a, b in zip(kept, everything()))",
        "history == [1, 2] and alias is history and config['new'] is history",
        "config == {'lr': 0.2, 'deep': {'list': [1, 2]}, 'new': [1, 2]} and inner == [1, 2]",
        "seen == {1, 2} and text == b'b' and list(queue) == [2, 3, 4] and queue.maxlen == 3",
        "groups == {'a': [1]} and groups['z'] == [] and counts == {'a': 3, 'b': 2}",
        "frozen == ([], [2]) and many[123_456] == -1 and sum(many) == sum(range(200_000)) - 123_456 - 1",
    )


def test_instances_of_the_notebooks_classes_change_in_place(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import functools
        from dataclasses import dataclass, field

        @dataclass
        class Meter:
            total: float = 0
            values: list = field(default_factory=list)
            def add(self, x):
                self.total += x
                self.values.append(x)

        class Slotted:
            __slots__ = ("x", "y")

        class Registry(dict):
            pass

        meter, slotted, registry = Meter(), Slotted(), Registry(a=1)
        slotted.x = 1
        values, add = meter.values, meter.add

        @functools.lru_cache
        def cached(x):
            return x

        def counted():
            counted.calls += 1
        counted.calls = 0
        kept = [meter, slotted, registry]
        """
    ).check()
    kernel.run(
        """
        %%distributed --devices 2
        add(2.5)
        meter.label = "loss"
        slotted.y = slotted.x + 1
        del slotted.x
        registry["b"] = 2
        registry.owner = meter
        counted()
        """
    ).check()
    assert_all(
        kernel,
        "all(a is b for a, b in zip(kept, [meter, slotted, registry])) and meter.values is values",
        "meter == Meter(2.5, [2.5]) and meter.label == 'loss'",
        "slotted.y == 2 and not hasattr(slotted, 'x')",
        "registry == {'a': 1, 'b': 2} and registry.owner is meter",
        "counted.calls == 1",
    )


def test_objects_with_strange_manners_hinder_nobody(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        class Strange:
            __hash__ = None
            def _refuse(self, *args):
                raise RuntimeError("leave me alone")
            __getattr__ = __eq__ = __bool__ = __len__ = __repr__ = __reduce_ex__ = _refuse

        class Stranger:
            def __getattribute__(self, name):
                raise RuntimeError("leave me alone")

        strange, stranger, history = Strange(), Stranger(), []
        """
    ).check()
    run = kernel.run(
        """
        %%distributed --devices 2
        history.append(strange)
        pair = [strange, stranger]
        """
    ).check()
    assert run.stderr == ""
    assert_all(kernel, "history[0] is strange", "pair[0] is strange and pair[1] is stranger")


def test_frames_change_in_place(kernel: NotebookKernel) -> None:
    kernel.run("import pandas as pd\nframe = pd.DataFrame({'x': [1, 2]})\nsame = frame").check()
    kernel.run("%%distributed --devices 2\nframe.loc[0, 'x'] = 5\nframe['y'] = frame['x'] * 2").check()
    assert kernel.value("frame is same and frame.to_dict('list')") == {"x": [5, 2], "y": [10, 4]}


def test_new_values_hold_the_notebooks_objects_themselves(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        history, config = [1], {"lr": 0.1}

        class Node:
            pass

        root, left, right = Node(), Node(), Node()
        nodes = [root, left, right]
        """
    ).check()
    kernel.run(
        """
        %%distributed --devices 2
        alias, pair, again = history, (history, config), [root, root]
        ring = []
        ring.append(ring)
        child = Node()
        child.parent, root.child = root, child
        nodes.reverse()
        left, right = right, left
        """
    ).check()
    assert_all(
        kernel,
        "alias is history and pair[0] is history and pair[1] is config",
        "again[0] is root and again[1] is root",
        "ring[0] is ring",
        "root.child is child and child.parent is root and type(child) is Node",
        "nodes[0] is left and nodes[1] is right and nodes[2] is root",
    )


def test_objects_that_nothing_changed_are_not_touched(kernel: NotebookKernel) -> None:
    """A write, even of the same numbers, would spoil what autograd has noted of a tensor."""
    kernel.run(
        """
        import torch

        class Watched(list):
            writes = 0
            def __setitem__(self, *args):
                Watched.writes += 1
                super().__setitem__(*args)

        watched = Watched([1, 2])
        # Small ones, side by side in memory.
        weights = [torch.ones(4, requires_grad=n % 2 == 0) for n in range(200)]
        losses = [(weight**2).sum() for weight in weights[::2]]
        """
    ).check()
    kernel.run("%%distributed --devices 2\nfor weight in weights[1::2]:\n    weight += sum(watched)").check()
    assert kernel.value("all(weight.eq(4).all() for weight in weights[1::2])") is True
    assert kernel.value("Watched.writes") == 0
    kernel.run("for loss in losses:\n    loss.backward()").check()


def test_a_large_tensor_of_the_notebook_changes_in_place(kernel: NotebookKernel) -> None:
    kernel.run("import torch\nbig = torch.zeros(16_000_000)\naddress = big.data_ptr()").check()
    kernel.run("%%distributed --devices 2\nbig[::1_000_000] = 1").check()
    assert_all(kernel, "big.sum() == 16 and big.data_ptr() == address")


# ── Functions with variables of their own ───────────────────────────────────────────────────────────────────

COUNTER = """
    def make_counter(start=0):
        count = start
        def increase():
            nonlocal count
            count += 1
            return count
        def read():
            return count
        return increase, read
    """


def test_new_functions_that_share_a_variable_go_on_sharing_it(kernel: NotebookKernel) -> None:
    kernel.run(
        COUNTER.replace("\n    ", "\n        ").replace(
            "def make_counter", "%%distributed --devices 2\n        def make_counter", 1
        )
        + "\n        increase, read = make_counter(10)\n        increase();"
    ).check()
    assert kernel.value("(read(), increase(), increase(), read())") == (11, 12, 13, 13)
    assert kernel.value("[f() for f in make_counter(5)]") == [6, 6]


def test_the_notebooks_functions_keep_their_variables_up_to_date(kernel: NotebookKernel) -> None:
    kernel.run(COUNTER + "\n    increase, read = make_counter()").check()
    kernel.run("%%distributed --devices 2\nincrease(); increase(); again = read").check()
    assert kernel.value("(read(), increase(), read(), again is read)") == (2, 3, 3, True)


# ── Memory that the kernel reads from the rank ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("readable", [True, False], ids=["readable", "not to be read"])
def test_a_tensor_changed_in_place_costs_the_kernel_no_further_memory(readable: bool) -> None:
    """Where the system lets the kernel read a rank's memory; elsewhere it comes as a copy."""
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist\nimport torch").check()
        kernel.run(
            "large, small = torch.zeros(64_000_000), torch.zeros(3)\nstorage = large.data_ptr()"
        ).check()
        # Of this program alone: a process's ru_maxrss begins with that of the one that started it.
        peak = (
            "next(int(line.split()[1]) * 1024 for line in open('/proc/self/status') if line[:5] == 'VmHWM')"
        )
        kernel.run("%%distributed --devices 2\nsmall += 1").check()
        if not readable:
            kernel.run(DROP_RIGHT_TO_TRACE).check()
        before = kernel.value(peak)
        run = kernel.run(
            f"%%distributed --devices 2\n{'' if readable else NOT_TO_BE_READ}\nlarge += rank + 1\nsmall += 1"
        ).check()
        assert run.stderr == ""
        grown_bytes = kernel.value(peak) - before
        assert kernel.value("(large.sum().item(), small.tolist())") == (64_000_000, [2, 2, 2])
        assert kernel.value("large.data_ptr() == storage") is True
        assert (grown_bytes < 20_000_000) is readable


def test_a_tensor_that_was_put_elsewhere_leaves_what_shared_its_memory(kernel: NotebookKernel) -> None:
    """As a moving average of weights is put in their place, and they are put back."""
    kernel.run(
        """
        import torch
        weight, average = torch.nn.Parameter(torch.ones(2)), torch.full((2,), 5.0)
        kept, weight.data = weight.data, average
        """
    ).check()
    kernel.run("%%distributed --devices 2\nweight.data = kept\nweight.data += 1\nprint(weight)").check()
    assert_all(kernel, "average.tolist() == [5, 5]", "weight.data_ptr() == kept.data_ptr()", "weight[0] == 2")
    kernel.run("%%distributed --devices 2\nweight.data = average").check()
    kernel.run("average += 1").check()
    assert_all(kernel, "weight.tolist() == [6, 6]", "kept.tolist() == [2, 2]")
