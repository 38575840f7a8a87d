"""What comes back: names, values, the notebook's own objects changed in place, and what stays behind."""

from __future__ import annotations

import pytest
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


def failed(kernel: NotebookKernel, *checks: str) -> list[str]:
    """Those of the expressions that are not true in the notebook."""
    return [check for check in checks if kernel.value(f"bool({check})") is not True]


# ── Names ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_names_that_rank_0_binds_are_bound(kernel: NotebookKernel) -> None:
    kernel.run("kept, replaced = 'kept', 'old'").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        import math as maths
        replaced = f"new from {rank}"
        table = {"rank": rank, "nested": [1, (2, 3)], "nothing": None}
        if rank == 1:
            elsewhere = True
        """
    ).check()
    assert run.stderr == ""
    assert run.result is None
    assert kernel.value("(kept, replaced, table)") == (
        "kept",
        "new from 0",
        {"rank": 0, "nested": [1, (2, 3)], "nothing": None},
    )
    assert kernel.value("maths is __import__('math') and 'elsewhere' not in globals()") is True


def test_names_that_rank_0_deletes_are_unbound(kernel: NotebookKernel) -> None:
    kernel.run("first, second, third = 1, 2, 3").check()
    kernel.run(
        """
        %%distributed --devices 2
        del first
        if rank == 1:
            del second
        try:
            raise ValueError
        except ValueError as third:
            pass
        """
    ).check()
    assert kernel.value("[name for name in ('first', 'second', 'third') if name in globals()]") == ["second"]


def test_values_of_many_kinds_come_back_equal(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        %%distributed --devices 2
        import collections, datetime, decimal, fractions, pathlib, uuid
        import numpy as np, pandas as pd, torch
        values = {
            "int": 10**30, "float": float("inf"), "complex": 1 + 2j, "bytes": b"\\xff", "text": "naïve 数",
            "set": {1, 2}, "frozen": frozenset({3}), "range": range(0, 9, 2), "slice": slice(1, 2),
            "counter": collections.Counter("aab"), "deque": collections.deque([1, 2], maxlen=5),
            "ordered": collections.OrderedDict(b=1, a=2), "date": datetime.datetime(2024, 2, 29, 12),
            "decimal": decimal.Decimal("1.10"), "fraction": fractions.Fraction(1, 3),
            "path": pathlib.Path("a/b"), "uuid": uuid.UUID(int=5), "bytearray": bytearray(b"ab"),
        }
        default = collections.defaultdict(list, a=[1])
        array = np.arange(12.0).reshape(3, 4).T
        words = np.array(["a", None, [1]], dtype=object)
        frame = pd.DataFrame({"x": [1, 2], "y": ["a", "b"], "z": pd.to_datetime(["2024-01-01"] * 2)})
        tensors = [
            torch.arange(6).reshape(2, 3), torch.tensor(3.5), torch.empty(0), torch.tensor([True]),
            torch.ones(2, dtype=torch.bfloat16), torch.eye(3).t(), torch.ones(2, 3).to_sparse(),
            torch.nn.Parameter(torch.ones(2)), torch.zeros(2, requires_grad=True),
        ]
        """
    ).check()
    kernel.run(
        """
        import collections, datetime, decimal, fractions, pathlib, uuid
        import numpy as np, pandas as pd, torch
        expected = {
            "int": 10**30, "float": float("inf"), "complex": 1 + 2j, "bytes": b"\\xff", "text": "naïve 数",
            "set": {1, 2}, "frozen": frozenset({3}), "range": range(0, 9, 2), "slice": slice(1, 2),
            "counter": collections.Counter("aab"), "deque": collections.deque([1, 2], maxlen=5),
            "ordered": collections.OrderedDict(b=1, a=2), "date": datetime.datetime(2024, 2, 29, 12),
            "decimal": decimal.Decimal("1.10"), "fraction": fractions.Fraction(1, 3),
            "path": pathlib.Path("a/b"), "uuid": uuid.UUID(int=5), "bytearray": bytearray(b"ab"),
        }
        """
    ).check()
    assert (
        failed(
            kernel,
            "values == expected and [type(v) for v in values.values()] == [type(v) for v in expected.values()]",
            "values['deque'].maxlen == 5",
            "default['a'] == [1] and default['b'] == []",
            "np.array_equal(array, np.arange(12.0).reshape(3, 4).T) and array.flags.writeable",
            "list(words) == ['a', None, [1]]",
            "frame.equals(pd.DataFrame({'x': [1, 2], 'y': ['a', 'b'],"
            " 'z': pd.to_datetime(['2024-01-01', '2024-01-02'])}))",
            "tensors[0].tolist() == [[0, 1, 2], [3, 4, 5]] and tensors[1].item() == 3.5 and tensors[2].shape == (0,)",
            "tensors[3].dtype == torch.bool and tensors[4].dtype == torch.bfloat16",
            "torch.equal(tensors[5], torch.eye(3)) and tensors[6].is_sparse and tensors[6].to_dense().sum() == 6",
            "type(tensors[7]) is torch.nn.Parameter and tensors[7].requires_grad and tensors[8].requires_grad",
        )
        == []
    )
    # They can be worked with.
    kernel.run("array += 1; tensors[0] += 1; values['bytearray'].append(1); frame['x'] += 1").check()


# ── The last expression ─────────────────────────────────────────────────────────────────────────────────────


def test_the_last_expression_is_out_and_underscore(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 2\n{'rank': rank}").check()
    assert run.result == {"text/plain": "{'rank': 0}"}
    assert kernel.value(f"_ is Out[{run.execution_count}] and _ == {{'rank': 0}}") is True
    assert kernel.value(f"_{run.execution_count} is _") is True


def test_no_result_where_an_ordinary_cell_has_none(kernel: NotebookKernel) -> None:
    before = kernel.run("'before'").check()
    for cell in (
        "rank + 1;",
        "x = rank",
        "None",
        "rank; # comment",
        "for x in range(2): x",
        "print",
        "def f(): 1",
    ):
        run = kernel.run(f"%%distributed --devices 2\n{cell}").check()
        if cell == "print":
            assert run.result == {"text/plain": "<function print>"} or "print" in str(run.result)
            before = run
        else:
            assert run.result is None, run.describe()
            assert f"Out[{run.execution_count}]" not in str(run.messages)
        assert kernel.value(f"_ is Out[{before.execution_count}]") is True


def test_a_result_of_the_notebooks_own_is_itself(kernel: NotebookKernel) -> None:
    kernel.run(TRAINING).check()
    run = kernel.run("%%distributed --devices 2\nmodel").check()
    assert "Linear(in_features=4" in str(run.result)
    assert kernel.value("_ is model") is True


def test_a_result_shows_richly(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 2\nimport pandas as pd\npd.DataFrame({'x': [rank]})").check()
    assert run.result is not None
    assert "<table" in run.result["text/html"]
    assert kernel.value("type(_) is pd.DataFrame") is True


def test_a_result_that_cannot_travel_is_shown_all_the_same(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        class Plot:
            def __init__(self):
                import threading
                self.lock = threading.Lock()
            def _repr_html_(self):
                return "<b>plot</b>"
            def __repr__(self):
                return "the plot"
        Plot()
        """
    ).check()
    assert run.result is not None
    assert (run.result["text/plain"], run.result["text/html"]) == ("the plot", "<b>plot</b>")
    assert (
        run.stderr
        == "nbdist: the last expression's value stays behind: cannot pickle '_thread.lock' object\n"
    )


# ── What stays behind ───────────────────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_pickled_is_named_and_the_rest_arrives(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import threading, torch
        before = torch.ones(3)
        lock = threading.Lock()
        shared = {"before": before, "lock": lock}
        steps = (n for n in range(3))
        class Grumpy:
            def __reduce__(self):
                raise ValueError("not for\\nsale")
        grumpy = Grumpy()
        after = [before]
        """
    ).check()
    assert sorted(run.stderr.splitlines()) == [
        "nbdist: grumpy stays behind: not for",
        "nbdist: lock stays behind: cannot pickle '_thread.lock' object",
        "nbdist: shared stays behind: cannot pickle '_thread.lock' object",
        "nbdist: steps stays behind: cannot pickle 'generator' object",
    ]
    assert run.stdout == ""
    assert kernel.value("after[0] is before and before.sum().item()") == 3
    assert kernel.value("[n for n in ('lock', 'shared', 'steps', 'grumpy') if n in globals()]") == []
    assert kernel.value("Grumpy.__name__") == "Grumpy"


def test_what_cannot_be_rebuilt_here_is_named_and_the_rest_arrives(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import os
        KERNEL = os.getpid()

        class Homesick:
            def __init__(self):
                self.name = "homesick"
            def __setstate__(self, state):
                if os.getpid() == KERNEL:
                    raise RuntimeError("I was happy in the rank")
                self.__dict__.update(state)
        """
    ).check()
    run = kernel.run(
        """
        %%distributed --devices 2
        import torch
        shared = torch.arange(5)
        first = {"tensor": shared}
        homesick = Homesick()
        pair = [homesick, shared]
        last = [shared, first]
        shared
        """
    ).check()
    assert sorted(run.stderr.splitlines()) == [
        "nbdist: homesick stays behind: I was happy in the rank",
        "nbdist: pair stays behind: I was happy in the rank",
    ]
    assert run.result == {"text/plain": "tensor([0, 1, 2, 3, 4])"}
    assert (
        failed(kernel, "first['tensor'] is shared", "last[0] is shared and last[1] is first", "_ is shared")
        == []
    )
    assert kernel.value("'homesick' in globals() or 'pair' in globals()") is False


def test_an_old_name_keeps_its_value_if_the_new_one_stays_behind(kernel: NotebookKernel) -> None:
    kernel.run("handle = 'old'").check()
    run = kernel.run("%%distributed --devices 2\nimport threading\nhandle = threading.Lock()").check()
    assert run.stderr == "nbdist: handle stays behind: cannot pickle '_thread.lock' object\n"
    assert kernel.value("handle") == "old"


def test_an_object_whose_new_content_cannot_travel_is_left_as_it_was(kernel: NotebookKernel) -> None:
    kernel.run("items, other = [1], [1]").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        import threading
        items.append(threading.Lock())
        other.append(2)
        """
    ).check()
    assert run.stderr.startswith("nbdist: items")
    assert "cannot pickle '_thread.lock' object" in run.stderr
    assert kernel.value("(items, other)") == ([1], [1, 2])


# ── -o and --gather ─────────────────────────────────────────────────────────────────────────────────────────


def test_output_brings_back_exactly_these_names(kernel: NotebookKernel) -> None:
    kernel.run("wanted, unwanted, doomed, untouched = [1], [1], 1, [1]").check()
    run = kernel.run(
        """
        %%distributed --devices 2 -o wanted,new
        for items in (wanted, unwanted, untouched):
            items.append(rank + 2)
        new, newer = rank, rank
        del doomed
        """
    ).check()
    assert run.stderr == ""
    assert kernel.value("(wanted, unwanted, untouched, new, doomed)") == ([1, 2], [1], [1], 0, 1)
    assert kernel.value("[name for name in ('newer', 'items') if name in globals()]") == []


def test_output_of_a_model_trained_in_place(kernel: NotebookKernel) -> None:
    kernel.run(TRAINING + "\n    same = model\n    before = model.head.weight.detach().clone()").check()
    kernel.run("%%distributed --devices 2 -o model,loss\nloss = train(model, optimizer)").check()
    assert (
        failed(
            kernel,
            "model is same and not torch.equal(model.head.weight, before)",
            "isinstance(loss, float)",
        )
        == []
    )


def test_output_that_the_cell_did_not_bind_is_named(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 2 -o x,y\nx = 1\nif world_size > 2:\n    y = 2").check()
    assert run.stderr == "nbdist: y stays behind: this rank did not bind it\n"
    assert kernel.value("x == 1 and 'y' not in globals()") is True


def test_gather_brings_back_a_list_over_ranks(kernel: NotebookKernel) -> None:
    kernel.run("data = [0]").check()
    run = kernel.run(
        """
        %%distributed --devices 3 --gather loss,tensor,data
        import torch
        loss = 0.5 + rank
        tensor = torch.full((2,), rank)
        data.append(rank)
        other = rank
        """
    ).check()
    assert run.stderr == ""
    assert kernel.value("(loss, [t.tolist() for t in tensor], other)") == (
        [0.5, 1.5, 2.5],
        [[0, 0], [1, 1], [2, 2]],
        0,
    )
    assert kernel.value("data") == [[0, 0], [0, 1], [0, 2]]


def test_gather_and_output_together(kernel: NotebookKernel) -> None:
    kernel.run("%%distributed --devices 2 -o best --gather loss\nloss, best, rest = rank, rank, rank").check()
    assert kernel.value("(loss, best, 'rest' in globals())") == ([0, 1], 0, False)


def test_gather_of_a_name_that_one_rank_lacks_says_which(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 3 --gather x\nif rank != 1:\n    x = rank").check()
    assert run.stderr == "nbdist: x of rank 1 stays behind: this rank did not bind it\n"
    assert kernel.value("x") == [0, None, 2]


def test_gathered_models_are_each_ranks_own(kernel: NotebookKernel) -> None:
    kernel.run(TRAINING).check()
    kernel.run(
        """
        %%distributed --devices 2 --gather replica
        torch.nn.init.constant_(model.head.bias, rank + 1)
        replica = model
        """
    ).check()
    assert (
        failed(
            kernel,
            "len(replica) == 2 and all(type(m) is Net for m in replica)",
            "[m.head.bias[0].item() for m in replica] == [1, 2]",
            "model.head.bias[0].item() == 1",
        )
        == []
    )


# ── The notebook's own objects, changed in place ────────────────────────────────────────────────────────────


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
    assert (
        failed(
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
        == []
    )
    # Training goes on here as if it had begun here: the same steps without ranks give the same weights.
    kernel.run("loss_after = train(model, optimizer, steps=20)").check()
    assert kernel.value("loss_after < loss") is True
    kernel.run(TRAINING).check()
    kernel.run(
        "expected = train(model, optimizer); scheduler.step(); expected = train(model, optimizer, 20)"
    ).check()
    assert kernel.value("abs(loss_after - expected) < 1e-5") is True


def test_batch_norm_statistics_alone(kernel: NotebookKernel) -> None:
    """They change without any version counter of the parameters, and without gradients."""
    kernel.run("import torch\nnorm = torch.nn.BatchNorm1d(3)\nmean, same = norm.running_mean, norm").check()
    kernel.run("%%distributed --devices 2\nwith torch.no_grad():\n    norm(torch.ones(8, 3) * 5);").check()
    assert (
        failed(
            kernel,
            "norm is same and norm.running_mean is mean",
            "torch.allclose(norm.running_mean, torch.full((3,), 0.5))",
            "norm.num_batches_tracked == 1",
        )
        == []
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
    assert (
        failed(
            kernel,
            "model is same and model.body is body and model.body[0].weight is weight",
            "not model.training and not model.body[1].training",
            "model.head.out_features == 5 and model(inputs).shape == (64, 5)",
            "isinstance(model.extra, nn.Dropout) and 'extra' in dict(model.named_children())",
            "model.note == {'epochs': 3}",
            "not weight.requires_grad and model.body[0].bias.abs().sum() == 0",
        )
        == []
    )


@pytest.mark.parametrize("wrap", ["DDP(model)", "nbdist.setup(model, optimizer)[0]"])
def test_a_wrapped_model_comes_back_unwrapped(kernel: NotebookKernel, wrap: str) -> None:
    kernel.run(
        TRAINING + "\n    same, first, old = model, model.head.weight, model.head.weight.detach().clone()"
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
    assert (
        failed(
            kernel,
            "model is same and wrapped is same and by_name['model'] is same and _ is same",
            "model.head.weight is first and not torch.equal(first, old)",
            "set(optimizer.state) == set(model.parameters())",
            "isinstance(train(model, optimizer), float)",
        )
        == []
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
    assert (
        failed(
            kernel,
            "type(net) is Net and wrapped is net",
            "all(p is q for p, q in zip(adam.param_groups[0]['params'], net.parameters()))",
            "set(adam.state) == set(net.parameters())",
            "cosine.optimizer is adam and abs(adam.param_groups[0]['lr'] - 0.05) < 1e-9",
            "isinstance(train(net, adam), float)",
        )
        == []
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
    assert (
        failed(
            kernel,
            "all(m.decoder.weight is m.encoder.weight for m in (old, new))",
            "all(m.decoder.weight.eq(7).all() for m in (old, new))",
        )
        == []
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
    assert (
        failed(
            kernel,
            "flat.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 9] and array.tolist() == flat.tolist()",
            "base.tolist() == [0, 0, 0, 4, 4, 4] and half.base is base",
            "window.data_ptr() == flat.data_ptr() + 8",
            "both['whole'] is fresh and both['part'] is part",
        )
        == []
    )
    kernel.run("window[0], part[0] = 5, 6").check()
    assert failed(kernel, "flat[2] == 5 and array[2] == 5", "fresh[2] == 6") == []


def test_new_arrays_that_share_memory_go_on_sharing_it(kernel: NotebookKernel) -> None:
    kernel.run(
        "%%distributed --devices 2\nimport numpy as np\ngrid = np.zeros((2, 2))\nrow = grid[0]"
    ).check()
    kernel.run("row[0] = 7").check()
    assert kernel.value("grid.tolist()") == [[7, 0], [0, 0]]


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
    assert (
        failed(
            kernel,
            "all(a is b for a, b in zip(kept, [array, objects, big, leaf, hidden]))",
            "array.tolist() == [0, 0, 3, 0, 0] and list(objects) == [1, 'b']",
            "big[777_777] == 1 and big.sum() == 1",
            "leaf.grad.tolist() == [2, 2, 2] and leaf.tolist() == [1, 1, 1]",
            "hidden.tolist() == [8, 0, 0]",
        )
        == []
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
            return [history, config, seen, text, queue, groups, counts, frozen[0], many, config["deep"]["list"]]

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
    assert (
        failed(
            kernel,
            "all(a is b for a, b in zip(kept, [history, config, seen, text, queue, groups, counts, frozen[0], many,"
            " config['deep']['list']]))",
            "history == [1, 2] and alias is history and config['new'] is history",
            "config == {'lr': 0.2, 'deep': {'list': [1, 2]}, 'new': [1, 2]} and inner == [1, 2]",
            "seen == {1, 2} and text == b'b' and list(queue) == [2, 3, 4] and queue.maxlen == 3",
            "groups == {'a': [1]} and groups['z'] == [] and counts == {'a': 3, 'b': 2}",
            "frozen == ([], [2]) and many[123_456] == -1 and sum(many) == sum(range(200_000)) - 123_456 - 1",
        )
        == []
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
    assert (
        failed(
            kernel,
            "all(a is b for a, b in zip(kept, [meter, slotted, registry])) and meter.values is values",
            "meter == Meter(2.5, [2.5]) and meter.label == 'loss'",
            "slotted.y == 2 and not hasattr(slotted, 'x')",
            "registry == {'a': 1, 'b': 2} and registry.owner is meter",
            "counted.calls == 1",
        )
        == []
    )


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
    assert (
        failed(
            kernel,
            "alias is history and pair[0] is history and pair[1] is config",
            "again[0] is root and again[1] is root",
            "ring[0] is ring",
            "root.child is child and child.parent is root and type(child) is Node",
            "nodes[0] is left and nodes[1] is right and nodes[2] is root",
        )
        == []
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


# ── Size ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_large_tensors_come_back_through_shared_memory(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        def shared_mappings():
            with open("/proc/self/maps") as maps:
                return [line.split()[0] for line in maps if "/memfd:" in line]

        def lies_in_shared_memory(address):
            spans = [[int(end, 16) for end in span.split("-")] for span in shared_mappings()]
            return any(start <= address < end for start, end in spans)
        """
    ).check()
    kernel.run(
        """
        %%distributed --devices 2
        import numpy as np, torch
        big = torch.arange(16_000_000, dtype=torch.int32)
        array = np.arange(16_000_000, dtype=np.int32)
        """
    ).check()
    assert (
        failed(
            kernel,
            "torch.equal(big, torch.arange(16_000_000, dtype=torch.int32))",
            "np.array_equal(array, np.arange(16_000_000))",
            "lies_in_shared_memory(big.data_ptr()) and lies_in_shared_memory(array.ctypes.data)",
        )
        == []
    )
    kernel.run("big += 1; array += 1").check()
    assert failed(kernel, "big[-1] == 16_000_000 and array[-1] == 16_000_000") == []
    # The memory goes when the values go.
    kernel.run("del big, array").check()
    assert kernel.value("shared_mappings()") == []


def test_a_large_tensor_of_the_notebook_changes_in_place(kernel: NotebookKernel) -> None:
    kernel.run("import torch\nbig = torch.zeros(16_000_000)\naddress = big.data_ptr()").check()
    kernel.run("%%distributed --devices 2\nbig[::1_000_000] = 1").check()
    assert failed(kernel, "big.sum() == 16 and big.data_ptr() == address") == []


# ── After a failure ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("failing", ["rank == 1", "rank == 0", "True"])
def test_changes_come_back_although_a_rank_failed(kernel: NotebookKernel, failing: str) -> None:
    kernel.run("import torch\nhistory, weights = [], torch.zeros(3)").check()
    run = kernel.run(
        f"""
        %%distributed --devices 2
        history.append("before")
        weights += 1
        epoch = 3
        if {failing}:
            raise ValueError("bad batch")
        """
    )
    assert run.error is not None, run.describe()
    assert run.error.ename == "RankFailedError"
    assert kernel.value("(history, weights.tolist(), epoch)") == (["before"], [1, 1, 1], 3)
