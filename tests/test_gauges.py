"""What a rank uses of the machine."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from fake_nvml import GIB, FakeNvml

from nbdist.figures import GpuUsage, Usage
from nbdist.nvml import GpuGauge, read_memory
from nbdist.state import first_state, fold
from nbdist.worker.gauges import ProcessGauge


def test_a_gpu_is_read() -> None:
    nvml = FakeNvml(1)
    gauge = GpuGauge(nvml, "GPU-aa11")
    assert gauge.read() == GpuUsage(
        use=0.25, memory_bytes=5, used_bytes=GIB, total_bytes=141 * GIB, power_w=300.5, temperature_c=61.0
    )
    gauge.close()
    assert not nvml.is_open


def test_what_a_gpu_does_not_tell_is_none() -> None:
    """As of a MIG slice."""
    asked = ("UtilizationRates", "PowerUsage", "Temperature", "ComputeRunningProcesses")
    nvml = FakeNvml(2, *(f"nvmlDeviceGet{name}" for name in asked))
    assert GpuGauge(nvml, "GPU-aa22").read() == GpuUsage(used_bytes=2 * GIB, total_bytes=141 * GIB)
    silent = FakeNvml(1, "nvmlDeviceGetMemoryInfo", error=FakeNvml.NVMLError_NotSupported)
    assert GpuGauge(silent, "GPU-aa11").read().used_bytes is None


def test_a_gpu_that_is_not_there_leaves_no_driver_open() -> None:
    nvml = FakeNvml(1)
    with pytest.raises(FakeNvml.NVMLError):
        GpuGauge(nvml, "GPU-bb33")
    assert not nvml.is_open


def test_memory_in_use_is_read_and_nvml_is_shut_down() -> None:
    nvml = FakeNvml(4)
    used = read_memory(nvml, ["GPU-aa22", "GPU-bb33", "GPU-gone"])
    assert used == {"GPU-aa22": (2 * GIB, 141 * GIB), "GPU-bb33": (3 * GIB, 141 * GIB)}
    assert not nvml.is_open


@pytest.mark.parametrize("step", ["nvmlInit", "nvmlDeviceGetMemoryInfo"])
def test_memory_that_nvml_does_not_tell_is_left_out(step: str) -> None:
    nvml = FakeNvml(2, step)
    assert read_memory(nvml, ["GPU-aa11"]) == {}
    assert not nvml.is_open


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
