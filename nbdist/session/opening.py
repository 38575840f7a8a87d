"""What comes before ranks are up: who is on which device, torch loaded once, how they are started."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from nbdist.devices import as_local, crowd_note, gpu_of, resolve, this_machine, usable_cpu_count, uuid_of
from nbdist.messages import Assignment
from nbdist.options import Options
from nbdist.session.ranks import Ranks, running
from nbdist.values.foreign import call_foreign
from nbdist.views.dashboard.faces import has_dashboard
from nbdist.views.screen import Output, Screen, is_watched, status_chars
from nbdist.views.text import TextView


def assignments_for(options: Options, shell: Any) -> list[Assignment]:
    """Who is on which device. Ranks measure what they use of it where a dashboard may show that."""
    machine = this_machine()
    chosen = resolve(options.devices, options.accelerator, machine)
    devices, visible = as_local(chosen)
    backend = options.backend or ("nccl" if devices[0].startswith("cuda") else "gloo")
    return [
        Assignment(
            rank=rank,
            world_size=len(devices),
            device=device,
            backend=backend,
            master_port=0,
            timeout_s=options.timeout,
            seed=options.seed,
            strategy=options.strategy,
            init=options.init,
            background=options.background is not None,
            visible_devices=visible,
            chosen_device=chosen[rank],
            gauges=has_dashboard(shell, options),
            gpu_uuid=uuid_of(chosen[rank], machine),
        )
        for rank, device in enumerate(devices)
    ]


def open_ranks(
    assignments: list[Assignment],
    options: Options,
    shell: Any,
    output: Output | None = None,
    *,
    live: bool = False,
) -> Ranks:
    """Ranks that are not started yet.

    Args:
        output: where what they print and show goes; None is the cell that runs.
        live: whether they are to live on after a failure.
    """
    output = output or Screen(shell)
    crowd = crowd_note([assignment.device for assignment in assignments], usable_cpu_count())
    if crowd:
        output.note(crowd)
    view = partial(_text_view, shell=shell, bars=not has_dashboard(shell, options))
    _note_shared(assignments, output)
    return Ranks(assignments, options, output, view, live=live)


def _note_shared(assignments: Iterable[Assignment], output: Output) -> None:
    """Say where GPUs have ranks already."""
    taken = {gpu for ranks in running for gpu in _gpus(ranks.assignments)}
    shared = [gpu for gpu in _gpus(assignments) if gpu in taken]
    if shared:
        output.note(
            f"GPU{'s' if len(shared) > 1 else ''} {', '.join(shared)}: ranks of another run are there too. "
            "They share the memory and slow each other down; --devices chooses others."
        )


def _gpus(assignments: Iterable[Assignment]) -> list[str]:
    found = (gpu_of(assignment.device, assignment.visible_devices) for assignment in assignments)
    return [gpu for gpu in found if gpu is not None]


def _text_view(ranks: Sequence[int], logs: Any, folder: str, *, shell: Any, bars: bool) -> TextView:
    return TextView(
        len(ranks),
        ranks=ranks,
        batch=not is_watched(shell),
        logs=logs,
        log_dir=folder,
        bars=bars,
        status_chars=status_chars(shell),
    )


_needed_parts: set[str] = set()


def note_needed(parts: Iterable[str]) -> None:
    """Parts of torch that ranks had to import: the next ones will have them."""
    _needed_parts.update(parts)


def load_torch() -> None:
    """Import before the fork, once here instead of once in each rank, what ranks need: torch, and the
    parts of it that earlier ranks had to import (an optimizer's first use takes more than a second)."""
    import torch.distributed  # noqa: F401

    environment = dict(os.environ)
    while _needed_parts:
        call_foreign(partial(importlib.import_module, _needed_parts.pop()))
    for name in os.environ.keys() - environment.keys():  # torch notes a folder there, and will again
        del os.environ[name]
