"""What a rank uses of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nbdist.figures import GpuUsage, Usage
from nbdist.nvml import GpuGauge
from nbdist.state import first_state, fold
from nbdist.worker.gauges import ProcessGauge


class FakeNvml:
    """Stands for ``pynvml``: one GPU, which does not tell what is in `silent`."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801 (pynvml's name)
        pass

    def __init__(self, *silent: str):
        self._silent = silent
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        if name in self._silent:
            raise self.NVMLError_NotSupported
        own = SimpleNamespace(pid=os.getpid(), usedGpuMemory=5)
        answers = {
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=7, total=10),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=25),
            "nvmlDeviceGetPowerUsage": 300_500,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetComputeRunningProcesses": [own, SimpleNamespace(pid=1, usedGpuMemory=2)],
        }
        return lambda *_: answers[name]


def test_a_gpu_is_read() -> None:
    nvml = FakeNvml()
    gauge = GpuGauge(nvml, "GPU-1")
    assert gauge.read() == GpuUsage(
        use=0.25, memory_bytes=5, used_bytes=7, total_bytes=10, power_w=300.5, temperature_c=61.0
    )
    gauge.close()
    assert nvml.open == 0


def test_what_a_gpu_does_not_tell_is_none() -> None:
    """As of a MIG slice."""
    asked = ("UtilizationRates", "PowerUsage", "Temperature", "ComputeRunningProcesses")
    nvml = FakeNvml(*(f"nvmlDeviceGet{name}" for name in asked))
    assert GpuGauge(nvml, "MIG-1").read() == GpuUsage(used_bytes=7, total_bytes=10)


def test_a_gpu_that_is_not_there_leaves_no_driver_open() -> None:
    nvml = FakeNvml("nvmlDeviceGetHandleByUUID")
    with pytest.raises(FakeNvml.NVMLError):
        GpuGauge(nvml, "GPU-1")
    assert nvml.open == 0


def test_cpu_of_children_counts() -> None:
    gauge = ProcessGauge()
    busy = "import time\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        _, with_child = gauge.read()
        begun_s = time.process_time()
        end_s = time.monotonic() + 1
        while time.monotonic() < end_s:
            pass
        own_s = time.process_time() - begun_s
        cores, _ = gauge.read()
        child.kill()
    assert cores > own_s  # more than this process alone
    assert with_child > gauge.read()[1]


def test_the_state_keeps_the_latest() -> None:
    usage = Usage(cpu=1.5, memory_bytes=10)
    state = fold(first_state(2), 1, Usage(cpu=0.5, memory_bytes=10))
    assert fold(state, 1, usage).ranks[1].usage == usage
