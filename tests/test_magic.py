"""`%%distributed` as a magic: refusals before anything starts, options, help, completion, unloading."""

from __future__ import annotations

import IPython
from notebook_kernel import CellRun, NotebookKernel

from nbdist.options import ALL_OPTIONS

COUNT_FORKS = """
import os
forks = []
os.register_at_fork(before=lambda forks=forks: forks.append("fork"))
"""

WRONG = {
    "--devices 0": ["--devices 0: out of range", "1 to 1024", "--devices 4"],
    "--devices -1": ["--devices -1: out of range", "1 to 1024", "--devices 4"],
    "--devices banana": ["--devices banana: not a whole number", "auto", "--devices 4"],
    "-d 2.5": ["-d 2.5: not a whole number", "auto", "-d 4"],
    "--devices 0,0": ["--devices 0,0: a device is named twice", "different indices: 0,2"],
    "--devices 0, 2": ["2: belongs to no option", "without spaces: --devices 0,2", "%%distributed?"],
    "--devices": ["--devices: its value is missing", "auto", "--devices 4"],
    "--accelerator tpu": ["--accelerator tpu: no such choice", "auto, cuda, cpu"],
    "--accelerator cuda --devices 1000": ["--accelerator cpu"],
    "--backend glo": ["--backend glo: glo is not in the installed torch", "did you mean gloo?"],
    "--logs some": ["--logs some: no such choice", "all, rank0, none"],
    "--seed -1": ["--seed -1: out of range", "a whole number from 0 to"],
    "--timeout 0": ["--timeout 0: out of range", "seconds from 0.001 to"],
    "--timeout soon": ["--timeout soon: not a number", "--timeout 600"],
    "--no-init=1": ["--no-init takes no value", "Write --no-init alone"],
    "--device 2": ["--device: no such option", "did you mean --devices?", "%%distributed?"],
    "devices=2": ["devices=2: belongs to no option", "did you mean --devices?"],
    "-o los": ["--output los: neither the notebook nor the cell has los", "Correct the name"],
    "-o loss,los": ["--output loss,los", "los", "Correct the name"],
    "--gather los": ["--gather los: neither the notebook nor the cell has los", "Correct the name"],
    "-o 2x": ["'2x' is not a Python name"],
    "--seed 'one": ["a quotation mark is not closed"],
}
"""A magic's line → what its refusal says: the value, what is allowed, what to do."""


def faults_of_refusal(run: CellRun, phrases: list[str]) -> list[str]:
    """What is wrong about the way in which a cell was refused."""
    error = run.error
    if error is None or error.ename != "OptionError":
        return [f"no OptionError; {run.describe()}"]
    faults = [f"does not say {phrase!r}: {error.evalue}" for phrase in phrases if phrase not in error.evalue]
    # The message alone: no stack trace, least of all one through nbdist's own files.
    if error.text.strip() != f"OptionError: {error.evalue}" or run.stdout or run.stderr or run.displays:
        faults.append(f"shows more than the message; {run.describe()}")
    return faults


def test_a_wrong_option_ends_the_cell_before_any_process_starts(kernel: NotebookKernel) -> None:
    kernel.run(COUNT_FORKS).check()
    faults = {}
    for line, phrases in WRONG.items():
        of_line = faults_of_refusal(kernel.run(f"%%distributed {line}\nloss = 0.5"), phrases)
        if forks := kernel.value("forks"):
            of_line.append(f"{len(forks)} forks")
            kernel.run("forks.clear()").check()
        if kernel.value("'loss' in globals()"):
            of_line.append("the cell ran")
        if of_line:
            faults[line] = of_line
    assert faults == {}


def test_a_right_option_does_fork(kernel: NotebookKernel) -> None:
    """Also after a refusal; and the counter of the test above does count."""
    kernel.run(COUNT_FORKS).check()
    kernel.run("%%distributed --devices 0\nloss = 0.5")
    kernel.run("%%distributed --accelerator cpu --devices 3\nloss = 0.5").check()
    assert kernel.value("forks") == ["fork"] * 3
    assert kernel.value("loss") == 0.5


# ── Options in effect ───────────────────────────────────────────────────────────────────────────────────────


def test_devices_says_how_many_ranks_there_are(kernel: NotebookKernel) -> None:
    lines = {
        "--accelerator cpu": 2,  # what there is without a GPU and without a word
        "--accelerator cpu --devices 0,2,5": 3,
        "-d 4 -d=2 --accelerator cpu": 2,  # the last one counts
        "--devices=1 --accelerator cpu --start-method fork --backend GLOO": 1,
    }
    kernel.run("import torch.distributed as dist").check()
    for line, count in lines.items():
        run = kernel.run(
            f"%%distributed {line}\n[world_size, dist.get_world_size(), device, dist.get_backend()]"
        )
        assert run.check().result == {"text/plain": f"[{count}, {count}, device(type='cpu'), 'gloo']"}


def test_seed_seeds_python_numpy_and_torch_with_seed_plus_rank(kernel: NotebookKernel) -> None:
    cell = """
        %%distributed --devices 2 --seed 7 --gather draws
        import random, numpy as np, torch
        draws = (random.random(), float(np.random.rand()), torch.rand(1).item())
        """
    expected = "import random, numpy as np, torch\nexpected = []\n" + "\n".join(
        f"random.seed({seed}); np.random.seed({seed}); torch.manual_seed({seed})\n"
        "expected.append((random.random(), float(np.random.rand()), torch.rand(1).item()))"
        for seed in (7, 8)
    )
    kernel.run(expected).check()
    kernel.run(cell).check()
    assert kernel.value("draws") == kernel.value("expected")


def test_without_seed_every_rank_has_the_notebooks_random_state(kernel: NotebookKernel) -> None:
    kernel.run("import random, torch\nrandom.seed(3); _ = torch.manual_seed(3)").check()
    kernel.run(
        """
        %%distributed --devices 2 --gather draws
        draws = (random.random(), torch.rand(1).item())
        """
    ).check()
    kernel.run("random.seed(3); _ = torch.manual_seed(3)\nexpected = (random.random(), torch.rand(1).item())")
    assert kernel.value("draws == [expected, expected]") is True


def test_timeout_ends_a_collective_that_waits_too_long(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2 --timeout 0.5
        import threading, torch, torch.distributed as dist
        if rank == 0:
            dist.recv(torch.zeros(1), src=1)
        threading.Event().wait()
        """
    )
    assert run.error is not None, run.describe()
    assert run.error.ename == "RankFailedError"
    assert "rank 0 of 2 failed at line 4" in run.error.evalue
    assert "Timed out waiting 500ms" in run.error.evalue


def test_no_init_leaves_the_process_group_to_the_cell(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2 --no-init
        import torch, torch.distributed as dist
        print(dist.is_initialized())
        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        print(dist.is_initialized(), x.item())
        """
    ).check()
    assert run.stdout == "False\nTrue 2.0\n"


# ── Help and completion ─────────────────────────────────────────────────────────────────────────────────────


def assert_is_the_help(text: str) -> None:
    for option in ALL_OPTIONS:
        assert option.flag in text
        assert option.help in " ".join(text.split())
    assert "%%distributed --devices 2" in text
    assert "dist.all_reduce(x)" in text


def test_a_question_mark_shows_the_help(kernel: NotebookKernel) -> None:
    reply = kernel.run("%%distributed?").check().reply
    assert reply is not None
    (page,) = reply["payload"]
    assert page["source"] == "page"
    assert_is_the_help(page["data"]["text/plain"])


def test_help_as_an_option_shows_the_help(kernel: NotebookKernel) -> None:
    for line in ("%%distributed --help\n1 / 0", "%%distributed --devices 2 -h\n1 / 0", "%distributed --help"):
        shown = kernel.run(line).check().stdout
        assert all(opt.usage in shown for opt in ALL_OPTIONS)


def test_many_more_ranks_than_cores_are_remarked_upon(kernel: NotebookKernel) -> None:
    cores = kernel.value("sorted(__import__('os').sched_getaffinity(0))")
    kernel.run(f"__import__('os').sched_setaffinity(0, {cores[:1]})").check()
    run = kernel.run("%%distributed --devices 9 --no-init\nx = world_size").check()
    assert run.stderr == (
        "nbdist: 9 ranks share 1 CPU core and take turns there: --devices 2 would do the same work sooner, "
        "in less memory.\n"
    )
    assert kernel.value("x") == 9
    assert kernel.run("%%distributed --devices 8 --no-init\nx = world_size").check().stderr == ""
    kernel.run(f"__import__('os').sched_setaffinity(0, {cores})").check()


def test_shift_tab_shows_the_help(kernel: NotebookKernel) -> None:
    assert_is_the_help(kernel.inspect("%%distributed"))


def test_tab_completes_options_and_their_values(kernel: NotebookKernel) -> None:
    assert kernel.complete("%%distributed --dev") == ["--devices"]
    assert kernel.complete("%%distributed --devices 2 --log") == ["--logs"]
    assert kernel.complete("%%distributed --logs r") == ["rank0"]
    values, flags = kernel.complete("%%distributed --logs "), kernel.complete("%%distributed -")
    if IPython.version_info < (8, 6):  # it adds names and words of Python
        values = sorted(name for name in values if name in ("all", "none", "rank0"))
        flags = [name for name in flags if name.startswith("--")]
    assert values == ["all", "none", "rank0"]
    assert set(flags) == {option.flag for option in ALL_OPTIONS}


def test_tab_completes_options_above_a_cell(kernel: NotebookKernel) -> None:
    line = "%%distributed --devices 2 --gat"
    assert kernel.complete(f"{line}\nloss = train(model)", len(line)) == ["--gather"]


def test_tab_in_the_cell_completes_names_as_ever(kernel: NotebookKernel) -> None:
    kernel.run("learning_rate = 0.1").check()
    matches = kernel.complete("%%distributed --devices 2\nlearning_")
    assert "learning_rate" in matches
    assert not any(match.startswith("--") for match in matches)


def test_tab_completes_the_magics_name(kernel: NotebookKernel) -> None:
    assert kernel.complete("%%distri") == ["%%distributed"]


# ── Loading and unloading ───────────────────────────────────────────────────────────────────────────────────


def test_unloading_takes_all_back(kernel: NotebookKernel) -> None:
    kernel.run("%unload_ext nbdist").check()
    gone = kernel.run("%%distributed --devices 2\nworld_size")
    assert "Cell magic `%%distributed` not found" in gone.stderr + str(gone.error)
    assert gone.result is None
    assert kernel.complete("%%distributed --dev") == []
    assert kernel.complete("%%distri") == []
    kernel.run("%load_ext nbdist").check()
    assert kernel.run("%%distributed --devices 2\nworld_size").check().result == {"text/plain": "2"}


def test_loading_twice_and_reloading_do_no_harm(kernel: NotebookKernel) -> None:
    for line in ("%load_ext nbdist", "%reload_ext nbdist"):
        kernel.run(line).check()
        assert kernel.run("%%distributed --devices 2\nworld_size").check().result == {"text/plain": "2"}
        assert kernel.complete("%%distributed --dev") == ["--devices"]
