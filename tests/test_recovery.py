"""Live sessions after failures, interrupts and deaths: the ranks go on, with their variables and fresh groups."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psutil
import pytest
from live_ranks import on_ranks, shown
from notebook_kernel import CellRun, NotebookKernel, poll_until

IMPORTS = "import os, signal, sys, threading, time, torch, torch.distributed as dist\nkept = 10 * rank"

SUM = "x = torch.ones(1) * (rank + 1)\ndist.all_reduce(x)\nx.item(), kept"
"""Shows rank 0's sum over all ranks, and that its variables are there."""


@pytest.fixture
def live(kernel: NotebookKernel) -> Iterator[NotebookKernel]:
    """A kernel with a live session of three ranks."""
    start(kernel)
    yield kernel
    kernel.run("%distributed stop").check()


def start(kernel: NotebookKernel, options: str = "") -> None:
    kernel.run(f"%distributed start --devices 3 {options}").check()
    kernel.run(f"%%distributed\n{IMPORTS}").check()


def check_good(kernel: NotebookKernel) -> None:
    assert shown(on_ranks(kernel, SUM)) == "(6.0, 0)"


def failure(run: CellRun) -> str:
    assert run.error is not None, run.describe()
    assert run.error.ename == "RankFailedError", run.describe()
    return run.error.evalue


def interrupt(kernel: NotebookKernel, code: str, options: str = "") -> None:
    """Run a cell, interrupt it once it has printed ``up``, and wait for its end."""
    run = kernel.start_run(f"%%distributed {options}\n{code}")
    run.wait_for_text("up")
    kernel.interrupt()
    run.finish(20)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt", run.describe()


def ranks_of(kernel: NotebookKernel) -> list[psutil.Process]:
    pids = shown(on_ranks(kernel, "p = [None] * 3\ndist.all_gather_object(p, os.getpid())\np"))
    return [psutil.Process(int(pid)) for pid in re.findall(r"\d+", pids)]


# ── Whatever happens ────────────────────────────────────────────────────────────────────────────────────────

FAULTS = {
    "in a collective": "if rank == 1:\n    raise ValueError('bad')\ndist.barrier()",
    "outside one": "raise ValueError('bad')",
    "with an operation under way": (
        "if rank == 0:\n    w = dist.all_reduce(torch.ones(1000), async_op=True)\nraise ValueError('bad')"
    ),
    "in a subgroup": (
        "pair = dist.new_group([0, 2])\nif rank == 2:\n    raise ValueError('bad')\n"
        "dist.barrier(group=pair) if rank == 0 else None"
    ),
    "after groups of its own": (
        "if rank == 0:\n    dist.destroy_process_group()\n    raise ValueError('bad')\n"
        "dist.destroy_process_group()\ndist.init_process_group()"
    ),
    "with a group of its own on some ranks": (
        "dist.destroy_process_group()\nif rank:\n    raise ValueError('bad')\ndist.init_process_group()"
    ),
    "while a thread waits": (
        "threading.Thread(target=lambda: dist.barrier(), daemon=True).start() if rank == 0 else None\n"
        "raise ValueError('bad')"
    ),
    "in a backward": (
        "m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "if rank == 1:\n    raise ValueError('bad')\nm(torch.ones(1, 2)).sum().backward()"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_cell(live: NotebookKernel, fault: str) -> None:
    before = ranks_of(live)
    assert "ValueError: bad" in failure(on_ranks(live, FAULTS[fault]))
    check_good(live)
    assert ranks_of(live) == before


WAITS = {
    "barrier": "dist.barrier() if rank else time.sleep(1000)",
    "mismatched": "dist.all_reduce(torch.ones(2)) if rank else dist.recv(torch.ones(1), src=1)",
    "making a group": "dist.new_group([0, 1, 2]) if rank else time.sleep(1000)",
    "subgroup": "pair = dist.new_group([0, 1])\nif rank == 1: dist.barrier(group=pair)\nelse: time.sleep(1000)",
    "caught": (
        "try:\n    dist.barrier() if rank else time.sleep(1000)\nexcept (KeyboardInterrupt, RuntimeError): pass"
    ),
    "and again at the end": (
        "try:\n    time.sleep(1000) if rank else dist.barrier()\nfinally:\n    dist.barrier()"
    ),
    "and again, one of them late": (
        "try:\n    time.sleep(1000) if rank else dist.barrier()\n"
        "finally:\n    time.sleep(0.5) if rank == 2 else None\n    dist.barrier()"
    ),
    "again and again": (
        "try:\n    time.sleep(1000) if rank else dist.barrier()\nfinally:\n"
        "    try:\n        dist.barrier()\n    finally:\n        dist.all_reduce(torch.ones(1))"
    ),
}


@pytest.mark.parametrize("wait", WAITS)
def test_an_interrupted_cell(live: NotebookKernel, wait: str) -> None:
    before = ranks_of(live)
    interrupt(live, f"print('up', flush=True)\n{WAITS[wait]}")
    check_good(live)
    assert ranks_of(live) == before


def test_one_interrupt_ends_a_cell_that_cleans_up_together(kernel: NotebookKernel) -> None:
    kernel.run(IMPORTS.replace("10 * rank", "1")).check()
    run = kernel.start_run(
        f"%%distributed --devices 3\nkept = 2\nprint('up', flush=True)\n{WAITS['and again at the end']}"
    )
    run.wait_for_text("up")
    kernel.interrupt()
    run.finish(20)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt", run.describe()
    assert kernel.value("kept") == 2, run.describe()


def test_a_collective_that_a_rank_has_left(live: NotebookKernel) -> None:
    assert "rank 2 finished without it" in failure(on_ranks(live, "dist.barrier() if rank < 2 else None"))
    check_good(live)


def test_a_timeout(kernel: NotebookKernel) -> None:
    start(kernel, "--timeout 1")
    said = failure(on_ranks(kernel, "dist.barrier() if rank else time.sleep(2)"))
    assert "ranks 1-2 of 3 failed" in said or "rank 1 of 3 failed" in said or "rank 2 of 3 failed" in said
    check_good(kernel)
    kernel.run("%distributed stop").check()


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_by_any_start_method(kernel: NotebookKernel, method: str) -> None:
    kernel.run("%reload_ext nbdist")
    start(kernel, f"--start-method {method}")
    failure(on_ranks(kernel, FAULTS["in a collective"]))
    check_good(kernel)
    interrupt(kernel, f"print('up', flush=True)\n{WAITS['barrier']}")
    check_good(kernel)
    kernel.run("%distributed stop").check()
    kernel.run("%reload_ext nbdist").check()  # ends the fork server


def counted(ranks: list[psutil.Process]) -> list[tuple[int, int]]:
    """Descriptors and threads of each."""
    return [(rank.num_fds(), rank.num_threads()) for rank in ranks]


def test_many_alternations_leave_nothing(live: NotebookKernel) -> None:
    ranks = ranks_of(live)
    failing = f"sub = dist.new_group([0, 1])\n{FAULTS['in a collective']}"
    waiting = "print('up', flush=True)\ndist.barrier() if rank else time.sleep(1000)"
    before: list[tuple[int, int]] = []
    for number in range(10):
        failure(on_ranks(live, failing))
        check_good(live)
        interrupt(live, waiting)
        check_good(live)
        if number == 2:
            before = counted(ranks)
    # A rank may still be about to close what it handed over: now, and when it was counted first.
    poll_until(
        lambda: all(
            now <= then
            for rank, rank_before in zip(counted(ranks), before, strict=True)
            for now, then in zip(rank, rank_before, strict=True)
        ),
        10,
        lambda: f"{before} became {counted(ranks)}",
    )


def test_an_interrupt_before_the_ranks_have_begun(live: NotebookKernel) -> None:
    # Rank 0 is slow to take its work: its interpreter runs a class's code before the cell begins.
    live.run(
        "class Slow:\n"
        "    def __reduce__(self):\n"
        "        return (eval, (\"print('up', flush=True) or __import__('time').sleep(0.5) or 1\",))\n"
        "slow = Slow()"
    ).check()
    run = live.start_run("%%distributed\nslow, time.sleep(1000)")
    run.wait_for_text("up")
    live.interrupt()
    run.finish(20)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt", run.describe()
    assert run.duration_s < 10
    check_good(live)


SLOW = {
    "leaves its groups": "real = os.mkdir\ndef slow(*args):\n    wait()\n    real(*args)\nos.mkdir = slow",
    "has found the others' file": (
        "real = os.symlink\ndef slow(*args):\n    real(*args)\n    wait()\nos.symlink = slow"
    ),
}
WAIT = """
said = []
def wait():
    if not said and rank_here in late:
        said.append(1)
        print("up", flush=True)
        time.sleep(0.5)
"""


@pytest.mark.parametrize("ranks", ["0,1,2", "0,2"])
@pytest.mark.parametrize("late", SLOW)
def test_an_interrupt_while_the_ranks_meet_anew(live: NotebookKernel, late: str, ranks: str) -> None:
    # A file system that takes its time: the interrupt comes in the midst of what a cell after a failure begins with.
    on_ranks(live, f"rank_here, late = rank, ({ranks})\n{WAIT}\n{SLOW[late]}").check()
    assert "ValueError" in failure(on_ranks(live, "raise ValueError('bad')"))
    interrupt(live, "1", f"--ranks {ranks}")
    check_good(live)


# ── What was made with a group of before ────────────────────────────────────────────────────────────────────

MODEL = """
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.Adam(model.parameters())
def step():
    optimizer.zero_grad()
    model(torch.ones(1, 2) * (rank + 1)).sum().backward()
    optimizer.step()
step()
step()
"""

AGREE = """
everyones = [None] * 3
state = [p.tolist() for p in model.parameters()], [s["exp_avg"].tolist() for s in optimizer.state.values()]
dist.all_gather_object(everyones, state)
model.module.weight.grad.tolist(), everyones[0] == everyones[1] == everyones[2]
"""


def test_a_model_goes_on_training(live: NotebookKernel) -> None:
    on_ranks(live, MODEL).check()
    said = failure(on_ranks(live, "if rank == 1:\n    raise ValueError('bad')\nstep()"))
    assert "ValueError: bad" in said
    run = on_ranks(live, f"step()\n{AGREE}")
    assert shown(run) == "([[2.0, 2.0]], True)"  # the mean over ranks of 1, 2, 3
    assert "different steps" not in run.stderr


def test_ranks_that_stopped_at_different_steps_agree_again(live: NotebookKernel) -> None:
    on_ranks(live, MODEL).check()
    failure(on_ranks(live, "if rank == 1:\n    raise ValueError('bad')\noptimizer.step()\ndist.barrier()"))
    run = on_ranks(live, f"step()\n{AGREE}")
    assert shown(run) == "([[2.0, 2.0]], True)"
    assert "stopped at different steps" in run.stderr
    assert "model" in run.stderr
    assert "optimizer" in run.stderr


def test_an_optimizer_with_rank_0s_state_still_hears_of_the_notebook(live: NotebookKernel) -> None:
    live.run(
        "import torch\nnet = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.Adam(net.parameters())\n"
        "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)"
    ).check()
    bad = "if rank == 1:\n    raise ValueError('bad')\noptimizer.step()\ndist.barrier()"
    step = "model(torch.ones(1, 2)).sum().backward()\n"
    failure(on_ranks(live, f"model = torch.nn.parallel.DistributedDataParallel(net)\nschedule\n{step}{bad}"))
    run = on_ranks(live, "optimizer.step()\nmodel.zero_grad()\nschedule.step()")
    assert "stopped at different steps" in run.check().stderr
    assert "on the ranks only" not in run.stderr
    live.run("optimizer.param_groups[0]['lr'] = 0.7").check()
    run = on_ranks(
        live,
        f"""
{step}optimizer.step()
schedule.step()
state = optimizer.param_groups[0]["lr"], net.weight.tolist(), schedule.optimizer is optimizer
everyones = [None] * 3
dist.all_gather_object(everyones, state)
everyones[0] == everyones[1] == everyones[2], state[0], state[2]
""",
    )
    assert shown(run) == "(True, 0.35, True)"
    assert "on the ranks only" not in run.stderr


HOLDERS = {
    "subgroup": ("held = dist.new_group([0, 1, 2])", "dist.all_reduce(torch.ones(1), group=held)"),
    "model in a subgroup": (
        "group = dist.new_group([0, 1, 2])\n"
        "held = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)",
        "held(torch.ones(1, 2)).sum().backward()",
    ),
    "mesh": (
        "held = dist.device_mesh.init_device_mesh('cpu', (3, 1), mesh_dim_names=('a', 'b'))",
        "other = dist.new_group([0, 1, 2])\ndist.all_reduce(torch.ones(1), group=held.get_group('b'))",
    ),
    "fully_shard": (
        "from torch.distributed.fsdp import fully_shard\nheld = torch.nn.Linear(4, 6)\nfully_shard(held)",
        "held(torch.ones(1, 4)).sum().backward()",
    ),
}


def test_a_sharded_tensor_over_all_ranks_is_whole(live: NotebookKernel) -> None:
    make = (
        "from torch.distributed.tensor import Shard, distribute_tensor\n"
        "mesh = dist.device_mesh.init_device_mesh('cpu', (3,))\n"
        "sharded = distribute_tensor(torch.arange(3.0), mesh, [Shard(0)])"
    )
    on_ranks(live, make).check()
    failure(on_ranks(live, FAULTS["in a collective"]))
    assert shown(on_ranks(live, "sharded.full_tensor().tolist()")) == "[0.0, 1.0, 2.0]"


def test_ranks_that_use_a_former_group_are_told_once(live: NotebookKernel) -> None:
    """Though torch's message names an object of each rank's own."""
    on_ranks(live, HOLDERS["subgroup"][0]).check()
    failure(on_ranks(live, "if rank == 1:\n    raise ValueError('bad')\ndist.barrier()"))
    run = on_ranks(live, "if rank != 2:\n    dist.all_reduce(torch.ones(1), group=held)")
    assert failure(run).startswith("ranks 0-1 of 3 failed at line 3: ")
    assert run.error is not None
    assert "\n".join(run.error.traceback).count("This process group was left") == 1


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_holds_a_former_group_says_so(live: NotebookKernel, holder: str) -> None:
    make, use = HOLDERS[holder]
    on_ranks(live, make).check()
    failure(on_ranks(live, FAULTS["in a collective"]))
    check_good(live)
    run = on_ranks(live, use)
    failure(run)
    assert run.error is not None
    assert "Make it anew" in run.error.text, run.error.text
    check_good(live)


# ── A rank that is gone ─────────────────────────────────────────────────────────────────────────────────────


def test_a_dead_rank(live: NotebookKernel) -> None:
    on_ranks(live, "mine = torch.ones(1_000_000)").check()
    said = failure(on_ranks(live, "if rank == 1: os._exit(3)\ndist.barrier()"))
    assert re.match(r"rank 1 of 3 failed: its process \(pid \d+\) ended with exit code 3", said)
    next_run = on_ranks(live, SUM)
    assert next_run.error is not None
    assert next_run.error.ename == "SessionError"
    assert "rank 1 of this session has died" in next_run.error.evalue
    assert "ended with exit code 3" in next_run.error.evalue
    assert "%distributed start begins anew" in next_run.error.evalue
    assert "rank 1 has ended" in live.run("%distributed stacks").check().stdout
    live.run("%distributed pull mine").check()
    assert live.value("mine.sum().item()") == 1_000_000
    start(live)
    check_good(live)


def test_a_rank_that_died_between_cells(live: NotebookKernel) -> None:
    victim = ranks_of(live)[2]
    victim.kill()
    poll_until(lambda: not victim.is_running(), 10, lambda: f"{victim} lives on")
    run = on_ranks(live, SUM)
    assert run.error is not None
    assert re.search(r"rank 2 .*was ended by SIGKILL", run.error.evalue), run.error.evalue


def test_a_rank_that_does_not_come_out_of_its_work(live: NotebookKernel) -> None:
    run = live.start_run(
        "%%distributed\nprint('up', flush=True)\nsum(range(10**12)) if rank == 1 else dist.barrier()"
    )
    run.wait_for_text("up")
    live.interrupt()
    run.wait_for_text("rank 1: not stopped yet")
    live.interrupt()
    run.finish(10)
    assert run.error is not None
    assert run.error.ename == "KeyboardInterrupt"
    told = r"rank 1 of this session has died: it did not come out of its work; .* SIGKILL"
    assert re.search(told, run.stderr)
    title = live.run("%distributed status").check().displays[0]["text/plain"].splitlines()[0]
    assert title.startswith("session main: 2 of 3 ranks on the CPU are up (")
    late = on_ranks(live, SUM)
    assert late.error is not None
    assert re.search(told, late.error.evalue)


def test_an_interrupt_in_a_callback_of_ipython_is_not_lost(live: NotebookKernel) -> None:
    live.run(
        "def callback(info):\n"
        "    import os, time\n"
        "    if 'slowly' in info.raw_cell and 'RANK' in os.environ:\n"
        "        print('up', flush=True)\n"
        "        time.sleep(0.5)\n"
    ).check()
    on_ranks(live, "get_ipython().events.register('pre_run_cell', callback)").check()
    run = live.start_run("%%distributed\nwent_on = 1\ntime.sleep(1000)  # slowly")
    run.wait_for_text("up")
    live.interrupt()
    run.finish(5)
    assert run.error is not None, run.describe()
    assert run.error.ename == "KeyboardInterrupt", run.describe()
    assert "Error in callback" not in run.stdout
    assert "False" in shown(on_ranks(live, "'went_on' in globals()"))
    on_ranks(live, "get_ipython().events.unregister('pre_run_cell', callback)").check()
    check_good(live)


def test_an_interrupt_that_python_drops_comes_again(live: NotebookKernel) -> None:
    interrupt(
        live,
        """
        class Slow:
            def __del__(self):
                print("up", flush=True)
                while True:
                    time.sleep(0.01)

        mine = 5
        slow = Slow()
        del slow
        while True:
            time.sleep(0.01)
        """,
    )
    check_good(live)
    assert live.value("mine") == 5


def test_a_recursion_without_end(live: NotebookKernel) -> None:
    live.run("def deeper(n):\n    return deeper(n + 1)").check()
    run = on_ranks(live, "mine = 5\ndeeper(0)")
    assert "RecursionError" in failure(run)
    assert run.error is not None
    assert "\n".join(run.error.traceback).count("return deeper(n + 1)") < 500
    assert live.value("mine") == 5
    check_good(live)


def test_a_rank_that_was_debugged_asks_no_questions_afterwards(live: NotebookKernel) -> None:
    failure(on_ranks(live, "if rank == 1: raise ValueError('bad')"))
    live.run("%distributed debug", answers=["q"]).check()
    refused = failure(on_ranks(live, "input('who? ') if rank == 1 else None"))
    assert "rank 0 alone can ask, and this is rank 1" in refused
    check_good(live)


def test_a_failed_rank_can_be_debugged(live: NotebookKernel) -> None:
    failure(on_ranks(live, "for step in range(3):\n    if rank == 1 and step == 2: raise ValueError('bad')"))
    run = live.start_run("%distributed debug", allow_stdin=True)
    run.answer_input("p 'step is', step")
    run.answer_input("q")
    run.finish(20).check()
    assert "('step is', 2)" in run.stdout
    check_good(live)
    late = live.run("%distributed debug")
    assert late.error is not None


LIBRARY = """
import os, sys
os.makedirs("site-packages")
with open("site-packages/takes_long.py", "w") as file:
    file.write(
        "import builtins, pathlib, time\\n"
        "assert not hasattr(builtins, 'begun'), 'cannot be imported a second time'\\n"
        "builtins.begun = True\\n"
        "pathlib.Path('importing').touch()\\n"
        "end = time.monotonic() + 1\\n"
        "while time.monotonic() < end: pass\\n"
    )
sys.path.insert(0, os.path.abspath("site-packages"))
"""


def test_the_import_of_a_library_is_not_broken_off(kernel: NotebookKernel) -> None:
    kernel.run(LIBRARY).check()
    kernel.run("%distributed start --devices 2").check()
    run = kernel.run(
        """
        %%distributed
        import os
        if rank == 1:
            import takes_long
            while True:
                pass
        while not os.path.exists("importing"):
            pass
        raise ValueError("meanwhile")
        """
    )
    assert run.error is not None, run.describe()
    assert run.error.evalue.startswith("rank 0 of 2 failed"), run.describe()
    again = kernel.run("%%distributed --ranks 1\nimport takes_long\nprint(takes_long.end > 0)").check()
    assert again.stdout.endswith("True\n")
    kernel.run("%distributed stop").check()
