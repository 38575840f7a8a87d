"""The same cells under `fork`, `forkserver` and `spawn`: the same results, or a difference that
docs/start_methods.md states.

Longer than 400 lines because the table is one.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import LIBRARY_SINGLETONS, WARM_UP
from notebook_kernel import CellRun, NotebookKernel, poll_until

from nbdist.start.fork import ForkedProcess

PAGE = Path(__file__).parent.parent / "docs" / "start_methods.md"

DEVICES = 2


# ── The table ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cell of the table.

    Attributes:
        setup: an ordinary cell before it; its names are of this entry alone.
        cell: what the ranks run.
        expression: evaluated in the notebook afterwards.
        expected: its value; in full under `fork`.
        elsewhere: its value under the other methods, where that differs.
        refused: what the other methods say instead of running the cell.
        documented: for a difference, the heading of the page that states it.
        undo: an ordinary cell that takes back what `setup` did to the process.
        alone: whether it cannot share a launch with other entries.
    """

    setup: str = ""
    cell: str
    expression: str
    expected: Any
    elsewhere: Any = None
    refused: str = ""
    documented: str = ""
    undo: str = ""
    alone: bool = False

    def value_under(self, method: str) -> Any:
        return self.elsewhere if self.documented and method != "fork" else self.expected


UNPICKLABLE = "Values that cannot be pickled"
MODULES = "Modules as they are on disk"
SETTINGS = "Settings of libraries"

TABLE: dict[str, Entry] = {
    # Python's own objects
    "closure": Entry(
        setup="""
            def make_counter():
                n = 0
                def step():
                    nonlocal n
                    n += 1
                    return n
                return step
            step = make_counter()
            step()
            """,
        cell="counted = step() + step()",
        expression="(counted, step())",
        expected=(5, 4),
    ),
    "functions that share a variable": Entry(
        setup="""
            def make_box(content):
                def put(new):
                    nonlocal content
                    content = new
                return put, lambda: content
            put, look = make_box("first")
            """,
        cell="put('second')",
        expression="look()",
        expected="second",
    ),
    "metaclass": Entry(
        setup="""
            class Registry(type):
                classes = []
                def __new__(meta, name, bases, body):
                    made = super().__new__(meta, name, bases, body)
                    meta.classes.append(made)
                    return made
            class Base(metaclass=Registry):
                def names(self):
                    return [cls.__name__ for cls in type(type(self)).classes]
            """,
        cell="""
            known = Base().names()
            class Late(Base):
                pass
            """,
        expression="(known, Registry.classes[0] is Base, Registry.classes[1] is Late, type(Late) is Registry)",
        expected=(["Base"], True, True, True),
    ),
    "classes that register themselves": Entry(
        setup="""
            class Plugin:
                known = {}
                def __init_subclass__(cls, *, title):
                    Plugin.known[title] = cls
            class First(Plugin, title="first"):
                def start(self):
                    return "started"
            """,
        cell="""
            begun, titles = Plugin.known["first"]().start(), list(Plugin.known)
            class Second(First, title="second"):
                pass
            """,
        expression="(begun, titles, list(Plugin.known), Plugin.known['second'] is Second, Second().start())",
        expected=("started", ["first"], ["first", "second"], True, "started"),
    ),
    "dataclass": Entry(
        setup="""
            import dataclasses
            @dataclasses.dataclass(order=True)
            class Point:
                x: float
                y: float = 0.0
                tags: list = dataclasses.field(default_factory=list)
            point = Point(1.0)
            frozen = dataclasses.make_dataclass("Frozen", ["z"], frozen=True)(3)
            """,
        cell="""
            point.tags.append("seen")
            point.y = frozen.z
            moved = dataclasses.replace(point, x=5.0)
            """,
        expression="(point.y, point.tags, type(moved) is Point, moved > point, moved.tags is point.tags)",
        expected=(3, ["seen"], True, True, True),
    ),
    "enum": Entry(
        setup="""
            import enum
            class Mood(enum.Enum):
                HAPPY = 1
                SAD = 2
            moods = {Mood.HAPPY: "yes"}
            Access = enum.IntFlag("Access", "READ WRITE")
            """,
        cell="""
            found = moods[Mood.HAPPY]
            moods[Mood.SAD] = "no"
            picked, both = Mood.SAD, Access.READ | Access.WRITE
            """,
        expression="(found, picked is Mood.SAD, moods[Mood.SAD], both == Access.READ | Access.WRITE)",
        expected=("yes", True, "no", True),
    ),
    "a generator that has begun": Entry(
        setup="numbers = (n for n in range(5))\nnext(numbers)",
        cell="second = next(numbers)",
        expression="second",
        expected=1,
        refused="it is a generator, which cannot leave its process",
        documented=UNPICKLABLE,
    ),
    "generator function": Entry(
        setup="""
            def squares(n):
                for k in range(n):
                    sent = yield k * k
                    if sent:
                        yield sent
            """,
        cell="squared = list(squares(4))",
        expression="squared",
        expected=[0, 1, 4, 9],
    ),
    "lambdas and partials": Entry(
        setup="""
            import functools, operator
            table = {"double": lambda x: 2 * x, "add": functools.partial(operator.add, 10)}
            by_key = operator.itemgetter("k")
            """,
        cell="computed = [table['double'](4), table['add'](4), by_key({'k': 1})]\ntable['new'] = lambda x: x - 1",
        expression="(computed, table['new'](1), table['double'](1))",
        expected=([8, 14, 1], 0, 2),
    ),
    "functions that call each other": Entry(
        setup="""
            def is_even(n):
                return True if n == 0 else is_odd(n - 1)
            def is_odd(n):
                return False if n == 0 else is_even(n - 1)
            """,
        cell="""
            parity = is_even(10), is_odd(10)
            def is_third(n):
                return is_even(n) and n % 3 == 0
            """,
        expression="(parity, is_third(6))",
        expected=((True, False), True),
    ),
    "decorators": Entry(
        setup="""
            import functools
            def counted(function):
                @functools.wraps(function)
                def wrapper(*args):
                    wrapper.calls += 1
                    return function(*args)
                wrapper.calls = 0
                return wrapper
            @counted
            def triple(x):
                return 3 * x
            @functools.lru_cache(maxsize=None)
            def fibonacci(n):
                return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
            @functools.singledispatch
            def kind(x):
                return "any"
            @kind.register
            def _(x: int):
                return "int"
            """,
        cell="called = triple(2), triple.__name__, fibonacci(30), kind(1), kind('')",
        expression="(called, triple.calls, triple(1), triple.calls)",
        expected=((6, "triple", 832040, "int", "any"), 1, 3, 2),
    ),
    "context managers": Entry(
        setup="""
            import contextlib
            entered = []
            @contextlib.contextmanager
            def noted(name):
                entered.append(name)
                yield name.upper()
                entered.append("left")
            """,
        cell="with noted('a') as upper:\n    inside = list(entered)",
        expression="(upper, inside, entered)",
        expected=("A", ["a"], ["a", "left"]),
    ),
    "slots, properties and descriptors": Entry(
        setup="""
            class Positive:
                def __set_name__(self, owner, name):
                    self.slot = "_" + name
                def __get__(self, obj, owner=None):
                    return self if obj is None else getattr(obj, self.slot)
                def __set__(self, obj, value):
                    setattr(obj, self.slot, abs(value))
            class Account:
                __slots__ = ("_balance", "owner")
                balance = Positive()
                def __init__(self, balance):
                    self.balance = balance
                @property
                def label(self):
                    return f"{self.owner}: {self.balance}"
            account = Account(-5)
            """,
        cell="account.balance -= 9\naccount.owner = 'me'\nlabel = account.label",
        expression="(account.balance, account.owner, label)",
        expected=(4, "me", "me: 4"),
    ),
    "abstract classes and super": Entry(
        setup="""
            import abc
            class Shape(abc.ABC):
                sides = 0
                @abc.abstractmethod
                def area(self): ...
                @classmethod
                def describe(cls):
                    return f"{cls.__name__} {cls.sides}"
            class Square(Shape):
                sides = 4
                def __init__(self, a):
                    super().__init__()
                    self.a = a
                def area(self):
                    return self.a ** 2
            Shape.register(tuple)
            shapes = [Square(2)]
            """,
        cell="""
            class Cube(Square):
                def area(self):
                    return 6 * super().area()
            shapes.append(Cube(2))
            areas = [shape.area() for shape in shapes]
            described = Cube.describe(), isinstance((), Shape)
            """,
        expression="(areas, described, isinstance(shapes[1], Shape), type(shapes[0]) is Square)",
        expected=([4, 24], ("Cube 4", True), True, True),
    ),
    "named tuples": Entry(
        setup="""
            import collections, typing
            Pair = collections.namedtuple("Pair", "left right")
            class Row(typing.NamedTuple):
                key: str
                values: list
            row = Row("k", [])
            """,
        cell="row.values.append(Pair(1, right=2))\nswapped = Pair(*reversed(row.values[0]))",
        expression="(row.values == [(1, 2)], type(row.values[0]) is Pair, swapped.left, swapped._fields)",
        expected=(True, True, 2, ("left", "right")),
    ),
    "an exception with state": Entry(
        setup="""
            class Rejected(ValueError):
                def __init__(self, value, *, reason):
                    super().__init__(value, reason)
                    self.reason = reason
                def __reduce__(self):
                    return _rejected, (self.args[0], self.reason)
            def _rejected(value, reason):
                return Rejected(value, reason=reason)
            def check(value):
                raise Rejected(value, reason="too large")
            """,
        cell="""
            try:
                check(7)
            except Rejected as error:
                rejected = error
            """,
        expression="(type(rejected) is Rejected, rejected.args, rejected.reason)",
        expected=(True, (7, "too large"), "too large"),
    ),
    "sentinels": Entry(
        setup="MISSING = object()\nchoices = {'lr': MISSING}",
        cell="absent = choices['lr'] is MISSING\nremembered = MISSING",
        expression="(absent, remembered is MISSING, choices['lr'] is MISSING)",
        expected=(True, True, True),
    ),
    "cycles and aliases": Entry(
        setup="ring = []\nring.append(ring)\nalias = ring\ntwice = [{}] * 2",
        cell="alias.append(len(ring))\ntwice[0]['k'] = ring\nsame = twice[1]['k'] is alias and ring[0] is ring",
        expression="(same, ring is alias, ring[0] is ring, ring[1], twice[0] is twice[1], twice[1]['k'] is ring)",
        expected=(True, True, True, 1, True, True),
    ),
    "weak references": Entry(
        setup="""
            import weakref
            class Node:
                def __init__(self, parent=None):
                    self.parent = parent and weakref.ref(parent)
            root = Node()
            leaf = Node(root)
            """,
        cell="reached_root = leaf.parent() is root\nroot.mark = 'seen'",
        expression="(reached_root, leaf.parent() is root, leaf.parent().mark)",
        expected=(True, True, "seen"),
    ),
    "globals of functions": Entry(
        setup="""
            total = 1
            def add(n):
                global total, largest
                total += n
                largest = n
            def visit(x, seen=[]):
                seen.append(x)
                return len(seen)
            visit("here")
            """,
        cell="add(4)\nvisits = visit('there')",
        expression="(total, largest, visits, visit('again'))",
        expected=(5, 4, 2, 3),
    ),
    "names that go": Entry(
        setup="scratch, kept = 1, 2",
        cell="del scratch\nfrom math import *\nexec('made = 2'), kept\nmade += 1",
        expression="('scratch' in globals(), floor(2.5), made)",
        expected=(False, 2, 3),
    ),
    "a name that only a string mentions": Entry(
        setup="mentioned = 2",
        cell="looked_up = globals().get('men' + 'tioned')",
        expression="[looked_up]",
        expected=[2],
        elsewhere=[None],
        documented="Names that only a string mentions",
    ),
    "a class that says how it is pickled": Entry(
        setup="""
            import threading
            class Meter:
                def __init__(self):
                    self.lock, self.count = threading.Lock(), 0
                def __getstate__(self):
                    return {"count": self.count}
                def __setstate__(self, state):
                    self.__init__()
                    self.count = state["count"]
                def add(self):
                    with self.lock:
                        self.count += 1
            meter = Meter()
            own_lock = id(meter.lock)
            """,
        cell="meter.add()\nmeter.add()",
        expression="(meter.count, id(meter.lock) == own_lock)",
        expected=(2, True),
    ),
    "standard library values": Entry(
        setup="""
            import collections, datetime, decimal, fractions, io, pathlib, re, uuid
            groups = collections.defaultdict(lambda: ["new"])
            last = collections.deque([1, 2], maxlen=2)
            word = re.compile(r"(?P<word>\\w+)")
            day = datetime.datetime(2020, 2, 28, tzinfo=datetime.timezone.utc)
            third, price = fractions.Fraction(1, 3), decimal.Decimal("0.10")
            buffer = io.BytesIO(b"abcdef")
            buffer.read(2)
            """,
        cell="""
            groups["k"].append(1)
            last.append(3)
            matched = word.match("hello you")["word"]
            next_day = day + datetime.timedelta(days=1)
            added = third + 1, price * 3, pathlib.Path("a") / "b", uuid.UUID(int=5)
            read = buffer.read(2)
            """,
        expression="(dict(groups), list(last), matched, next_day.isoformat()[:10], [str(x) for x in added], read,"
        " buffer.read(), groups['other'])",
        expected=(
            {"k": ["new", 1]},
            [2, 3],
            "hello",
            "2020-02-29",
            ["4/3", "0.30", "a/b", "00000000-0000-0000-0000-000000000005"],
            b"cd",
            b"ef",
            ["new"],
        ),
    ),
    "await": Entry(
        setup="import asyncio\nasync def later(x):\n    await asyncio.sleep(0)\n    return 2 * x",
        cell="answers = await asyncio.gather(later(1), later(2))",
        expression="answers",
        expected=[2, 4],
        alone=True,
    ),
    # Arrays, tables, tensors
    "numpy views": Entry(
        setup="import numpy as np\nbase = np.zeros(6)\nodd = base[1::2]\nnames = np.array(['a', None], dtype=object)",
        cell="odd += world_size\nnames[1] = base\nmean = base.mean()\nwindow = base[:2]",
        expression="(base.tolist(), odd.base is base, names[1] is base, float(mean), np.shares_memory(window, base))",
        expected=([0, 2, 0, 2, 0, 2], True, True, 1.0, True),
    ),
    "random generators": Entry(
        setup="""
            import random, numpy as np, torch
            def generators():
                return random.Random(5), np.random.default_rng(5), torch.Generator().manual_seed(5)
            def draw(python, numpy, torch_):
                return python.random(), numpy.random(), torch.rand(1, generator=torch_).item()
            mine, others = generators(), generators()
            """,
        cell="drawn = draw(*mine)",
        expression="(drawn == draw(*others), draw(*mine) == draw(*others))",
        expected=(True, True),
    ),
    "pandas": Entry(
        setup="""
            import pandas as pd
            frame = pd.DataFrame({"x": [1, 2, 3], "g": pd.Categorical(["a", "b", "a"])})
            when = pd.date_range("2020-01-01", periods=3)
            """,
        cell="""
            frame["y"] = frame.x * 2
            frame.loc[1, "x"] = 20
            frame.index = when
            sums = frame.groupby("g", observed=True).x.sum()
            """,
        expression="(frame.x.tolist(), frame.y.tolist(), sums.to_dict(), frame.index.equals(when))",
        expected=([1, 20, 3], [2, 4, 6], {"a": 4, "b": 20}, True),
    ),
    "a module with hooks": Entry(
        setup="""
            import torch
            class Hooked(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.one, self.two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
                    self.two.weight = self.one.weight
                    self.shapes = []
                    self.one.register_forward_hook(self.note)
                    self.register_buffer("steps", torch.zeros(1))
                def note(self, module, args, output):
                    self.shapes.append(tuple(output.shape))
                def forward(self, x):
                    self.steps += 1
                    return self.two(self.one(x))
            hooked = Hooked()
            weight = hooked.one.weight
            """,
        cell="hooked(torch.ones(3, 2)).sum().backward()\nhooked.eval()",
        expression="(hooked.shapes, hooked.steps.item(), hooked.training, hooked.two.weight is weight,"
        " weight.grad is not None)",
        expected=([(3, 2)], 1.0, False, True, True),
    ),
    "hooks of tensors": Entry(
        setup="""
            import torch
            gradients = []
            watched = torch.nn.Parameter(torch.ones(2))
            watched.register_hook(lambda grad: gradients.append(grad.tolist()))
            """,
        cell="(watched * 3).sum().backward()\nnoted = len(gradients)",
        expression="(noted, gradients, watched.grad.tolist())",
        expected=(1, [[3, 3]], [3, 3]),
    ),
    "hooks that a cell adds": Entry(
        setup="""
            import torch
            tuned = torch.nn.Parameter(torch.ones(2))
            tuned.register_hook(lambda grad: grad * 2)
            steps = []
            """,
        cell="""
            doubled = tuned.register_hook(lambda grad: grad + 1)
            tuned.register_post_accumulate_grad_hook(lambda leaf: steps.append(leaf.grad.tolist()))
            tuned.sum().backward()
            """,
        expression="(steps, tuned.sum().backward(), steps, len(tuned._backward_hooks),"
        " doubled.remove(), len(tuned._backward_hooks))",
        expected=([[3, 3], [6, 6]], None, [[3, 3], [6, 6]], 2, None, 1),
    ),
    "optimizer and scheduler": Entry(
        setup="""
            import torch
            torch.manual_seed(0)
            trained = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
            sgd = torch.optim.SGD(trained.parameters(), lr=0.1, momentum=0.9)
            halving = torch.optim.lr_scheduler.LambdaLR(sgd, lambda epoch: 0.5 ** epoch)
            first_weight = trained[0].weight
            """,
        cell="""
            parallel = torch.nn.parallel.DistributedDataParallel(trained)
            for _ in range(3):
                sgd.zero_grad()
                parallel(torch.arange(12.0).reshape(4, 3) + rank).sum().backward()
                sgd.step()
                halving.step()
            expected = trained[0].weight.detach().clone()
            """,
        expression="(halving.get_last_lr(), sgd.param_groups[0]['params'][0] is first_weight is trained[0].weight,"
        " len(sgd.state), torch.equal(first_weight, expected), trained[1].num_batches_tracked.item(),"
        " parallel is trained)",
        expected=([0.0125], True, 6, True, 3, True),
    ),
    "tensors that share memory": Entry(
        setup="""
            import torch
            whole = torch.zeros(4, 4)
            diagonal, array = whole.diagonal(), whole.numpy()
            half = whole.half()
            leaf_tensor = torch.ones(2, requires_grad=True)
            """,
        cell="""
            diagonal += 1
            array[0, 3] = 5
            (leaf_tensor * 3).sum().backward()
            column = whole[:, 3]
            """,
        expression="(whole[0].tolist(), float(array.trace()), leaf_tensor.grad.tolist(), half.dtype,"
        " column.data_ptr() == whole[:, 3].data_ptr())",
        expected="([1.0, 0.0, 0.0, 5.0], 4.0, [3.0, 3.0], torch.float16, True)",
    ),
    "arrays and tensors on each other's memory": Entry(
        setup="""
            import numpy as np, torch
            floats = np.zeros((2, 3), order="F")
            on_floats = torch.from_numpy(floats)
            memory_weights = torch.zeros(3)
            """,
        cell="""
            on_floats[1, 2] = 7
            floats[0, 0] = 1
            memory_corner, memory_view = floats[1:, 1:], memory_weights.numpy()[1:]
            memory_view += 2
            """,
        expression="(floats.tolist(), on_floats.tolist() == floats.tolist(), np.shares_memory(memory_corner, floats),"
        " memory_weights.tolist(), memory_corner.tolist(), np.shares_memory(memory_view, memory_weights.numpy()))",
        expected=([[1, 0, 0], [0, 0, 7]], True, True, [0, 2, 2], [[0, 7]], True),
    ),
    "tensors on a part of an array": Entry(
        setup="""
            import numpy as np, torch
            parted = np.zeros((4, 3))
            part_row, part_tail = torch.from_numpy(parted[2]), torch.from_numpy(parted[3:])
            """,
        cell="""
            part_row[1] = 7
            parted[3, 0] = 5
            seen_parts = parted[2, 1].item(), part_tail[0, 0].item()
            part_new = torch.from_numpy(parted[1])
            part_fixed = parted[0]
            part_fixed.flags.writeable = False
            """,
        expression="(seen_parts, parted.tolist(), part_row.tolist(), part_tail.tolist(), part_new.fill_(1).sum().item(),"
        " parted[1].tolist(), part_fixed.flags.writeable, np.shares_memory(part_fixed, parted))",
        expected=(
            (7, 5),
            [[0, 0, 0], [0, 0, 0], [0, 7, 0], [5, 0, 0]],
            [0, 7, 0],
            [[5, 0, 0]],
            3,
            [1, 1, 1],
            False,
            True,
        ),
    ),
    "classes with slots": Entry(
        setup="""
            import dataclasses
            class SlotPair:
                __slots__ = ("left", "__right")
                def __init__(self, left, right):
                    self.left, self.__right = left, right
                def right(self):
                    return self.__right
            pair_of_slots = SlotPair(1, 2)
            """,
        cell="""
            @dataclasses.dataclass(slots=True)
            class SlotThird:
                value: int
            class SlotFourth(SlotPair):
                __slots__ = ()
            pair_of_slots.left = SlotThird(3)
            slot_fourth = SlotFourth(4, 5)
            """,
        expression="(pair_of_slots.left.value, pair_of_slots.right(), slot_fourth.right(),"
        " hasattr(pair_of_slots, '__dict__'), hasattr(slot_fourth, '__dict__'), hasattr(SlotThird(1), '__dict__'))",
        expected=(3, 2, 5, False, False, False),
    ),
    "a module that a cell parametrizes": Entry(
        setup="""
            import torch
            plain_layer = torch.nn.Linear(2, 2)
            original = plain_layer.bias
            """,
        cell="""
            parametrize = torch.nn.utils.parametrizations
            parametrize.weight_norm(plain_layer)
            spectral = parametrize.spectral_norm(torch.nn.Linear(3, 3))
            """,
        expression="(plain_layer.bias is original, tuple(plain_layer(torch.ones(2)).shape), "
        "torch.nn.utils.parametrize.is_parametrized(plain_layer, 'weight'), tuple(spectral.weight.shape),"
        " isinstance(plain_layer, torch.nn.Linear), sorted(plain_layer.state_dict()))",
        expected=(
            True,
            (2,),
            True,
            (3, 3),
            True,
            ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"],
        ),
    ),
    "a parametrized module": Entry(
        setup="""
            import torch
            normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
            """,
        cell="with torch.no_grad():\n    normed.bias.fill_(4)\nout_shape = tuple(normed(torch.ones(2)).shape)",
        expression="(out_shape, normed.bias.tolist(), torch.nn.utils.parametrize.is_parametrized(normed))",
        expected=((2,), [4, 4], True),
    ),
    "a data loader with workers": Entry(
        setup="""
            import torch
            class Squares(torch.utils.data.Dataset):
                def __len__(self):
                    return 8
                def __getitem__(self, index):
                    return float(index * index)
            """,
        cell="""
            loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=1)
            sums_of_batches = [batch.sum().item() for batch in loader]
            """,
        expression="sums_of_batches",
        expected=[14.0, 126.0],
    ),
    "an autograd function": Entry(
        setup="""
            import torch
            class Clip(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    return x.clamp(max=1)
                @staticmethod
                def backward(ctx, grad):
                    return 7 * grad
            """,
        cell="x = torch.ones(2, requires_grad=True)\nClip.apply(x).sum().backward()",
        expression="(x.grad.tolist(), x.is_leaf)",
        expected=([7, 7], True),
    ),
    # The process
    "random states": Entry(
        setup="""
            import random, numpy as np, torch
            def seed():
                random.seed(1), np.random.seed(1), torch.manual_seed(1)
            seed()
            def from_global_states():
                return random.random(), np.random.rand(), torch.rand(1).item()
            """,
        cell="ranks_own = from_global_states()",
        expression="seed() or ranks_own == from_global_states()",
        expected=True,
        alone=True,
    ),
    "surroundings": Entry(
        setup="""
            import os, sys
            os.makedirs("inner", exist_ok=True)
            os.chdir("inner")
            os.environ["SURROUNDINGS"] = "here"
            sys.path.append("/nowhere")
            sys.argv.append("--flag")
            def surroundings():
                return os.getcwd(), os.environ["SURROUNDINGS"], sys.path[-1], sys.argv, __name__
            """,
        cell="seen = surroundings()",
        expression="seen == surroundings()",
        expected=True,
        undo="os.chdir('..')\ndel os.environ['SURROUNDINGS'], sys.path[-1], sys.argv[-1]",
        alone=True,
    ),
    "a module beside the notebook": Entry(
        setup="""
            import pathlib
            pathlib.Path("beside.py").write_text("SCALE = 3\\nclass Tool:\\n    def use(self, x): return SCALE * x\\n")
            import beside
            tool = beside.Tool()
            """,
        cell="used = tool.use(2)\nanother = beside.Tool()",
        expression="(used, type(another) is beside.Tool)",
        expected=(6, True),
    ),
    "a package with relative imports": Entry(
        setup="""
            import pathlib
            pathlib.Path("parcels").mkdir(exist_ok=True)
            pathlib.Path("parcels/__init__.py").write_text("from .inside import weigh\\n")
            pathlib.Path("parcels/inside.py").write_text("from . import units\\nweigh = lambda x: x * units.GRAM\\n")
            pathlib.Path("parcels/units.py").write_text("GRAM = 1000\\n")
            import parcels
            from parcels import weigh
            """,
        cell="import parcels.units\nweighed = weigh(2), parcels.units.GRAM",
        expression="weighed",
        expected=(2000, 1000),
        alone=True,  # `weigh` is a lambda, which has no name to import it by
    ),
    "a module edited and reloaded": Entry(
        setup="""
            import importlib, pathlib
            pathlib.Path("reloaded.py").write_text("def version(): return 'old'\\n")
            import reloaded
            pathlib.Path("reloaded.py").write_text("def version(): return 'edited'\\n")
            importlib.reload(reloaded)
            """,
        cell="version = reloaded.version()",
        expression="version",
        expected="edited",
    ),
    "a module edited and not reloaded": Entry(
        setup="""
            import pathlib
            pathlib.Path("edited.py").write_text("def version(): return 'old'\\n")
            import edited
            pathlib.Path("edited.py").write_text("def version(): return 'edited'\\n")
            """,
        cell="version_of_rank = edited.version()",
        expression="version_of_rank",
        expected="old",
        elsewhere="edited",
        documented=MODULES,
    ),
    "a variable of a module": Entry(
        setup="import colorsys\ncolorsys.seen = ['notebook']",
        cell="seen_by_rank = getattr(colorsys, 'seen', [])",
        expression="seen_by_rank",
        expected=["notebook"],
        elsewhere=[],
        documented=MODULES,
        undo="del colorsys.seen",
    ),
    "a monkey-patched library": Entry(
        setup="""
            import statistics
            original_median = statistics.median
            statistics.median = lambda values: "patched"
            """,
        cell="median = statistics.median([1, 3])",
        expression="median",
        expected="patched",
        elsewhere=2.0,
        documented=MODULES,
        undo="statistics.median = original_median",
    ),
    "a module made in the notebook": Entry(
        setup="import types\nmade_here = types.ModuleType('made_here')\nmade_here.level = 5",
        cell="level = made_here.level",
        expression="level",
        expected=5,
    ),
    "logging": Entry(
        setup="""
            import logging
            log = logging.getLogger("table")
            log.setLevel(logging.DEBUG)
            log.addHandler(logging.NullHandler())
            """,
        cell="setting = log.level, len(log.handlers), log.name",
        expression="setting",
        expected=(10, 1, "table"),
        elsewhere=(0, 0, "table"),
        documented=SETTINGS,
        undo="log.setLevel(0)\nlog.handlers.clear()",
    ),
    "print options": Entry(
        setup="""
            import decimal, numpy as np, pandas as pd
            np.set_printoptions(precision=3)
            pd.set_option("display.max_rows", 7)
            decimal.getcontext().prec = 5
            """,
        cell="options = np.get_printoptions()['precision'], pd.get_option('display.max_rows'), "
        "decimal.getcontext().prec",
        expression="options",
        expected=(3, 7, 5),
        undo="np.set_printoptions(precision=8)\npd.reset_option('display.max_rows')\ndecimal.getcontext().prec = 28",
    ),
    "default dtype": Entry(
        setup="import torch\ntorch.set_default_dtype(torch.float64)",
        cell="dtype = torch.ones(1).dtype",
        expression="dtype",
        expected="torch.float64",
        undo="torch.set_default_dtype(torch.float32)",
        alone=True,
    ),
    "a lock": Entry(
        setup="import threading\nlock = threading.Lock()",
        cell="with lock:\n    locked = lock.locked()",
        expression="locked",
        expected=True,
        refused="it is a lock, which cannot leave its process",
        documented=UNPICKLABLE,
    ),
    "a lock held by a thread": Entry(
        setup="""
            import threading
            held, go_on, taken = threading.Lock(), threading.Event(), threading.Event()
            def hold():
                with held:
                    taken.set()
                    go_on.wait()
            holder = threading.Thread(target=hold, name="holder")
            holder.start()
            taken.wait()
            """,
        cell="stays_locked = not held.acquire(timeout=0)\nrunning = [t.name for t in threading.enumerate()]",
        expression="(stays_locked, 'holder' in running)",
        expected=(True, False),
        refused="it is a lock, which cannot leave its process",
        documented=UNPICKLABLE,
        undo="go_on.set()\nholder.join()",
    ),
    "an open file": Entry(
        setup="""
            import pathlib
            pathlib.Path("lines.txt").write_text("first\\nsecond\\n")
            opened = open("lines.txt")
            opened.readline()
            """,
        cell="line = opened.readline()",
        expression="(line, opened.readline())",
        expected=("second\n", ""),
        refused="it is an open file (TextIOWrapper), which cannot leave its process",
        documented=UNPICKLABLE,
        undo="opened.close()",
    ),
    "a database connection": Entry(
        setup="import sqlite3\ndatabase = sqlite3.connect(':memory:')\n_ = database.execute('create table t (x)')",
        cell="rows = database.execute('select count(*) from t').fetchone()",
        expression="rows",
        expected=(0,),
        refused="it is a connection to a database, which cannot leave its process",
        documented=UNPICKLABLE,
        undo="database.close()",
    ),
}

TOGETHER = {name: entry for name, entry in TABLE.items() if not entry.alone and not entry.documented}


# ── One notebook for all of them ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def shared() -> Iterator[NotebookKernel]:
    """A kernel whose fork server is up."""
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        for cell in (*WARM_UP, "%load_ext nbdist", "%matplotlib inline"):
            kernel.run(cell).check()
        kernel.run("%%distributed --start-method forkserver --devices 1\nrank").check()
        yield kernel


@pytest.fixture
def notebook(shared: NotebookKernel) -> Iterator[NotebookKernel]:
    """The kernel with an empty namespace; nothing but the fork server is left after the test."""
    before = shared.footprint()
    yield shared
    shared.reset()
    shared.assert_no_leaks(before, allow=LIBRARY_SINGLETONS)


def distributed(method: str, cell: str) -> str:
    return f"%%distributed --devices {DEVICES} --start-method {method}\n{dedented(cell)}"


def dedented(code: str) -> str:
    return textwrap.dedent(code).strip("\n")


def assert_refused(run: CellRun, name: str, reason: str) -> None:
    """The cell ended before any rank was started, naming what cannot be sent."""
    assert run.error is not None, run.describe()
    assert run.error.ename == "LaunchError", run.error.text
    assert f"{name} cannot be sent to the ranks" in run.error.evalue
    assert reason in run.error.evalue


def check_entry(notebook: NotebookKernel, entry: Entry, method: str) -> None:
    notebook.run(dedented(entry.setup)).check()
    try:
        run = notebook.run(distributed(method, entry.cell))
        if entry.refused and method != "fork":
            assert_refused(run, "", entry.refused)
        else:
            run.check()
            assert notebook.value(entry.expression) == entry.value_under(method)
    finally:
        notebook.run(dedented(entry.undo)).check()


@pytest.mark.parametrize("name", TABLE)
def test_the_table_under_fork(notebook: NotebookKernel, name: str) -> None:
    check_entry(notebook, TABLE[name], "fork")


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("method", ["forkserver"])
def test_the_table(notebook: NotebookKernel, method: str, name: str) -> None:
    check_entry(notebook, TABLE[name], method)


def test_the_table_under_spawn_in_one_launch(notebook: NotebookKernel) -> None:
    """All entries that give the same everywhere, as one cell: new processes take seconds to start."""
    for entry in TOGETHER.values():
        notebook.run(dedented(entry.setup)).check()
    notebook.run(distributed("spawn", "\n".join(dedented(entry.cell) for entry in TOGETHER.values()))).check()
    found = {name: notebook.value(entry.expression) for name, entry in TOGETHER.items()}
    assert found == {name: entry.expected for name, entry in TOGETHER.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TABLE)[::3])  # each takes seconds: a third of them
def test_the_table_under_spawn(notebook: NotebookKernel, name: str) -> None:
    check_entry(notebook, TABLE[name], "spawn")


def test_each_difference_stands_in_the_documentation() -> None:
    headings = {line.lstrip("# ") for line in PAGE.read_text().splitlines() if line.startswith("#")}
    different = {name: entry.documented for name, entry in TABLE.items() if entry.documented}
    assert {name for name, heading in different.items() if heading not in headings} == set()
    undocumented = [
        n for n, e in TABLE.items() if (e.refused or e.elsewhere is not None) and not e.documented
    ]
    assert undocumented == []


# ── What is sent, and what is not ───────────────────────────────────────────────────────────────────────────


def test_a_name_that_cannot_be_sent_matters_only_if_it_is_read(notebook: NotebookKernel) -> None:
    notebook.run(
        """
        import threading
        lock, unread = threading.Lock(), threading.Lock()
        stages = []

        def locked():
            return lock.locked()

        def harmless():
            return 5
        """
    ).check()
    processes = notebook.processes().keys()
    read = notebook.run(distributed("forkserver", "stages.append('ran')\nlocked()"))
    assert_refused(read, "lock", "it is a lock, which cannot leave its process")
    assert notebook.processes().keys() == processes
    assert notebook.value("stages") == []
    assigned = notebook.run(distributed("forkserver", "lock = harmless()\nlock")).check()
    assert assigned.result == {"text/plain": "5"}
    assert (assigned.stdout, assigned.stderr) == ("", "")
    assert notebook.value("lock, unread.locked()") == (5, False)


def test_a_call_that_cannot_be_sent_is_refused(notebook: NotebookKernel) -> None:
    run = notebook.run(
        "import nbdist, threading\nnbdist.launch(print, threading.Lock(), start_method='forkserver')"
    )
    assert run.error is not None
    assert run.error.ename == "LaunchError"
    assert "the call.args[0] is a lock, which cannot leave its process" in run.error.evalue


def test_a_large_tensor_is_copied_once_for_all_ranks(notebook: NotebookKernel) -> None:
    """100 MB, mapped privately by three ranks: each rank's share of the memory is a third of it."""
    notebook.run(
        """
        import os, pathlib, re, torch
        large = torch.arange(25_000_000, dtype=torch.float32)
        before = large.data_ptr()

        def share_of(tensor):
            address = tensor.data_ptr()
            for block in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", pathlib.Path("/proc/self/smaps").read_text()):
                found = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", block)
                if found and int(found[1], 16) <= address < int(found[2], 16):
                    return 1024 * int(re.search(r"Pss: +(\\d+) kB", block)[1]), tensor.nbytes
        """
    ).check()
    notebook.run(
        """
        %%distributed --devices 3 --start-method forkserver --gather share,total
        import torch.distributed as dist
        total = large.sum(dtype=torch.float64).item()
        dist.barrier()
        share, size = share_of(large)
        dist.barrier()
        """
    ).check()
    assert notebook.value("total") == [24_999_999 * 25_000_000 / 2] * 3
    # The parcel's file is mapped by the ranks alone by now; page counts are rounded.
    assert notebook.value("[round(3 * share_ / 1e8, 1) for share_ in share]") == [1.0] * 3
    changed = notebook.run(distributed("forkserver", "large[7] = 70 + rank\nlarge.size(0)")).check()
    assert changed.result == {"text/plain": "25000000"}
    assert notebook.value("large[7].item(), large[8].item(), large.data_ptr() == before") == (70, 8, True)


def test_objects_come_back_as_themselves(notebook: NotebookKernel) -> None:
    notebook.run(
        """
        import numpy as np, torch
        class Net(torch.nn.Linear):
            pass
        model, settings, series = Net(2, 1), {"lr": [0.1]}, np.zeros(3)
        optimizer = torch.optim.Adam(model.parameters())
        weight, rates = model.weight, settings["lr"]
        """
    ).check()
    run = notebook.run(
        distributed(
            "forkserver",
            """
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
            settings["lr"].append(0.2)
            settings["model"] = model
            series += 1
            result = {"model": model, "new": Net(2, 2), "weights": [weight]}
            model
            """,
        )
    ).check()
    assert "Net(in_features=2" in str(run.result)
    assert (
        notebook.value(
            "[_ is model, result['model'] is model, settings['model'] is model, result['weights'][0] is weight is model.weight,"
            " type(result['new']) is Net, rates is settings['lr'], list(optimizer.state) == [weight, model.bias]]"
        )
        == [True] * 7
    )
    assert notebook.value("rates, series.tolist(), weight.grad.tolist()") == ([0.1, 0.2], [1, 1, 1], [[4, 4]])


# ── The notebook's own features ─────────────────────────────────────────────────────────────────────────────


def test_magics_displays_and_figures(notebook: NotebookKernel) -> None:
    notebook.run("import matplotlib.pyplot as plt\nfrom IPython.display import HTML\nword = 'hi'").check()
    run = notebook.run(
        distributed(
            "forkserver",
            """
            import asyncio
            await asyncio.sleep(0)
            print("before")
            %env GREETING=hello
            !echo $GREETING
            !echo {word}
            listing = !echo one
            if rank == 0:
                display(HTML("<b>bold</b>"))
                _ = plt.plot([1, 2])
            world_size
            """,
        )
    ).check()
    notebook.run("del __import__('os').environ['GREETING']").check()
    assert run.stdout == "before\nenv: GREETING=hello\nhello\nhi\n"
    assert [data.get("text/html", "figure" if "image/png" in data else "") for data in run.displays] == [
        "<b>bold</b>",
        "figure",
    ]
    assert run.result == {"text/plain": "2"}
    assert notebook.value("list(listing)") == ["one"]
    inline = notebook.run(distributed("forkserver", "%matplotlib inline\nrank"))
    assert inline.check().result == {"text/plain": "0"}
    assert notebook.run(distributed("forkserver", "%%bash\necho from bash")).check().stdout == "from bash\n"


FAILING = """
    import inspect

    class Bad(Exception):
        pass

    def check(n):
        raise Bad(n)
    """


def test_an_exception_is_shown_as_under_fork(notebook: NotebookKernel) -> None:
    notebook.run(FAILING).check()
    shown = {}
    for method in ("fork", "forkserver"):
        run = notebook.run(distributed(method, "stage = 'begun'\ncheck(3)"))
        assert run.error is not None, run.describe()
        lines = run.error.text.replace(f"--start-method {method}", "").splitlines()
        shown[method] = [
            line
            for line in lines
            if not re.search(r"Cell In\[|<ipython-input|ipykernel_|^Each rank's", line)  # where it stands
        ]
        assert "----> 8     raise Bad(n)" in run.error.text or "raise Bad(n)" in run.error.text
        assert notebook.value("stage") == "begun"
    assert shown["forkserver"] == shown["fork"]
    source = notebook.run(distributed("forkserver", "inspect.getsource(check)")).check()
    assert source.result == {"text/plain": repr("def check(n):\n    raise Bad(n)\n")}
    notebook.run(
        "import nbdist\ntry:\n    nbdist.launch(check, 4, devices=2, start_method='forkserver')\n"
        "except nbdist.RankFailedError as error:\n    cause = error.__cause__"
    ).check()
    assert notebook.value("type(cause) is Bad, cause.args") == (True, (4,))


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_an_interrupt_ends_the_cell(notebook: NotebookKernel, method: str) -> None:
    notebook.run("import time").check()
    processes = notebook.processes().keys()
    run = notebook.start_run(
        distributed(method, "begun = rank\nprint('ready', flush=True)\ntime.sleep(1000)")
    )
    run.wait_for_text("ready", 60)
    notebook.interrupt()
    run.finish(30)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt"
    assert notebook.value("begun") == 0
    assert notebook.processes().keys() == processes
    assert notebook.run(distributed("forkserver", "world_size")).check().result == {"text/plain": "2"}


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_nothing_outlives_the_kernel(method: str) -> None:
    """As under fork: see test_failures."""
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": ""}) as kernel:
        kernel.run("%load_ext nbdist\nimport threading").check()
        run = kernel.start_run(distributed(method, "print('up', flush=True)\nthreading.Event().wait()"))
        run.wait_for_text("up", 60)
        assert len(kernel.processes()) >= DEVICES
        kernel.kill()
        poll_until(lambda: kernel.processes() == {}, 10, lambda: f"still there: {kernel.processes()}")


def test_ranks_have_the_notebooks_path_wherever_nbdist_comes_from() -> None:
    """nbdist need not be installed: a notebook may have put it on its path."""
    home = str(Path(__file__).parent.parent)
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": None}) as kernel:
        kernel.run(f"import sys\nsys.path.insert(0, {home!r})\n%load_ext nbdist").check()
        run = kernel.run("%%distributed --devices 2 --start-method forkserver\nsys.path[0]").check()
        assert run.result == {"text/plain": repr(home)}


@pytest.mark.skipif(sys.platform != "linux", reason="forked workers are held by descriptors of Linux")
def test_a_process_whose_descriptor_was_given_back_gets_no_signal() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = ForkedProcess(child.pid)
        process.close()
        process.signal(signal.SIGKILL)
        child.communicate(b"\n")
    assert child.returncode == 0
