"""Random programs on two to four ranks: a verdict in time, the right cause, nothing left."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from notebook_kernel import NotebookKernel

VERDICT_S = 5

ENDS = {
    "raise": ("raise ValueError('bad batch')", "ValueError: bad batch"),
    "exit": ("sys.exit(3)", "SystemExit: 3"),
    "end": ("os._exit(5)", "ended with exit code 5"),
    "kill": ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
}
MEETINGS = (
    "dist.barrier()",
    "dist.all_reduce(torch.ones(3))",
    "dist.all_gather_object([None] * world_size, 1)",
)
PASTIMES = ("print('step', step)", "time.sleep(0.02)", "print('no end', end='')", "sum(range(20_000))")


@dataclass(frozen=True)
class Program:
    """What one rank does: between meetings it passes its time, and at the end it leaves in some way.

    Attributes:
        meetings: in how many of the common meetings it takes part.
        end: a key of `ENDS`, or "" for a good end.
    """

    meetings: int
    end: str
    pastimes: tuple[str, ...]

    def code(self, common: list[str]) -> list[str]:
        lines = []
        for step in range(self.meetings):
            lines += [f"step = {step}", self.pastimes[step % len(self.pastimes)], common[step]]
        return [*lines, ENDS[self.end][0] if self.end else "pass"]


MOST_MEETINGS = 3
programs = st.builds(
    Program,
    meetings=st.integers(0, MOST_MEETINGS),
    end=st.sampled_from(["", "", *ENDS]),
    pastimes=st.lists(st.sampled_from(PASTIMES), min_size=1, max_size=3).map(tuple),
)


def cell_of(ranks: list[Program], common: list[str]) -> str:
    lines = [
        f"%%distributed --devices {len(ranks)}",
        "import os, sys, time, torch, torch.distributed as dist",
    ]
    for rank, program in enumerate(ranks):
        lines += [f"if rank == {rank}:", *(f"    {line}" for line in program.code(common))]
    return "\n".join(lines)


def allowed_causes(ranks: list[Program]) -> set[tuple[int, str]]:
    """Who may be named first, with a piece of the text: of the ranks that leave first those that fail, or,
    if none does, those that wait for one which has left. Empty where all ends well."""
    first = min(program.meetings for program in ranks)
    leaving = {rank: program for rank, program in enumerate(ranks) if program.meetings == first}
    failing = {(rank, ENDS[program.end][1]) for rank, program in leaving.items() if program.end}
    waiting = {(rank, "which can never complete") for rank in range(len(ranks)) if rank not in leaving}
    return failing or waiting


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    ranks=st.lists(programs, min_size=2, max_size=4),
    common=st.lists(st.sampled_from(MEETINGS), min_size=MOST_MEETINGS, max_size=MOST_MEETINGS),
)
def test_a_verdict_in_time(kernel: NotebookKernel, ranks: list[Program], common: list[str]) -> None:
    run = kernel.run(cell_of(ranks, common), timeout_s=60)
    causes = allowed_causes(ranks)
    if not causes:
        run.check()
    else:
        assert run.error is not None, run.describe()
        assert run.error.ename == "RankFailedError", run.describe()
        named = re.match(r"ranks? ([\d,-]+) of", run.error.evalue)
        assert named is not None, run.error.evalue
        first = int(re.split("[,-]", named[1])[0])
        assert any(first == rank and text in run.error.evalue for rank, text in causes), run.describe()
    assert run.duration_s < VERDICT_S
    assert kernel.processes() == {}
