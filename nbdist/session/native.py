"""C frames of a rank, where py-spy is installed: what Python's own stack cannot show."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping

_PATIENCE_S = 5.0  # for all ranks together: a cell that is to be stopped may wait for it
_MACHINERY = ("/IPython/core/", "/nbdist/worker/")
_AT_WORK = ("/nbdist/worker/work.py", "/nbdist/worker/group.py")
_FRAME = re.compile(r"\s*(?P<function>.*) \((?P<file>[^()]*)\)$")
# Python's own frames are in the stack above these; what lies between Python and C says nothing.
_PYTHONS = re.compile(r"\.py:\d+$|^<")
_GLUE = re.compile(r"^0x[0-9a-f]+$|^pybind11::|^_?Py[A-Z_]")


def native_stacks(pids: Mapping[int, int]) -> dict[int, list[str]]:
    """By rank the main thread's C frames, the most recent call first, where they can be had in time.

    Args:
        pids: processes of ranks, by rank.
    """
    until_s = time.monotonic() + _PATIENCE_S
    stacks = {rank: native_stack(pid, until_s - time.monotonic()) for rank, pid in pids.items()}
    return {rank: frames for rank, frames in stacks.items() if frames}


def native_stack(pid: int, patience_s: float = _PATIENCE_S) -> list[str]:
    """The C frames of a rank's main thread, the most recent call first; empty where they cannot be had, or
    where it is at no work any more: it may have come out of it since somebody asked."""
    beside_python = os.path.dirname(sys.executable)
    tool = shutil.which("py-spy", path=os.pathsep.join((beside_python, os.environ.get("PATH", ""))))
    if tool is None or patience_s <= 0:
        return []
    command = [tool, "dump", "--native", "--full-filenames", "--pid", str(pid)]
    environment = {**os.environ, "NO_COLOR": "1", "CLICOLOR_FORCE": "0"}  # a kernel's asks for colours
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    try:
        dumped, _ = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        return []
    finally:  # subprocess.run() does not wait for it when an interrupt strikes
        process.kill()
        process.communicate()
    lines = itertools.dropwhile(lambda line: not line.startswith(f"Thread {pid} "), dumped.splitlines())
    frames = list(itertools.takewhile(str.strip, itertools.islice(lines, 1, None)))
    if not _any_in(_AT_WORK, "\n".join(frames)):
        return []
    users = itertools.takewhile(lambda line: not _any_in(_MACHINERY, line), frames)
    return [frame for frame in map(_short, users) if frame]


def _any_in(parts: tuple[str, ...], text: str) -> bool:
    return any(part in text for part in parts)


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
