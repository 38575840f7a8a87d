"""What a cell's ranks print and show: in order, labelled, folded, never torn, and whole in the log files."""

from __future__ import annotations

from pathlib import Path

import pytest
from notebook_kernel import CellRun, NotebookKernel, without_ansi

from nbdist.session.logs import RunLogs


def logs_of(kernel: NotebookKernel) -> list[str]:
    """The logs of the latest run, by rank. (Folders are named by time, process and number.)"""
    folders = (kernel.folder / "home" / ".cache" / "nbdist" / "logs").iterdir()
    latest = max(folders, key=lambda folder: int(folder.name.rpartition("-")[2]))
    return [path.read_bytes().decode() for path in sorted(latest.glob("rank-*.log"), key=_rank_of)]


def _rank_of(log: Path) -> int:
    return int(log.stem.partition("-")[2])


def on_a_screen(text: str) -> list[str]:
    """Lines as a screen shows them, where a return begins to overwrite the line."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for piece in line.split("\r"):
            shown = piece + shown[len(piece) :]
        lines.append(shown.rstrip())
    return lines[:-1] if lines[-1] == "" else lines


def outline(run: CellRun) -> list[tuple[str, str]]:
    """Streams and displays in the order in which the front end got them."""
    parts: list[tuple[str, str]] = []
    for message in run.messages:
        if message.msg_type == "stream":
            name, text = message.content["name"], message.content["text"]
            if parts and parts[-1][0] == name:
                parts[-1] = name, parts[-1][1] + text
            else:
                parts.append((name, text))
        elif message.msg_type in ("display_data", "update_display_data"):
            parts.append((message.msg_type, message.content["data"]["text/plain"]))
        elif message.msg_type == "clear_output":
            parts.append(("clear_output", ""))
    return parts


# ── Lines and labels ────────────────────────────────────────────────────────────────────────────────────────


def test_common_lines_appear_once_and_others_with_their_ranks(kernel: NotebookKernel) -> None:
    cell = """
        %%distributed --devices 4
        print("loading")
        print("shard", rank // 2)
        print(f"loss {rank / 10}")
        if rank != 1:
            print("not the second")
        print("done")
        """
    expected = (
        "loading\n[0-1] shard 0\n[2-3] shard 1\n[0] loss 0.0\n[1] loss 0.1\n[2] loss 0.2\n[3] loss 0.3\n"
        "[0,2-3] not the second\ndone\n"
    )
    # A batch run's transcript is the same each time.
    for _ in range(3):
        assert kernel.run(cell).check().stdout == expected


def test_live_text_is_folded_and_labelled_too(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import torch.distributed as dist
        dist.barrier()
        print("loading")
        print("loss", rank)
        """,
        allow_stdin=True,
    ).check()
    assert run.stdout == "loading\n[0] loss 0\n[1] loss 1\n"


@pytest.mark.parametrize("watched", [True, False])
def test_text_is_shown_while_the_cell_runs(kernel: NotebookKernel, watched: bool) -> None:
    run = kernel.start_run(
        """
        %%distributed --devices 2
        import os, time
        print("begun")
        print("rank", rank)
        while not os.path.exists("go on"):
            time.sleep(0.01)
        print("ended")
        """,
        allow_stdin=watched,
    )
    run.wait_for_text("begun\n[0] rank 0\n[1] rank 1\n")
    (kernel.working_folder / "go on").touch()
    run.finish().check()
    (kernel.working_folder / "go on").unlink()
    assert run.stdout == "begun\n[0] rank 0\n[1] rank 1\nended\n"


def test_one_rank_needs_no_labels(kernel: NotebookKernel) -> None:
    assert kernel.run("%%distributed --devices 1\nprint('loss', 0.5)").check().stdout == "loss 0.5\n"


def test_text_and_displays_are_in_order(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import sys
        print("one")
        display("two")
        print("three", file=sys.stderr)
        display({"text/plain": f"rank {rank}"}, raw=True)
        print("four")
        """
    ).check()
    assert outline(run) == [
        ("stdout", "one\n"),
        ("display_data", "'two'"),
        ("stderr", "three\n"),
        ("display_data", "rank 0"),
        ("stdout", "[1]\n"),
        ("display_data", "rank 1"),
        ("stdout", "four\n"),
    ]


def test_displays_of_other_ranks_carry_their_label(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 3\nif rank:\n    display('a figure')").check()
    assert outline(run) == [("stdout", "[1-2]\n"), ("display_data", "'a figure'")]


def test_markup_with_ids_of_each_ranks_own_is_shown_once(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import pandas, matplotlib.pyplot as plt
        %matplotlib inline
        %config InlineBackend.figure_formats = ["svg"]
        display(pandas.DataFrame({"loss": [0.5, 0.25]}).style.highlight_min())
        plt.plot([0.5, 0.25])
        plt.show()
        """
    )
    run.check()
    assert [sorted(display) for display in run.displays] == [
        ["text/html", "text/plain"],
        ["image/svg+xml", "text/plain"],
    ]
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("last", "shown"),
    [("plt.plot([1])", "execute_result"), ("plt.plot([1]);", ""), ("plt.plot([1]); 1 / 0", "error")],
)
def test_open_figures_are_shown_when_the_cell_has_ended(
    kernel: NotebookKernel, last: str, shown: str
) -> None:
    figure = "import matplotlib.pyplot as plt\n%matplotlib inline\nplt.figure(figsize=(1, 1))\nprint('text')"
    run = kernel.run(f"%%distributed --devices 2\n{figure}\n{last}")
    kinds = [message.msg_type for message in run.messages]
    wanted = ["stream", *([shown] if shown else []), "display_data"]
    assert [kind for kind in kinds if kind not in ("status", "execute_input")] == wanted
    assert run.stdout == "text\n"
    assert kernel.run("1").check().displays == []  # each is shown once


def test_open_figures_are_captured_with_the_cell(kernel: NotebookKernel) -> None:
    figure = "import matplotlib.pyplot as plt\n%matplotlib inline\nplt.figure(figsize=(1, 1))\nplt.plot([1])"
    run = kernel.run(f"%%capture said\n%%distributed --devices 2\n{figure}")
    assert run.check().displays == []
    assert kernel.value("len(said.outputs)") == 2


def test_displays_can_be_updated_and_cleared(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        from IPython.display import clear_output
        handle = display("begun", display_id="progress")
        handle.update("half")
        handle.update("done")
        """
    ).check()
    assert outline(run) == [
        ("display_data", "'begun'"),
        ("update_display_data", "'half'"),
        ("update_display_data", "'done'"),
    ]
    ids = {
        message.content["transient"]["display_id"]
        for message in run.messages
        if message.msg_type.endswith("display_data")
    }
    assert ids == {"progress"}
    cleared = kernel.run("%%distributed --devices 2\nprint('old')\nclear_output()\nprint('new')").check()
    assert outline(cleared) == [("stdout", "old\n"), ("clear_output", ""), ("stdout", "new\n")]


def test_a_display_of_an_earlier_cell_is_updated_by_rank_0(kernel: NotebookKernel) -> None:
    kernel.run("handle = display('begun', display_id='earlier')").check()
    run = kernel.run(
        """
        %%distributed --devices 3
        import torch.distributed as dist
        for turn in (2, 1, 0):
            if rank == turn:
                handle.update(f"from rank {rank}")
            dist.barrier()
        """
    ).check()
    shown = [
        (message.content["transient"]["display_id"], message.content["data"]["text/plain"])
        for message in run.messages
        if message.msg_type.endswith("display_data")
    ]
    assert [text for display_id, text in shown if display_id == "earlier"] == ["'from rank 0'"]
    assert [text for display_id, text in shown if display_id != "earlier"] == [
        "'from rank 1'",
        "'from rank 2'",
    ]
    assert run.stdout == "[1]\n[2]\n"
    both = kernel.run("%%distributed --devices 3\nhandle.update('all')").check()
    assert outline(both) == [("update_display_data", "'all'")]


def test_stderr_stays_stderr(kernel: NotebookKernel) -> None:
    kernel.run("import logging, sys, warnings\nhandler = logging.StreamHandler()").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        print("out")
        print("err", file=sys.stderr)
        print("mine", rank, file=sys.stderr)
        warnings.warn("take care")
        """
    ).check()
    assert run.stdout == "out\n"
    lines = run.stderr.splitlines()
    assert lines[:3] == ["err", "[0] mine 0", "[1] mine 1"]
    assert lines[3].endswith("UserWarning: take care")
    assert lines[4] == '  warnings.warn("take care")'
    assert len(lines) == 5


def test_loggers_made_in_the_notebook_write_from_the_ranks(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import logging, sys
        logger = logging.getLogger("training")
        logger.propagate = False
        to_err, to_out = logging.StreamHandler(), logging.StreamHandler(sys.stdout)
        logger.handlers[:] = [to_err, to_out]
        """
    ).check()
    run = kernel.run(
        '%%distributed --devices 2\nlogger.warning("epoch %d", 1)\nlogger.warning("rank %d", rank)'
    ).check()
    assert run.stderr == "epoch 1\n[0] rank 0\n[1] rank 1\n"
    assert run.stdout == run.stderr
    # In the notebook the handlers write to the notebook, as before.
    here = kernel.run('logger.warning("here")').check()
    assert (here.stderr, here.stdout) == ("here\n", "here\n")


def test_whatever_holds_the_notebooks_streams_writes_from_the_ranks(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import logging, sys
        from functools import partial
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, force=True)
        out, err, bound, tell = sys.stdout, sys.stderr, sys.stdout.write, partial(print, file=sys.stderr)
        """
    ).check()
    run = kernel.run(
        """
        %%distributed --devices 2
        logging.info("epoch 1")
        out.write("object\\n")
        out.writelines(["lines\\n"])
        bound("bound\\n")
        bound(f"bound of {rank}\\n")
        tell("\\x1b[31mred\\x1b[0m")
        err.write("err\\n");
        """
    ).check()
    kernel.run("logging.basicConfig(handlers=[], force=True)").check()
    assert run.stdout == ("INFO:root:epoch 1\nobject\nlines\nbound\n[0] bound of 0\n[1] bound of 1\n")
    assert run.stderr == "\x1b[31mred\x1b[0m\nerr\n"


@pytest.mark.slow
def test_fifty_batch_runs_have_one_transcript(kernel: NotebookKernel) -> None:
    cell = """
        %%distributed --devices 4
        import logging, time, warnings
        import torch.distributed as dist
        from IPython.display import Markdown, clear_output
        from tqdm.notebook import tqdm
        print("wiped away")
        time.sleep(0.01 * rank)
        clear_output()
        print("loading")
        handle = display(Markdown("**begun**"), display_id=True)
        counts = "{l_bar}{bar}| {n_fmt}/{total_fmt}"  # no times
        for step in tqdm(range(5), desc="steps", bar_format=counts):
            print(f"step {step} loss {1 / (1 + step + rank):.3f}")
            handle.update(Markdown(f"step {step}"))
            for n in tqdm(range(10), desc="batches", bar_format=counts, leave=False):
                time.sleep(0.0005 * rank)
            dist.barrier()
        warnings.warn("take care")
        logging.warning("rank %d", rank)
        logging.warning("all")
        display(f"figure of {rank}")
        print("done", end="")
        del handle
        """
    transcripts = {tuple(outline(kernel.run(cell).check())) for _ in range(50)}
    assert len(transcripts) == 1
    (transcript,) = transcripts
    assert transcript[-1] == ("stdout", "done")
    assert [text for _, text in transcript].count("<IPython.core.display.Markdown object>") == 6


# ── Ways to write ───────────────────────────────────────────────────────────────────────────────────────────


def test_text_below_python_is_captured(kernel: NotebookKernel) -> None:
    out = kernel.run(
        """
        %%distributed --devices 2
        import ctypes, os, subprocess
        os.write(1, b"from os.write\\n")
        os.system("echo from a shell")
        subprocess.run(["echo", "from a program"], check=True)
        ctypes.CDLL(None).puts(b"from C, which buffers")
        ctypes.CDLL(None).printf(b"rank %d of C\\n", rank);
        """
    ).check()
    assert out.stdout.splitlines() == [
        "from os.write",
        "from a shell",
        "from a program",
        "from C, which buffers",
        "[0] rank 0 of C",
        "[1] rank 1 of C",
    ]
    assert out.stderr == ""
    err = kernel.run(
        "%%distributed --devices 2\nos.write(2, b'low\\n')\nos.system('echo level >&2');"
    ).check()
    assert (err.stdout, err.stderr) == ("", "low\nlevel\n")


def test_what_programs_write_stands_where_they_were_started(kernel: NotebookKernel) -> None:
    """Text of Python code goes as messages, what others write through pipes, all with one order."""
    run = kernel.run(
        """
        %%distributed --devices 2
        import os, subprocess, sys, warnings
        def fork():
            pid = os.fork()
            if pid == 0:
                print(n, "child")
                os._exit(0)
            os.waitpid(pid, 0)
        ways = {
            "system": lambda: os.system(f"echo {n} system"),
            "run": lambda: subprocess.run(["echo", f"{n} run"]),
            "write": lambda: os.write(1, f"{n} write\\n".encode()),
            "spawn": lambda: os.waitpid(os.posix_spawnp("echo", ["echo", f"{n} spawn"], os.environ), 0),
            "child": fork,
        }
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads
        for n in range(25):
            for way, start in ways.items():
                print(n, "before", way)
                start()
        """
    ).check()
    ways = ("system", "run", "write", "spawn", "child")
    expected = [line for n in range(25) for way in ways for line in (f"{n} before {way}", f"{n} {way}")]
    assert run.stdout.splitlines() == expected
    kernel.run("del fork, ways").check()


def test_what_c_code_writes_stands_between_what_python_has_flushed(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import ctypes
        for n in range(100):
            print(n, "python", flush=True)
            _ = ctypes.CDLL(None).printf(b"%d c\\n", n)
        """
    ).check()
    assert run.stdout.splitlines() == [line for n in range(100) for line in (f"{n} python", f"{n} c")]


def test_a_rank_may_give_its_descriptors_away(kernel: NotebookKernel) -> None:
    """What orders its text goes beside them, and into no file of the user's."""
    run = kernel.run(
        """
        %%distributed --devices 2
        import os
        kept = os.dup(1)
        with open(f"text-{rank}", "w") as file:
            os.dup2(file.fileno(), 1)
            print("to the notebook", flush=True)
            os.system("echo to the file")
            print("to the notebook, too", flush=True)
            os.dup2(kept, 1)
            os.close(kept)
        os.system("echo to the notebook again")
        """
    ).check()
    assert run.stdout.splitlines() == [
        "to the notebook",
        "to the notebook, too",
        "to the notebook again",
    ]
    for rank in (0, 1):
        assert (kernel.working_folder / f"text-{rank}").read_text() == "to the file\n"
    kernel.run("del kept").check()


def test_text_of_python_children_is_captured(kernel: NotebookKernel) -> None:
    kernel.run("def speak(name):\n    print('child', name, flush=True)").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        import multiprocessing, threading
        child = multiprocessing.get_context("fork").Process(target=speak, args=("process",))
        child.start()
        child.join()
        thread = threading.Thread(target=speak, args=("thread",))
        thread.start()
        thread.join()
        del child, thread
        """
    ).check()
    assert sorted(run.stdout.splitlines()) == ["child process", "child thread"]
    assert run.stderr == ""


def test_all_ways_to_use_a_stream(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import contextlib, io, sys
        sys.stdout.write("write\\n")
        sys.stdout.writelines(["write", "lines\\n"])
        sys.stdout.buffer.write("büffer\\n".encode())
        sys.stdout.flush()
        print("a", "b", sep="-", end="|\\n", flush=True)
        with contextlib.redirect_stdout(io.StringIO()) as kept:
            print("kept")
        print("was", kept.getvalue(), end="")
        print(sys.stdout.encoding, sys.stdout.isatty(), sys.stdout.writable())
        print("lone surrogate \\udcff and null \\x00")
        """
    ).check()
    assert run.stdout == (
        "write\nwritelines\nbüffer\na-b|\nwas kept\nutf-8 False True\nlone surrogate \\udcff and null \x00\n"
    )


def test_a_ranks_streams_are_the_notebooks_when_they_come_back(kernel: NotebookKernel) -> None:
    cell = """
        %%distributed --devices 2
        import sys
        class Tee:
            def __init__(self, *streams):
                self.streams = streams
            def write(self, text):
                for stream in self.streams:
                    stream.write(text)
        tee = Tee(sys.stdout, sys.stderr)
        tee.write("from the ranks\\n")
        """
    run = kernel.run(cell).check()
    assert (run.stdout, run.stderr) == ("from the ranks\n", "from the ranks\n")
    run = kernel.run('tee.write("from the notebook")\ntee.streams == (sys.stdout, sys.stderr)').check()
    assert (run.stdout, run.stderr) == ("from the notebook", "from the notebook")
    assert run.result == {"text/plain": "True"}


# ── Text that is hard to show ───────────────────────────────────────────────────────────────────────────────


def test_invalid_utf8_is_shown_as_escapes(kernel: NotebookKernel) -> None:
    run = kernel.run(
        """
        %%distributed --devices 2
        import os
        os.write(1, b"caf\\xe9 \\xff\\xfe end\\n")
        euro = "€uro\\n".encode()
        os.write(1, euro[:1])
        os.write(1, euro[1:2])
        os.write(1, euro[2:]);
        """
    ).check()
    assert run.stdout == "caf\\xe9 \\xff\\xfe end\n€uro\n"
    assert logs_of(kernel) == [run.stdout] * 2


def test_a_line_of_a_megabyte(kernel: NotebookKernel) -> None:
    run = kernel.run("%%distributed --devices 2\nprint('x' * 1_000_000)\nprint('after')").check()
    assert run.stdout == "x" * 1_000_000 + "\nafter\n"
    assert logs_of(kernel) == [run.stdout] * 2


def test_a_last_line_without_an_end(kernel: NotebookKernel) -> None:
    same = kernel.run("%%distributed --devices 2\nprint('one')\nprint('two', end='')").check()
    assert same.stdout == "one\ntwo"
    own = kernel.run("%%distributed --devices 2\nprint('rank', rank, end='')").check()
    assert own.stdout == "[0] rank 0\n[1] rank 1\n"
    assert logs_of(kernel) == ["rank 0", "rank 1"]
    pieces = kernel.run(
        "%%distributed --devices 2\nfor n in range(3):\n    print(n, end=' ', flush=True)"
    ).check()
    assert pieces.stdout == "0 1 2 "


def test_progress_bars_become_one_line(kernel: NotebookKernel) -> None:
    cell = """
        %%distributed --devices 2
        from tqdm import tqdm
        for n in tqdm(range(50), desc="training"):
            pass
        print("trained")
        """
    batch = kernel.run(cell).check()
    assert batch.stdout == "trained\n"
    assert "\r" not in batch.stderr
    assert batch.stderr.count("training: 100%") == 1
    assert batch.stderr.count("\n") == 1
    live = kernel.run(cell, allow_stdin=True).check()
    assert live.stdout == "trained\n"
    (bar,) = on_a_screen(live.stderr)
    assert bar.startswith("training: 100%")
    # The log has the bar's every step.
    assert all("training:   0%" in log and "training: 100%" in log for log in logs_of(kernel))


def test_a_log_has_bars_and_text_on_lines_of_their_own(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        %%distributed --devices 2 --background bars
        import nbdist
        for step in nbdist.track(range(60), "train"):
            if step % 20 == 10:
                print("at", step)
        for step in nbdist.track(range(5), "check"):
            print("." * step, end="")
        print("end")
        """
    ).check()
    kernel.run("bars.wait()").check()
    for log in logs_of(kernel):
        lines = log.split("\n")
        assert [line for line in lines if "at" in line] == ["at 10", "at 30", "at 50"]
        assert not [line for line in lines if "%" in line and not line.startswith("\r")]
    shown = str(kernel.value("str(bars.logs(1))"))
    assert "\r" not in shown
    assert kernel.value("bars.logs(1, 1)") == "end\n"
    last = kernel.run("%distributed logs 1 --name bars").check()
    assert last.stdout.endswith("\nend\n")
    assert "\r" not in last.stdout
    assert [line.partition("%")[0] for line in shown.split("\n") if line.startswith("check: ")][
        -1
    ] == "check: 100"


def test_what_was_drawn_over_is_read_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_LOG_DIR", str(tmp_path))
    logs = RunLogs(1)
    for step in range(3):
        logs.write_bar(0, f"train: {step}/3")
    logs.write(0, "step 2")
    logs.write_bar(0, "train: 3/3\n")
    logs.write(0, "dos\r\nown 1\rown 2\nend")
    assert logs.read(0) == "train: 2/3\nstep 2\ntrain: 3/3\ndos\nown 2\nend"
    assert logs.path(0).read_bytes().count(b"train") == 4
    logs.close()


def test_a_live_bar_updates_in_place(kernel: NotebookKernel) -> None:
    run = kernel.start_run(
        """
        %%distributed --devices 2
        import os, time
        print("\\rstep 1", end="", flush=True)
        while not os.path.exists("go on"):
            time.sleep(0.01)
        print("\\rstep 2", flush=True)
        """,
        allow_stdin=True,
    )
    run.wait_for_text("step 1")
    (kernel.working_folder / "go on").touch()
    run.finish().check()
    (kernel.working_folder / "go on").unlink()
    assert "step 1" in run.stdout
    assert on_a_screen(run.stdout) == ["step 2"]


def test_colours_are_kept_and_do_not_run_out(kernel: NotebookKernel) -> None:
    red, reset = "\x1b[31m", "\x1b[0m"
    run = kernel.run(
        f"%%distributed --devices 2\nprint('{red}alert{reset}')\nprint('{red}open', rank)\nprint('plain')"
    ).check()
    assert without_ansi(run.stdout) == "alert\n[0] open 0\n[1] open 1\nplain\n"
    lines = run.stdout.splitlines()
    assert f"{red}alert" in lines[0]
    assert f"{red}open 0" in lines[1]
    # The label of the next rank is not red.
    assert lines[1].endswith(reset)


# ── Much text ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("watched", [True, False])
def test_a_flood_is_shortened_in_the_cell_only(kernel: NotebookKernel, watched: bool) -> None:
    run = kernel.run(
        """
        %%distributed --devices 4
        for n in range(20_000):
            print(f"rank {rank} line {n}")
        """,
        allow_stdin=watched,
    ).check()
    expected = ["".join(f"rank {rank} line {n}\n" for n in range(20_000)) for rank in range(4)]
    assert [log == whole for log, whole in zip(logs_of(kernel), expected, strict=True)] == [True] * 4
    shown = on_a_screen(run.stdout)
    notices = [line for line in shown if "not shown here" in line]
    assert notices
    assert all(str(kernel.folder) in notice for notice in notices)
    # Every line is whole, each rank's are in order, and the end is there.
    lines = [line for line in shown if "not shown here" not in line]
    assert lines[-1].endswith(" line 19999")
    for rank in range(4):
        own = [line for line in lines if line.startswith(f"[{rank}] ")]
        numbers = [int(line.removeprefix(f"[{rank}] rank {rank} line ")) for line in own]
        assert numbers == sorted(set(numbers))
    assert len(lines) == sum(line.startswith(("[0] ", "[1] ", "[2] ", "[3] ")) for line in lines)
    # A Jupyter server drops what comes faster.
    assert len(run.stdout) < 1_500_000
    streams = sum(message.msg_type == "stream" for message in run.messages)
    assert streams <= 20 * (run.duration_s + 1)


# ── Logs ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_rank_has_a_log_of_all_it_printed(kernel: NotebookKernel) -> None:
    cell = """
        import sys
        print("out", rank)
        print("err", rank, file=sys.stderr)
        print("last", rank)"""
    whole = [f"out {rank}\nerr {rank}\nlast {rank}\n" for rank in range(2)]
    run = kernel.run("\n        %%distributed --devices 2" + cell).check()
    assert run.stdout == "[0] out 0\n[1] out 1\n[0] last 0\n[1] last 1\n"
    assert logs_of(kernel) == whole
    first = kernel.run("\n        %%distributed --devices 2 --logs rank0" + cell).check()
    assert (first.stdout, first.stderr) == ("out 0\nlast 0\n", "err 0\n")
    assert logs_of(kernel) == whole
    none = kernel.run("\n        %%distributed --devices 2 --logs none" + cell + "\n        42").check()
    assert (none.stdout, none.stderr, none.result) == ("", "", {"text/plain": "42"})
    assert logs_of(kernel) == whole


def test_logs_of_a_folder_that_cannot_be_written_end_no_run(kernel: NotebookKernel) -> None:
    (kernel.working_folder / "file").touch()
    kernel.run("import os\nos.environ['NBDIST_LOG_DIR'] = os.path.abspath('file')").check()
    try:
        run = kernel.run("%%distributed --devices 2\nprint('all the same')\nworld_size").check()
    finally:
        kernel.run("del os.environ['NBDIST_LOG_DIR']").check()
    assert run.stdout == "all the same\n"
    assert run.result == {"text/plain": "2"}
    assert "are not complete" in run.stderr


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 11)", "os.kill(os.getpid(), 9)"])
@pytest.mark.parametrize("live", [False, True])
def test_the_last_lines_before_a_death_are_there(kernel: NotebookKernel, end: str, live: bool) -> None:
    if live:
        kernel.run("%distributed start --devices 2").check()
    run = kernel.run(
        f"""
        %%distributed{"" if live else " --devices 2"}
        import os, sys, torch.distributed as dist
        if rank == 1:
            for step in range(2000):
                print("step", step, "äß")
            print("oh", file=sys.stderr)
            print("before", end="")
            {end}
        dist.barrier()
        """
    )
    expected = "".join(f"step {step} äß\n" for step in range(2000))
    assert run.error is not None, run.describe()
    assert run.stdout == "".join(f"[1] {line}\n" for line in [*expected.splitlines(), "before"])
    assert "[1] oh\n" in run.stderr
    assert logs_of(kernel)[-1] == f"{expected}oh\nbefore"
    if live:
        assert kernel.run("%distributed logs 1").check().stdout.endswith("oh\nbefore\n")
        kernel.run("%distributed stop").check()
