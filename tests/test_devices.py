"""Which devices there are, and which of them the ranks get."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from fake_nvml import FakeNvml, gpus

from nbdist.devices import (
    CPU_RANKS,
    Machine,
    gpu_of,
    read_gpus,
    resolve,
    this_machine,
    visible_gpus,
)
from nbdist.errors import OptionError

LAPTOP = Machine(cpu_count=4, no_gpu_reason="NVML: NVML Shared Library Not Found")
WITH_ONE = Machine(gpus=gpus(1), cpu_count=4)
WITH_FOUR = Machine(gpus=gpus(4), cpu_count=4)


@pytest.mark.parametrize(
    ("devices", "accelerator", "machine", "expected"),
    [
        ("auto", "auto", WITH_FOUR, ("cuda:0", "cuda:1", "cuda:2", "cuda:3")),
        ("auto", "cuda", WITH_FOUR, ("cuda:0", "cuda:1", "cuda:2", "cuda:3")),
        ("auto", "auto", WITH_ONE, ("cuda:0",)),
        ("auto", "cpu", WITH_FOUR, ("cpu",) * CPU_RANKS),
        ("auto", "auto", LAPTOP, ("cpu",) * CPU_RANKS),
        ("auto", "cpu", LAPTOP, ("cpu",) * CPU_RANKS),
        (1, "auto", WITH_FOUR, ("cuda:0",)),
        (3, "auto", WITH_FOUR, ("cuda:0", "cuda:1", "cuda:2")),
        (4, "cuda", WITH_FOUR, ("cuda:0", "cuda:1", "cuda:2", "cuda:3")),
        (8, "cpu", WITH_FOUR, ("cpu",) * 8),
        (32, "auto", LAPTOP, ("cpu",) * 32),  # more ranks than cores is allowed
        ((0, 2), "auto", WITH_FOUR, ("cuda:0", "cuda:2")),
        ((3, 1), "cuda", WITH_FOUR, ("cuda:3", "cuda:1")),
        ((2,), "auto", WITH_FOUR, ("cuda:2",)),
        ((0, 2), "auto", LAPTOP, ("cpu", "cpu")),
        ((5, 6, 7), "cpu", WITH_FOUR, ("cpu",) * 3),
    ],
)
def test_resolve(devices: Any, accelerator: str, machine: Machine, expected: tuple[str, ...]) -> None:
    assert resolve(devices, accelerator, machine) == expected


@pytest.mark.parametrize(
    ("devices", "accelerator", "machine", "words"),
    [
        (
            5,
            "auto",
            WITH_FOUR,
            ["--devices 5:", "4 GPUs", "0 to 3", "up to 4", "--accelerator cpu"],
        ),
        (2, "cuda", WITH_ONE, ["--devices 2:", "1 GPU,", "up to 1", "--accelerator cpu"]),
        ((0, 4), "auto", WITH_FOUR, ["--devices 0,4:", "4 GPUs", "0 to 3", "--accelerator cpu"]),
        ((4,), "auto", WITH_FOUR, ["--devices 4,:", "4 GPUs", "0 to 3"]),
        ((1,), "auto", WITH_ONE, ["--devices 1,:", "1 GPU, index 0"]),
    ],
)
def test_more_gpus_than_there_are(devices: Any, accelerator: str, machine: Machine, words: list[str]) -> None:
    with pytest.raises(OptionError) as refused:
        resolve(devices, accelerator, machine)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("devices", ["auto", 1, (0, 1)])
@pytest.mark.parametrize(
    "reason", ["NVML: NVML Shared Library Not Found", "CUDA_VISIBLE_DEVICES= hides every GPU"]
)
def test_cuda_without_a_gpu_says_what_was_looked_for(devices: Any, reason: str) -> None:
    with pytest.raises(OptionError) as refused:
        resolve(devices, "cuda", Machine(no_gpu_reason=reason))
    message = str(refused.value)
    assert message.startswith(f"--accelerator cuda: no GPU was found. {reason}. ")
    assert "--accelerator cpu" in message


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        (" 3 , 1 ", [3, 1]),
        ("", []),
        (" ", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", [1]),
        ("1,9,2", [1]),
        ("9", []),
        ("1,x,2", [1]),
        ("1,,2", [1]),
        ("1x,+2", [1, 2]),
        ("1,1", []),
        ("0,1,0", []),
        ("GPU-bb33", [2]),
        ("GPU-cc,GPU-aa1", [3, 0]),
        ("GPU-aa", []),  # of two GPUs
        ("GPU-bb,GPU-aa,GPU-cc", [2]),
        ("GPU-bb,GPU-bb33", []),
        ("GPU-bb,0", [2]),
        ("0,GPU-bb", [0]),
        ("GPU-bb,", [2]),
        ("GPU-dd", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(variable: str | None, expected: list[int]) -> None:
    assert [gpu.index for gpu in visible_gpus(gpus(4), variable)] == expected


@pytest.mark.parametrize("variable", ["MIG-1234", "MIG-1234,MIG-5678", "MIG-GPU-aa11/3/0"])
def test_a_mig_slice_is_one_device_taken_on_trust(variable: str) -> None:
    (slice_,) = visible_gpus(gpus(4), variable)
    assert slice_.uuid == variable.split(",")[0]
    assert resolve("auto", "auto", Machine(gpus=(slice_,))) == ("cuda:0",)


@pytest.mark.parametrize("count", [1, 4])
def test_gpus_are_read_and_nvml_is_shut_down(count: int) -> None:
    nvml = FakeNvml(count)
    assert read_gpus(nvml) == (gpus(count), "")
    assert nvml.shutdown_count == 1


def test_a_driver_without_gpus() -> None:
    nvml = FakeNvml(0)
    assert read_gpus(nvml) == ((), "NVML shows none")
    assert nvml.shutdown_count == 1


@pytest.mark.parametrize(
    ("step", "shutdown_count"),
    [("nvmlInit", 0), ("nvmlDeviceGetCount", 1), ("nvmlDeviceGetHandleByIndex", 1), ("nvmlDeviceGetUUID", 1)],
)
def test_a_step_of_nvml_that_fails_is_the_reason(step: str, shutdown_count: int) -> None:
    nvml = FakeNvml(2, step)
    assert read_gpus(nvml) == ((), f"NVML: {step} failed")
    assert nvml.shutdown_count == shutdown_count
    assert not nvml.is_open


def test_a_gpu_that_does_not_tell_its_memory() -> None:
    nvml = FakeNvml(1, "nvmlDeviceGetMemoryInfo", error=FakeNvml.NVMLError_NotSupported)
    ((gpu,), _) = read_gpus(nvml)
    assert gpu.memory_bytes == 0


def test_an_error_that_is_not_nvml_s_still_shuts_it_down() -> None:
    nvml = FakeNvml(1, "nvmlDeviceGetCount", error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        read_gpus(nvml)
    assert not nvml.is_open


def test_this_machine() -> None:
    machine = this_machine()
    assert machine.cpu_count == len(os.sched_getaffinity(0))
    assert bool(machine.gpus) != bool(machine.no_gpu_reason)
    assert len(resolve("auto", "auto", machine)) == (len(machine.gpus) or CPU_RANKS)


def test_cpu_count_is_what_this_process_may_use() -> None:
    core = min(os.sched_getaffinity(0))
    program = (
        f"import os; os.sched_setaffinity(0, [{core}])\n"
        "from nbdist.devices import this_machine; print(this_machine().cpu_count)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "1\n"


@pytest.mark.gpu
def test_real_gpus_are_those_of_cuda_and_cuda_is_not_touched() -> None:
    # In a process of its own: what follows the look starts CUDA.
    program = """
import os, torch
from nbdist.devices import this_machine
machine = this_machine()
assert not torch.cuda.is_initialized()
assert not [f for f in os.listdir("/proc/self/fd") if "nvidia" in os.path.realpath(f"/proc/self/fd/{f}")]
assert len(machine.gpus) == torch.cuda.device_count() > 0, machine
for ordinal, gpu in enumerate(machine.gpus):
    shown = torch.cuda.get_device_properties(ordinal)
    assert gpu.name == shown.name and str(shown.uuid) in gpu.uuid, (gpu, shown)
    assert gpu.memory_bytes >= shown.total_memory > 0
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.gpu
def test_real_gpus_hidden() -> None:
    machine = this_machine({"CUDA_VISIBLE_DEVICES": ""})
    assert machine.gpus == ()
    assert machine.no_gpu_reason.startswith("CUDA_VISIBLE_DEVICES= hides every GPU")


@pytest.mark.parametrize(
    ("device", "visible", "environ", "expected"),
    [
        ("cpu", None, {}, None),
        ("cuda:1", None, {}, "1"),
        ("cuda:1", "0,2", {}, "2"),
        ("cuda:1", None, {"CUDA_VISIBLE_DEVICES": "3, GPU-aa22"}, "GPU-aa22"),
        ("cuda:0", "GPU-bb33", {"CUDA_VISIBLE_DEVICES": "GPU-aa11,GPU-bb33"}, "GPU-bb33"),
    ],
)
def test_a_ranks_gpu_by_the_machines_own_name(
    device: str, visible: str | None, environ: dict[str, str], expected: str | None
) -> None:
    assert gpu_of(device, visible, environ) == expected
