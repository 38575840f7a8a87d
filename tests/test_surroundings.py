"""What a cell changes around the notebook's names: the folder, the environment, random states, defaults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from notebook_kernel import NotebookKernel

METHODS = ["fork", "forkserver", "spawn"]

IMPORTS = """
import decimal, os, random, sys, warnings
import matplotlib, numpy as np, pandas as pd, torch
"""

# What a user would see of it, as plain values.
PROBE = """
around = {
    "folder": os.getcwd(), "path": list(sys.path), "argv": list(sys.argv),
    "environment": dict(os.environ), "filtered": "a test's own" in str(warnings.filters),
    "dtype": str(torch.get_default_dtype()), "grad": torch.is_grad_enabled(),
    "matmul": torch.get_float32_matmul_precision(), "deterministic": torch.are_deterministic_algorithms_enabled(),
    "benchmark": torch.backends.cudnn.benchmark, "tensor": repr(torch.tensor(1 / 3)),
    "division": np.geterr()["divide"], "digits": decimal.getcontext().prec,
    "recursion": sys.getrecursionlimit(), "anomaly": torch.is_anomaly_enabled(),
    "array": repr(np.array([1 / 3])), "rows": pd.get_option("display.max_rows"),
    "dpi": matplotlib.rcParams["figure.dpi"], "colours": str(matplotlib.rcParams["axes.prop_cycle"]),
}
"""

CHANGES = """
os.makedirs("deeper", exist_ok=True)
%cd -q deeper
%env NBDIST_COLOUR=red
os.environ.pop("NBDIST_OLD", None)
sys.path.insert(0, "/nowhere")
sys.argv = ["train.py", "--epochs", "3"]
warnings.filterwarnings("ignore", message="a test's own")
np.seterr(divide="ignore")
decimal.getcontext().prec = 50
sys.setrecursionlimit(12345)
torch.autograd.set_detect_anomaly(True)
torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False)
torch.set_float32_matmul_precision("medium")
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = True
torch.set_printoptions(precision=2)
np.set_printoptions(precision=3)
pd.set_option("display.max_rows", 7)
matplotlib.rcParams["figure.dpi"] = 33
matplotlib.rcParams["axes.prop_cycle"] = matplotlib.cycler(color=["red", "blue"])
"""


@pytest.fixture
def fresh() -> Iterator[NotebookKernel]:
    """A kernel of the test's own: it is left in another state than it was."""
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": "", "NBDIST_OLD": "1"}) as kernel:
        kernel.run("%load_ext nbdist").check()
        kernel.run(IMPORTS).check()
        yield kernel


@pytest.mark.parametrize("method", METHODS)
def test_what_a_cell_changes_around_it_is_changed_in_the_notebook(fresh: NotebookKernel, method: str) -> None:
    with NotebookKernel({"CUDA_VISIBLE_DEVICES": "", "NBDIST_OLD": "1"}) as plain:
        plain.run(IMPORTS).check()
        plain.run(CHANGES).check()
        plain.run(PROBE).check()
        expected = plain.value("around")
        plain_folder = str(plain.working_folder)
    run = fresh.run(f"%%distributed --devices 2 --start-method {method}\n{CHANGES}").check()
    assert run.stderr == ""
    fresh.run(PROBE).check()
    seen = fresh.value("around")
    assert seen["folder"] == str(fresh.working_folder / "deeper")
    assert expected["folder"] == f"{plain_folder}/deeper"
    changed = ("NBDIST_COLOUR", "NBDIST_OLD")
    for side in (seen, expected):
        side["environment"] = {name: side["environment"].get(name) for name in changed}
        del side["folder"]
    assert seen["environment"] == {"NBDIST_COLOUR": "red", "NBDIST_OLD": None}
    assert seen == expected
    # And the next cell's ranks find it so.
    fresh.run(f"%%distributed --devices 2 --start-method {method}\n{PROBE}").check()
    again = fresh.value("around")
    assert again["folder"] == str(fresh.working_folder / "deeper")
    again["environment"] = {name: again["environment"].get(name) for name in changed}
    del again["folder"]
    assert again == expected


@pytest.mark.parametrize("method", METHODS)
def test_random_numbers_go_on_where_the_cell_left_them(fresh: NotebookKernel, method: str) -> None:
    seed = "random.seed(3), np.random.seed(3), torch.manual_seed(3)"
    draw = "drawn = (random.random(), np.random.rand(), torch.rand(1).item())"
    fresh.run(f"{seed}\n{draw}").check()
    first = fresh.value("drawn")
    fresh.run(draw).check()
    second = fresh.value("drawn")
    fresh.run(seed).check()
    fresh.run(f"%%distributed --devices 2 --start-method {method}\n{draw}").check()
    assert fresh.value("drawn") == first
    fresh.run(draw).check()
    assert fresh.value("drawn") == second


def test_modules_from_a_path_that_the_cell_added_come_back(kernel: NotebookKernel) -> None:
    (kernel.working_folder / "lib").mkdir()
    (kernel.working_folder / "lib" / "mine.py").write_text("class Thing:\n    size = 3\n")
    kernel.run("import sys\npath = list(sys.path)").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        sys.path.append("lib")
        import mine
        thing = mine.Thing()
        """
    ).check()
    assert run.stderr == ""
    assert kernel.value("(type(thing) is mine.Thing, sys.path[-1])") == (True, "lib")
    kernel.run("sys.path[:] = path\ndel sys.modules['mine'], mine, thing").check()


def test_a_cell_that_changes_no_filters_leaves_them_alone(kernel: NotebookKernel) -> None:
    kernel.run("import warnings\nbefore = list(warnings.filters), warnings.filters").check()
    kernel.run("%%distributed --devices 2\nx = 1").check()
    assert kernel.value("list(warnings.filters) == before[0] and warnings.filters is before[1]") is True
    kernel.run("%%distributed --devices 2\nwarnings.filterwarnings('ignore', message='mine')").check()
    assert kernel.value("[str(f) for f in warnings.filters if f not in before[0]]") == [
        "('ignore', re.compile('mine', re.IGNORECASE), <class 'Warning'>, None, 0)"
    ]
    kernel.run("warnings.filters[:] = before[0]").check()


def test_what_ipython_keeps_for_later_cells_comes_back(kernel: NotebookKernel) -> None:
    kernel.run("flags = get_ipython().compile.flags").check()
    kernel.run(
        """
        %%distributed --devices 2
        from __future__ import annotations
        !exit 3
        for _ in range(5):
            pass
        """
    ).check()
    kernel.run("def later(x: Undefined): ...").check()
    assert kernel.value("(_exit_code, _)") == (3, 4)
    kernel.run("get_ipython().compile.flags = flags\ndel _, annotations").check()


def test_surroundings_come_back_after_a_failure(kernel: NotebookKernel) -> None:
    kernel.run("import os\nstart = os.getcwd()").check()
    run = kernel.run("%%distributed --devices 2\nos.chdir('/')\nraise ValueError('later')")
    assert run.error is not None
    assert run.error.ename == "RankFailedError"
    assert kernel.value("os.getcwd()") == "/"
    kernel.run("os.chdir(start)").check()


def test_a_failing_cell_leaves_gradients_switched_on(kernel: NotebookKernel) -> None:
    """An interrupt may strike where torch was about to switch them on again."""
    kernel.run("import torch").check()
    kernel.run("%%distributed --devices 2\ntorch.set_grad_enabled(False)\nraise ValueError('later')")
    assert kernel.value("torch.is_grad_enabled()") is True
    kernel.run("%%distributed --devices 2\n_ = torch.set_grad_enabled(False)").check()
    assert kernel.value("torch.is_grad_enabled()") is False
    kernel.run("torch.set_grad_enabled(True)\ndel _").check()


def test_named_outputs_alone_leave_the_surroundings_as_they_were(kernel: NotebookKernel) -> None:
    kernel.run("import os").check()
    kernel.run("%%distributed --devices 2 -o x\nos.chdir('/')\nx = os.getcwd()").check()
    assert kernel.value("(x, os.getcwd())") == ("/", str(kernel.working_folder))


def test_a_folder_that_is_gone_by_then_is_named(kernel: NotebookKernel) -> None:
    kernel.run("import os, shutil").check()
    run = kernel.run(
        """
        %%distributed --devices 2
        if rank == 0:
            os.mkdir("brief")
            os.chdir("brief")
            os.rmdir(os.path.join("..", "brief"))
        x = rank
        """
    ).check()
    assert kernel.value("(x, os.getcwd())") == (0, str(kernel.working_folder))
    assert run.stderr == ""


def test_ranks_other_than_0_change_nothing_around_the_notebook(kernel: NotebookKernel) -> None:
    kernel.run("import os").check()
    kernel.run("%%distributed --devices 2\nif rank == 1:\n    os.chdir('/')").check()
    assert kernel.value("os.getcwd()") == str(kernel.working_folder)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_cell_sets_in_ipython_holds_for_later_cells(fresh: NotebookKernel, method: str) -> None:
    fresh.run(
        "class Point:\n    pass\nplain = get_ipython().display_formatter.formatters['text/plain']"
    ).check()
    run = fresh.run(
        f"""
        %%distributed --devices 2 --start-method {method}
        %precision 3
        %alias greet echo hello
        %config InteractiveShell.ast_node_interactivity = "all"
        %xmode Minimal
        %load_ext autoreload
        formatters = get_ipython().display_formatter.formatters
        _ = formatters["text/html"].for_type(Point, lambda point: "<b>a point</b>")
        _ = formatters["text/html"].for_type_by_name("fractions", "Fraction", lambda number: "<i>half</i>")
        from IPython.core.magic import register_line_magic
        @register_line_magic
        def twice(line):
            return 2 * line
        del formatters
        """
    ).check()
    assert run.stderr == ""
    assert fresh.run("1 / 3").check().result == {"text/plain": "0.333"}
    assert fresh.run("%greet you").check().stdout.split() == ["hello", "you"]
    shown = fresh.run("1\n2").check()
    assert [content["data"]["text/plain"] for content in shown.contents("execute_result")] == ["1", "2"]
    html = fresh.run("Point()").check().result
    assert html is not None
    assert html["text/html"] == "<b>a point</b>"
    half = fresh.run("import fractions; fractions.Fraction(1, 2)").check().result
    assert half is not None
    assert half["text/html"] == "<i>half</i>"
    assert fresh.run("%twice ab").check().result == {"text/plain": "'abab'"}
    failed = fresh.run("def fail():\n    1 / 0\nfail()").error
    assert failed is not None
    assert failed.text.strip() == "ZeroDivisionError: division by zero"
    assert fresh.value("'IPython.extensions.autoreload' in get_ipython().extension_manager.loaded") is True
    # And the next cell's ranks find it so.
    again = fresh.run(f"%%distributed --devices 2 --start-method {method}\n%greet ranks\n2 / 3").check()
    assert again.stdout.split() == ["hello", "ranks"]
    assert again.result == {"text/plain": "0.667"}


@pytest.mark.parametrize("method", METHODS)
def test_the_default_device_of_tensors_comes_back(fresh: NotebookKernel, method: str) -> None:
    start = f"%%distributed --devices 2 --start-method {method} --no-init\n"
    fresh.run(f"{start}torch.set_default_device('meta')").check()
    assert fresh.value("str(torch.ones(1).device)") == "meta"
    fresh.run(f"{start}here = str(torch.ones(1).device)\ntorch.set_default_device('cpu')").check()
    assert fresh.value("(here, str(torch.ones(1).device))") == ("meta", "cpu")
