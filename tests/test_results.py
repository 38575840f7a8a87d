"""What comes back: names, values, the last expression, and what stays behind."""

from __future__ import annotations

import pytest
from notebook_checks import assert_all
from notebook_kernel import NotebookKernel

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
    assert_all(
        kernel,
        "values == expected and [type(v) for v in values.values()] == [type(v) for v in expected.values()]",
        "values['deque'].maxlen == 5",
        "default['a'] == [1] and default['b'] == []",
        "np.array_equal(array, np.arange(12.0).reshape(3, 4).T) and array.flags.writeable",
        "list(words) == ['a', None, [1]]",
        "frame.equals(pd.DataFrame({'x': [1, 2], 'y': ['a', 'b'], 'z': pd.to_datetime(['2024-01-01'] * 2)}))",
        "tensors[0].tolist() == [[0, 1, 2], [3, 4, 5]] and tensors[1].item() == 3.5",
        "tensors[2].shape == (0,) and tensors[3].dtype == torch.bool and tensors[4].dtype == torch.bfloat16",
        "torch.equal(tensors[5], torch.eye(3)) and tensors[6].is_sparse and tensors[6].to_dense().sum() == 6",
        "type(tensors[7]) is torch.nn.Parameter and tensors[7].requires_grad and tensors[8].requires_grad",
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
    for cell in ("rank + 1;", "x = rank", "None", "rank; # comment", "for x in range(2): x", "def f(): 1"):
        run = kernel.run(f"%%distributed --devices 2\n{cell}").check()
        assert run.result is None, run.describe()
        assert kernel.value(f"_ is Out[{before.execution_count}] and max(Out)") == before.execution_count


def test_a_result_of_the_notebooks_own_is_itself(kernel: NotebookKernel) -> None:
    kernel.run("class Meter:\n    pass\n\nmeter = Meter()").check()
    run = kernel.run("%%distributed --devices 2\nmeter.rank = rank\nmeter").check()
    assert "Meter" in str(run.result)
    assert kernel.value("_ is meter and meter.rank") == 0


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
    assert run.stderr.startswith("nbdist: the ")
    assert run.stderr.endswith("is a lock, which cannot leave its process. Make it anew in the notebook\n")


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
        "nbdist: lock stays behind: it is a lock, which cannot leave its process. Make it anew in the notebook",
        "nbdist: shared stays behind: shared['lock'] is a lock, which cannot leave its process. Make it anew in the notebook",
        "nbdist: steps stays behind: it is a generator, which cannot leave its process. Keep what it gives, in a list say",
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
    assert_all(kernel, "first['tensor'] is shared", "last[0] is shared and last[1] is first", "_ is shared")
    assert kernel.value("'homesick' in globals() or 'pair' in globals()") is False


def test_an_old_name_keeps_its_value_if_the_new_one_stays_behind(kernel: NotebookKernel) -> None:
    kernel.run("handle = 'old'").check()
    run = kernel.run("%%distributed --devices 2\nimport threading\nhandle = threading.Lock()").check()
    assert (
        run.stderr
        == "nbdist: handle stays behind: it is a lock, which cannot leave its process. Make it anew in the notebook\n"
    )
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
    assert "items[1] is a lock, which cannot leave its process" in run.stderr
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


def test_changes_come_back_although_rank_0_waited_for_the_rank_that_failed(kernel: NotebookKernel) -> None:
    kernel.run("import torch, torch.distributed as dist\nhistory, weights = [], torch.zeros(3)").check()
    run = kernel.run(
        """
        %%distributed --devices 3
        history.append("before")
        weights += 1
        if rank == 1:
            raise ValueError("bad batch")
        dist.all_reduce(torch.ones(1))
        """
    )
    assert run.error is not None, run.describe()
    assert run.error.evalue == "rank 1 of 3 failed at line 5: ValueError: bad batch"
    assert kernel.value("(history, weights.tolist())") == (["before"], [1, 1, 1])


STAYING = {
    "threading.Thread(target=print)": "it is a thread, which cannot leave its process. Keep what it gave",
    "cf.ThreadPoolExecutor(1)": "it is a pool of threads or processes, which cannot leave",
    "socket.socket()": "it is a network connection (socket), which cannot leave its process. Connect anew",
    "sqlite3.connect(':memory:')": "it is a connection to a database, which cannot leave",
    "[mp.Queue()]": "x[0] is a queue between threads or processes, which cannot leave its process",
    "sys._getframe()": "it is a traceback (frame), which cannot leave its process. Keep its text",
    "iter(torch.utils.data.DataLoader([1]))": "it is an iterator over a DataLoader",
    "(lambda held: lambda: held)(open('/dev/null'))": "x's held is an open file (TextIOWrapper), which",
    "types.SimpleNamespace(inner={'a': (n for n in 'ab')})": "x.inner['a'] is a generator, which cannot leave",
    "enumerate(n for n in 'ab')": "it holds a generator, which cannot leave its process",
    "torch.distributed.group.WORLD": "it is a part of the ranks' process group",
    "zlib.compressobj()": "it is a Compress, which cannot leave its process. Keep what you need of it",
}


@pytest.mark.parametrize("made", STAYING)
def test_what_stays_behind_is_told_in_plain_words(kernel: NotebookKernel, made: str) -> None:
    imports = (
        "import concurrent.futures as cf, multiprocessing as mp, socket, sqlite3, sys, threading, types, zlib"
    )
    kernel.run(f"{imports}\nimport torch").check()
    run = kernel.run(f"%%distributed --devices 2\nx = {made}").check()
    assert run.stderr.startswith(f"nbdist: x stays behind: {STAYING[made]}")
    assert "pickle" not in run.stderr
    assert run.stderr.count("\n") == 1
    assert kernel.value("'x' in globals()") is False


FIGURES = """
import matplotlib.pyplot as plt, numpy as np
%matplotlib inline
fig, ax = plt.subplots()
line, = ax.plot([1, 2])
image = ax.imshow(np.zeros((2, 2)))
plt.close("all")
"""


@pytest.mark.parametrize(
    ("drawn", "label"),
    [
        ("ax.plot([3, 4])", "ax"),
        ("line.set_ydata([3, 4])", "line"),
        ("ax.set_title('later')", "ax"),
        ("ax.set_ylabel('loss')", "ax"),
        ("image.set_data(np.ones((2, 2)))", "image"),
        ("fig.suptitle('all')", "fig"),
        ("ax.clear()", "ax"),
    ],
)
def test_a_figure_of_the_notebook_that_the_cell_draws_into_is_named(
    kernel: NotebookKernel, drawn: str, label: str
) -> None:
    kernel.run(FIGURES).check()
    run = kernel.run(f"%%distributed --devices 2\n{drawn};").check()
    assert run.stderr == (
        f"nbdist: {label} (its new content) stays behind: it is a figure of the notebook, which the cell has "
        "drawn into. Make it in the cell\n"
    )


def test_a_figure_of_the_notebook_may_be_shown_and_replaced(kernel: NotebookKernel) -> None:
    kernel.run(FIGURES).check()
    shown = kernel.run(
        """
        %%distributed --devices 2
        from IPython.display import display
        display(fig)
        ax.get_xlim(), fig.tight_layout();
        """
    ).check()
    assert shown.stderr == ""
    replaced = kernel.run("%%distributed --devices 2\nfig, ax = plt.subplots()\nax.plot([5, 6]);").check()
    assert replaced.stderr == ""
    assert kernel.value("(ax.lines[0].get_ydata().tolist(), ax.figure is fig)") == ([5, 6], True)
