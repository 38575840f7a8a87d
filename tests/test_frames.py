"""pandas' frames and series on both sides: who shares memory, and what is changed in place."""

from __future__ import annotations

import pytest
from notebook_kernel import NotebookKernel

FRAMES = """
import pandas as pd
if pd.__version__ < "3":
    pd.options.mode.copy_on_write = True  # as it always is since then
frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
column, renamed = frame["a"], frame.rename(columns={"a": "z"})
series = pd.Series([1.0, 2.0])
same = series[:]
numbers = pd.Index([1, 2])
of_numbers = pd.Series(numbers)
"""
STATE = (
    "print(frame.a.tolist(), column.tolist(), renamed.z.tolist(), series.tolist(), same.tolist(), "
    "numbers.tolist(), of_numbers.tolist())"
)
# A cell changes some of what shares memory and reads no other of it.
CHANGES = (
    ("frame.iloc[0, 0] = 9", "[9.0, 2.0] [1.0, 2.0] [1.0, 2.0] [1.0, 2.0] [1.0, 2.0] [1, 2] [1, 2]\n"),
    ("column.iloc[1] = 8", "[9.0, 2.0] [1.0, 8.0] [1.0, 2.0] [1.0, 2.0] [1.0, 2.0] [1, 2] [1, 2]\n"),
    ("same.iloc[0] = 7", "[9.0, 2.0] [1.0, 8.0] [1.0, 2.0] [1.0, 2.0] [7.0, 2.0] [1, 2] [1, 2]\n"),
    ("of_numbers.iloc[0] = 6", "[9.0, 2.0] [1.0, 8.0] [1.0, 2.0] [1.0, 2.0] [7.0, 2.0] [1, 2] [6, 2]\n"),
)
KINDS = """
import pandas as pd
frame = pd.DataFrame(
    {
        "text": ["x", "y"],
        "object": pd.Series(["x", "y"], dtype=object),
        "time": pd.to_datetime(["2020", "2021"]),
        "category": pd.Categorical(["a", "b"]),
        "masked": pd.array([1, None], dtype="Int64"),
        "number": [1, 2],
    }
)
"""


@pytest.fixture(params=["fork", "forkserver"])
def live(request: pytest.FixtureRequest, kernel: NotebookKernel) -> NotebookKernel:
    """A kernel with a live session of two ranks, started before there are frames."""
    kernel.run(f"%distributed start --devices 2 --start-method {request.param}", timeout_s=60).check()
    yield kernel
    kernel.run("%distributed stop").check()
    kernel.run("%reload_ext nbdist").check()  # ends the fork server
    assert kernel.processes() == {}


def test_what_shares_memory_is_copied_before_it_is_written(live: NotebookKernel) -> None:
    for first in ("", "%%distributed\n"):
        live.run(FRAMES).check()
        for at, (change, expected) in enumerate(CHANGES):
            where = first if at % 2 else ("" if first else "%%distributed\n")
            live.run(where + change).check()
            assert live.run(STATE).check().stdout == expected, (first, change)
        assert live.run("%%distributed\n" + STATE).check().stdout == expected


def test_what_the_ranks_made_of_a_frame_shares_its_memory(live: NotebookKernel) -> None:
    live.run(FRAMES).check()
    live.run(
        "%%distributed\npart = frame['b']\nframe['c'] = frame.a + frame.b\nindexed = frame.set_index('a')"
    ).check()
    live.run("frame.iloc[0] = 0.0").check()
    for where in ("", "%%distributed\n"):
        run = live.run(
            f"{where}print(frame.c.tolist(), part.tolist(), indexed.index.tolist(), indexed.b.tolist())"
        )
        assert run.check().stdout == "[0.0, 6.0] [3.0, 4.0] [1.0, 2.0] [3.0, 4.0]\n"


@pytest.mark.parametrize("session", [True, False])
def test_columns_of_all_kinds_are_changed_in_place(kernel: NotebookKernel, session: bool) -> None:
    kernel.run(KINDS).check()
    if session:
        kernel.run("%distributed start --devices 2\n%distributed push frame").check()
        kernel.run("frame.loc[1] = ['v', 'v', pd.Timestamp('1999'), 'a', 5, 5]").check()
    kernel.run(
        """
        %%distributed --devices 2
        frame.loc[0, "text"] = frame.loc[1, "text"] * 2
        frame.loc[0, "object"] = frame.loc[1, "object"] * 2
        frame.loc[0, "time"] = frame.loc[1, "time"].replace(month=2)
        frame.loc[0, "category"] = frame.loc[1, "category"]
        frame.loc[0, "masked"] = 7
        frame.loc[0, "number"] = 8
        """
    ).check()
    row = "vv vv 1999-02-01 a 7 8" if session else "yy yy 2021-02-01 b 7 8"
    assert kernel.run("print(*frame.astype(str).loc[0])").check().stdout == row + "\n"
    if session:
        kernel.run("%distributed stop").check()
