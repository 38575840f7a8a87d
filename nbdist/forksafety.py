"""Is this kernel safe to fork; what can be healed is healed just before the fork.

`fork_gate` is held by nbdist's own threads while they import, log or write, and by every fork:
no lock of ours is ever held at a fork.
"""

from __future__ import annotations

import ctypes
import sys
import threading

fork_gate = threading.RLock()

_PAUSE_HARD = 2
_OPENMP_LIBRARIES = ("libgomp", "libomp", "libiomp5")


def unsafe_reason() -> str | None:
    """Why a fork of this process would break its children, or None when it would not."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return "CUDA was initialised in this kernel, and a forked process cannot use CUDA then"
    return None


def heal() -> None:
    """Make OpenMP's thread pools forkable; call it in the forking thread, right before the fork.

    After any threaded CPU operation a forked child would wait for pool threads that it does not
    have. A hard pause ends the pool; it comes back by itself at the next use, here and in the child.
    """
    for path in _loaded_openmp():
        library = ctypes.CDLL(path)
        if hasattr(library, "omp_pause_resource_all"):
            library.omp_pause_resource_all(_PAUSE_HARD)


def _loaded_openmp() -> set[str]:
    try:
        with open("/proc/self/maps") as maps:
            mapped = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    except FileNotFoundError:  # no Linux
        return set()
    return {path for path in mapped if path.rpartition("/")[2].startswith(_OPENMP_LIBRARIES)}
