"""Files that the notebook has open: it goes on where the cell left them, whatever holds them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from notebook_kernel import NotebookKernel

LINES = "".join(f"line {number}\n" for number in range(3000))


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A way to write a file without a name for it.

    Attributes:
        setup: makes `say`, which writes a line to ``out.txt``, and says the first one.
        end: afterwards writes what is still in memory, and closes the file.
    """

    setup: str
    end: str


WRITERS = {
    "a logging handler": Writer(
        setup="""
            import logging
            log = logging.getLogger("training")
            log.propagate, log.level = False, logging.INFO
            log.addHandler(logging.FileHandler("out.txt", mode="w"))
            say = log.info
            """,
        end="handler = log.handlers.pop()\nhandler.close()\ndel handler, log, say",
    ),
    "csv.writer": Writer(
        setup="""
            import csv
            def opened():
                file = open("out.txt", "w", newline="")
                return csv.writer(file, lineterminator="\\n"), file.close
            rows, close = opened()
            def say(text):
                rows.writerow([text])
            """,
        end="close()\ndel rows, close, say",
    ),
    "a bound method": Writer(
        setup="""
            def opened():
                file = open("out.txt", "w")
                return file.write, file.close
            write, close = opened()
            def say(text):
                write(text + "\\n")
            """,
        end="close()\ndel write, close, say",
    ),
    "a text file over a binary one": Writer(
        setup="""
            import io
            def opened():
                file = io.TextIOWrapper(io.BufferedWriter(io.FileIO("out.txt", "w")))
                return file.write, file.close
            write, close = opened()
            def say(text):
                write(text + "\\n")
            """,
        end="close()\ndel write, close, say",
    ),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_what_the_cell_wrote_is_not_written_over(kernel: NotebookKernel, writer: Writer) -> None:
    kernel.run(writer.setup).check()
    kernel.run("say('before')").check()
    for text in ("first cell", "second cell"):
        kernel.run(f"%%distributed --devices 2\nif rank == 0:\n    say({text!r})").check()
        kernel.run(f"say('after the {text}')").check()
    kernel.run(writer.end).check()
    written = (kernel.working_folder / "out.txt").read_text().splitlines()
    assert written == ["before", "first cell", "after the first cell", "second cell", "after the second cell"]


def test_a_handler_that_the_cell_closed_writes_behind_what_is_there(kernel: NotebookKernel) -> None:
    kernel.run(WRITERS["a logging handler"].setup).check()
    kernel.run(
        """
        %%distributed --devices 2
        if rank == 0:
            say("in the cell")
            logging.shutdown()
        """
    ).check()
    kernel.run("say('after')").check()
    kernel.run(WRITERS["a logging handler"].end).check()
    assert (kernel.working_folder / "out.txt").read_text() == "in the cell\nafter\n"


def test_text_that_lies_in_a_wrapper_of_the_cell_is_written_before_the_notebook_goes_on(
    kernel: NotebookKernel,
) -> None:
    kernel.run("import io\nfile = open('out.txt', 'wb')\nfile.write(b'1');").check()
    kernel.run(
        """
        %%distributed --devices 2 -o nothing
        nothing = None
        if rank == 0:
            text = io.TextIOWrapper(file)
            text.write("2")
        """
    ).check()
    kernel.run("file.write(b'3')\nfile.close()").check()
    assert (kernel.working_folder / "out.txt").read_text() == "123"


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        pytest.param(LINES.encode(), "utf-8", id="plain"),
        pytest.param(
            LINES.replace("line", "Größe \N{SNOWMAN} \N{GRINNING FACE}").encode(), "utf-8", id="utf-8"
        ),
        pytest.param(LINES.replace("\n", "\r\n").encode(), "utf-8", id="ends of Windows"),
        pytest.param(LINES.encode("utf-8-sig"), "utf-8-sig", id="with a mark at the begin"),
        pytest.param(LINES.replace("line", "Größe").encode("latin-1"), "latin-1", id="latin-1"),
    ],
)
def test_a_text_file_is_read_on_by_next(kernel: NotebookKernel, content: bytes, encoding: str) -> None:
    (kernel.working_folder / "in.txt").write_bytes(content)
    expected = content.decode(encoding).splitlines()
    kernel.run(
        f"""
        import csv, itertools
        lines = open("in.txt", encoding={encoding!r})
        rows = csv.reader(open("in.txt", encoding={encoding!r}))
        untouched = open("in.txt", encoding={encoding!r})
        start = [next(lines), *next(rows), next(untouched)]
        """
    ).check()
    # To places within what is read at once, and far behind it.
    for count in (1, 2, 1500):
        kernel.run(
            f"""
            %%distributed --devices 2
            skipped = list(itertools.islice(lines, {count})), list(itertools.islice(rows, {count}))
            """
        ).check()
        kernel.run("here = [next(lines), *next(rows)]").check()
        at = expected.index(kernel.value("here[0].strip()"))
        assert kernel.value("(here[1], skipped[0][-1].strip())") == (expected[at], expected[at - 1])
        kernel.run("lines.seek(0)").check()
        assert kernel.value("next(lines).strip()") == expected[0]
        kernel.run(f"_ = list(itertools.islice(lines, {at}))").check()
    assert kernel.value("next(untouched).strip()") == expected[1]
    kernel.run("lines.close()\nuntouched.close()\ndel rows").check()


def test_a_packed_file_is_read_on(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import gzip
        with gzip.open("in.gz", "wt") as file:
            file.writelines(f"line {number}\\n" for number in range(3000))
        lines, data = gzip.open("in.gz", "rt"), gzip.open("in.gz")
        start = next(lines), data.readline()
        """
    ).check()
    kernel.run("%%distributed --devices 2\nread = next(lines), data.readline()").check()
    assert kernel.value("(read, next(lines), data.readline())") == (
        ("line 1\n", b"line 1\n"),
        "line 2\n",
        b"line 2\n",
    )
    kernel.run("lines.close()\ndata.close()").check()


def test_a_packed_file_that_the_cell_writes_is_named(kernel: NotebookKernel) -> None:
    kernel.run("import gzip\nlog = gzip.open('log.gz', 'wt')").check()
    run = kernel.run("%%distributed --devices 2\nif rank == 0:\n    log.write('in the cell')").check()
    assert run.stderr == (
        "nbdist: log (its new content) stays behind: what packs its content cannot go on in another process. "
        "Open it in the cell, or close it before\n"
    )
    kernel.run("log.close()").check()


def test_a_file_that_the_notebook_goes_on_with_meanwhile_stays_where_it_is(kernel: NotebookKernel) -> None:
    kernel.run(
        """
        import pathlib, threading
        file = open("out.txt", "w")
        def write_when_asked():
            while not pathlib.Path("asked").exists():
                threading.Event().wait(0.01)
            file.write("from the notebook\\n")
            file.flush()
            pathlib.Path("written").touch()
        writer = threading.Thread(target=write_when_asked)
        writer.start()
        """
    ).check()
    run = kernel.run(
        """
        %%distributed --devices 2
        if rank == 0:
            file.write("from the cell")
            pathlib.Path("asked").touch()
            while not pathlib.Path("written").exists():
                threading.Event().wait(0.01)
        """
    ).check()
    assert run.stderr == (
        "nbdist: file (its new content) stays behind: the notebook itself has gone on with the file meanwhile\n"
    )
    assert kernel.value("(writer.join(), file.tell(), file.close())") == (
        None,
        len("from the notebook\n"),
        None,
    )
