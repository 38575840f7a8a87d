"""Ranks that wait for what cannot come, and ranks that stand still: who, where, and what is done about it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from notebook_kernel import CellRun, NotebookKernel, poll_until

from nbdist.messages import Collective, Finished, Ready, Standing
from nbdist.session.hangs import find_hang, next_look_s
from nbdist.session.lookout import Lookout
from nbdist.session.native import native_stacks
from nbdist.state import RunState, first_state, fold

IMPORTS = "import torch, torch.distributed as dist"


def failure_text(run: CellRun) -> str:
    assert run.error is not None, run.describe()
    assert run.error.ename == "RankFailedError", run.describe()
    assert "IPython/core" not in run.error.text
    assert "nbdist/worker" not in run.error.text
    return run.error.text


# ── What a user sees ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("waiting", "name"),
    [
        ("dist.all_reduce(torch.ones(1))", "all_reduce"),
        ("dist.barrier()", "barrier"),
        ("dist.recv(torch.ones(1), src=0)", "recv"),
        ("dist.broadcast_object_list([None], src=0)", "broadcast_object_list"),
        ("dist.all_gather_object([None, None], 1)", "all_gather_object"),
        ("dist.new_group([0, 1])", "new_group"),
        ("torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))", "DistributedDataParallel"),
    ],
)
def test_a_collective_that_a_rank_has_left_ends_the_cell(
    kernel: NotebookKernel, waiting: str, name: str
) -> None:
    run = kernel.run(
        f"""
        %%distributed --devices 2
        {IMPORTS}
        begun = rank + 10
        if rank == 1:
            {waiting}
        """
    )
    expected = (
        f"rank 1 of 2 failed at line 5: it waits in {name}, which can never complete: "
        "rank 0 finished without it"
    )
    other = ", or with another tensor than float32 of shape (1,)" if name == "all_reduce" else ""
    assert failure_text(run).splitlines()[-1] == f"RankFailedError: {expected}{other}"
    assert "line 5, in <module>" in failure_text(run)
    assert kernel.value("begun") == 10
    assert kernel.processes() == {}


@pytest.mark.parametrize(
    ("waiting", "name"),
    [
        (
            "work = dist.all_reduce(torch.ones(1), async_op=True)\n    work.wait()",
            "an asynchronous operation",
        ),
        ("dist.irecv(torch.ones(1), src=0).wait()", "an asynchronous operation"),
    ],
)
def test_an_asynchronous_operation_that_a_rank_has_left(
    kernel: NotebookKernel, waiting: str, name: str
) -> None:
    run = kernel.run(f"%%distributed --devices 2\n{IMPORTS}\nif rank == 1:\n    {waiting}")
    assert f"it waits in {name}, which can never complete: rank 0 finished" in failure_text(run)


def test_a_group_that_one_rank_alone_makes(kernel: NotebookKernel) -> None:
    run = kernel.run(
        f"%%distributed --devices 2 --no-init\n{IMPORTS}\nif rank == 1:\n    dist.init_process_group('gloo')"
    )
    expected = "rank 1 of 2 failed at line 4: it waits in init_process_group, which can never complete"
    assert expected in failure_text(run)


LATE = {
    "gather": "dist.gather(x, [torch.ones(1) for _ in range(3)] if rank == 0 else None, 0)",
    "scatter": "dist.scatter(x, [torch.ones(1) for _ in range(3)] if rank == 0 else None, 0)",
    "broadcast": "dist.broadcast(x, 0)",
    "fire and forget": "work = dist.all_reduce(x, async_op=True)\nif rank != 1:\n    work.wait()\ndel work",
    "any source": "dist.send(x, 0) if rank else [dist.recv(x) for _ in range(2)]",
    "thread": "thread = threading.Thread(target=dist.all_reduce, args=(x,))\nthread.start()\n"
    "if rank != 1:\n    thread.join()\ndel thread",
    "some make a group": "if rank < 2:\n"
    "    dist.barrier(dist.new_group([0, 1], use_local_synchronization=True))",
    "model of some": "pair = dist.new_group([0, 1])\n"
    "if rank < 2:\n"
    "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1), process_group=pair)\n"
    "    time.sleep(1.5 * rank)\n"
    "    model(torch.ones(1, 1)).sum().backward()\n"
    "    del model\n"
    "del pair",
    "wait for a child": "if rank == 1:\n    child = os.fork() or (time.sleep(2.5) or os._exit(0))\n    os.wait()",
}


@pytest.mark.parametrize("operation", LATE)
@pytest.mark.parametrize("late", [1, 2])
def test_who_is_late_is_waited_for(kernel: NotebookKernel, operation: str, late: int) -> None:
    """Some ranks have done their part and have finished long before the last one comes."""
    run = kernel.run(
        f"%%distributed --devices 3\n{IMPORTS}\nimport os, threading, time\nx = torch.ones(1)\n"
        f"if rank == {late}:\n    time.sleep(1.5)\n{LATE[operation]}\ndone = world_size"
    ).check()
    assert run.stderr == ""
    assert kernel.value("done") == 3


@pytest.mark.parametrize("busy", ["sum(range(10**8))", "sorted(range(10**7), key=lambda n: -n) and None"])
def test_a_rank_that_moved_on_into_c_code_is_not_taken_for_waiting(kernel: NotebookKernel, busy: str) -> None:
    """Its watching thread cannot say so while C code keeps Python from running."""
    run = kernel.run(
        f"%%distributed --devices 2\n{IMPORTS}\nimport time\n"
        f"if rank == 0:\n    time.sleep(0.5)\ndist.barrier()\nif rank == 1:\n    {busy}\ndone = world_size"
    ).check()
    assert run.stderr == ""
    assert kernel.value("done") == 2


def test_the_rank_with_one_batch_more_is_named(kernel: NotebookKernel) -> None:
    run = kernel.run(
        f"""
        %%distributed --devices 2
        {IMPORTS}
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        for _ in range(3 + rank):
            model(torch.ones(1, 2)).sum().backward()
        """
    )
    assert "rank 1 of 2 failed at line 5: it waits in backward" in failure_text(run)


def test_ranks_of_other_groups_may_finish(kernel: NotebookKernel) -> None:
    """Rank 2 is done long before the others, which meet without it."""
    run = kernel.run(
        f"""
        %%distributed --devices 3 --gather met
        {IMPORTS}
        import time
        def meet(pair):
            if rank == 1:
                time.sleep(1)
            met = torch.ones(1)
            dist.all_reduce(met, group=pair)
            return met
        everybody = dist.new_group([0, 1])
        met = meet(everybody) if rank < 2 else None
        del everybody
        """
    ).check()
    assert run.stderr == ""
    assert kernel.value("[None if value is None else value.item() for value in met]") == [2, 2, None]


def test_a_rank_that_works_on_after_the_others_is_left_alone(kernel: NotebookKernel) -> None:
    run = kernel.run(
        f"""
        %%distributed --devices 2 --gather done
        {IMPORTS}
        import time
        if rank == 1:
            weight = torch.ones(600, 600, requires_grad=True)
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                (weight @ weight @ weight).sum().backward()
            time.sleep(0.7)
        done = rank
        """
    ).check()
    assert run.stderr == ""
    assert kernel.value("done") == [0, 1]


MISMATCHED = """
%%distributed --devices 3 --on-hang {on_hang}
import torch, torch.distributed as dist
x = torch.ones(1)
if rank == 1:
    dist.broadcast(x, 0)
else:
    dist.all_reduce(x)
"""
EACH_FOR_THE_OTHER = re.compile(
    r"rank \d waits in (\w+) \(line (\d)\), rank \d waits in (\w+) \(line (\d)\): each waits for the other"
)


def places_in(text: str) -> dict[str, str]:
    found = EACH_FOR_THE_OTHER.search(text)
    assert found is not None, text
    return {found[1]: found[2], found[3]: found[4]}


def test_ranks_in_different_collectives_are_reported(kernel: NotebookKernel) -> None:
    run = kernel.start_run(MISMATCHED.format(on_hang="report").lstrip())
    run.wait_for_text("stack of rank 1")
    kernel.interrupt()
    run.finish(20)
    assert "nbdist: the run may hang: rank " in run.stderr
    assert places_in(run.stderr) == {"broadcast": "5", "all_reduce": "7"}
    assert "ranks 0,2 wait in all_reduce at line 7 of the cell (for " in run.stderr
    assert "rank 1 waits in broadcast at line 5 of the cell (for " in run.stderr
    assert run.stderr.count("stack of") == 1
    assert re.search(r"stack of rank 1:\n.*line 5, in <module>\n    dist.broadcast\(x, 0\)\n", run.stderr)
    assert run.error is not None
    assert run.error.ename == "KeyboardInterrupt"
    assert kernel.processes() == {}


def test_ranks_in_different_collectives_are_stopped_on_demand(kernel: NotebookKernel) -> None:
    run = kernel.run(MISMATCHED.format(on_hang="stop").lstrip())
    text = failure_text(run)
    assert places_in(text.splitlines()[-1]) == {"broadcast": "5", "all_reduce": "7"}
    assert "rank 1 of 3, line 5 of the cell:" in text
    assert re.search(r"line 7, in <module>\n    dist.all_reduce\(x\)\n", text)
    assert run.stderr == ""


def test_ranks_that_stand_still_are_reported_once_and_waited_for(kernel: NotebookKernel) -> None:
    go_on = kernel.working_folder / "go-on"
    kernel.run("import os\nos.mkfifo('go-on')").check()
    run = kernel.start_run(
        f"""
        %%distributed --devices 2 --hang-timeout 0.5
        {IMPORTS}
        def wait_for_word():
            open("go-on").read()
        if rank == 1:
            wait_for_word()
        dist.barrier()
        "went on"
        """
    )
    run.wait_for_text("stack of rank 1")
    go_on.write_text("go on")
    assert run.finish().check().result == {"text/plain": "'went on'"}
    assert "the run may hang: rank" in run.stderr
    assert "made no step for 0.5 s" in run.stderr
    assert "rank 1 waits at line 6 of the cell, in wait_for_word (for " in run.stderr
    assert re.search(r"line 6, in <module>\n    wait_for_word\(\)\n.*line 4, in wait_for_word\n", run.stderr)
    assert run.stderr.count("may hang") == 1


def test_a_rank_that_others_wait_for_is_named_where_the_cell_is_stopped(kernel: NotebookKernel) -> None:
    run = kernel.run(
        f"%%distributed --devices 2 --hang-timeout 1 --on-hang stop\n{IMPORTS}\nimport time\n"
        "while rank == 1: time.sleep(0.1)\ndist.barrier()"
    )
    text = failure_text(run)
    assert text.splitlines()[-1] == (
        "RankFailedError: rank 0 of 2 failed at line 5: rank 0 made no step for 1 s; rank 1 runs at line 4 of "
        "the cell"
    )
    assert "rank 1: stopped at line 4.\n" in text
    assert "consequence" not in text


@pytest.fixture
def native_frames() -> None:
    """C frames can be had here."""
    tool = Path(sys.executable).with_name("py-spy")
    tried = subprocess.run([tool, "dump", "--native", "--pid", str(os.getpid())], capture_output=True)
    if tried.returncode != 0:
        pytest.skip(f"py-spy may not look into processes here: {tried.stderr.decode()}")


@pytest.mark.usefixtures("native_frames")
def test_c_frames_are_shown_where_they_can_be_had(kernel: NotebookKernel) -> None:
    run = kernel.start_run("%%distributed --devices 2 --hang-timeout 0.5\nimport time\ntime.sleep(1000)")
    run.wait_for_text("C frames of rank 0, the most recent call first:\n")
    run.wait_for_text("  time_sleep (")
    kernel.interrupt()
    run.finish()
    frames = run.stderr.partition("the most recent call first:\n")[2].splitlines()
    assert all(re.fullmatch(r"  \w+ \([\w.+-]+\)", frame) for frame in frames), frames


@pytest.mark.usefixtures("native_frames")
def test_c_frames_are_those_of_the_work(kernel: NotebookKernel) -> None:
    kernel.run("%distributed start --devices 2 --accelerator cpu").check()
    run = kernel.run("%%distributed\nimport os, time\nprint(os.getpid())").check()
    pids = {int(line[1]): int(line.split()[1]) for line in run.stdout.splitlines()}
    assert native_stacks(pids) == {}  # they wait for work
    run = kernel.start_run("%%distributed\nif rank == 1:\n    print('up', flush=True)\n    time.sleep(1000)")
    run.wait_for_text("up")
    poll_until(lambda: list(native_stacks(pids)) == [1], 10, lambda: str(native_stacks(pids)))
    kernel.interrupt()
    run.finish()
    kernel.run("%distributed stop").check()


@pytest.mark.usefixtures("native_frames")
def test_an_interrupt_does_not_wait_for_c_frames(kernel: NotebookKernel) -> None:
    def looking() -> list[psutil.Process]:
        return [process for process in kernel.processes().values() if process.name() == "py-spy"]

    run = kernel.start_run("%%distributed --devices 2 --hang-timeout 0.5\nimport time\ntime.sleep(1000)")
    poll_until(lambda: bool(looking()), 20, lambda: run.describe())
    for process in looking():
        process.suspend()
    kernel.interrupt()
    began_s = time.monotonic()
    run.finish()
    assert time.monotonic() - began_s < 2
    assert run.error is not None
    assert run.error.ename == "KeyboardInterrupt"
    assert "the run may hang: ranks 0-1 made no step for 0.5 s" in run.stderr


def test_tensors_of_other_shapes_are_told_where_a_rank_went_on(kernel: NotebookKernel) -> None:
    run = kernel.run(
        f"%%distributed --devices 2\n{IMPORTS}\ndist.all_reduce(torch.ones(4_000_000 * (2 - rank)))"
    )
    assert failure_text(run).splitlines()[-1] == (
        "RankFailedError: rank 0 of 2 failed at line 3: it waits in all_reduce, which can never complete: rank 1 "
        "finished without it, or with another tensor than float32 of shape (8000000,)"
    )


def test_a_call_that_hangs_is_reported_too(kernel: NotebookKernel) -> None:
    run = kernel.run(
        f"""
        import nbdist
        {IMPORTS}
        def lonely():
            if dist.get_rank() == 1:
                dist.barrier()
        nbdist.launch(lonely, devices=2)
        """
    )
    assert "rank 1 of 2 failed: it waits in barrier, which can never complete" in failure_text(run)
    assert "in lonely" in failure_text(run)


def test_stacks_can_be_asked_for(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import nbdist, threading, time
        %load_ext nbdist
        def stand():
            threading.Event().wait()
        from nbdist.session import where_ranks_stand
        """
    ).check()
    assert kernel.run("%distributed stacks").check().stdout == "No ranks are up.\n"
    run = kernel.start_run(
        """
        def ask():
            while "ranks 0-1 wait in" not in "\\n".join(where_ranks_stand()):
                time.sleep(0.05)
            get_ipython().run_line_magic("distributed", "stacks")
        asking = threading.Thread(target=ask)
        asking.start()
        nbdist.launch(stand, devices=2)
        """,
        allow_stdin=True,
    )
    run.wait_for_text("in stand")
    kernel.interrupt()
    run.finish()
    kernel.run("asking.join()").check()
    assert "ranks 0-1 wait in " in run.stdout
    assert "stack of ranks 0-1:\n" in run.stdout
    wrong = kernel.run("%distributed stops")
    assert wrong.error is not None
    assert wrong.error.evalue.startswith(
        "%distributed stops: no such command (did you mean stop?). Allowed: start, "
    )


# ── The rules ───────────────────────────────────────────────────────────────────────────────────────────────


def waits_in(name: str, ranks: tuple[int, ...], since_s: float, *, idle: bool = True) -> Standing:
    return Standing(
        cell_line=3,
        function="wait",
        since_s=since_s,
        idle=idle,
        alone=idle,
        collective=Collective(name=name, ranks=ranks),
    )


def state_of(*standings: Standing | Finished) -> RunState:
    state = first_state(len(standings))
    for rank, event in enumerate(standings):
        state = fold(fold(state, rank, Ready(pid=rank)), rank, event)
    return state


MOVES = Standing(cell_line=3, function="train")


def kind_of_hang(state: RunState, now_s: float, timeout_s: float = 30) -> str | None:
    hang = find_hang(state, now_s, timeout_s)
    return hang.kind if hang is not None else None


def test_a_rank_must_have_left_for_some_time() -> None:
    state = state_of(waits_in("barrier", (0, 1), 0.0), Finished(outcome="ok", time_s=10.0))
    assert kind_of_hang(state, 10.4) is None
    assert kind_of_hang(state, 10.5) == "left"
    assert next_look_s(state, 10.4, 30) == 10.5


def test_no_moment_passes_between_two_looks() -> None:
    """The next look is reckoned some time after the last one, as a busy machine has it."""
    state = state_of(waits_in("barrier", (0, 1), 0.0), waits_in("all_reduce", (0, 1), 1.0))
    lookout = Lookout([], timeout_s=30)
    assert lookout.look(state, 5.999) is None
    assert lookout.next_look_s(state) == 6


@pytest.mark.parametrize("since_s", [62579.1 + step / 7 for step in range(50)])
def test_a_hang_is_found_at_its_very_moment(since_s: float) -> None:
    state = state_of(waits_in("barrier", (0, 1), 0.0), Finished(outcome="ok", time_s=since_s))
    due_s = next_look_s(state, since_s, 0)
    assert due_s is not None
    assert kind_of_hang(state, due_s) == "left"


def test_who_is_no_member_does_not_count() -> None:
    state = state_of(waits_in("barrier", (0, 1), 0.0), MOVES, Finished(outcome="ok", time_s=0.0))
    assert kind_of_hang(state, 20) is None


def test_a_rank_that_computes_does_not_wait() -> None:
    standing = waits_in("backward", (0, 1), 0.0, idle=False)
    assert kind_of_hang(state_of(standing, Finished(outcome="ok", time_s=0.0)), 20) is None


def test_different_groups_are_no_mismatch() -> None:
    state = state_of(waits_in("barrier", (0, 2), 0.0), waits_in("all_reduce", (0, 1, 2), 0.0), MOVES)
    assert kind_of_hang(state, 20) is None
    state = state_of(waits_in("barrier", (0, 1), 0.0), waits_in("all_reduce", (0, 1), 1.0), MOVES)
    assert (kind_of_hang(state, 5.9), kind_of_hang(state, 6)) == (None, "mismatched")


def test_a_circle_of_any_length_is_a_mismatch() -> None:
    circle = [waits_in("recv", ((rank + 1) % 3, rank), 0.0) for rank in range(3)]
    assert kind_of_hang(state_of(*circle), 6) == "mismatched"
    assert kind_of_hang(state_of(*circle[:2], MOVES), 6) is None
    state = state_of(waits_in("barrier", (0, 1), 0.0), waits_in("recv", (0, 1), 0.0), MOVES)
    hang = find_hang(state, 6, 30)
    assert hang is not None
    assert hang.reason == (
        "rank 0 waits in barrier (line 3), rank 1 waits in recv (line 3): each waits for the other"
    )


def test_two_that_both_receive_wait_for_each_other() -> None:
    state = state_of(waits_in("recv", (1, 0), 0.0), waits_in("recv", (0, 1), 0.0))
    assert kind_of_hang(state, 6) == "mismatched"


def test_nobody_waits_in_vain_while_a_member_is_on_its_way() -> None:
    """It may be released without those that have finished: a `broadcast` does not wait for all."""
    finished = Finished(outcome="ok", time_s=0.0)
    assert kind_of_hang(state_of(waits_in("broadcast", (0, 1, 2), 0.0), finished, MOVES), 20) is None
    late = waits_in("broadcast", (0, 1, 2), 19.0)
    assert kind_of_hang(state_of(waits_in("broadcast", (0, 1, 2), 0.0), finished, late), 20) == "left"
    waiting = (waits_in("gather", (0, 1, 2), 0.0), waits_in("barrier", (0, 1, 2), 0.0))
    assert kind_of_hang(state_of(*waiting, MOVES), 20) is None


def test_a_finished_rank_whose_threads_go_on_has_not_left() -> None:
    state = state_of(waits_in("barrier", (0, 1), 0.0), Finished(outcome="ok", time_s=0.0, threads=True))
    assert kind_of_hang(state, 20) is None


def test_a_send_and_its_recv_are_one() -> None:
    state = state_of(waits_in("send", (0, 1), 0.0), waits_in("recv", (0, 1), 0.0))
    assert kind_of_hang(state, 20) is None


def test_nought_is_never() -> None:
    state = state_of(waits_in("barrier", (0, 1), 0.0), MOVES)
    assert (kind_of_hang(state, 29.9), kind_of_hang(state, 30)) == (None, "still")
    assert kind_of_hang(state, 1e6, timeout_s=0) is None
    assert next_look_s(state, 1e6, 0) is None
