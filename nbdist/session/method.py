"""Which start method serves this launch, and what the user is told about it."""

from __future__ import annotations

from nbdist.errors import LaunchError
from nbdist.forksafety import ForkSafety, can_fork, this_process
from nbdist.start.birth import Birth
from nbdist.values.kind import Buffer
from nbdist.values.kinds import kind_of
from nbdist.views.screen import Screen

_MIB = 1 << 20


def choose_method(asked: str, birth: Birth, screen: Screen, safety: ForkSafety = this_process) -> str:
    """The start method for a launch; ``auto`` takes ``fork`` while the kernel is safe to fork, and where the
    system does not bear it, ``forkserver`` without a word.

    Args:
        asked: the option.

    Raises:
        LaunchError: ``fork`` was asked for, and the kernel cannot be forked.
    """
    if asked in ("forkserver", "spawn"):
        return asked
    if not can_fork():
        if asked == "auto":
            return "forkserver"
        raise LaunchError(
            "--start-method fork: on this system libraries that a notebook uses crash or hang in a fork of "
            "it. Allowed here: auto, forkserver, spawn. Leave the option out: the fork server is taken then."
        )
    unsafe = safety.before_launch()
    if unsafe is None:
        return "fork"
    if asked == "fork":
        raise LaunchError(
            f"--start-method fork: {unsafe}, and a fork of this kernel could not use CUDA. "
            "Leave the option out (the fork server is taken then), or restart the kernel and run "
            "what uses the GPU under %%distributed."
        )
    screen.note(f"{unsafe}: ranks are forked from a clean process instead of the kernel. {_copied(birth)}")
    return "forkserver"


def _copied(birth: Birth) -> str:
    """What is sent to them: the large values by name and size."""
    buffers: dict[str, set[Buffer]] = {}
    for key, obj in birth.found.objects.items():
        buffer = kind_of(obj).memory(obj)
        if buffer is not None:
            buffers.setdefault(birth.found.labels[key], set()).add(buffer)
    sizes = {name: sum(buffer.size_bytes for buffer in found) for name, found in buffers.items()}
    large = [f"{name} ({size / _MIB:,.0f} MiB)" for name, size in sorted(sizes.items()) if size >= _MIB]
    return f"Copied for them: {', '.join(large)}." if large else "Only small values are copied for them."
