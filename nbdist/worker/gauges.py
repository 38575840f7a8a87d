"""What a rank uses of the machine: a thread measures it once a second while the rank works."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

import psutil

from nbdist.figures import Usage
from nbdist.nvml import GpuGauge
from nbdist.worker.capture import Outbox
from nbdist.worker.regularly import Regularly

_EVERY_S = 1.0


class Gauges:
    """Sends `Usage` once a second while the rank works; nothing of work that takes less.

    Args:
        gpu_uuid: the rank's GPU; empty for a CPU.
    """

    def __init__(self, outbox: Outbox, gpu_uuid: str = ""):
        self._outbox = outbox
        self._gpu_uuid = gpu_uuid
        self._process: ProcessGauge | None = None
        self._gpu: GpuGauge | None = None
        self._looks = Regularly(self._measure, name="nbdist-gauges", every_s=_EVERY_S, begin=self._begin)

    def working(self) -> contextlib.AbstractContextManager[None]:
        """Measure while this block runs, in the main thread."""
        return self._looks.working()

    def _begin(self) -> None:
        if self._process is None:
            self._process, self._gpu = ProcessGauge(), _gpu_gauge(self._gpu_uuid)
        self._process.begin()

    def _measure(self) -> None:
        assert self._process is not None
        cpu, memory_bytes = self._process.read()
        gpu = self._gpu.read() if self._gpu is not None else None
        self._outbox.add(Usage(cpu=cpu, memory_bytes=memory_bytes, gpu=gpu))


class ProcessGauge:
    """CPU and memory of this process and its children."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self.begin()

    def begin(self) -> None:
        """Count CPU time from now on."""
        self._cpu_s, _ = self._used()
        self._at_s = time.monotonic()

    def read(self) -> tuple[float, int]:
        """Cores in use since the last reading, and bytes of resident memory."""
        cpu_s, memory_bytes = self._used()
        now_s = time.monotonic()
        # Less than before: a child has ended whose time nobody has counted.
        cores = max(0.0, cpu_s - self._cpu_s) / max(now_s - self._at_s, 1e-9)
        self._cpu_s, self._at_s = cpu_s, now_s
        return cores, memory_bytes

    def _used(self) -> tuple[float, int]:
        cpu_s, memory_bytes = _of(self._own)
        for child in self._children():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                its_cpu_s, its_bytes = _of(child)
                cpu_s, memory_bytes = cpu_s + its_cpu_s, memory_bytes + its_bytes
        return cpu_s, memory_bytes

    def _children(self) -> list[Any]:
        if not _may_have_children():
            return []
        return list(self._own.children(recursive=True))


def _of(process: Any) -> tuple[float, int]:
    with process.oneshot():
        times = process.cpu_times()
        cpu_s = times.user + times.system + getattr(times, "children_user", 0.0)
        return cpu_s + getattr(times, "children_system", 0.0), int(process.memory_info().rss)


def _may_have_children() -> bool:
    """psutil reads all processes of the machine to find children: only where there are some."""
    if sys.platform != "linux":
        return True
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children") as children:
                if children.read(1):
                    return True
    except FileNotFoundError:  # a kernel without these files, or a thread that has ended meanwhile
        return True
    return False


def _gpu_gauge(uuid: str) -> GpuGauge | None:
    if not uuid:
        return None
    import pynvml  # through it the GPU was found

    try:
        return GpuGauge(pynvml, uuid)
    except pynvml.NVMLError:  # the driver shows it to the kernel and not to its ranks
        return None
