"""`log`: numbers for the dashboard of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from nbdist import audience
from nbdist.training.metrics import mean_of_tensor
from nbdist.training.ranks import current_device

_ALLOWED = "Allowed: int, float, bool, numpy numbers, and tensors or arrays of one element."
_COLUMNS = frozenset(("step", "rank", "time_s"))


def log(
    metrics: Mapping[str, Any] | None = None,
    /,
    *,
    step: float | None = None,
    sync_dist: bool = False,
    **values: Any,
) -> None:
    """Record numbers of this rank for the run's dashboard, for ``run.history`` and ``run.export()``.

    A tensor on a GPU is copied and read later: nothing waits for the device. In a process that is no rank of
    an nbdist run, plain torchrun's ranks included, the values are checked and nothing else happens: there is
    nobody to show them.

    Args:
        metrics: numbers by name, for names that are no Python names: ``{"train/loss": loss}``.
        step: where they stand on the x axis; without it, the how manieth call of the run on this rank.
        sync_dist: record the mean over ranks instead. Every rank must call it, with the same names.
        **values: numbers by name. NaN and infinity are numbers.

    Raises:
        TypeError: a value is no number; nothing is recorded then.
        ValueError: a metric is called ``step``, ``rank`` or ``time_s``, or the step is not finite.

    Example:
        >>> nbdist.log(step=step, loss=loss, lr=scheduler.get_last_lr()[0])
    """
    if metrics is not None:
        values = {**metrics, **values}
    for name, value in values.items():
        if type(value) is not float or name in _COLUMNS:
            values = {name: _number(name, value) for name, value in values.items()}
            break
    if step is not None and type(step) is not int:
        step = _checked_step(step)
    if sync_dist and values:
        values = _means(values)
    if audience.current is not None:
        audience.current.log(step, values)


def _number(name: object, value: Any) -> Any:
    """A value as a float, or as what is read later."""
    if not isinstance(name, str):
        raise TypeError(f"log(): a metric's name is a str, not {type(name).__name__}: {name!r}.")
    if name in _COLUMNS:
        raise ValueError(
            f"log(): a metric cannot be called {name!r}, which the table of metrics has already. "
            + ("Pass step=... beside the metrics." if name == "step" else "Choose another name.")
        )
    if isinstance(value, torch.Tensor):
        return _number_of_tensor(name, value)
    if isinstance(value, (int, float)):
        return _as_float(name, value)
    if getattr(getattr(value, "dtype", None), "kind", "") in ("b", "i", "u", "f") and value.size == 1:
        return float(value.item())  # numpy's, which need not be loaded
    raise _no_number(name, type(value).__name__)


def _as_float(name: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"log(): {name} is an int too large for a float.") from None


def _number_of_tensor(name: str, value: torch.Tensor) -> Any:
    if value.numel() != 1 or value.is_complex() or value.is_meta:
        raise _no_number(
            name, f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype} on {value.device}"
        )
    value = value.detach()
    return _OfGpu(value) if value.device.type == "cuda" else float(value.item())


def _no_number(name: str, what: str) -> TypeError:
    return TypeError(f"log(): {name} is {what}. {_ALLOWED} Log each number of it under a name of its own.")


def _checked_step(step: Any) -> float:
    number = _number("the step", step)
    number = number if isinstance(number, float) else float(number.read())
    if not math.isfinite(number):
        raise ValueError(f"log(): step is {number}. Allowed: finite numbers.")
    return number


def _means(values: Mapping[str, Any]) -> dict[str, Any]:
    device = current_device()
    parts = [
        value.tensor if isinstance(value, _OfGpu) else torch.tensor(value, dtype=torch.float64)
        for value in values.values()
    ]
    total = mean_of_tensor(torch.stack([part.reshape(()).to(device, torch.float64) for part in parts]))
    return {name: _number(name, part) for name, part in zip(values, total, strict=True)}


class _OfGpu:
    """A tensor on a GPU, copied in the stream's order and read when that has happened."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor
        with torch.cuda.device(tensor.device):
            self._copy = tensor.to("cpu", non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def ready(self) -> bool:
        """Whether it can be read without waiting."""
        return bool(self._copied.query())

    def read(self) -> float:
        """The number."""
        self._copied.synchronize()
        return float(self._copy.item())
