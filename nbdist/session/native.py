"""C frames of a rank, where py-spy is installed: what Python's own stack cannot show."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys

_PATIENCE_S = 5.0
_MACHINERY = ("/IPython/core/", "/nbdist/worker/")


def native_stack(pid: int) -> list[str]:
    """The main thread's C and Python frames, the most recent call first; empty where they cannot be had."""
    beside_python = os.path.dirname(sys.executable)
    tool = shutil.which("py-spy", path=os.pathsep.join((beside_python, os.environ.get("PATH", ""))))
    if tool is None:
        return []
    command = [tool, "dump", "--native", "--full-filenames", "--pid", str(pid)]
    environment = {**os.environ, "NO_COLOR": "1", "CLICOLOR_FORCE": "0"}  # a kernel's asks for colours
    try:
        dumped = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, env=environment)
    except subprocess.TimeoutExpired:
        return []
    lines = itertools.dropwhile(
        lambda line: not line.startswith(f"Thread {pid} "), dumped.stdout.splitlines()
    )
    frames = itertools.takewhile(str.strip, itertools.islice(lines, 1, None))
    return list(itertools.takewhile(lambda line: not any(part in line for part in _MACHINERY), frames))
