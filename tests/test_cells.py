"""What a cell may hold: all that an ordinary cell may, on any number of ranks."""

from __future__ import annotations

import pytest
from notebook_kernel import NotebookKernel

# ── Ranks ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [1, 2, 5, 32])
def test_a_cell_runs_on_n_ranks(kernel: NotebookKernel, count: int) -> None:
    run = kernel.run(
        f"""
        %%distributed --devices {count} --gather seen
        import os, torch, torch.distributed as dist
        x = torch.ones(1, device=device) * (rank + 1)
        dist.all_reduce(x)
        seen = (rank, local_rank, world_size, dist.get_rank(), x.item(), os.getpid(), os.getppid())
        x.item()
        """
    ).check()
    total = count * (count + 1) / 2
    assert run.result == {"text/plain": str(total)}
    seen = kernel.value("seen")
    assert [of_rank[:5] for of_rank in seen] == [(r, r, count, r, total) for r in range(count)]
    pids = {of_rank[5] for of_rank in seen}
    assert len(pids) == count  # a process each,
    assert {of_rank[6] for of_rank in seen} == {kernel.pid}  # and the kernel's own child


def test_collectives(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 3
        import torch, torch.distributed as dist

        gathered = [None] * world_size
        dist.all_gather_object(gathered, {"rank": rank})
        print(gathered)

        weights = torch.full((2,), float(rank))
        dist.broadcast(weights, src=2)
        print(weights)

        mine = torch.zeros(1)
        shares = [torch.tensor([10.0 * r]) for r in range(world_size)] if rank == 0 else None
        dist.scatter(mine, shares, src=0)
        print(mine.item())

        if rank == 0:
            dist.send(torch.tensor([7]), dst=1)
        elif rank == 1:
            letter = torch.zeros(1, dtype=torch.int64)
            dist.recv(letter, src=0)
            print("from 0:", letter.item())

        pair = dist.new_group([0, 2])
        if rank != 1:
            y = torch.ones(1)
            dist.all_reduce(y, group=pair)
            print("pair:", y.item())
        dist.barrier()
        """
    ).check()
    assert run.stderr.startswith("nbdist: pair stays behind: ")
    lines = run.stdout.splitlines()
    assert lines[:2] == ["[{'rank': 0}, {'rank': 1}, {'rank': 2}]", "tensor([2., 2.])"]
    # Each rank's own order, whatever stands between.
    assert [line for line in lines[2:] if line.startswith("[0")] == ["[0] 0.0", "[0,2] pair: 2.0"]
    assert sorted(lines[2:]) == ["[0,2] pair: 2.0", "[0] 0.0", "[1] 10.0", "[1] from 0: 7", "[2] 20.0"]


# ── Ready-made names ────────────────────────────────────────────────────────────────────────────────────────


def test_ready_made_names_shadow_the_notebooks_own(kernel: NotebookKernel) -> None:
    kernel.run('rank, device = "captain", "toaster"\n\ndef who():\n    return rank').check()
    run = kernel.run(
        "%%distributed --devices 2\nprint(who(), rank, local_rank, world_size, repr(device))"
    ).check()
    assert run.stdout == "[0] 0 0 0 2 device(type='cpu')\n[1] 1 1 1 2 device(type='cpu')\n"
    assert kernel.value("(rank, device, who())") == ("captain", "toaster", "captain")
    assert kernel.value("[name for name in ('local_rank', 'world_size') if name in globals()]") == []


def test_ready_made_names_come_back_if_the_cell_assigns_them(kernel: NotebookKernel) -> None:
    kernel.run('rank = "captain"').check()
    kernel.run('%%distributed --devices 2\nrank = rank + 10\ndevice = "toaster"').check()
    assert kernel.value("(rank, device)") == (10, "toaster")
    assert kernel.value("'world_size' in globals()") is False


def test_ready_made_names_stay_away_if_nothing_was_assigned_to_them(kernel: NotebookKernel) -> None:
    kernel.run('rank = "captain"').check()
    kernel.run(
        """
        %%distributed --devices 2
        if world_size > 2:
            rank = device = "never"
        """
    ).check()
    assert kernel.value("rank") == "captain"
    assert kernel.value("'device' in globals()") is False


def test_ready_made_names_are_taken_back_after_a_failure(kernel: NotebookKernel) -> None:
    kernel.run('rank = "captain"').check()
    assert kernel.run("%%distributed --devices 2\n1 / 0").status == "error"
    assert kernel.value("rank") == "captain"
    assert kernel.value("[name for name in ('device', 'world_size') if name in globals()]") == []


# ── All that an ordinary cell may hold ──────────────────────────────────────────────────────────────────────


def test_top_level_await(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import asyncio

        async def square(x):
            await asyncio.sleep(0.001)
            return x * x

        squares = await asyncio.gather(*(square(rank + n) for n in range(3)))
        async with asyncio.timeout(5) if hasattr(asyncio, "timeout") else asyncio.Lock():
            print(squares)
        await square(12)
        """
    ).check()
    assert run.stdout == "[0] [0, 1, 4]\n[1] [1, 4, 9]\n"
    assert run.result == {"text/plain": "144"}
    # The notebook's own event loop has not suffered.
    assert kernel.run("await square(3)").check().result == {"text/plain": "9"}


def test_shell_commands_and_magics(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        !echo hello from the shell
        listing = !printf 'one\\ntwo\\n'
        print(listing)
        !echo rank {rank} of $world_size
        here = %pwd
        %timeit -n 1 -r 1 pass
        """
    ).check()
    lines = run.stdout.splitlines()
    assert lines[:4] == ["hello from the shell", "['one', 'two']", "[0] rank 0 of 2", "[1] rank 1 of 2"]
    assert any("1 run, 1 loop each" in line for line in lines)
    assert kernel.value("(list(listing), here)") == (["one", "two"], str(kernel.working_folder))


def test_cell_magics_below_the_magic(kernel: NotebookKernel) -> None:
    timed = kernel.run("%%distributed --devices 2\n%%time\nx = rank + 41\nprint('worked')").check()
    assert timed.stdout.count("worked\n") == 1
    assert "Wall time" in timed.stdout
    assert kernel.value("x") == 41
    shell = kernel.run('%%distributed --devices 2\n%%bash\necho "rank $RANK of $WORLD_SIZE"').check()
    assert shell.stdout == "[0] rank 0 of 2\n[1] rank 1 of 2\n"
    captured = kernel.run("%%distributed --devices 2\n%%capture said\nprint('to myself')").check()
    assert captured.stdout == ""
    assert kernel.value("said.stdout") == "to myself\n"


def test_text_that_is_hard_to_place(kernel: NotebookKernel) -> None:
    assert kernel.run("%%distributed --devices 2\n\n\n# a comment\n\nworld_size  # again").check().result == {
        "text/plain": "2"
    }
    run = kernel.run(
        '%%distributed --devices 2\ntext = """\n%not_a_magic\n!not a command\n"""\nprint(__name__)'
    ).check()
    assert run.stdout == "__main__\n"
    assert kernel.value("text") == "\n%not_a_magic\n!not a command\n"
    assert kernel.run("%%distributed --devices 2\n# nothing but a comment").check().result is None


def test_displays(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        from IPython.display import HTML, Markdown, display
        display(HTML("<b>from all</b>"))
        if rank == 0:
            display(Markdown("*from the first*"))
        HTML("<i>the last</i>")
        """
    ).check()
    assert [bundle.get("text/html") or bundle.get("text/markdown") for bundle in run.displays] == [
        "<b>from all</b>",
        "*from the first*",
    ]
    assert run.stdout == ""
    assert run.result is not None
    assert run.result["text/html"] == "<i>the last</i>"


def test_figures_are_shown_as_from_an_ordinary_cell(kernel: NotebookKernel) -> None:
    kernel.run("%matplotlib inline\nimport matplotlib.pyplot as plt").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        if rank == 0:
            print("before")
            plt.plot([1, 2, 3])
            plt.title("losses")
            plt.show()
            print("after")
        """
    ).check()
    assert [sorted(bundle) for bundle in run.displays] == [["image/png", "text/plain"]]
    assert run.stdout == "[0] before\n[0] after\n"
    shown = [message.msg_type for message in run.messages if message.msg_type in ("stream", "display_data")]
    assert shown == ["stream", "display_data", "stream"]


def test_a_figure_without_show_is_shown_at_the_cells_end_once(kernel: NotebookKernel) -> None:
    kernel.run("%matplotlib inline\nimport matplotlib.pyplot as plt").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        figure, axes = plt.subplots()
        axes.plot([1, 2, 3])
        axes.set_title("losses");
        """
    ).check()
    assert len(run.displays) == 1
    assert "image/png" in run.displays[0]
    assert kernel.run("1").displays == []
    assert kernel.value("axes.get_title()") == "losses"
    assert kernel.value("figure.axes[0] is axes") is True


def test_data_loader_with_workers(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Squares(Dataset):
            def __len__(self):
                return 12
            def __getitem__(self, index):
                return torch.tensor(index**2)
        """
    ).check()
    run = kernel.run(
        """
        %%distributed --devices 2
        loader = DataLoader(Squares(), batch_size=4, num_workers=2, persistent_workers=True)
        for epoch in range(2):
            print([batch.tolist() for batch in loader])
        unfinished = iter(DataLoader(Squares(), num_workers=2))
        print(next(unfinished).item())
        plain = DataLoader(Squares(), batch_size=4, num_workers=2)
        print([batch.tolist() for batch in plain])
        """
    ).check()
    batches = "[[0, 1, 4, 9], [16, 25, 36, 49], [64, 81, 100, 121]]\n"
    assert run.stdout == batches + batches + "0\n" + batches
    # Those that hold worker processes cannot come back; the other one works here, too.
    named = sorted(line.partition(" stays behind: ")[0] for line in run.stderr.splitlines())
    assert named == ["nbdist: loader", "nbdist: unfinished"]
    assert kernel.value("[batch.tolist() for batch in plain]") == [
        [0, 1, 4, 9],
        [16, 25, 36, 49],
        [64, 81, 100, 121],
    ]


def test_a_pool_of_processes(kernel: NotebookKernel) -> None:
    kernel.run("def square(x):\n    return x * x").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool:
            squares = pool.map(square, range(rank, rank + 4))
        print(squares)
        """
    ).check()
    assert run.stdout == "[0] [0, 1, 4, 9]\n[1] [1, 4, 9, 16]\n"
    assert kernel.value("squares") == [0, 1, 4, 9]


def test_threads_that_a_cell_leaves_running_do_not_keep_it(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import threading
        def wait():
            threading.Event().wait()
        threading.Thread(target=wait).start()
        threading.Thread(target=wait, daemon=True).start()
        """
    ).check()
    assert run.stderr == ""


# ── Definitions ─────────────────────────────────────────────────────────────────────────────────────────────


def test_classes_and_functions_of_the_notebook_serve_the_ranks(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        from dataclasses import dataclass
        from enum import Enum

        class Mode(Enum):
            FAST = 1

        @dataclass
        class Point:
            x: float
            mode: Mode = Mode.FAST
            def moved(self, by):
                return Point(self.x + by * SCALE)

        SCALE = 10

        def compute(point):
            return point.moved(1)
        """
    ).check()
    kernel.run(
        """
        %%distributed --devices 2
        moved = compute(Point(1))
        points = [Point(n) for n in range(2)]
        make = Point
        """
    ).check()
    assert kernel.value("(type(moved) is Point, moved == Point(11), moved.mode is Mode.FAST)") == (True,) * 3
    assert kernel.value("isinstance(points[1], Point) and make is Point") is True


def test_classes_and_functions_of_the_cell_serve_the_notebook(kernel: NotebookKernel) -> None:
    kernel.run("import inspect, pickle\nSCALE = 10").check()
    kernel.run(
        """
        %%distributed --devices 2
        import torch, functools
        from typing import NamedTuple

        class Net(torch.nn.Module):
            def __init__(self, width=3):
                super().__init__()
                self.layer = torch.nn.Linear(2, width)
            def forward(self, x):
                return self.layer(x) * SCALE

        class WideNet(Net):
            def __init__(self):
                super().__init__(width=30)

        class Pair(NamedTuple):
            a: int
            b: int = 2

        def scaled(x, *, by=2):
            "Scales."
            return x * by * SCALE

        def factorial(n):
            return n * factorial(n - 1) if n else 1

        def count():
            yield from range(SCALE)

        triple = functools.partial(scaled, by=3)
        shout = lambda text: text.upper()
        net, wide, pair = Net(), WideNet(), Pair(1)
        """
    ).check()
    checks = (
        "type(net) is Net and type(wide) is WideNet and issubclass(WideNet, Net)",
        "isinstance(wide, torch.nn.Module) and Net().layer.weight.shape == (3, 2)",
        "WideNet()(torch.ones(1, 2)).shape == (1, 30)",
        "type(pair) is Pair and pair == (1, 2)",
        "scaled(1) == 20 and triple(1) == 30 and scaled.__doc__ == 'Scales.'",
        "factorial(5) == 120 and sum(count()) == 45 and shout('a') == 'A'",
        "type(pickle.loads(pickle.dumps(wide))) is WideNet",
        "inspect.getsource(scaled).endswith('return x * by * SCALE\\n')",
    )
    assert [check for check in checks if not kernel.value(check)] == []
    # Their globals are the notebook's: what it binds later counts.
    kernel.run("SCALE = 1").check()
    assert kernel.value("(scaled(1), triple(1), sum(count()))") == (2, 3, 0)
    kernel.run("def factorial(n):\n    return 'replaced'").check()
    assert kernel.value("factorial(5)") == "replaced"
    # And they serve the next cell's ranks.
    run = kernel.run("%%distributed --devices 2\nisinstance(Net(), type(net)), scaled(rank + 1)").check()
    assert run.result == {"text/plain": "(True, 2)"}


def test_names_are_seen_and_bound_as_in_an_ordinary_cell(kernel: NotebookKernel) -> None:
    kernel.run("count = 1\nwords = ['a']\nOLD = 5").check()
    kernel.run(
        """
        %%distributed --devices 2
        from math import *
        from contextlib import nullcontext
        import os.path as paths

        def bump():
            global count
            count += 1

        bump()
        exec("made_by_exec = 3")
        globals()["made_by_globals"] = 4
        for letter in words:
            with nullcontext("text") as opened:
                pass
        if (length := len(words)) == 1:
            del OLD
        _hidden = "seen"
        *first, last = "abc"
        """
    ).check()
    assert kernel.value("(count, made_by_exec, made_by_globals, letter, opened, length)") == (
        2,
        3,
        4,
        "a",
        "text",
        1,
    )
    assert kernel.value("(_hidden, first, last, sqrt(4), paths.basename('a/b'))") == (
        "seen",
        ["a", "b"],
        "c",
        2.0,
        "b",
    )
    assert kernel.value("'OLD' in globals()") is False


# ── torch.distributed's own ways ────────────────────────────────────────────────────────────────────────────

TUTORIAL = """
    import os
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.optim as optim
    from torch.nn.parallel import DistributedDataParallel as DDP

    def setup(rank, world_size):
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = "12355"
        dist.init_process_group("gloo", rank=rank, world_size=world_size)

    def cleanup():
        dist.destroy_process_group()

    class ToyModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.net1 = nn.Linear(10, 10)
            self.relu = nn.ReLU()
            self.net2 = nn.Linear(10, 5)

        def forward(self, x):
            return self.net2(self.relu(self.net1(x)))

    def demo_basic(rank, world_size):
        setup(rank, world_size)
        model = ToyModel()
        ddp_model = DDP(model)
        loss_fn = nn.MSELoss()
        optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(20, 10) + rank)
        loss_fn(outputs, torch.randn(20, 5)).backward()
        optimizer.step()
        cleanup()
        return model
    """


def test_a_tutorial_runs_as_it_is_any_number_of_times(kernel: NotebookKernel) -> None:
    kernel.run(TUTORIAL).check()
    run = kernel.run(
        """
        %%distributed --devices 2
        for attempt in range(4):
            model = demo_basic(rank, world_size)
            print(attempt, dist.is_initialized())
        setup(rank, world_size)
        weights = [torch.empty_like(model.net1.weight) for _ in range(world_size)]
        dist.all_gather(weights, model.net1.weight.detach())
        print("same weights:", torch.equal(*weights))
        """
    ).check()
    assert run.stdout == "".join(f"{attempt} False\n" for attempt in range(4)) + "same weights: True\n"
    assert run.stderr == ""
    assert kernel.value("type(model) is ToyModel and dist.is_initialized() is False") is True
    assert kernel.value("'MASTER_PORT' in os.environ") is False


def test_init_process_group_gives_the_group_that_exists(kernel: NotebookKernel) -> None:
    kernel.run("from torch.distributed import init_process_group").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        import os, datetime, torch, torch.distributed as dist
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "10.0.0.1", "29500"
        before = dist.group.WORLD
        init_process_group()
        init_process_group("gloo")
        dist.init_process_group(backend="gloo", init_method="env://", timeout=datetime.timedelta(minutes=5))
        dist.init_process_group("gloo", "tcp://10.1.1.20:23456", rank=rank, world_size=world_size)
        print(dist.group.WORLD is before)
        dist.destroy_process_group()
        print(dist.is_initialized())
        init_process_group("gloo", init_method="tcp://10.1.1.20:23456", rank=rank, world_size=world_size)
        dist.barrier()
        print(dist.is_initialized())
        """
    ).check()
    assert run.stdout == "True\nFalse\nTrue\n"


@pytest.mark.parametrize(
    ("call", "phrases"),
    [
        ("dist.init_process_group('mpi')", ["backend='mpi'", "'gloo'", "--backend"]),
        ("dist.init_process_group('gloo', rank=rank, world_size=4)", ["world_size=4", "2", "--devices"]),
        ("rank or dist.init_process_group('gloo', rank=5, world_size=2)", ["rank=5", "rank 0", "ready-made"]),
    ],
)
def test_init_process_group_with_other_arguments_names_both(
    kernel: NotebookKernel, call: str, phrases: list[str]
) -> None:
    run = kernel.run(f"%%distributed --devices 2\nimport torch.distributed as dist\n{call}")
    assert run.error is not None, run.describe()
    assert "at line 3: OptionError: init_process_group(" in run.error.evalue
    assert [phrase for phrase in phrases if phrase not in run.error.evalue] == []


def test_programs_that_a_cell_starts_find_torchruns_environment(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2 --gather seen
        import json, subprocess, sys
        code = "import json, os; print(json.dumps(dict(os.environ)))"
        seen = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
        seen = {name: value for name, value in seen.items() if not name.startswith("NOTEBOOK_KERNEL")}
        """
    ).check()
    assert run.stderr == ""
    environments = kernel.value("seen")
    for rank, environment in enumerate(environments):
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        assert expected.items() <= environment.items()
    assert environments[0]["MASTER_PORT"] == environments[1]["MASTER_PORT"]
    assert environments[0]["TORCHELASTIC_RUN_ID"] == environments[1]["TORCHELASTIC_RUN_ID"]


def test_a_cell_may_host_a_store_of_its_own(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        %%distributed --devices 2 --gather heard
        import os, torch.distributed as dist
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*place, world_size, is_master=rank == 0)
        store.set(f"from {rank}", f"word of {rank}")
        heard = store.get(f"from {1 - rank}").decode()
        """
    ).check()
    assert kernel.value("heard") == ["word of 1", "word of 0"]


def test_a_script_of_torchruns_kind_meets_its_peers(kernel: NotebookKernel) -> None:
    script = kernel.working_folder / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        'dist.init_process_group("gloo", init_method="env://")\n'
        "x = torch.ones(1) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(x)\n"
        "print(x.item())\n"
        "dist.destroy_process_group()\n"
    )
    run = kernel.run("%%distributed --devices 2\n!{__import__('sys').executable} train.py").check()
    assert (run.stdout, run.stderr) == ("3.0\n", "")


# ── The notebook stays as it was ────────────────────────────────────────────────────────────────────────────


def test_what_belongs_to_a_ranks_process_stays_there(kernel: NotebookKernel) -> None:
    kernel.run("import os, signal, torch\nfrom os import environ").check()
    state = """(
        dict(os.environ), environ is os.environ, torch.get_num_threads(), os.umask(0o22),
        signal.getsignal(signal.SIGUSR1), os.getpriority(os.PRIO_PROCESS, 0)
    )"""
    before = kernel.value(state)
    run = kernel.run(
        """
        %%distributed --devices 2
        print(environ["RANK"], os.environ["LOCAL_RANK"])
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "10.0.0.1", "1"
        del os.environ["RANK"]
        torch.set_num_threads(1)
        os.umask(0o77)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        os.nice(1)
        """
    ).check()
    assert run.stdout == "[0] 0 0\n[1] 1 1\n"
    assert kernel.value(state) == before


def test_open_files_of_the_notebook_go_on_where_the_cell_left_them(kernel: NotebookKernel) -> None:
    (kernel.working_folder / "lines.txt").write_text("one\ntwo\nthree\n")
    kernel.run("lines = open('lines.txt', 'rb', buffering=0)\nfirst = lines.readline()").check()
    run = kernel.run("%%distributed --devices 3\nprint(lines.readline())").check()
    assert run.stdout == "b'two\\n'\n"
    assert kernel.value("(first, lines.readline(), lines.close())") == (b"one\n", b"three\n", None)


def test_exit_in_a_rank_does_not_end_the_notebook(kernel: NotebookKernel) -> None:
    kernel.run("x = 1").check()
    run = kernel.run("%%distributed --devices 2\nexit()")
    assert run.finished
    assert run.reply is not None
    assert not any(item["source"] == "ask_exit" for item in run.reply.get("payload", []))
    assert kernel.value("x") == 1


def test_the_notebooks_history_counts_the_cell_once(kernel: NotebookKernel) -> None:
    first = kernel.run("%%distributed --devices 2\nfor n in range(3):\n    n").check()
    second = kernel.run("1").check()
    assert first.execution_count is not None
    assert second.execution_count == first.execution_count + 1
    assert "run_cell_magic('distributed', '--devices 2'" in kernel.value(f"In[{first.execution_count}]")
    assert kernel.value("len(In)") == first.execution_count + 2


# ── Threads of the notebook ─────────────────────────────────────────────────────────────────────────────────


def test_ranks_compute_after_the_notebook_has_used_all_cores(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import numpy as np, torch
        a = torch.ones(1000, 1000)
        trace = (a @ a).trace().item()
        b = np.ones((1000, 1000))
        _ = b @ b
        """
    ).check()
    for _ in range(3):
        run = kernel.run(
            """
            %%distributed --devices 4
            result = (a @ a).trace().item(), float(np.trace(b @ b))
            result
            """
        ).check()
        assert run.result == {"text/plain": "(1000000.0, 1000000.0)"}
        # And the notebook itself has not lost its threads.
        assert kernel.value("(a @ a).trace().item() == trace") is True


def test_ranks_use_all_cores_together_and_no_more(kernel: NotebookKernel) -> None:
    kernel.run(
        "%%distributed --devices 2 --gather threads\nimport torch\nthreads = torch.get_num_threads()"
    ).check()
    cores = kernel.value("len(__import__('os').sched_getaffinity(0))")
    assert kernel.value("threads") == [max(1, cores // 2)] * 2


def test_a_thread_of_the_notebook_that_prints_does_not_disturb_the_fork(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import logging, sys, threading
        logging.basicConfig(stream=sys.stderr, force=True)
        stop = threading.Event()

        def chatter():
            while not stop.wait(0.001):
                print("tick")
                logging.warning("tock")

        talker = threading.Thread(target=chatter)
        talker.start()
        """
    ).check()
    try:
        for n in range(5):
            run = kernel.run(
                f"%%distributed --devices 4\nlogging.warning('rank at work')\nrank + {n}"
            ).check()
            assert run.result == {"text/plain": str(n)}
            assert "WARNING:root:rank at work\n" in run.stderr
    finally:
        kernel.run("stop.set()\ntalker.join()\nlogging.basicConfig(handlers=[], force=True)").check()
