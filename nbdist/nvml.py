"""What GPUs do at this moment, read through NVML."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from nbdist.figures import GpuUsage

T = TypeVar("T")


class GpuGauge:
    """Reads a GPU until it is closed; the driver stays open meanwhile.

    Args:
        nvml: the module ``pynvml``, or what stands for it in a test.
        uuid: ``GPU-…``, or ``MIG-…`` for a slice of one, of which NVML tells the memory alone.

    Raises:
        nvml.NVMLError: there is no driver, or no such GPU.
    """

    def __init__(self, nvml: Any, uuid: str):
        self._nvml = nvml
        nvml.nvmlInit()
        try:
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except BaseException:
            nvml.nvmlShutdown()
            raise

    def close(self) -> None:
        """Let go of the driver."""
        self._nvml.nvmlShutdown()

    def read(self, pid: int | None = None) -> GpuUsage:
        """What it does now.

        Args:
            pid: whose memory on it is told; None for this process. In a container NVML may not know it.
        """
        nvml, handle = self._nvml, self._handle
        used_bytes, total_bytes = self._told(lambda: memory_of(nvml, handle)) or (None, None)
        busy = self._told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        power_mw = self._told(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        temperature = self._told(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        processes = self._told(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        pid = os.getpid() if pid is None else pid
        own = [process.usedGpuMemory for process in processes if process.pid == pid]
        return GpuUsage(
            use=None if busy is None else busy / 100,
            memory_bytes=sum(own) if own and None not in own else None,
            used_bytes=used_bytes,
            total_bytes=total_bytes,
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=None if temperature is None else float(temperature),
        )

    def _told(self, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except self._nvml.NVMLError:  # this GPU, driver or slice does not tell it
            return None


def read_memory(nvml: Any, uuids: Collection[str]) -> dict[str, tuple[int, int]]:
    """`memory_of` GPUs, by their UUIDs, without those of which NVML does not tell.

    The driver is closed again: no open device file is left for a fork to inherit.
    """
    found = {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # the driver has gone since the GPUs were found
        return {}
    try:
        for uuid in uuids:
            with contextlib.suppress(nvml.NVMLError):
                found[uuid] = memory_of(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    finally:
        nvml.nvmlShutdown()
    return found


def memory_of(nvml: Any, handle: Any) -> tuple[int, int]:
    """Bytes of a GPU's memory that are in use, by whomever, and all that there are.

    Raises:
        nvml.NVMLError: NVML does not tell.
    """
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.used), int(memory.total)
