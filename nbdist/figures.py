"""Numbers on their way from a rank to the dashboard: what its work logs, and what it uses of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Numbers that the rank's work has logged since the last of these.

    Attributes:
        by_step: for each metric the bytes of float64 triples: step, time (seconds since 1970), value.
        by_call: of metrics logged without a step, which have the number of the call in its place.
    """

    by_step: Mapping[str, bytes] = field(default_factory=dict)
    by_call: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUsage:
    """A rank's GPU, as NVML tells; None for what it does not tell.

    Attributes:
        use: share of the time at work, 0 to 1.
        memory_bytes: of the rank's process.
        used_bytes, total_bytes: of the device, by whomever.
        power_w: watts.
        temperature_c: degrees Celsius.
    """

    use: float | None = None
    memory_bytes: int | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the rank uses of the machine.

    Attributes:
        cpu: cores in use by its process and the children of that: 1.0 is one core.
        memory_bytes: resident memory of these; pages that they share count in each.
        gpu: None on a CPU.
    """

    cpu: float
    memory_bytes: int
    gpu: GpuUsage | None = None
