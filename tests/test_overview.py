"""The table that shows what is up, and the words for what a rank does."""

from __future__ import annotations

from typing import Any

import pytest

from nbdist.errors import Failure
from nbdist.messages import Collective, NameInfo, Standing
from nbdist.state import RankState
from nbdist.views.doing import in_the_run, in_the_session, phrase
from nbdist.views.overview import RankStatus, SessionStatus

GIB = 2**30


def rank(number: int, **facts: object) -> RankStatus:
    return RankStatus(rank=number, pid=100 + number, device=f"cuda:{number}", **facts)  # type: ignore[arg-type]


def test_a_table_of_gpus_and_what_each_rank_does() -> None:
    gpu = {"device_used_bytes": 3 * GIB, "device_total_bytes": 141 * GIB, "memory_bytes": GIB}
    status = SessionStatus(
        name="main",
        title="two GPUs",
        ranks=(
            rank(0, state="running", detail="waits in all_reduce at line 3 of the cell", cells=12, **gpu),
            rank(1, state="dead", detail="its process (pid 101) was ended by SIGKILL", cells=11),
        ),
        names=(
            NameInfo(name="torch", type_name="module"),
            NameInfo(name="x", type_name="<b>Evil", size_bytes=3),
            NameInfo(name="net", type_name="Linear", size_bytes=5 * 2**20),
        ),
    )
    assert str(status).splitlines() == [
        "two GPUs",
        "rank  pid  device  state                                             memory   GPU memory          cells",
        "0     100  cuda:0  waits in all_reduce at line 3 of the cell         1.0 GiB  3.0 GiB of 141 GiB  12",
        "1     101  cuda:1  dead: its process (pid 101) was ended by SIGKILL                               11",
        "names on rank 0, before the work of rank 0: net (Linear, 5.0 MiB), x (<b>Evil, 3 bytes)",
    ]
    html = status._repr_mimebundle_()["text/html"]
    assert "x (&lt;b&gt;Evil, 3 bytes)" in html
    assert html.count("<tr>") == 3


def test_many_names_are_counted() -> None:
    names = tuple(NameInfo(name=f"n{n:02}", type_name="int", size_bytes=28) for n in range(40))
    status = SessionStatus(name="main", title="one", ranks=(rank(0, state="idle"),), names=names)
    assert str(status).endswith("n29 (int, 28 bytes), and 10 more")
    assert "names on rank 0: n00 (int, 28 bytes), " in str(status)


def test_no_names() -> None:
    assert str(SessionStatus(name="main", title="one", ranks=())).endswith("names on rank 0: none")


DIED = Failure(rank=0, time_s=1.0, type_name="Died", message="killed by SIGKILL")
REDUCES = Collective(name="all_reduce", ranks=(0, 1))


@pytest.mark.parametrize(
    ("state", "run", "session", "report"),
    [
        ({}, ("starting", "starting"), ("starting", ""), "is starting"),
        ({"phase": "running"}, ("running", "running"), ("running", "runs"), "runs"),
        (
            {
                "phase": "running",
                "standing": Standing(cell_line=3, function="", since_s=1.0, idle=True, collective=REDUCES),
            },
            ("waiting", "waits in all_reduce"),
            ("running", "waits in all_reduce at line 3 of the cell"),
            "waits in all_reduce at line 3 of the cell",
        ),
        (
            {"phase": "running", "asking": True},
            ("asking", "waits for your answer"),
            ("running", "runs"),
            "runs",
        ),
        ({"phase": "failing"}, ("failed", "failed"), ("running", "has failed"), "has failed"),
        ({"phase": "handing over"}, ("finishing", "hands over its values"), ("running", "runs"), "runs"),
        ({"phase": "finished", "outcome": "ok"}, ("finished", "finished"), ("idle", ""), "has finished"),
        (
            {"phase": "finished", "outcome": "failed"},
            ("failed", "failed"),
            ("idle", "its last work failed"),
            "has failed",
        ),
        (
            {"phase": "finished", "outcome": "interrupted"},
            ("interrupted", "interrupted"),
            ("idle", "its last work was stopped"),
            "was stopped",
        ),
        ({"phase": "idle"}, ("idle", "takes no part"), ("idle", ""), "is idle"),
        ({"phase": "gone", "outcome": "ok"}, ("finished", "finished"), ("dead", ""), "has ended"),
        (
            {"phase": "gone", "death": DIED, "failure": DIED},
            ("dead", "has died"),
            ("dead", "killed by SIGKILL"),
            "has ended",
        ),
    ],
)  # fmt: skip
def test_what_a_rank_does_in_words(
    state: dict[str, Any], run: tuple[str, str], session: tuple[str, str], report: str
) -> None:
    rank = RankState(rank=0, **state)
    assert (in_the_run(rank), in_the_session(rank), phrase(rank)) == (run, session, report)
