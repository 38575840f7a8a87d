"""Live sessions: cells on some of the ranks, several sessions, what is known of their ranks."""

from __future__ import annotations

import re

import pytest
from notebook_kernel import NotebookKernel

IMPORTS = "%%distributed\nimport torch, torch.distributed as dist"


def start(kernel: NotebookKernel, ranks: int, *more: str) -> None:
    kernel.run(f"%distributed start --devices {ranks} --accelerator cpu {' '.join(more)}").check()


def test_a_timeout_among_some_ranks_is_no_former_group(kernel: NotebookKernel) -> None:
    kernel.run("%distributed start --devices 3 --accelerator cpu --timeout 1").check()
    run = kernel.run(
        """
        %%distributed --ranks 0,1
        import time, torch, torch.distributed as dist
        if rank == 0:
            dist.all_reduce(torch.ones(1))
        else:
            time.sleep(1000)
        """
    )
    assert run.error is not None
    assert "Timed out waiting 1000ms" in "\n".join(run.error.traceback)
    assert "process group was left" not in "\n".join([*run.error.traceback, run.stderr])
    kernel.run("%distributed stop").check()


def test_a_cell_on_some_ranks_has_a_process_group_of_its_own(kernel: NotebookKernel) -> None:
    start(kernel, 4)
    kernel.run(f"{IMPORTS}\nmine = 10 * rank").check()
    run = kernel.run(
        """
        %%distributed --ranks 1,3 --gather seen
        import os
        total = torch.tensor(float(local_rank))
        dist.all_reduce(total)
        dist.broadcast(last := torch.tensor(mine), src=1)
        seen = rank, world_size, dist.get_rank(), dist.get_world_size(), os.environ["RANK"], mine, last.item()
        print("on both")
        print("rank", rank)
        total.item()
        """
    ).check()
    assert run.result == {"text/plain": "4.0"}
    assert run.stdout == "on both\n[1] rank 0\n[3] rank 1\n"
    assert kernel.value("seen") == [(0, 2, 0, 2, "0", 10, 30), (1, 2, 1, 2, "1", 30, 30)]
    run = kernel.run(
        """
        %%distributed --gather seen
        total = torch.ones(1)
        dist.all_reduce(total)
        seen = rank, world_size, dist.get_rank(), dist.get_world_size(), os.environ["RANK"], total.item()
        """
    ).check()
    assert kernel.value("seen") == [(rank, 4, rank, 4, str(rank), 4.0) for rank in range(4)]
    kernel.run("%distributed stop").check()


def test_a_subset_trains_and_comes_back_to_its_own_group(kernel: NotebookKernel) -> None:
    start(kernel, 3)
    kernel.run(
        """
        %%distributed --ranks 0,2
        import torch, torch.distributed as dist
        torch.manual_seed(rank)
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        pair = dist.new_group([0, 1])
        """
    ).check()
    kernel.run(f"{IMPORTS}\ngroup = dist.new_group([0, 1])\ndist.all_reduce(torch.ones(1))").check()
    run = kernel.run(
        """
        %%distributed --ranks 0,2 --gather gradient
        net(torch.full((1, 3), 1.0 + rank)).sum().backward()
        gradient = net.module.weight.grad.tolist()
        dist.all_reduce(both := torch.ones(1), group=pair)
        both.item()
        """
    ).check()
    assert run.result == {"text/plain": "2.0"}
    assert kernel.value("gradient") == [[[1.5] * 3]] * 2
    kernel.run("%distributed stop").check()


def test_a_subset_may_destroy_its_group_and_the_sessions_stay(kernel: NotebookKernel) -> None:
    start(kernel, 3)
    kernel.run(f"{IMPORTS}\npair = dist.new_group([0, 2])").check()
    run = kernel.run(
        """
        %%distributed --ranks 0,2
        dist.all_reduce(x := torch.ones(1), group=pair)
        dist.destroy_process_group()
        was = dist.is_initialized()
        dist.init_process_group("gloo")
        dist.all_reduce(x)
        dist.destroy_process_group()
        was, x.item()
        """
    ).check()
    assert run.result == {"text/plain": "(False, 4.0)"}
    run = kernel.run(
        """
        %%distributed
        import torch.distributed._functional_collectives as functional
        dist.all_reduce(x := torch.ones(1))
        if rank != 1:
            dist.all_reduce(x, group=pair)
        x += functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD).wait()  # by the group's name, in C++
        x.item()
        """
    ).check()
    assert run.result == {"text/plain": "9.0"}
    kernel.run("%distributed stop").check()


def test_names_of_a_subset_are_there_for_the_others(kernel: NotebookKernel) -> None:
    start(kernel, 3)
    kernel.run("scale = 3").check()
    kernel.run("%%distributed --ranks 1,2\nx = 10 * local_rank * scale").check()
    assert kernel.value("x") == 30
    kernel.run("%%distributed --gather seen\nseen = x, scale").check()
    assert kernel.value("seen") == [(30, 3), (30, 3), (60, 3)]
    kernel.run("%distributed stop").check()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--ranks 0,4", "--ranks 0,4: this session has no rank 4. Allowed: ranks 0 to 2."),
        ("--ranks 1,1", "--ranks 1,1: a rank is named twice."),
        ("--ranks one", "--ranks one: not a whole number."),
    ],
)
def test_wrong_ranks_are_refused(kernel: NotebookKernel, line: str, message: str) -> None:
    start(kernel, 3)
    error = kernel.run(f"%%distributed {line}\nx = 1").error
    assert error is not None
    assert message in error.text
    assert kernel.run("%%distributed --ranks 2\nrank").check().result == {"text/plain": "0"}
    kernel.run("%distributed stop").check()


def test_without_a_session_there_are_no_ranks_to_choose_from(kernel: NotebookKernel) -> None:
    error = kernel.run("%%distributed --ranks 0\nx = 1").error
    assert error is not None
    assert "%distributed start" in error.text


def test_who_waits_for_an_idle_rank_is_told(kernel: NotebookKernel) -> None:
    start(kernel, 3)
    kernel.run(f"{IMPORTS}\nwhole = dist.group.WORLD").check()
    error = kernel.run("%%distributed --ranks 1\ndist.all_reduce(torch.ones(1), group=whole)").error
    assert error is not None
    assert "rank 1 of 3 failed at line 2" in error.text
    assert "ranks 0,2 take no part in this cell (--ranks)" in error.text
    kernel.run("%distributed stop").check()


def test_a_failure_in_a_subset_leaves_all_ranks_with_fresh_groups(kernel: NotebookKernel) -> None:
    start(kernel, 3)
    kernel.run(f"{IMPORTS}\nmine = rank").check()
    error = kernel.run(
        """
        %%distributed --ranks 1,2
        x = torch.ones(1)
        dist.all_reduce(x)
        if rank == 0:
            1 / 0
        dist.all_reduce(x)
        """
    ).error
    assert error is not None
    assert "rank 1 of 3 failed at line 5: ZeroDivisionError" in error.text
    reduce = "dist.all_reduce(x := torch.ones(1))\nx.item(), mine"
    assert kernel.run(f"%%distributed --ranks 1,2\n{reduce}").check().result == {"text/plain": "(2.0, 1)"}
    assert kernel.run(f"%%distributed\n{reduce}").check().result == {"text/plain": "(3.0, 0)"}
    kernel.run("%distributed stop").check()


def test_an_interrupt_in_a_subset_leaves_all_ranks_with_fresh_groups(kernel: NotebookKernel) -> None:
    start(kernel, 3)
    kernel.run(IMPORTS).check()
    run = kernel.start_run(
        """
        %%distributed --ranks 0,2
        import threading
        print("begun", flush=True)
        if rank == 0:
            threading.Event().wait()
        dist.all_reduce(torch.ones(1))
        """
    ).wait_for_text("begun")
    kernel.interrupt()
    assert run.finish().error is not None
    assert (run.error.ename, run.error.evalue) == ("KeyboardInterrupt", "ranks 0,2 were stopped")
    reduce = "dist.all_reduce(x := torch.ones(1))\nx.item()"
    assert kernel.run(f"%%distributed\n{reduce}").check().result == {"text/plain": "3.0"}
    assert kernel.run(f"%%distributed --ranks 0,2\n{reduce}").check().result == {"text/plain": "2.0"}
    kernel.run("%distributed stop").check()


def test_the_lowest_of_a_subset_asks(kernel: NotebookKernel) -> None:
    start(kernel, 3)
    run = kernel.run(
        '%%distributed --ranks 1,2\nname = input("who? ") if rank == 0 else "nobody"\nname', answers=["me"]
    ).check()
    assert run.result == {"text/plain": "'me'"}
    kernel.run("%distributed stop").check()


def test_what_is_up_is_shown_as_a_table(kernel: NotebookKernel) -> None:
    started = kernel.run("%distributed start --devices 3 --accelerator cpu").check()
    assert started.stdout == (
        "session main: 3 ranks on the CPU are up: %%distributed runs a cell there, %distributed stop ends it.\n"
    )
    kernel.run(f"{IMPORTS}\nbig = torch.ones(2**18)\nnet = torch.nn.Linear(3, 4)").check()
    kernel.run("%%distributed --ranks 1\nx = 1").check()
    (shown,) = kernel.run("%distributed status").check().displays
    title, heads, *rows, names = shown["text/plain"].splitlines()
    assert title.startswith("session main: 3 ranks on the CPU are up (gloo, started by ")
    assert heads.split() == ["rank", "pid", "device", "state", "memory", "cells"]
    pids = [kernel.processes()[int(row.split()[1])].pid for row in rows]
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    assert len(set(pids)) == 3
    assert [row.split()[2:4] for row in rows] == [["cpu", "idle"]] * 3
    assert [row.split()[-2:] for row in rows] == [["MiB", "1"], ["MiB", "2"], ["MiB", "1"]]
    assert names == "names on rank 0: big (Tensor, 1.0 MiB), net (Linear, 64 bytes)"
    assert "<table style=" in shown["text/html"]
    assert not {"<style", "<script", "<svg"} & set(re.findall(r"<\w+", shown["text/html"]))
    kernel.run("%distributed stop").check()
    assert kernel.run("%distributed status").check().stdout.startswith("No ranks are up.")


BUSY = """
import nbdist, os, threading, time
def wait():
    open("begun", "w").close()
    while not os.path.exists("seen"):
        time.sleep(0.01)
def look(session, seen):
    while not os.path.exists("begun"):
        time.sleep(0.01)
    seen.append(session.status())
    open("seen", "w").close()
seen = []
with nbdist.Session(devices=2, accelerator="cpu") as session:
    session.run(print, "hello")
    thread = threading.Thread(target=look, args=(session, seen))
    thread.start()
    session.run(wait)
    thread.join()
    idle = session.status()
    os.kill(idle.ranks[1].pid, 9)
    while session.status().ranks[1].state != "dead":
        time.sleep(0.01)
    dead = session.status().ranks
    logs = session.logs(0), session.logs(1)
(busy,) = seen
"""


def test_status_waits_for_no_rank_and_says_how_one_died(kernel: NotebookKernel) -> None:
    kernel.run(BUSY).check()
    assert kernel.value("[(rank.state, rank.cells) for rank in busy.ranks]") == [("running", 2)] * 2
    assert kernel.value("[(rank.state, rank.cells) for rank in idle.ranks]") == [("idle", 2)] * 2
    assert kernel.value("[rank.state for rank in dead]") == ["idle", "dead"]
    assert "was ended by SIGKILL" in str(kernel.value("dead[1].detail"))
    assert kernel.value("logs") == ("hello\n", "hello\n")


def test_logs_show_the_last_lines_of_each_rank(kernel: NotebookKernel) -> None:
    start(kernel, 2)
    kernel.run(
        "%%distributed --logs none\nfor n in range(300): print(n, rank)\n"
        'for n in range(5): print(n, end="\\r")\nprint("over")'
    ).check()
    assert kernel.run("%distributed logs 1").check().stdout.splitlines() == [
        *(f"{n} 1" for n in range(101, 300)),
        "over",
    ]
    both = kernel.run("%distributed logs").check().stdout.splitlines()
    assert (both[0], both[1], both[51], both[-1]) == ("rank 0:", "251 0", "rank 1:", "over")
    error = kernel.run("%distributed logs 2").error
    assert error is not None
    assert "There is no rank 2. Allowed: 0 to 1." in error.text
    kernel.run("%distributed stop").check()


def test_sessions_live_side_by_side(kernel: NotebookKernel) -> None:
    start(kernel, 2)
    start(kernel, 3, "--name eval")
    kernel.run("%%distributed\nwho = 'main'").check()
    kernel.run("%%distributed --name eval\nwho = 'eval'").check()
    assert kernel.run("%%distributed\nworld_size").check().result == {"text/plain": "2"}
    assert kernel.run("%%distributed --name eval\nworld_size").check().result == {"text/plain": "3"}
    assert len(kernel.run("%distributed status").check().displays) == 2
    stacks = kernel.run("%distributed stacks").check().stdout
    assert stacks == "session main:\nranks 0-1 have finished\nsession eval:\nranks 0-2 have finished\n"
    stopped = kernel.run("%distributed stop").check()
    assert stopped.stdout == (
        "session main has ended.\n"
        "session eval: 3 ranks on the CPU are up: %distributed stop --name eval ends it.\n"
    )
    assert kernel.run("%%distributed --name eval\nworld_size").check().result == {"text/plain": "3"}
    start(kernel, 2)
    assert (
        kernel.run("%distributed stop --all").check().stdout
        == "session eval has ended.\nsession main has ended.\n"
    )
    assert kernel.run("%distributed stop").check().stdout == "No ranks are up.\n"
    error = kernel.run("%%distributed --name eval\n1").error
    assert error is not None
    assert (
        "There is no session 'eval'. None is up. Start its ranks first: %distributed start --name eval."
        in (error.text)
    )


def test_options_of_the_start_hold_for_its_cells(kernel: NotebookKernel) -> None:
    start(kernel, 3, "--seed 1 --logs rank0")
    run = kernel.run(
        "%%distributed -d 3 --accelerator cpu --backend gloo --seed 1 --start-method auto\nprint('x', rank)"
    )
    assert run.check().stdout == "x 0\n"
    assert kernel.run("%%distributed --logs all\nprint(rank)").check().stdout == "[0] 0\n[1] 1\n[2] 2\n"
    for line in ("--devices 2", "--seed 2", "--timeout 60", "--no-init", "--accelerator cuda"):
        error = kernel.run(f"%%distributed {line}\nx = 1").error
        assert error is not None
        assert f"{line}: session main: 3 ranks on the CPU are up, and this is settled" in error.text
        assert f"%distributed start --name other {line}" in error.text
    kernel.run("%distributed stop").check()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sttaus", "%distributed sttaus: no such command (did you mean status?). Allowed: start, "),
        ("--devices 4", "write %%distributed, with two percent signs"),
        ("stop now", "Allowed: %distributed stop [--name NAME | --all]."),
        ("stop --devices 2", "Allowed: %distributed stop [--name NAME | --all]."),
        ("status 1", "Allowed: %distributed status [--name NAME]."),
        ("logs 0 1", "Allowed: %distributed logs [RANK] [--name NAME]."),
        ("logs", "There is no session 'main'. None is up. Start its ranks first: %distributed start."),
        ("stop --name eval", "There is no session 'eval'."),
        ("start --ranks 0,1", "--ranks 0,1: says something of one cell"),
        ("stacks 1", "Allowed: %distributed stacks."),
    ],
)
def test_wrong_commands_say_what_is_right(kernel: NotebookKernel, line: str, message: str) -> None:
    error = kernel.run(f"%distributed {line}").error
    assert error is not None
    assert message in error.text


def test_tab_completes_commands_and_their_options(kernel: NotebookKernel) -> None:
    assert kernel.complete("%distributed sta") == ["stacks", "start", "status"]
    assert kernel.complete("%distributed start --dev") == ["--devices"]
    assert kernel.complete("%distributed start --logs ra") == ["rank0"]
    assert kernel.complete("%distributed start --rank") == []
    assert kernel.complete("%distributed stop --") == ["--all", "--name"]
    assert kernel.complete("%%distributed --rank") == ["--ranks"]
    start(kernel, 1, "--name eval")
    assert kernel.complete("%distributed stop --name e") == ["eval"]
    assert kernel.complete("%%distributed --name ") == ["eval"]
    kernel.run("%distributed stop --all").check()


def test_sessions_of_python_and_of_the_magic_are_the_same_ones(kernel: NotebookKernel) -> None:
    kernel.run(
        "import nbdist\n"
        "three = nbdist.Session(devices=3, accelerator='cpu', name='three')\nthree.start()\n"
        "nameless = nbdist.Session(devices=1, accelerator='cpu')\nnameless.start()"
    ).check()
    titles = [shown["text/plain"] for shown in kernel.run("%distributed status").check().displays]
    assert [title.partition(":")[0] for title in titles] == ["session three", "session python-1"]
    assert all("idle" in title and "running" not in title for title in titles)
    assert kernel.run("%%distributed --name three\nworld_size").check().result == {"text/plain": "3"}
    for second in ("nbdist.Session(name='three').start()", "%distributed start --name three"):
        error = kernel.run(second).error
        assert error is not None
        assert "session three: 3 ranks on the CPU are up already." in error.text
    assert kernel.run("%distributed stop --name python-1").check().stdout == "session python-1 has ended.\n"
    assert kernel.value("(three.running, nameless.running)") == (True, False)
    kernel.run("%reload_ext nbdist").check()
    assert kernel.value("three.running") is False
    assert kernel.processes() == {}


def test_pull_and_push_say_what_they_did_or_why_not(kernel: NotebookKernel) -> None:
    start(kernel, 2)
    kernel.run("%%distributed\nlarge = [rank] * 1_000_000").check()
    kernel.run("here = 1").check()
    for line, message in (
        (
            "pull largo",
            "pull largo: rank 0 did not hand over largo: this rank did not bind it (did you mean large?)",
        ),
        ("pull here", "pull here: the ranks have no here, only the notebook has."),
        ("pull here --rank 1", "rank 1 did not hand over here: this rank did not bind it."),
        ("pull largo --rank 1", "rank 1 did not hand over largo: this rank did not bind it"),
        ("pull large --rank 2", "pull large: rank 2 is not up. Allowed: 0, 1."),
        ("pull large --rank", "Allowed: %distributed pull NAMES [--rank N] [--name NAME]."),
        ("push hero", "push hero: the notebook has no hero (did you mean here?)."),
    ):
        error = kernel.run(f"%distributed {line}").error
        assert error is not None, line
        assert message in error.text
    run = kernel.run("%distributed pull large --rank 1").check()
    assert (run.stdout, run.stderr) == ("brought from rank 1: large.\n", "")
    assert kernel.value("large[0]") == 1
    run = kernel.run("%distributed pull large").check()
    assert (run.stdout, kernel.value("large[0]")) == ("brought from rank 0: large.\n", 0)
    assert kernel.run("%distributed push here").check().stdout == "sent to the ranks of session main: here.\n"
    kernel.run("%distributed stop").check()


def test_the_overview_of_commands(kernel: NotebookKernel) -> None:
    alone = kernel.run("%distributed").check().stdout
    assert "  %distributed pull NAMES [--rank N] [--name NAME] " in alone
    assert kernel.run("%distributed help").check().stdout == alone
    whole = kernel.run("%distributed --help").check().stdout
    assert whole.startswith("Commands for ranks that stay")
    assert "--start-method" in whole
    assert kernel.run("%%distributed --help").check().stdout == whole


def test_tab_offers_names_and_ranks(kernel: NotebookKernel) -> None:
    kernel.run("notebooks_own = 1").check()
    start(kernel, 2)
    kernel.run("%%distributed\nlarge_there = [rank] * 1_000_000").check()
    assert kernel.complete("%distributed pull larg") == ["large_there"]
    assert kernel.complete("%distributed push notebooks_") == ["notebooks_own"]
    assert kernel.complete("%distributed logs ") == ["0", "1"]
    assert kernel.complete("%distributed pull --") == ["--name", "--rank"]
    kernel.run("%distributed stop").check()


def test_what_cannot_be_sent_is_called_as_the_user_calls_it(kernel: NotebookKernel) -> None:
    kernel.run("import nbdist, os\ns = nbdist.Session(devices=1, accelerator='cpu')\ns.start()").check()
    kernel.run("file = open(os.devnull)").check()
    for call, place in (
        ("s.push(rate=1, x=file)", "x is an open file"),
        ("s.run(print, 1, [file])", "args[1][0] is an open file"),
        ("s.run(print, file=file)", "file is an open file"),
    ):
        error = kernel.run(call).error
        assert error is not None
        assert f"The call cannot be sent to the ranks: {place}" in error.text
    error = kernel.run("nbdist.launch(print, gather='x')").error
    assert error is not None
    assert "gather='x': brings back names that a cell binds" in error.text
    kernel.run("s.stop()\nfile.close()").check()


def test_what_is_no_function_is_refused_here(kernel: NotebookKernel) -> None:
    start(kernel, 2)
    kernel.run("import nbdist\nsession = nbdist.session.session_named('main')").check()
    for call in ("session.run('train')", "nbdist.launch('train', devices=2)"):
        kernel.run(f"try:\n    {call}\nexcept TypeError as error:\n    told = str(error)").check()
        assert kernel.value("told").endswith("('train'): not callable. Pass a function, then its arguments.")
    kernel.run("%distributed stop").check()
