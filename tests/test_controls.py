"""nbdist's controls: a run or a session lives in the notebook, and what commands ranks is refused in a rank."""

from __future__ import annotations

import re

import pytest
from live_ranks import shown
from notebook_kernel import CellRun, NotebookKernel

METHODS = ["fork", "forkserver", "spawn"]

LONG = "import threading\nthreading.Event().wait(600)"


def begin(kernel: NotebookKernel, name: str, code: str = LONG, options: str = "") -> CellRun:
    """Begin a run in the background, as a front end does in which somebody looks on."""
    line = f"%%distributed -d 2 --accelerator cpu --background {name} {options}"
    return kernel.run(f"{line}\n{code}", allow_stdin=True).check()


def start(kernel: NotebookKernel, options: str = "") -> None:
    kernel.run(f"%distributed start --devices 2 --accelerator cpu {options}").check()


def refusal(run: CellRun, name: str = "SessionError") -> str:
    assert run.error is not None, run.describe()
    assert run.error.ename == name, run.describe()
    return run.error.evalue


# ── A run or a session in a cell ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("method", METHODS)
def test_under_auto_a_cell_that_asks_a_run_or_a_session_runs_in_the_notebook(
    kernel: NotebookKernel, method: str
) -> None:
    start(kernel, f"--start-method {method}")
    begin(kernel, "train", f"import nbdist\nnbdist.log(step=1, loss=rank)\nprint('logged')\n{LONG}")
    kernel.wait_for(lambda: "logged" in str(kernel.value("train.logs()")), 30, "the run has logged")
    kernel.run("%distributed auto on").check()
    assert shown(kernel.run("train.status")) == "'running'"
    assert shown(kernel.run("%time train.status")) == "'running'"
    assert shown(kernel.run("status = train.status\n[run.status for run in [train]]")) == "['running']"
    assert shown(kernel.run("len(train.history)")) == "2"
    assert "train, 2 ranks" in str(kernel.run("train").check().displays)
    kernel.run("%%local\nimport nbdist\nsession = nbdist.Session(devices=1, accelerator='cpu')").check()
    kernel.run("session.start()").check()
    assert shown(kernel.run("session.run(max, 1, 2)")) == "[2]"
    kernel.run("session.stop()").check()
    assert shown(kernel.run("world_size")) == "2"
    kernel.run("train.stop()").check()
    assert shown(kernel.run("train.status")) == "'stopped'"
    kernel.run("%reload_ext nbdist").check()  # with its fork server


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("live", [False, True])
def test_a_cell_on_ranks_that_asks_a_run_is_refused_before_anything_is_sent(
    kernel: NotebookKernel, method: str, live: bool
) -> None:
    if live:
        start(kernel, f"--start-method {method}")
    begin(kernel, "train")
    line = "%%distributed" if live else f"%%distributed -d 2 --accelerator cpu --start-method {method}"
    for code in (
        "train",
        "train.result",
        "print('ran')\ntrain.stop()",
        "def stop():\n    train.stop()\nstop()",
    ):
        run = kernel.run(f"{line}\n{code}")
        assert refusal(run) == (
            "train is a run in the background and lives in the notebook: ask it in a cell without "
            "%%distributed (under auto: with %%local)."
        )
        assert (run.stdout, run.stderr) == ("", "")
    # Where nobody can see it before: in a list, and read by a function of the notebook.
    kernel.run("runs = [train]\ndef stop_all():\n    train.stop()").check()
    for code in ("stop_all()", "runs[0].stop()", "runs[0].wait()", "runs[0].interrupt()"):
        run = kernel.run(f"{line}\n{code}")
        said = refusal(run, "RankFailedError")
        assert "lives in the notebook" in said or "is for the notebook" in said, said
    assert "lives in the notebook" in kernel.run(f"{line}\nprint(runs)\nruns.append(1)").check().stdout
    assert kernel.value("[runs[0] is train, runs[1], train.status]") == [True, 1, "running"]
    # What a cell binds by itself is its own, and in ranks that stay it is theirs.
    for code in ("train = world_size\ntrain", "for train in range(3):\n    pass\ntrain", "def train(): ..."):
        kernel.run(f"{line} -o nothing\n{code}\nnothing = 0").check()
    assert kernel.value("train.status") == "running"
    if live:
        kernel.run(f"{line}\ntrain()").check()
    kernel.run("%reload_ext nbdist").check()  # with its fork server


# ── Commands in a rank ──────────────────────────────────────────────────────────────────────────────────────

RELOAD = "%reload_ext nbdist"
COMMANDS = {
    "%distributed status": "%distributed status",
    "%distributed stop --all": "%distributed stop --all",
    "%distributed start": "%distributed start",
    "%distributed pull a": "%distributed pull a",
    "%distributed": "%distributed",
    "get_ipython().run_cell_magic('distributed', '-d 2', 'print(1)')": "%%distributed -d 2",
    RELOAD: "%unload_ext nbdist, or %reload_ext,",
    "import nbdist\nnbdist.launch(print, 1, devices=2)": "nbdist.launch()",
    "import nbdist\nnbdist.launch(print, 1, devices=2, background=True)": "nbdist.launch()",
    "import nbdist\nnbdist.Session(devices=2).start()": "nbdist.Session()",
    "sessions[0].stop()": "Session.stop()",
    "sessions[0].run(print, 1)": "a session",
}


@pytest.mark.parametrize("where", ["live", *METHODS])
def test_what_commands_ranks_is_refused_in_a_rank(kernel: NotebookKernel, where: str) -> None:
    kernel.run("sessions = []").check()
    line = f"%%distributed -d 2 --accelerator cpu --start-method {where}"
    if where == "live":
        kernel.run(
            "import nbdist\nsession = nbdist.Session(devices=1, accelerator='cpu')\nsession.start()\n"
            "sessions.append(session)"
        ).check()
        start(kernel)
        line = "%%distributed"
    wrong = {}
    for code, what in COMMANDS.items():
        if ("sessions" in code and where != "live") or (code == RELOAD and where in ("forkserver", "spawn")):
            continue  # those ranks have no session of the notebook's, and no extension
        run = kernel.run(f"{line}\nif rank == 1:\n" + "".join(f"    {own}\n" for own in code.splitlines()))
        said = refusal(run, "RankFailedError")
        expected = (
            f"SessionError: this is rank 1: {what} is for the notebook; run it in a cell of its own, without "
            "%%distributed (under auto: with %%local)."
        )
        if expected not in said:
            wrong[code] = said
    assert wrong == {}
    run = kernel.run(
        f"{line}\nimport nbdist\nnbdist.is_rank_zero(), nbdist.mean(rank), nbdist.seed_everything(0)"
    )
    assert shown(run).startswith("(True, ")
    if where == "live":
        assert kernel.value("session.running") is True
    kernel.run("%reload_ext nbdist").check()  # with its fork server


def test_a_function_on_ranks_launches_no_others(kernel: NotebookKernel) -> None:
    kernel.run("import nbdist\ndef outer():\n    return nbdist.launch(max, 1, 2, devices=2)").check()
    said = refusal(kernel.run("nbdist.launch(outer, devices=2, accelerator='cpu')"), "RankFailedError")
    assert re.search(r"SessionError: this is rank [01]: nbdist.launch\(\) is for the notebook", said)


# ── What is up, what was, and what it is called ─────────────────────────────────────────────────────────────


def table(kernel: NotebookKernel) -> str:
    """The first line of what the status shows."""
    (shown_data,) = kernel.run("%distributed status").check().displays
    return str(shown_data["text/plain"]).splitlines()[0]


@pytest.mark.parametrize("name", ["", " --name eval"])
def test_ranks_begin_anew_as_they_were_after_a_death(kernel: NotebookKernel, name: str) -> None:
    kernel.run(f"%distributed start --devices 3 --accelerator cpu --logs rank0{name}").check()
    kernel.run(f"%%distributed{name}\nimport os\nif rank == 1:\n    os._exit(3)")
    called = "eval" if name else "main"
    assert re.fullmatch(
        rf"session {called}: 2 of 3 ranks on the CPU are up \(gloo, started by fork\); rank 1 has died: its "
        r"process \(pid \d+\) ended with exit code 3",
        table(kernel),
    )
    said = refusal(kernel.run(f"%%distributed{name}\n1"))
    assert re.match(
        r"rank 1 of this session has died: its process \(pid \d+\) ended with exit code 3\. The other ranks "
        rf".* %distributed start{name} begins anew, with the same options",
        said,
    )
    assert said.count("its process") == 1
    started = kernel.run(f"%distributed start{name}").check().stdout
    assert started.startswith(f"session {called}: 3 ranks on the CPU are up: ")
    assert kernel.run(f"%%distributed{name}\nprint(rank)").check().stdout == "0\n"
    kernel.run(f"%%distributed{name}\nif rank == 1:\n    os._exit(3)")
    kernel.run(f"%distributed start --devices 1 --accelerator cpu{name}").check()
    assert table(kernel).startswith(f"session {called}: 1 rank on the CPU is up (")
    kernel.run("%distributed stop --all").check()


def test_unloading_ends_a_session_and_a_run_with_a_word(kernel: NotebookKernel) -> None:
    start(kernel, "--name eval")
    begin(kernel, "train")
    said = "nbdist: ended, as the extension is unloaded: session eval, background run train.\n"
    assert kernel.run("%reload_ext nbdist").check().stdout == said
    assert kernel.value("train.status") == "stopped"
    assert kernel.run("%reload_ext nbdist").check().stdout == ""


def test_a_run_that_has_ended_still_has_its_logs(kernel: NotebookKernel) -> None:
    begin(kernel, "train", "print('from', rank)")
    kernel.run("train.wait()").check()
    whole = "rank 0:\nfrom 0\nrank 1:\nfrom 1\n"
    assert kernel.run("%distributed logs --name train").check().stdout == whole
    assert kernel.run("%distributed logs 1 --name train").check().stdout == "from 1\n"
    heading = "background run train: 2 ranks, finished"
    assert kernel.run("%distributed logs").check().stdout == f"{heading}\n{whole}"
    assert kernel.run("%distributed status --name train").check().stdout == (
        f"{heading}. %distributed logs --name train shows what its ranks printed.\n"
    )
    stopped = kernel.run("%distributed stop --name train").check()
    assert stopped.stdout == f"{heading}: nothing of it is up.\n"
    assert kernel.complete("%distributed logs --name t") == ["train"]
    start(kernel)  # the logs of what is up come before those of what was
    kernel.run("%%distributed --logs none\nprint('live', rank)").check()
    assert kernel.run("%distributed logs 1").check().stdout == "live 1\n"
    kernel.run("%distributed stop").check()
    assert "There is no session 'trian'." in refusal(kernel.run("%distributed logs --name trian"))


def test_a_cell_beside_a_session_of_another_name_is_told_of_it_once(kernel: NotebookKernel) -> None:
    start(kernel, "--name eval")
    first = kernel.run("%%distributed -d 1 --accelerator cpu\nworld_size").check()
    assert first.stderr == (
        "nbdist: session eval is up, and this cell runs on ranks of its own: %%distributed --name eval runs it "
        "there.\n"
    )
    assert kernel.run("%%distributed -d 1 --accelerator cpu\nworld_size").check().stderr == ""
    assert kernel.run("%%distributed --name eval\nworld_size").check().stderr == ""
    kernel.run("%distributed stop --all").check()


def test_a_run_that_takes_a_name_of_the_notebooks_says_so(kernel: NotebookKernel) -> None:
    kernel.run("import nbdist\ndef train():\n    return 1\njob = 5").check()
    line = "%%distributed -d 1 --accelerator cpu --background"
    said = refusal(kernel.run(f"{line} train\ntrain()"), "OptionError")
    assert said == (
        "--background train: the work reads the notebook's train (function), and the run would take that name "
        "from it: next time the work would find the run. Take another name: --background train_run."
    )
    launched = "nbdist.launch(train, devices=1, accelerator='cpu', background='train')"
    assert refusal(kernel.run(launched), "OptionError") == said
    assert kernel.value("train()") == 1
    run = kernel.run(f"{line} job\n1", allow_stdin=True).check()
    assert run.stderr == (
        "nbdist: --background job: the notebook's job (int) is out of reach by that name: it is this run's now.\n"
    )
    assert kernel.value("job.wait()") == 1
    assert kernel.run(f"{line} job\n2", allow_stdin=True).check().stderr == ""
    assert kernel.value("job.wait()") == 2


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        ("%distributed start 4", "4: belongs to no option (did you mean --devices 4?)"),
        ("%%distributed 2", "2: belongs to no option (did you mean --devices 2?)"),
        ("%%distributed 0,2", "0,2: belongs to no option (did you mean --devices 0,2?)"),
        (
            "%%distributed start --devices 2",
            "a command is written with one percent sign, %distributed start --devices 2.",
        ),
        ("%%distributed status", "a command is written with one percent sign, %distributed status."),
        ("%%distributed # note", "a comment stands below this line, in the cell."),
        ("%distributed stat", "(did you mean status?)"),
        ("%distributed Status", "(did you mean status?)"),
        (
            "%distributed stop --name main --all",
            "not understood. Allowed: %distributed stop [--name NAME | --all].",
        ),
    ],
)
def test_a_slip_is_told_what_was_meant(kernel: NotebookKernel, line: str, phrase: str) -> None:
    said = refusal(kernel.run(f"{line}\n1" if line.startswith("%%") else line), "OptionError")
    assert phrase in said


def test_a_run_or_a_session_under_a_ready_made_name_is_in_nobodys_way(kernel: NotebookKernel) -> None:
    begin(kernel, "rank", "7")
    kernel.run(
        "import nbdist, threading\ndevice = nbdist.Session(devices=1, accelerator='cpu')\n"
        "local_rank = threading.Lock()"
    ).check()
    for line in ("%%distributed -d 2 --accelerator cpu --start-method forkserver", "%%distributed"):
        run = kernel.run(f"{line}\nrank, local_rank, str(device)").check()
        assert (shown(run), run.stderr) == ("(0, 0, 'cpu')", "")
        kernel.run("%distributed start --devices 2 --accelerator cpu")  # the second cell's
    kernel.run("%distributed auto on").check()
    assert shown(kernel.run("rank, world_size")) == "(0, 2)"
    kernel.run("%distributed auto off").check()
    assert kernel.value("rank.wait()") == 7
    kernel.run("%distributed stop\n%reload_ext nbdist").check()


def test_every_cell_on_the_ranks_is_refused_where_each_would_be(kernel: NotebookKernel) -> None:
    start(kernel)
    said = refusal(kernel.run("%distributed auto on --devices 3"), "OptionError")
    assert "--devices 3: session main: 2 ranks on the CPU are up" in said
    assert kernel.run("%distributed auto").check().stdout.startswith("auto is off")
    assert kernel.run("%distributed auto on --devices 2").check().stdout.startswith("auto is on")
    assert shown(kernel.run("world_size")) == "2"
    kernel.run("%distributed stop").check()


def test_a_wait_that_is_too_short_says_so_alone(kernel: NotebookKernel) -> None:
    begin(kernel, "train")
    run = kernel.run("train.wait(0.01)")
    assert run.error is not None, run.describe()
    assert run.error.text == "StillRunning: the run has not ended within 0.01 s; it goes on"
    caught = "try:\n    train.wait(0.01)\nexcept TimeoutError:\n    print('late')"
    assert kernel.run(caught).check().stdout == "late\n"
    kernel.run("train.stop()").check()


def test_status_knows_of_ranks_that_are_kept(kernel: NotebookKernel) -> None:
    kernel.run("%%distributed -d 2 --accelerator cpu --hold\n1 / 0")
    assert kernel.run("%distributed status").check().stdout == (
        "Ranks are kept after a failure: %distributed debug looks into them, %distributed stop ends them.\n"
    )
    kernel.run("%distributed stop").check()


def test_a_session_all_of_whose_ranks_have_died(kernel: NotebookKernel) -> None:
    start(kernel)
    run = kernel.run("%%distributed\nimport os\nos._exit(3)")
    assert "have died" in run.stderr
    assert "other ranks" not in run.stderr
    said = refusal(kernel.run("%distributed pull x"))
    assert "have died" in said
    assert "%distributed start begins anew" in said
    kernel.run("%distributed stop").check()


def test_a_name_is_a_sessions_or_a_runs(kernel: NotebookKernel) -> None:
    start(kernel)
    begin(kernel, "train")
    said = refusal(kernel.run("%%distributed --background main -d 1 --accelerator cpu\n1", allow_stdin=True))
    assert said.startswith("--background main: a session of that name is up")
    said = refusal(kernel.run("%distributed start --name train --devices 1 --accelerator cpu"))
    assert said.startswith("--name train: a background run of that name has ranks.")
    kernel.run("%distributed start --name run-1 --devices 1 --accelerator cpu").check()
    kernel.run(f"%%distributed -d 1 --accelerator cpu --background\n{LONG}", allow_stdin=True).check()
    assert kernel.run("%distributed stop --name run-2").check().stdout == "background run run-2 has ended.\n"
    kernel.run("%distributed stop --all").check()
