"""GPUs and CPUs of this machine, and which of them the ranks get.

GPUs are found through NVML, never through CUDA: a process that has touched CUDA cannot be forked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nbdist.errors import OptionError
from nbdist.nvml import memory_of, read_memory

CPU_RANKS = 2
"""How many ranks ``auto`` starts on a machine without a GPU."""
_CROWD = 8  # ranks on a core: fewer are a fair trial of many


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as CUDA would show it to this process.

    Attributes:
        index: NVML's number for it. Its place in `Machine.gpus` is CUDA's ordinal instead, which
            differs where CUDA_VISIBLE_DEVICES hides some.
        uuid: ``GPU-…``, or ``MIG-…`` for a slice of one.
        name: the product's name.
        memory_bytes: its memory in bytes; 0 where NVML does not say.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What ranks can be placed on; `this_machine` finds it, tests write one down.

    Attributes:
        gpus: those this process may use, in the order of CUDA's ordinals.
        cpu_count: CPU cores this process may use.
        no_gpu_reason: where and why no GPU was found; empty if there are some.
    """

    gpus: tuple[Gpu, ...] = ()
    cpu_count: int = 1
    no_gpu_reason: str = ""


def this_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """Look at this machine, without touching CUDA.

    Args:
        environ: where CUDA_VISIBLE_DEVICES is read.

    Example:
        >>> this_machine().cpu_count >= 1
        True
    """
    gpus, reason = _gpus_of_nvml()
    if gpus:
        wanted = environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible_gpus(gpus, wanted)
        if not gpus:
            reason = f"CUDA_VISIBLE_DEVICES={wanted} hides every GPU that NVML found"
    if gpus and not _torch_has_cuda():
        gpus, reason = (), "NVML found GPUs, but the installed torch is built without CUDA"
    return Machine(gpus=gpus, cpu_count=usable_cpu_count(), no_gpu_reason=reason)


def usable_cpu_count() -> int:
    """CPU cores that this process may run on, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus(gpus: tuple[Gpu, ...], cuda_visible_devices: str | None) -> tuple[Gpu, ...]:
    """Pick and order GPUs as CUDA does: what follows an invalid entry is ignored, a doubled entry hides all.

    Args:
        gpus: those of the machine, in NVML's order. (CUDA numbers by PCI bus as NVML does only with
            CUDA_DEVICE_ORDER=PCI_BUS_ID; by default the fastest come first. That matters only on
            machines with GPUs of several kinds, and there only for which of them is named.)
        cuda_visible_devices: the variable's value, None if it is not set: numbers, UUIDs or their
            beginnings. A MIG slice counts as one device, and a process can use but one.

    Example:
        >>> visible_gpus((), None)
        ()
    """
    if cuda_visible_devices is None:
        return gpus
    entries = [entry.strip() for entry in cuda_visible_devices.split(",")]
    if entries[0].startswith("MIG-"):
        return (Gpu(index=-1, uuid=entries[0], name="MIG slice", memory_bytes=0),)
    chosen: list[Gpu] = []
    for entry in entries:
        if entries[0].startswith("GPU-"):
            matches = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        else:
            number = re.match(r"\+?([0-9]+)", entry)  # CUDA reads "1x" as 1
            matches = [gpu for gpu in gpus if number and gpu.index == int(number[1])]
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return ()
        chosen += matches
    return tuple(chosen)


def read_gpus(nvml: Any) -> tuple[tuple[Gpu, ...], str]:
    """All GPUs that NVML shows, with the reason if there are none.

    Args:
        nvml: the module ``pynvml``, or what stands for it in a test. It is shut down again, so that
            no open device file is left for a fork to inherit.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return (), f"NVML: {error}"
    try:
        gpus = tuple(_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        return (), f"NVML: {error}"
    finally:
        nvml.nvmlShutdown()
    return gpus, "" if gpus else "NVML shows none"


def memory_of_gpus(devices: Collection[str]) -> dict[str, tuple[int, int]]:
    """How many bytes of each GPU's memory are in use, by whomever, and how many there are.

    Args:
        devices: GPUs as `resolve` calls them. Of one that NVML cannot tell, nothing is given.
    """
    if not devices:
        return {}
    import pynvml  # through it they were found

    gpus = this_machine().gpus
    chosen = {device: gpus[int(device.partition(":")[2])] for device in devices}
    memory = read_memory(pynvml, [gpu.uuid for gpu in chosen.values()])
    return {device: memory[gpu.uuid] for device, gpu in chosen.items() if gpu.uuid in memory}


def _read_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    try:
        _, memory_bytes = memory_of(nvml, handle)
    except nvml.NVMLError_NotSupported:  # GPUs that share the CPU's memory
        memory_bytes = 0
    return Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_bytes=memory_bytes,
    )


def _gpus_of_nvml() -> tuple[tuple[Gpu, ...], str]:
    try:
        import pynvml
    except ImportError:
        return (), "the package nvidia-ml-py is not installed"
    return read_gpus(pynvml)


def _torch_has_cuda() -> bool:
    import torch  # slow, hence only where there are GPUs

    return torch.version.cuda is not None


def resolve(
    devices: Literal["auto"] | int | tuple[int, ...], accelerator: str, machine: Machine
) -> tuple[str, ...]:
    """Give each rank its device, as text for ``torch.device``; its length is the number of ranks.

    A count takes the first GPUs; a tuple takes those, in its order. On the CPU there is nothing to
    choose, and a tuple means as many ranks as it has entries: a notebook written for the GPUs 0
    and 2 also runs on a laptop.

    Args:
        devices: as `nbdist.options.Options` holds it, checked. ``auto``: all GPUs, or `CPU_RANKS`.
        accelerator: ``auto`` (CUDA where there is a GPU), ``cuda`` or ``cpu``.
        machine: what there is.

    Raises:
        OptionError: more devices than there are, or ``cuda`` on a machine without a GPU.

    Example:
        >>> resolve(3, "auto", Machine())
        ('cpu', 'cpu', 'cpu')
    """
    if accelerator == "cuda" and not machine.gpus:
        raise OptionError(
            f"--accelerator cuda: no GPU was found. {machine.no_gpu_reason or 'NVML shows none'}. "
            "Make one visible, or run the ranks on the CPU with --accelerator cpu."
        )
    on_gpus = accelerator != "cpu" and bool(machine.gpus)
    if isinstance(devices, tuple):
        wanted = devices
    elif devices == "auto":
        wanted = tuple(range(len(machine.gpus) if on_gpus else CPU_RANKS))
    else:
        wanted = tuple(range(devices))
    if not on_gpus:
        return ("cpu",) * len(wanted)
    if max(wanted) >= len(machine.gpus):
        raise _too_many(devices, len(machine.gpus))
    return tuple(f"cuda:{ordinal}" for ordinal in wanted)


def crowd_note(devices: Sequence[str], cpu_count: int) -> str:
    """What to say of ranks that are far more than the CPU cores that they share; empty where they are not.

    Example:
        >>> crowd_note(("cpu",) * 4, 2)
        ''
    """
    if devices[0] != "cpu" or len(devices) <= _CROWD * cpu_count:
        return ""
    cores = "1 CPU core" if cpu_count == 1 else f"{cpu_count} CPU cores"
    return (
        f"{len(devices)} ranks share {cores} and take turns there: "
        f"--devices {max(cpu_count, CPU_RANKS)} would do the same work sooner, in less memory."
    )


def as_local(
    devices: tuple[str, ...], environ: Mapping[str, str] = os.environ
) -> tuple[tuple[str, ...], str | None]:
    """Number chosen GPUs as every torch program expects them: rank N computes on ``cuda:N``.

    Args:
        devices: as `resolve` gives them.

    Returns:
        The ranks' devices, and the CUDA_VISIBLE_DEVICES under which they are right; None where
        nothing needs to be set.

    Example:
        >>> as_local(("cuda:0", "cuda:2"), {})
        (('cuda:0', 'cuda:1'), '0,2')
    """
    local = tuple(f"cuda:{rank}" for rank in range(len(devices)))
    if devices[0] == "cpu" or devices == local:
        return devices, None
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    ordinals = [int(device.partition(":")[2]) for device in devices]
    entries = hidden.split(",") if hidden is not None else [str(n) for n in range(max(ordinals) + 1)]
    return local, ",".join(entries[ordinal].strip() for ordinal in ordinals)


def gpu_of(device: str, visible: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The machine's own name of the GPU that a rank's device is; None for a CPU.

    Args:
        device: as `as_local` gives it, and `visible` with it.

    Example:
        >>> gpu_of("cuda:1", "0,2", {})
        '2'
    """
    if not device.startswith("cuda"):
        return None
    ordinal = int(device.partition(":")[2] or 0)
    listed = visible if visible is not None else environ.get("CUDA_VISIBLE_DEVICES")
    return listed.split(",")[ordinal].strip() if listed else str(ordinal)


def uuid_of(device: str, machine: Machine) -> str:
    """NVML's name of a GPU as `resolve` calls it; empty for a CPU.

    Example:
        >>> uuid_of("cpu", Machine())
        ''
    """
    return machine.gpus[int(device.partition(":")[2])].uuid if device.startswith("cuda") else ""


def _too_many(devices: str | int | tuple[int, ...], gpu_count: int) -> OptionError:
    given = str(devices)
    if isinstance(devices, tuple):
        given = ",".join(map(str, devices)) + ("," if len(devices) == 1 else "")
    there = "is 1 GPU, index 0" if gpu_count == 1 else f"are {gpu_count} GPUs, indices 0 to {gpu_count - 1}"
    return OptionError(
        f"--devices {given}: there {there}. Allowed: auto, a number up to {gpu_count}, or these indices. "
        "To run as many ranks on the CPU instead, add --accelerator cpu."
    )
