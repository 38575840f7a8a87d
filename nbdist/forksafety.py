"""Is this kernel safe to fork; if not, what made it so and in which cell. Heals what can be healed.

`fork_gate` is held by nbdist's own threads while they import, log or write, and by every fork:
no lock of ours is ever held at a fork.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

fork_gate = threading.RLock()

_PAUSE_HARD = 2
_PATIENCE_S = 1.0
_OPENMP_LIBRARY = re.compile(r"/.*/lib(?:gomp|omp|iomp5)[^/\n]*$", re.MULTILINE)

# CUDA opens this device when it is initialised, whoever asked for it; NVML does not.
_CUDA_DEVICE = "/dev/nvidia-uvm"
_AUTOGRAD_THREADS = "pt_autograd"


def can_fork() -> bool:
    """Whether a notebook's process can be forked on this system at all. Elsewhere libraries that it uses (on
    macOS Accelerate, Grand Central Dispatch, Objective-C) crash or hang in the child."""
    return sys.platform == "linux"


ENVIRONMENT = {
    # torch asks NVML whether there is a GPU: asking CUDA would spoil later forks.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Huge pages for torch's CPU memory: a fork copies page tables, 512 times fewer of them then.
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""What ``%load_ext nbdist`` sets in the kernel, where it is not set."""


class Probes(Protocol):
    """What is looked at. `KernelProbes` looks at this process; tests have their own."""

    def cuda_initialized(self) -> bool:
        """Whether torch has initialised CUDA here."""

    def open_devices(self) -> Iterable[str]:
        """Paths below /dev that this process holds open."""

    def thread_names(self) -> Iterable[str]:
        """Names of this process's threads."""

    def bad_in_child(self) -> bool:
        """Whether torch says, in a throw-away forked child, that CUDA cannot be used there."""


class KernelProbes:
    """Looks at this process."""

    def cuda_initialized(self) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and hasattr(torch, "cuda") and bool(torch.cuda.is_initialized())

    def open_devices(self) -> list[str]:
        if not os.path.exists(_CUDA_DEVICE):
            return []
        paths = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                paths.append(os.readlink(f"/proc/self/fd/{fd}"))
            except FileNotFoundError:  # the listing's own descriptor
                continue
        return [path for path in paths if path.startswith("/dev/")]

    def thread_names(self) -> list[str]:
        if not os.path.exists(_CUDA_DEVICE):
            return []
        names = []
        for thread in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{thread}/comm") as comm:
                    names.append(comm.read().strip())
            except FileNotFoundError:  # it has just ended
                continue
        return names

    def bad_in_child(self) -> bool:
        torch: Any = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "cuda") or not os.path.exists(_CUDA_DEVICE):
            return False
        if sys.platform == "linux":  # as it is where there is such a device
            with fork_gate:
                pid = os.fork()
            if pid == 0:
                os._exit(1 if torch.cuda._is_in_bad_fork() else 0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
        return False


@dataclass(frozen=True, slots=True)
class Unsafe:
    """Why this kernel must not be forked.

    Attributes:
        what: what happened: ``CUDA was initialised``.
        where: the cell, and the modules that it imported; empty when it was before nbdist was loaded.
    """

    what: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.what} by {self.where}" if self.where else self.what


class ForkSafety:
    """Watches one kernel. An unsafe kernel stays so.

    Args:
        probes: how to look; tests put their own here.
    """

    def __init__(self, probes: Probes | None = None):
        self.probes = probes or KernelProbes()
        self._unsafe: Unsafe | None = None
        self._modules: frozenset[str] = frozenset()

    @property
    def unsafe(self) -> Unsafe | None:
        """What has been found so far."""
        return self._unsafe

    def before_cell(self) -> None:
        """Note what is imported before a cell runs."""
        if self._unsafe is None:
            self._modules = frozenset(sys.modules)

    def after_cell(self, label: str, source: str) -> Unsafe | None:
        """Look after a cell; cheap (no fork).

        Args:
            label: how the user knows the cell: ``In[3]``.
            source: its text.
        """
        if self._unsafe is None:
            what = self._look()
            if what is not None:
                imported = _imported_by(source) - self._modules
                modules = f" (it imported {', '.join(sorted(imported))})" if imported else ""
                self._unsafe = Unsafe(what, f"{label}{modules}")
        return self._unsafe

    def before_launch(self) -> Unsafe | None:
        """Look right before a launch, with a throw-away child to be sure."""
        if self._unsafe is None:
            what = self._look()
            if what is None and self.probes.bad_in_child():
                what = "CUDA was initialised"
            if what is not None:
                self._unsafe = Unsafe(what)
        return self._unsafe

    def _look(self) -> str | None:
        if self.probes.cuda_initialized() or _CUDA_DEVICE in self.probes.open_devices():
            return "CUDA was initialised"
        if any(name.startswith(_AUTOGRAD_THREADS) for name in self.probes.thread_names()):
            return "autograd's device threads were started (backward() on a machine with GPUs)"
        return None


this_process = ForkSafety()
"""What is known of the process that we are in."""


def _imported_by(source: str) -> frozenset[str]:
    """Top-level modules that a cell's text imports; none for text that is not plain Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return frozenset(names)


@contextlib.contextmanager
def no_logging() -> Iterator[None]:
    """Let no thread be inside a logging handler: at a fork it would leave its file's lock held in the
    child for ever. A handler that is busy for more than a second is not waited for."""
    held = []
    for reference in list(logging._handlerList):  # type: ignore[attr-defined]
        handler = reference()
        if handler is not None and handler.lock is not None and handler.lock.acquire(timeout=_PATIENCE_S):
            held.append(handler.lock)
    try:
        yield
    finally:
        for lock in held:
            lock.release()


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
            return set(_OPENMP_LIBRARY.findall(maps.read()))
    except FileNotFoundError:  # no Linux
        return set()
