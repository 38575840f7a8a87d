"""C frames of a rank, where py-spy is installed: what Python's own stack cannot show."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys

_PATIENCE_S = 5.0
_MACHINERY = ("/IPython/core/", "/nbdist/worker/")
_FRAME = re.compile(r"\s*(?P<function>.*) \((?P<file>[^()]*)\)$")
# Python's own frames are in the stack above these; what lies between Python and C says nothing.
_PYTHONS = re.compile(r"\.py:\d+$|^<")
_GLUE = re.compile(r"^0x[0-9a-f]+$|^pybind11::|^_?Py[A-Z_]")


def native_stack(pid: int) -> list[str]:
    """The main thread's C frames, the most recent call first; empty where they cannot be had."""
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
    users = itertools.takewhile(lambda line: not any(part in line for part in _MACHINERY), frames)
    return [frame for frame in map(_short, users) if frame]


def _short(line: str) -> str:
    """A frame as function and library, without what templates and arguments say; empty for one that tells
    a reader nothing.

    >>> _short("    c10d::Work::wait<std::ratio<1, 1000> > (/opt/torch/lib/libtorch_cpu.so)")
    '  c10d::Work::wait (libtorch_cpu.so)'
    """
    frame = _FRAME.match(line)
    if frame is None or _PYTHONS.search(frame["file"]) or _GLUE.search(frame["function"]):
        return ""
    function = frame["function"]
    for inner in (r"<[^<>]*>", r"\([^()]*\)"):
        shorter = ""
        while shorter != function:
            shorter, function = function, re.sub(inner, "", function)
    return f"  {function.strip()} ({os.path.basename(frame['file'])})"
