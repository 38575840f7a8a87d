"""Values of every kind that a cell changed or made: in the notebook as if the cell had run there.

Each entry runs under `fork` and, where its values can be sent to a rank, under `forkserver`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from conftest import LIBRARY_SINGLETONS, WARM_UP
from notebook_checks import assert_all
from notebook_kernel import NotebookKernel


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of value.

    Attributes:
        setup: an ordinary cell before.
        cell: what the ranks run.
        later: an ordinary cell afterwards: the values can be worked with.
        checks: what must be true then.
        noted: how the lines begin that say what stays behind.
        only_fork: why the other methods cannot send what the cell reads.
    """

    setup: str = ""
    cell: str
    later: str = ""
    checks: tuple[str, ...]
    noted: tuple[str, ...] = ()
    only_fork: str = ""


CASES: dict[str, Case] = {
    # Python's own
    "memory views write into their owner": Case(
        setup="""
            import array
            data, numbers = bytearray(b"abc"), array.array("d", [1, 2])
            view, part, doubles = memoryview(data), memoryview(data)[1:], memoryview(numbers)
            """,
        cell='view[0], part[1], doubles[1] = ord("A"), ord("C"), 7.0',
        later="view[1] = ord('B')",
        checks=("data == b'ABC' and part.tobytes() == b'BC'", "list(numbers) == [1, 7]"),
    ),
    "functions are given other defaults and another body": Case(
        setup="""
            def add(x, seen=[], *, more={}):
                seen.append(x)
                more[x] = 1
                return len(seen)

            def old():
                return "old"

            def new():
                return "new"

            same = add, old
            """,
        cell="""
            add(1)
            add.__defaults__ = ([7, 8],)
            old.__code__ = new.__code__
            old.__doc__ = "what it is for"
            """,
        checks=("same == (add, old)", "add(9) == 3", "old() == 'new' and old.__doc__ == 'what it is for'"),
    ),
    "classes are given attributes through an instance": Case(
        setup="""
            class Counter:
                made = 0
                def count(self):
                    type(self).made += 1
            counter = Counter()
            """,
        cell="counter.count()\nCounter.__doc__ = 'counts'",
        checks=("Counter.made == 1 and Counter.__doc__ == 'counts'",),
    ),
    "exceptions": Case(
        setup="error = ValueError('before')\nsame = error",
        cell="""
            error.args, error.step = ("after",), 3
            try:
                raise KeyError("new") from error
            except KeyError as caught:
                new = caught
            """,
        checks=("same.args == ('after',) and same.step == 3", "new.__cause__ is error"),
    ),
    "weak references and containers of them": Case(
        setup="""
            import weakref
            class Node:
                pass
            node = Node()
            by_name = weakref.WeakValueDictionary(first=node)
            notes, known = weakref.WeakKeyDictionary({node: 1}), weakref.WeakSet([node])
            """,
        cell="""
            second = Node()
            by_name["second"], notes[node], notes[second] = second, 5, 6
            known.add(second)
            fresh, gone = weakref.WeakValueDictionary(only=second), weakref.ref(Node())
            """,
        checks=(
            "by_name['second'] is second and by_name['first'] is node",
            "(notes[node], notes[second], len(known)) == (5, 6, 2)",
            "fresh['only'] is second and gone() is None",
        ),
    ),
    "context variables": Case(
        setup="import contextvars\ncurrent = contextvars.ContextVar('current', default=0)",
        cell="token = current.set(4)\ndel token",
        checks=("current.get() == 4",),
        only_fork="a ContextVar cannot be pickled",
    ),
    "queues": Case(
        setup="import queue\ntodo, first = queue.Queue(), queue.PriorityQueue()\ntodo.put(1)\nsame = todo",
        cell="todo.put(2); first.put((2, 'b')); first.put((1, 'a'))\nnew = queue.Queue()\nnew.put(3)",
        later="new.put(4)",
        checks=(
            "todo is same and list(todo.queue) == [1, 2] and first.get() == (1, 'a')",
            "list(new.queue) == [3, 4]",
        ),
        only_fork="a lock cannot be pickled",
    ),
    "ctypes' numbers, arrays and structures": Case(
        setup="""
            import ctypes
            numbers, number = (ctypes.c_int * 3)(1, 2, 3), ctypes.c_double(1)
            class Point(ctypes.Structure):
                _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_int)]
            point = Point(1, 2)
            """,
        cell="numbers[1], number.value, point.y = 9, 2.5, 7\nnew, other = (ctypes.c_short * 2)(5, 6), Point(3, 4)",
        checks=(
            "list(numbers) == [1, 9, 3] and number.value == 2.5 and point.y == 7",
            "list(new) == [5, 6] and (other.x, other.y) == (3, 4)",
        ),
        only_fork="a class of structures cannot be pickled",
    ),
    "iterators stand where the cell left them": Case(
        setup="""
            items, pairs, letters = iter([1, 2, 3]), zip([1, 2], "ab"), iter("abc")
            """,
        cell="next(items), next(pairs), next(letters)",
        checks=("next(items) == 2", "next(pairs) == (2, 'b')", "next(letters) == 'b'"),
    ),
    "iterators that cannot be set stay where they were": Case(
        setup="import itertools\ncount = itertools.count(5)",
        cell="next(count);",
        checks=("next(count) == 5",),
        noted=("nbdist: count (its new content) stays behind: count objects",),
    ),
    "simple queues hold what the cell put into them": Case(
        setup="import queue\nitem, line = [], queue.SimpleQueue()\nfor one in 'abc': line.put(one)\nline.get()",
        cell="line.get()\nline.put(item)\nmade = queue.SimpleQueue()\nmade.put(line)",
        checks=("[line.get() for _ in range(2)][1] is item", "line.empty() and made.get() is line"),
    ),
    "caches that changed are named": Case(
        setup="""
            import functools
            @functools.lru_cache
            def double(x):
                return 2 * x
            double(1)
            """,
        cell="double(1), double(2)",
        checks=("double.cache_info().currsize == 1",),
        noted=("nbdist: double (its new content) stays behind: what it has cached stays on the ranks.",),
    ),
    "databases in memory that changed are named": Case(
        setup="""
            import sqlite3
            memory, file = sqlite3.connect(":memory:"), sqlite3.connect("kept.db")
            for database in (memory, file):
                database.execute("create table t (x)")
                database.commit()
            """,
        cell="""
            memory.execute("insert into t values (1)")
            if rank == 0:
                file.execute("insert into t values (1)")
                file.commit()
            """,
        checks=("file.execute('select x from t').fetchall() == [(1,)]",),
        noted=("nbdist: memory (its new content) stays behind: its database is in memory",),
        only_fork="a connection cannot be pickled",
    ),
    "objects of compiled code that changed are named": Case(
        setup="import decimal\ncontext = decimal.Context(prec=3)",
        cell="context.prec = 5",
        checks=("context.prec == 3",),
        noted=("nbdist: context (its new content) stays behind: Context objects cannot be changed in place",),
    ),
    "containers that change what is put into them": Case(
        setup="""
            class Doubling(dict):
                def __setitem__(self, key, value):
                    super().__setitem__(key, value * 2)

            class Counting(list):
                def append(self, item):
                    super().append((len(self), item))

            old, old_list = Doubling(), Counting()
            old["a"] = 1
            old_list.append("a")
            """,
        cell="""
            old["b"] = 1
            old_list.append("b")
            new, new_list = Doubling(), Counting()
            new["a"], new.tag = 1, [new]
            new_list.append("a")
            """,
        later="new['b'] = 1",
        checks=(
            "old == {'a': 2, 'b': 2} and old_list == [(0, 'a'), (1, 'b')]",
            "new == {'a': 2, 'b': 2} and new.tag[0] is new and new_list == [(0, 'a')]",
        ),
    ),
    "deep structures": Case(
        setup="""
            class Node:
                def __init__(self, value, following):
                    self.value, self.following = value, following

            def chain(length):
                node = None
                for value in range(length):
                    node = Node(value, node)
                return node

            def length(node):
                count = 0
                while node is not None:
                    count, node = count + 1, node.following
                return count

            def nested(depth):
                inner = []
                for _ in range(depth):
                    inner = [inner]
                return inner

            old, old_nested = chain(20_000), nested(20_000)
            """,
        cell="""
            old.value, new, new_nested = -1, chain(100_000), nested(50_000)
            old_nested.append(new)
            """,
        later="old_depth = 0\nwhile new_nested:\n    new_nested, old_depth = new_nested[0], old_depth + 1",
        checks=(
            "old.value == -1 and length(old) == 20_000",
            "length(new) == 100_000 and old_depth == 50_000 and old_nested[1] is new",
        ),
    ),
    "deep structures that hold what cannot travel": Case(
        cell="""
            import threading
            inner = [threading.Lock()]
            for _ in range(20_000):
                inner = [inner]
            """,
        checks=("'inner' not in globals()",),
        noted=("nbdist: inner stays behind: it holds a lock, which cannot leave its process",),
    ),
    # numpy and pandas
    "new arrays are arrays of their own": Case(
        cell="""
            import numpy as np
            small, large, nested = np.zeros(4), np.zeros(300_000), [np.ones((2, 3), order="F")]
            fixed = np.zeros(2)
            fixed.flags.writeable = False
            """,
        later="""
            small.resize(8)
            large.resize(400_000)
            nested[0] += 1
            """,
        checks=(
            "small.shape == (8,) and large.shape == (400_000,)",
            "nested[0].flags.owndata and nested[0].flags.f_contiguous and nested[0].sum() == 12",
            "not fixed.flags.writeable",
        ),
    ),
    "arrays change their type and shape in place": Case(
        setup="import numpy as np\na, b, c = np.zeros(4), np.zeros(3), np.zeros(6)\nsame = a, b, c",
        cell="a.resize(6, refcheck=False)\nb.dtype = np.int64\nb[0] = 3\nc.shape = (2, 3)\nc[1, 1] = 4",
        checks=(
            "all(x is y for x, y in zip(same, (a, b, c)))",
            "a.shape == (6,) and b.dtype == np.int64 and b.tolist() == [3, 0, 0]",
            "c.tolist() == [[0, 0, 0], [0, 4, 0]]",
        ),
    ),
    "arrays of other classes": Case(
        setup="""
            import numpy as np
            class Tagged(np.ndarray):
                pass
            tagged = np.zeros(2).view(Tagged)
            tagged.tag = 1
            masked = np.ma.array([1, 2, 3], mask=[False, True, False])
            table = np.zeros(2, dtype=[("x", "i4"), ("y", "f8")])
            record = table.view(np.recarray)
            """,
        cell="""
            tagged[0], tagged.tag = 3, 2
            masked[2] = np.ma.masked
            table["x"][0], record.y[1] = 5, 7
            new = np.ones(2).view(Tagged)
            new.tag = {"a": 1}
            """,
        later="table['x'][1] = 6",
        checks=(
            "tagged.tolist() == [3, 0] and tagged.tag == 2",
            "masked.mask.tolist() == [False, True, True]",
            "record.x.tolist() == [5, 6] and table['y'].tolist() == [0, 7]",
            "type(new) is Tagged and new.tag == {'a': 1}",
        ),
    ),
    "images": Case(
        setup="from PIL import Image\nimage = Image.new('RGB', (4, 4))\nsame = image",
        cell="image.putpixel((1, 1), (1, 2, 3))\nnew = Image.new('L', (2, 2), 5)",
        checks=("image is same and image.getpixel((1, 1)) == (1, 2, 3)", "new.getpixel((0, 0)) == 5"),
    ),
    # torch
    "sparse tensors": Case(
        setup="""
            import torch
            coo, rows, columns = torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), torch.eye(2).to_sparse_csc()
            values, same = coo.values(), (coo, rows, columns)
            """,
        cell="coo.values()[0] = 5\nrows.values()[1] = 7\ncolumns.mul_(3)",
        checks=(
            "all(x is y for x, y in zip(same, (coo, rows, columns)))",
            "coo.to_dense().tolist() == [[5, 0], [0, 1]] and values.tolist() == [5, 1]",
            "rows.to_dense().tolist() == [[1, 0], [0, 7]] and columns.to_dense().tolist() == [[3, 0], [0, 3]]",
        ),
    ),
    "newer types of numbers": Case(
        cell="""
            import numpy as np, torch
            small = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
            short = torch.tensor([1, 2], dtype=torch.uint16)
            limits = torch.finfo(torch.half), np.finfo("f4")
            """,
        checks=(
            "small.float().tolist() == [1, 2] and short.tolist() == [1, 2]",
            "limits[0].max == 65504 and limits[1].bits == 32",
        ),
    ),
    "optimizers of every kind": Case(
        setup="""
            import inspect, torch
            def is_dense(kind):
                return inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind.__name__ not in (
                    "Optimizer", "SparseAdam")
            kinds = sorted((k for k in vars(torch.optim).values() if is_dense(k)), key=lambda kind: kind.__name__)
            torch.manual_seed(0)
            weights = [torch.nn.Parameter(torch.randn(3, 3)) for _ in kinds]
            optimizers = [kind([weight], lr=0.01) for kind, weight in zip(kinds, weights)]
            for kind in (torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad):
                for how in ("fused", "foreach"):
                    weights.append(torch.nn.Parameter(torch.randn(3, 3)))
                    optimizers.append(kind([weights[-1]], lr=0.01, **{how: True}))
            old, same = [weight.detach().clone() for weight in weights], [*weights, *optimizers]

            def step(optimizer, weight):
                def loss():
                    optimizer.zero_grad()
                    loss = weight.pow(2).sum()
                    loss.backward()
                    return loss
                optimizer.step(loss)
                return weight.detach().clone()
            """,
        cell="stepped = [step(*each) for each in zip(optimizers, weights)]",
        later="again = [step(*each) for each in zip(optimizers, weights)]",
        checks=(
            "all(x is y for x, y in zip(same, [*weights, *optimizers]))",
            "all(not torch.equal(x, y) for x, y in zip(old, stepped))",
            "all(not torch.equal(x, y) for x, y in zip(stepped, again))",
            # The states came too: two steps here are the same as one there and one here.
            """all(
                torch.allclose(step(twin, weight) * 0 + step(twin, weight), value)
                for kind, start, value in zip(kinds, old, again)
                for weight in [torch.nn.Parameter(start.clone())]
                for twin in [kind([weight], lr=0.01)]
            )""",
        ),
    ),
    "a scheduler goes on without a warning": Case(
        setup="""
            import torch
            weight = torch.nn.Parameter(torch.ones(1))
            optimizer = torch.optim.SGD([weight], lr=1.0)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            """,
        cell="""
            import torch
            optimizer.step(); scheduler.step()
            new = torch.optim.Adam([weight])
            warm = torch.optim.lr_scheduler.LinearLR(new)
            new.step(); warm.step()
            """,
        later="optimizer.step(); scheduler.step(); new.step(); warm.step()",
        checks=("scheduler.get_last_lr() == [0.25] and warm.optimizer is new and warm.last_epoch == 2",),
    ),
    "hooks": Case(
        setup="""
            import torch
            log, layer = [], torch.nn.Linear(2, 2)
            """,
        cell="""
            forward = layer.register_forward_hook(lambda *_: log.append("forward"))
            backward = layer.weight.register_hook(lambda gradient: log.append("gradient"))
            """,
        later="layer(torch.ones(1, 2)).sum().backward()\nforward.remove()\nlayer(torch.ones(1, 2))",
        checks=("log == ['forward', 'gradient']",),
    ),
    "scripted modules and functions": Case(
        setup="import torch\nold = torch.jit.script(torch.nn.Linear(2, 2))\nweight = old.weight",
        cell="""
            new = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
            scripted = torch.jit.script(torch.nn.Dropout()).eval()
            with torch.no_grad():
                new.weight.fill_(1)
                old.weight.fill_(2)
            old.eval()
            """,
        checks=(
            "old.weight.eq(2).all() and weight.eq(2).all() and not old.training",
            "new.weight.eq(1).all() and new(torch.ones(1, 2)).shape == (1, 2) and not scripted.training",
        ),
    ),
    "sharded tensors": Case(
        cell="""
            import torch
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
            mesh = init_device_mesh("cpu", (world_size,))
            rows = distribute_tensor(torch.arange(10.0).reshape(5, 2), mesh, [Shard(0)])
            columns = distribute_tensor(torch.arange(10.0).reshape(5, 2), mesh, [Shard(1)])
            same, part = distribute_tensor(torch.arange(3.0), mesh, [Replicate()]), rows
            summed = DTensor.from_local(torch.full((3,), 0.5), mesh, [Partial()])
            parameter = torch.nn.Parameter(rows)
            held = {"rows": rows, "deep": [parameter]}
            del mesh
            rows
            """,
        checks=(
            "rows.tolist() == columns.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]",
            "type(rows) is torch.Tensor and part is rows and held['rows'] is rows and _ is rows",
            "same.tolist() == [0, 1, 2] and summed.tolist() == [1, 1, 1]",
            "type(parameter) is torch.nn.Parameter and parameter.requires_grad and held['deep'][0] is parameter",
        ),
    ),
    "models sharded by fully_shard": Case(
        setup="""
            import copy, torch
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
            twin, inputs = copy.deepcopy(model), torch.ones(2, 4)
            same, weights, first = model, list(model.parameters()), model[0]

            def train(model, optimizer):
                for _ in range(2):
                    optimizer.zero_grad()
                    model(inputs).pow(2).sum().backward()
                    optimizer.step()

            def shard(model):
                from torch.distributed.fsdp import fully_shard
                fully_shard(model[0])
                fully_shard(model)
            """,
        cell="""
            import copy
            new = copy.deepcopy(model)
            optimizers = []
            for each in (model, new):
                shard(each)
                optimizers.append(torch.optim.Adam(each.parameters(), lr=0.1))
                train(each, optimizers[-1])
            """,
        later="""
            expected = torch.optim.Adam(twin.parameters(), lr=0.1)
            for each, optimizer in ((model, optimizers[0]), (new, optimizers[1]), (twin, expected)):
                train(each, optimizer)
            train(twin, expected)
            """,
        checks=(
            "model is same and model[0] is first and type(model) is type(new) is torch.nn.Sequential",
            "all(x is y for x, y in zip(weights, model.parameters(), strict=True))",
            "optimizers[0].param_groups[0]['params'][0] is weights[0] and len(optimizers[0].state) == 4",
            "all(type(p) is torch.nn.Parameter for p in new.parameters()) and not new._forward_hooks",
            """all(
                torch.allclose(value, other, atol=1e-5)
                for each in (model, new)
                for value, other in zip(each.parameters(), twin.parameters(), strict=True)
            )""",
        ),
    ),
    "compiled modules and functions": Case(
        setup="""
            import torch
            def double(x):
                return x * 2
            layer, value = torch.nn.Linear(2, 2), torch.ones(1, 2)
            before = torch.compile(double, backend="eager")
            """,
        cell="""
            compiled, function = torch.compile(layer, backend="eager"), torch.compile(double, backend="eager")
            with torch.no_grad():
                layer.weight.fill_(3)
            there = compiled(value).detach(), function(value), before(value)
            """,
        checks=(
            "compiled._orig_mod is layer and torch.equal(compiled(value), there[0])",
            "torch.equal(function(value), there[1]) and torch.equal(before(value), there[2])",
        ),
    ),
}


def run_case(kernel: NotebookKernel, case: Case, method: str) -> None:
    kernel.run(textwrap.dedent(case.setup)).check()
    cell = textwrap.dedent(case.cell).strip("\n")
    run = kernel.run(f"%%distributed --devices 2 --start-method {method}\n{cell}").check()
    notes = [line for line in run.stderr.splitlines() if line.startswith("nbdist:")]
    assert len(notes) == len(case.noted), run.describe()
    assert all(note.startswith(begin) for note, begin in zip(notes, case.noted, strict=True)), notes
    assert kernel.run(textwrap.dedent(case.later)).check().stderr == ""
    assert_all(kernel, *map(one_line, case.checks))


def one_line(check: str) -> str:
    return " ".join(check.split())


@pytest.mark.parametrize("name", CASES)
def test_under_fork(kernel: NotebookKernel, name: str) -> None:
    run_case(kernel, CASES[name], "fork")


@pytest.fixture(scope="module")
def shared() -> Iterator[NotebookKernel]:
    """A kernel whose fork server is up."""
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        for cell in (*WARM_UP, "%load_ext nbdist"):
            kernel.run(cell).check()
        kernel.run("%%distributed --start-method forkserver --devices 1\nrank").check()
        yield kernel


@pytest.fixture
def served(shared: NotebookKernel) -> Iterator[NotebookKernel]:
    """The kernel with an empty namespace; nothing but the fork server is left after the test."""
    before = shared.footprint()
    yield shared
    shared.reset()
    shared.assert_no_leaks(before, allow=LIBRARY_SINGLETONS)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.only_fork])
def test_under_forkserver(served: NotebookKernel, name: str) -> None:
    run_case(served, CASES[name], "forkserver")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_variables_of_the_users_own_modules(served: NotebookKernel, method: str) -> None:
    module = f"counting_{method}"
    source = textwrap.dedent(
        """
        count = 0
        table = {}
        def increase():
            global count
            count += 1
        class State:
            steps = 0
        """
    )
    served.run(f"import pathlib\npathlib.Path('{module}.py').write_text({source!r})").check()
    served.run(f"import {module} as counting\nfrom {module} import increase, State").check()
    run = served.run(
        f"""
        %%distributed --devices 2 --start-method {method}
        increase()
        counting.count += 1
        counting.table["x"], counting.added, State.steps = 1, [2], 3
        """
    ).check()
    assert run.stderr == ""
    assert_all(
        served,
        "counting.count == 2 and counting.table == {'x': 1} and counting.added == [2]",
        "State is counting.State and State.steps == 3",
    )
