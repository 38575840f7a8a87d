"""Cells as PyTorch tutorials write them: under `%%distributed` they do what they do plainly.

Each case of `tests/corpus/` runs in two kernels, in one as it stands and in the other below
`%%distributed --devices 2`. What is shown, the namespace and the state of the process must agree, but for
what the case says about itself: a difference that `docs/differences.md` explains, or a known fault. Both are
exact: one that has gone fails the test, so that the case is corrected.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from corpus_cells import DOCUMENT, ENVIRONMENT, Case, Notebook, compare, read_cases
from notebook_kernel import NotebookKernel

LONG = Case(
    "a cell of 3,000 lines",
    "long",
    cell="\n".join(
        f"def f{n}(x):\n    return x + {n}\nv{n} = f{n}({n})  # {'é' * (n % 7)}" for n in range(999)
    )
    + "\ntotal = v1 + v998\ntotal",
    after="print(total, f998(1), len([name for name in globals() if name.startswith('v')]))",
)
CASES = [*read_cases(), LONG]


class KnownFaultError(Exception):
    """The kernels differ in what the case names as a fault, and in nothing else."""


class Pair:
    """Two kernels for all cases; made anew after a case that may have spoiled them."""

    def __init__(self) -> None:
        self._resources = ExitStack()
        self._notebooks: tuple[Notebook, Notebook] | None = None

    def get(self) -> tuple[Notebook, Notebook]:
        if self._notebooks is None:
            kernels = [self._resources.enter_context(NotebookKernel(ENVIRONMENT)) for _ in range(2)]
            self._notebooks = Notebook(kernels[0], distributed=False), Notebook(kernels[1], distributed=True)
            for notebook in self._notebooks:
                notebook.prepare()
        return self._notebooks

    def discard(self) -> None:
        self._resources.close()
        self._notebooks = None


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.discard()


def as_parameter(case: Case) -> object:
    marks = []
    if case.python > sys.version_info:
        wanted = ".".join(map(str, case.python))
        marks.append(pytest.mark.skip(reason=f"syntax of Python {wanted}"))
    if case.faults:
        reason = "; ".join(dict.fromkeys(case.faults.values()))
        marks.append(pytest.mark.xfail(reason=reason, raises=KnownFaultError, strict=True))
    return pytest.param(case, marks=marks, id=f"{case.file}: {case.name}")


@pytest.mark.parametrize("case", [as_parameter(case) for case in CASES])
def test_a_cell_does_what_it_does_plainly(pair: Pair, case: Case) -> None:
    try:
        differences = compare(case, *pair.get())
    except BaseException:
        pair.discard()
        raise
    expected = case.differs.keys() | case.faults.keys()
    surprises = {key: pair for key, pair in differences.items() if key not in expected}
    assert not surprises, "\n".join(
        f"{key}\n  plainly:     {plain}\n  distributed: {distributed}"
        for key, (plain, distributed) in surprises.items()
    )
    assert differences.keys() >= case.differs.keys(), "a stated difference has gone: correct the case"
    if differences.keys() & case.faults.keys():
        assert differences.keys() >= case.faults.keys(), "a part of the fault has gone: correct the case"
        raise KnownFaultError(case.name)


def test_each_difference_is_documented() -> None:
    headings = set(re.findall(r"^## (.+)$", DOCUMENT.read_text(), flags=re.MULTILINE))
    stated = {heading for case in CASES for heading in (*case.differs.values(), *case.stays.values())}
    assert stated <= headings


def test_cases_have_names_of_their_own() -> None:
    names = [(case.file, case.name) for case in CASES]
    assert len(set(names)) == len(names)
    assert len(names) >= 100
