"""The process that ends what ranks leave."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path

import psutil
from notebook_kernel import poll_until

from nbdist.start.guard import Guard


def test_one_that_takes_long_is_no_zombie_afterwards(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as worker:
        guard = Guard([(worker.pid, "a mark that nobody has")], str(tmp_path / "scratch"))
        (process,) = (one for one in psutil.Process().children() if "nbdist-guard" in one.cmdline())
        worker.kill()
    process.send_signal(signal.SIGSTOP)
    guard.close()
    process.send_signal(signal.SIGCONT)
    poll_until(lambda: not process.is_running(), 10, lambda: f"it is {process.status()}")
    poll_until(
        lambda: "nbdist-guard" not in [one.name for one in threading.enumerate()], 10, lambda: "a thread"
    )
