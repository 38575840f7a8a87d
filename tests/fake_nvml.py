"""What stands for NVML in tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace

from nbdist.devices import Gpu

GIB = 2**30


def gpus(count: int) -> tuple[Gpu, ...]:
    uuids = ["GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"]
    return tuple(Gpu(index=i, uuid=uuids[i], name="H200", memory_bytes=141 * GIB) for i in range(count))


class FakeNvml:
    """Stands for the module ``pynvml``: a driver with some GPUs, of which the first one uses 1 GiB, the next 2 GiB.

    Args:
        fail: names of calls that fail, with `error`.
    """

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):  # noqa: N801 (pynvml's name)
        pass

    def __init__(self, count: int, *fail: str, error: type[BaseException] = NVMLError) -> None:
        self.gpus: Sequence[Gpu] = gpus(count)
        self.fail, self.error = fail, error
        self.open_count = self.shutdown_count = 0

    @property
    def is_open(self) -> bool:
        return self.open_count > 0

    def _step(self, name: str) -> None:
        assert self.is_open, f"{name} before nvmlInit"
        if name in self.fail:
            raise self.error(f"{name} failed")

    def nvmlInit(self) -> None:  # noqa: N802
        self.open_count += 1
        try:
            self._step("nvmlInit")
        except self.NVMLError:
            self.open_count -= 1
            raise

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._step("nvmlShutdown")
        self.open_count -= 1
        self.shutdown_count += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._step("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        self._step("nvmlDeviceGetHandleByIndex")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:  # noqa: N802
        self._step("nvmlDeviceGetHandleByUUID")
        found = [gpu for gpu in self.gpus if gpu.uuid == uuid]
        if not found:
            raise self.NVMLError(f"no {uuid}")
        return found[0]

    def nvmlDeviceGetUUID(self, handle: Gpu) -> str:  # noqa: N802
        self._step("nvmlDeviceGetUUID")
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Gpu) -> str:  # noqa: N802
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu) -> SimpleNamespace:  # noqa: N802
        self._step("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(total=handle.memory_bytes, used=GIB * (1 + handle.index))

    def nvmlDeviceGetUtilizationRates(self, handle: Gpu) -> SimpleNamespace:  # noqa: N802
        self._step("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=25)

    def nvmlDeviceGetPowerUsage(self, handle: Gpu) -> int:  # noqa: N802
        self._step("nvmlDeviceGetPowerUsage")
        return 300_500

    def nvmlDeviceGetTemperature(self, handle: Gpu, sensor: int) -> int:  # noqa: N802
        self._step("nvmlDeviceGetTemperature")
        return 61

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Gpu) -> list[SimpleNamespace]:  # noqa: N802
        self._step("nvmlDeviceGetComputeRunningProcesses")
        own = SimpleNamespace(pid=os.getpid(), usedGpuMemory=5)
        return [own, SimpleNamespace(pid=1, usedGpuMemory=2)]
