"""nbdist on Windows: in a process from which all that Windows lacks has been taken away.

`other_system/sitecustomize.py` takes it. No Windows machine is involved.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from conftest import OTHER_SYSTEM_PATH


def on_windows(code: str) -> None:
    """Run code in a process that becomes one on Windows once others' libraries are imported.

    The code must not get as far as to load a module that starts, feeds or is a rank.
    """
    script = f"""
import multiprocessing.reduction, sys
import IPython.core.interactiveshell, numpy, psutil, torch.distributed, torch.utils.data
from torch.nn.parallel import DistributedDataParallel
import sitecustomize
sitecustomize.become("win32")
{textwrap.dedent(code)}
loaded = {{name for name in sys.modules if name.startswith("nbdist.")}}
for part in ("start", "worker", "channel", "values", "session.session", "session.ranks"):
    assert f"nbdist.{{part}}" not in loaded, part
"""
    environment = {**os.environ, "PYTHONPATH": OTHER_SYSTEM_PATH, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_windows_lacks_what_it_lacks() -> None:
    """Else the tests below would show nothing."""
    on_windows(
        """
        import os, signal, socket
        assert sys.platform == "win32"
        assert not any(hasattr(os, name) for name in ("fork", "pidfd_open", "register_at_fork", "setsid"))
        assert not hasattr(socket, "AF_UNIX") and not hasattr(signal, "SIGKILL")
        for name in ("fcntl", "pwd", "resource", "termios"):
            try:
                __import__(name)
            except ImportError:
                continue
            raise AssertionError(name)
        """
    )


def test_windows_says_in_the_notebook_what_it_cannot_and_what_to_do() -> None:
    on_windows(
        """
        shell = IPython.core.interactiveshell.InteractiveShell.instance()
        assert shell.extension_manager.load_extension("nbdist") is None
        shown = []
        shell._showtraceback = lambda kind, value, trace: shown.append((kind.__name__, str(value)))
        assert shell.run_cell("1 + 1").result == 2
        shell.run_cell("%%distributed --devices two\\npass")
        shell.run_cell("%%distributed --devices 2\\npass")
        [(wrong, allowed), (refused, reason)] = shown
        assert (wrong, refused) == ("OptionError", "LaunchError"), shown
        assert "--devices two" in allowed
        assert reason.startswith("--start-method auto: ranks cannot be started on Windows."), reason
        assert "wsl --install" in reason
        from IPython.utils.capture import capture_output
        with capture_output() as captured:
            shell.run_line_magic("distributed", "stacks")
        assert captured.stdout == "No ranks are up.\\n", captured.stdout
        shell.extension_manager.unload_extension("nbdist")
        """
    )


def test_windows_refuses_the_python_interface() -> None:
    on_windows(
        """
        import nbdist

        def refusal(call):
            try:
                call()
            except nbdist.NbdistError as error:
                return type(error).__name__

        assert refusal(lambda: nbdist.launch(print, devices="two")) == "OptionError"
        assert refusal(lambda: nbdist.launch(print, devices=2)) == "LaunchError"
        assert refusal(lambda: nbdist.Session(devices="two")) == "OptionError"
        assert refusal(lambda: nbdist.Session(devices=2, start_method="spawn")) == "LaunchError"
        """
    )


def test_windows_has_the_command_line() -> None:
    on_windows(
        """
        import contextlib, io
        from nbdist.cli import main

        def run(*argv):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code = main(argv)
                except SystemExit as exit:
                    code = exit.code
            return code, out.getvalue(), err.getvalue()

        code, out, _ = run("--help")
        assert code == 0 and "demo" in out
        code, _, err = run("demo")
        assert code == 1 and err.startswith("nbdist: --start-method auto: ranks cannot be started on Windows."), err
        """
    )


def test_windows_has_what_is_called_inside_a_rank(tmp_path: Path) -> None:
    """With the environment of torchrun, which starts ranks there."""
    store = (tmp_path / "store").as_uri()
    on_windows(
        f"""
        import os
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        torch.distributed.init_process_group("gloo", init_method={store!r}, rank=0, world_size=1)
        import nbdist
        nbdist.seed_everything(1)
        model = torch.nn.Linear(2, 1)
        wrapped, optimizer = nbdist.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert isinstance(wrapped, DistributedDataParallel)
        data = torch.utils.data.TensorDataset(torch.ones(6, 2), torch.zeros(6, 1))
        loader = nbdist.setup_loader(torch.utils.data.DataLoader(data, batch_size=2, shuffle=True))
        before = model.weight.detach().clone()
        for inputs, targets in loader:
            torch.nn.functional.mse_loss(wrapped(inputs), targets).backward()
            optimizer.step()
        assert not torch.equal(before, model.weight)
        assert nbdist.mean(2.0) == 2.0 and nbdist.is_rank_zero()
        nbdist.print_rank_zero("trained")
        torch.distributed.destroy_process_group()
        """
    )
