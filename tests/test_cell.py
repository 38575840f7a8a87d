"""A cell's names, held against what the interpreter really looks up and binds when the cell runs."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import random
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from nbdist.cell import READY_MADE_NAMES, names_read_by, parse_cell, unknown_outputs


class Watched(dict[str, Any]):
    """A namespace that notes which names are looked up (found or not), bound and deleted."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__(names)
        self.read: set[str] = set()
        self.bound: set[str] = set()
        self.deleted: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.bound.add(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self.deleted.add(name)
        super().__delitem__(name)


@contextmanager
def noted(value: Any) -> Iterator[Any]:
    yield value


@asynccontextmanager
async def noted_later(value: Any) -> AsyncIterator[Any]:
    yield value


async def later(value: Any) -> Any:
    return value


async def stream(*values: Any) -> AsyncIterator[Any]:
    for value in values:
        yield value


class Base:
    size = 1


def notebook() -> dict[str, Any]:
    """A notebook's namespace, new for every run."""
    names = {"a": 1, "b": 2, "flag": True, "xs": [3, 1, 2], "table": {"k": 1}, "size": "the notebook's"}
    helpers = {"Base": Base, "noted": noted, "noted_later": noted_later, "later": later, "stream": stream}
    return {**names, **helpers, "decorate": lambda thing: thing, "__name__": "__main__"}


def run(source: str, namespace: dict[str, Any]) -> None:
    """Run a cell as a notebook does, top-level await included."""
    code = compile(source, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, namespace))
    else:
        exec(code, namespace)


def run_watched(source: str) -> Watched:
    """Run a cell and note what the interpreter does with names, also where it passes `Watched` by."""
    names = notebook()
    namespace = Watched(names)
    namespace["__builtins__"] = built_in = Watched(vars(builtins))
    run(source, namespace)
    # A function's `global x` goes past a dict's methods ...
    namespace.bound |= {
        name for name in namespace if name not in names or namespace.get(name) is not names[name]
    }
    namespace.deleted |= names.keys() - namespace.keys()
    # ... and so does a class body that reads a global: without the name it fails.
    needed = {name for name in names if fails_without(name, source)}
    namespace.read |= built_in.read | (needed - namespace.deleted)
    return namespace


def fails_without(name: str, source: str) -> bool:
    names = notebook()
    del names[name]
    try:
        run(source, names)
    except NameError as error:
        return f"'{name}'" in str(error)
    return False


def without_dunders(names: set[str] | frozenset[str]) -> set[str]:
    return {name for name in names if not name.startswith("__")}


# Every line of these is run, so what the interpreter looks up is all that the cell could read.
CELLS = {
    "nothing": "",
    "comment": "# a = b",
    "docstring": '"""a is b"""\nx = 1',
    "assignment": "x = a",
    "unpacking": "x, (y, *z) = a, (b, *xs)",
    "chained": "x = y = a",
    "augmented": "a += b",
    "attribute": "decorate.x = a",
    "subscript": "table['k'] = a\nxs[0] += b",
    "annotated": "x: 'text' = a",
    "walrus": "(x := a)",
    "walrus in a comprehension": "y = [x := i + a for i in xs]",
    "walrus in a nested comprehension": "y = [[x := j for j in [i]] for i in xs if (z := i)]",
    "walrus in a function's comprehension": "def f():\n    return [inner := i for i in xs]\nf()",
    "comprehensions": "x = [i for i in xs]\ny = {i: b for i in xs}\nz = {i for i in xs if flag}",
    "generator expression": "x = list(i + a for i in xs)",
    "comprehension over an outer name": "x = [[a for j in i] for i in [xs]]",
    "for": "for i, x in enumerate(xs):\n    last = x\nelse:\n    done = a",
    "while": "n = 2\nwhile n > a:\n    n -= 1",
    "with": "with noted(a) as x, noted((a, b)) as (y, z):\n    w = x",
    "def": "def f(p, q=a, *args, k=b, **kw):\n    local = p\n    return local + q + len(xs)\nf(1)",
    "nested functions": "def f():\n    p = a\n    def g():\n        return p + b\n    return g\nf()()",
    "nonlocal": (
        "def f():\n    p = 1\n    def g():\n        nonlocal p\n        p = a\n    g()\n    return p\nf()"
    ),
    "lambda": "f = lambda p=a: p + b\nf()",
    "local that hides a global": "def f(a):\n    b = a\n    return b\nf(1)",
    "global in a function": "def f():\n    global made\n    made = a\nf()",
    "global read": "def f():\n    global a\n    return a\nf()",
    "global in a class": "class C:\n    global made\n    made = [a]",
    "global in a nested function": (
        "def f():\n    def g():\n        global made\n        made = a\n    g()\nf()"
    ),
    "del global in a function": "def f():\n    global a\n    del a\nf()",
    "generator": "def f():\n    yield a\n    yield from xs\nlist(f())",
    "class": (
        "class C(Base, metaclass=type):\n    x = a\n    def f(self):\n        return self.x + b\nC().f()"
    ),
    "class body reads its own": "class C:\n    x = 1\n    y = x",
    "class body reads both": "class C:\n    size = size",
    "class body deletes its own": "class C:\n    size = 1\n    del size\n    y = size",
    "property and its setter": (
        "class C:\n"
        "    @property\n    def size(self):\n        return a\n"
        "    @size.setter\n    def size(self, value):\n        self.kept = b\n"
        "c = C()\nc.size = c.size"
    ),
    "class body with a branch": "class C:\n    if not flag:\n        size = 1\n    y = size",
    "class body with try": (
        "class C:\n    try:\n        size = 1 / 0\n    except ZeroDivisionError:\n        pass\n    y = size"
    ),
    "class in a function": "def f():\n    class C(Base):\n        x = a\n    return C\nf()",
    "method beside a class attribute": (
        "class C:\n    size = 1\n    def f(self):\n        return size\nC().f()"
    ),
    "mangled": "class C:\n    def f(self):\n        global __made\n        __made = a\nC().f()",
    "decorators": "@decorate\ndef f(): pass\n@decorate\nclass C: pass",
    "f-strings": "x = f'{a} {b!r:>{len(xs)}} {table[\"k\"]}'",
    "import": "import os.path, json as j\nfrom math import pi, tau as t",
    "import in a function": "def f():\n    import json\n    return json, a\nf()",
    "future import": "from __future__ import annotations\nx = a",
    "try": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    x = a\nfinally:\n    y = b",
    "assert": "assert flag is not a",
    "del": "x = a\ndel x, b\ndel table['k'], xs[0]",
    "match": (
        "match {'k': [1, 2, 3], 'm': 4, 'n': 5}:\n"
        "    case {'k': [x, *y], 'm': int() as z, **rest} if flag:\n        w = a"
    ),
    "match by value": "match 1:\n    case Base.size:\n        x = a",
    "conditional expression": "x = a if flag else 0",
    "slices and calls": "x = xs[a:b]\nprint(*xs, sep='', **{})",
    "top-level await": "x = await later(a)",
    "async for": "async for x in stream(a, b):\n    y = x",
    "async with": "async with noted_later(a) as x:\n    y = b",
    "async comprehension": "x = [i + a async for i in stream(b) if await later(flag)]",
    "async def": "async def f():\n    return await later(a)\nx = await f()",
    "unicode": "größe = a\nﬁne = größe",
}
if sys.version_info >= (3, 11):
    CELLS["except*"] = (
        "try:\n    raise ExceptionGroup('', [ValueError()])\nexcept* ValueError as e:\n    x = a"
    )
if sys.version_info >= (3, 12):
    CELLS["type parameters"] = "def f[T](x: T) -> T:\n    return a\nclass C[T](list[T]):\n    pass\nf(b)"


@pytest.mark.parametrize("source", CELLS.values(), ids=CELLS.keys())
def test_names_are_those_that_the_interpreter_looks_up(source: str) -> None:
    seen = run_watched(source)
    cell = parse_cell(source)
    assert cell.syntax_error is None
    assert without_dunders(cell.reads) == without_dunders(seen.read)
    assert without_dunders(cell.binds) == without_dunders(seen.bound)
    assert cell.deletes == seen.deleted


@pytest.mark.parametrize("source", [s for s in CELLS.values() if "__future__" not in s])
def test_names_are_the_same_under_an_if(source: str) -> None:
    plain = parse_cell(source)
    nested = parse_cell("if flag:\n    pass\n" + "".join(f"    {line}\n" for line in source.splitlines()))
    assert (nested.reads, nested.binds, nested.deletes) == (
        plain.reads | {"flag"},
        plain.binds,
        plain.deletes,
    )


@pytest.mark.parametrize("seed", range(50))
def test_names_of_a_cell_are_those_of_its_statements_together(seed: int) -> None:
    sources = random.Random(seed).sample(sorted(CELLS.values()), 4)
    parts = [parse_cell(source) for source in sources]
    whole = parse_cell("\n".join(sources))
    assert whole.reads == frozenset().union(*(part.reads for part in parts))
    assert whole.binds == frozenset().union(*(part.binds for part in parts))
    assert whole.deletes == frozenset().union(*(part.deletes for part in parts))


@pytest.mark.parametrize("first_line", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize(
    "source",
    [
        "def f(p: A, *args: B, q: C = 0, **kw: D) -> E: pass",
        "async def f(p: A, *args: B, q: C = 0, **kw: D) -> E: pass",
        "class X:\n    p: A\n    q: B = 1\n    def f(self, r: C) -> D[E]: pass",
        "p: A\nq: B = 1\nr: C[D, E]",
    ],
)
def test_annotations_are_read(first_line: str, source: str) -> None:
    assert parse_cell(first_line + source).reads == frozenset("ABCDE")


def test_source_and_code_are_kept() -> None:
    cell = parse_cell("%time f(a)", TransformerManager().transform_cell)
    assert cell.source == "%time f(a)"
    assert cell.code == "get_ipython().run_line_magic('time', 'f(a)')\n"


@pytest.mark.parametrize(
    ("source", "reads", "binds"),
    [
        ("%time y = f(a)", {"y", "f", "a"}, set()),
        ("%%time\ny = f(a) if b else None", {"y", "f", "a", "b"}, set()),
        ("%%timeit -n 1 b\nf(a)", {"n", "b", "f", "a"}, set()),
        ("!ls {folder} $other", {"ls", "folder", "other"}, set()),
        ("files = !ls {folder}", {"ls", "folder"}, {"files"}),
        ("if a:\n    !ls {folder}\n    %cd $other", {"a", "ls", "folder", "other"}, set()),
        ("model?", {"model"}, set()),
        ("x = %time f(a)\nx", {"f", "a", "x"}, {"x"}),
        ("%time großﬁ", {"großfi"}, set()),
        ("get_ipython().ast_node_interactivity", set(), set()),
        ("get_ipython().set_next_input('x y')", set(), set()),
    ],
)
def test_words_of_magics_count_as_read(source: str, reads: set[str], binds: set[str]) -> None:
    cell = parse_cell(source, TransformerManager().transform_cell)
    assert cell.reads == {"get_ipython", *reads}
    assert cell.binds == binds


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x", True),
        ("y = 1\nx", True),
        ("y = 1; x", True),
        ("x  # ;", True),
        ("x\n# the end;", True),
        ("'a;'", True),
        ('"""\n;"""', True),
        ("(x\n)\n\n", True),
        ("await later(x)", True),
        ("%time x", True),
        ("x;", False),
        ("x ;  # a comment", False),
        ("x;\n\n# a comment\n", False),
        ("f('a;');", False),
        ("x = 1", False),
        ("if x: x", False),
        ("del x", False),
        ("# x", False),
        ("", False),
        ("x +", False),
    ],
)
def test_has_result(source: str, expected: bool) -> None:
    assert parse_cell(source, TransformerManager().transform_cell).has_result is expected


@pytest.mark.parametrize(
    "source",
    [
        "x +",
        "def f(:",
        "if x:\ny",
        "x = '",
        "return 1",
        "a = 1\nbreak",
        "x = \x001",
        "from __future__ import braces",
    ],
)
def test_syntax_error_is_kept(source: str) -> None:
    cell = parse_cell(source)
    assert isinstance(cell.syntax_error, SyntaxError)
    assert cell.syntax_error.__traceback__ is None
    assert cell.source == source
    with pytest.raises((SyntaxError, ValueError)):
        run(source, notebook())


@pytest.mark.parametrize("source", ["-" * 100_000 + "1", "(" * 10_000 + ")" * 10_000, "x = '\ud800'"])
def test_text_that_the_parser_cannot_take_is_a_syntax_error(source: str) -> None:
    assert isinstance(parse_cell(source).syntax_error, SyntaxError)


def test_syntax_error_of_the_transform_is_kept() -> None:
    error = SyntaxError("no such thing")

    def transform(source: str) -> str:
        raise error

    assert parse_cell("x", transform).syntax_error is error


def test_a_statement_that_does_not_compile_leaves_the_others_names() -> None:
    # IPython compiles and runs statement by statement: those before it do run.
    cell = parse_cell("x = a\nreturn b\ny = xs")
    assert cell.syntax_error is not None
    assert (cell.reads, cell.binds) == ({"a", "xs"}, {"x", "y"})


def test_statements_hold_for_themselves_as_in_ipython() -> None:
    cell = parse_cell("x = 1\nglobal x\nfrom __future__ import annotations")
    assert cell.syntax_error is None


def test_warnings_are_left_to_the_run() -> None:
    # A warning here would be an error of this test, as all are.
    assert parse_cell("x = '\\d'\n1 is 1").syntax_error is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from math import *", True),
        ("x = 1\nif a:\n    from math import *", True),
        ("from math import pi", False),
    ],
)
def test_star_import(source: str, expected: bool) -> None:
    assert parse_cell(source).star_import is expected


class Model:
    def step(self) -> Any:
        return scale  # noqa: F821

    @classmethod
    def make(cls) -> Any:
        return other  # noqa: F821


def function_with_nested() -> Any:
    local = outer  # noqa: F821

    class Inner(Base):
        field = in_class  # noqa: F821

        def method(self) -> Any:
            return [local + in_method for _ in range(in_range)]  # noqa: F821

    return Inner


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x, set()),
        (lambda x: scale * x, {"scale"}),  # noqa: F821
        (function_with_nested, {"outer", "Base", "in_class", "in_method", "range", "in_range"}),
        (Model().step, {"scale"}),
        (Model.make, {"other"}),
        (len, set()),
        (partial(print, "x"), set()),
    ],
)
def test_names_read_by(function: Any, expected: set[str]) -> None:
    assert names_read_by(function) == expected


@pytest.mark.parametrize(
    ("source", "names", "unknown"),
    [
        ("loss = 1", ["loss", "xs"], ()),
        ("loss = 1", ["los", "xs", "acc"], ("los", "acc")),
        ("print('later: loss')", ["loss"], ()),
        ("%time loss = 1", ["loss"], ()),
        ("losses = 1", ["loss"], ("loss",)),
        ("x.loss = 1", ["loss"], ()),
        ("from math import *", ["loss"], ()),
        ("exec(text)", ["loss"], ()),
        ("globals().update(d)", ["loss"], ()),
        ("%run train.py", ["loss"], ()),
        ("%runner train.py", ["loss"], ("loss",)),
        ("loss = = 1", ["loss", "acc"], ("acc",)),
        ("", list(READY_MADE_NAMES), ()),
        ("x = 1", [], ()),
    ],
)
def test_unknown_outputs(source: str, names: list[str], unknown: tuple[str, ...]) -> None:
    assert unknown_outputs(parse_cell(source), names, notebook()) == unknown


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        ("train.stop()", {"train"}),
        ("train = 1\ntrain", set()),
        ("train = train.wait()", {"train"}),
        ("for train in [1]:\n    train", set()),
        ("train += 1", {"train"}),
        ("def stop():\n    train.stop()", {"train"}),
        ("def main():\n    train()\ndef train(): ...\nmain()", set()),
        ("[train for _ in 'ab']", {"train"}),
        ("get_ipython().system('python train.py')", {"get_ipython"}),
    ],
)
def test_what_a_cell_needs_is_what_it_reads_before_it_binds_it(code: str, needs: set[str]) -> None:
    assert parse_cell(code).needs == needs
