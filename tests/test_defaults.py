"""`%distributed defaults`: options that hold in the notebook where a cell or a call says nothing."""

from __future__ import annotations

from notebook_kernel import NotebookKernel


def test_defaults_hold_for_cells_sessions_and_calls(kernel: NotebookKernel) -> None:
    said = kernel.run("%distributed defaults --accelerator cpu -d 3 --seed 7").check().stdout
    assert said == "defaults of this notebook: --accelerator cpu --devices 3 --seed 7\n"
    assert kernel.run("%%distributed\nworld_size").check().result == {"text/plain": "3"}
    kernel.run("import nbdist, os\ndef ranks(): return int(os.environ['WORLD_SIZE'])").check()
    assert kernel.run("nbdist.launch(ranks)").check().result == {"text/plain": "3"}
    run = kernel.run("with nbdist.Session() as session:\n    found = session.run(ranks)\nfound").check()
    assert run.result == {"text/plain": "[3, 3, 3]"}
    kernel.run("%distributed start").check()
    assert kernel.run("%%distributed\nworld_size").check().result == {"text/plain": "3"}
    kernel.run("%distributed stop").check()


def test_what_a_cell_or_a_call_says_counts(kernel: NotebookKernel) -> None:
    kernel.run("%distributed defaults --accelerator cpu -d 3 --no-init").check()
    cell = "import torch.distributed as dist\n(world_size, dist.is_initialized())"
    assert kernel.run(f"%%distributed\n{cell}").check().result == {"text/plain": "(3, False)"}
    assert kernel.run(f"%%distributed -d 1 --init\n{cell}").check().result == {"text/plain": "(1, True)"}
    kernel.run("import nbdist, os\ndef ranks(): return int(os.environ['WORLD_SIZE'])").check()
    assert kernel.run("nbdist.launch(ranks, devices=1)").check().result == {"text/plain": "1"}


def test_defaults_add_up_and_can_be_reset(kernel: NotebookKernel) -> None:
    shown = "%distributed defaults"
    assert kernel.run(shown).check().stdout == "defaults of this notebook: none\n"
    kernel.run(f"{shown} --hold").check()
    both = kernel.run(f"{shown} --logs rank0 --no-hold").check().stdout
    assert both == "defaults of this notebook: --no-hold --logs rank0\n"
    wrong = kernel.run(f"{shown} --reset --logs some")
    assert wrong.error is not None
    assert "--logs some: no such choice" in wrong.error.evalue
    assert kernel.run(shown).check().stdout == both
    assert "none" not in kernel.run(f"{shown} --reset --seed 1").check().stdout
    assert kernel.run(f"{shown} --reset").check().stdout == "defaults of this notebook: none\n"


def test_unloading_takes_them_back(kernel: NotebookKernel) -> None:
    kernel.run("%distributed defaults --seed 1").check()
    kernel.run("%reload_ext nbdist").check()
    assert kernel.run("%distributed defaults").check().stdout == "defaults of this notebook: none\n"


def test_options_of_one_cell_are_no_defaults(kernel: NotebookKernel) -> None:
    for told in ("--gather a", "--output a", "--ranks 0", "--background"):
        error = kernel.run(f"%distributed defaults --reset {told}").error
        assert error is not None
        assert f"{told}: says something of one cell, not of all cells" in error.text
    assert kernel.run("%distributed defaults").check().stdout == "defaults of this notebook: none\n"


def test_hold_as_a_default_says_nothing_of_the_background(kernel: NotebookKernel) -> None:
    kernel.run("%distributed defaults --hold --accelerator cpu\nimport nbdist").check()
    kernel.run("%%distributed --background run\nx = 3").check()
    assert kernel.run("run.wait()\nx").check().result == {"text/plain": "3"}
    assert kernel.run("nbdist.launch(abs, -4, background=True).wait()").check().result == {"text/plain": "4"}
    error = kernel.run("%%distributed --hold --background run\n1").error
    assert error is not None
    assert "Leave out --hold, or --background." in error.text
