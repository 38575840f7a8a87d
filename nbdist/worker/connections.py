"""The process groups that a rank has made, with the sockets of each: how they are broken off and let go.

gloo's own abort does not free a thread that waits; the end of its connections does. NCCL has an abort of its
own, which must hit all groups together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from nbdist.worker import interrupts
from nbdist.worker.descriptors import open_descriptors

_ABORT_S = 5.0
_HANGING_ABORT = f"nbdist: NCCL did not let go of this rank's groups within {_ABORT_S:g} s: the rank ends\n"

_Sockets = set[tuple[int, int]]


@dataclass(slots=True)
class _Made:
    """A group, the sockets that there were before it was made, and those that appeared meanwhile."""

    before: _Sockets
    group: Any = None
    sockets: _Sockets | None = None  # until it is made

    def among(self, there: _Sockets) -> _Sockets:
        """Its sockets, of those that there are."""
        return there - self.before if self.sockets is None else there & self.sockets


class Connections:
    """Of all groups of one rank, subgroups included.

    A group that has been destroyed is kept for one work more. The last reference to it may be dropped by code
    that holds the GIL, and its destructor waits for threads that need the GIL for what they still do: once
    its connections have ended they have nothing left to do, and a whole work later they have done that.

    Args:
        resting: gives groups that torch does not know while the ranks that they are of do not run.
    """

    def __init__(self, resting: Callable[[], Collection[Any]]) -> None:
        self._resting = resting
        self._made: list[_Made] = []
        self._ended: list[_Made] = []

    @contextlib.contextmanager
    def noting(self) -> Iterator[list[Any]]:
        """Note the sockets that appear in this block, as those of the group that it puts into the list."""
        groups: list[Any] = []
        made = _Made(_open_sockets())
        self._made.append(made)
        try:
            yield groups
        finally:
            with interrupts.held_back():
                made.sockets = made.among(_open_sockets())
                made.before = set()
                made.group = groups[0] if groups else None

    def break_off(self) -> None:
        """Make every operation that waits for a peer fail, now, in all groups together."""
        _abort_nccl(self._resting)
        _end(self._made)

    def let_go(self) -> None:
        """Free the groups that had been destroyed by the last time, and end those that have been since.

        Call in the main thread, while no work is done.
        """
        if not self._made:
            self._ended = []
            return
        known = {*_known_groups(), *self._resting()}
        destroyed = [made for made in self._made if made.group not in known]
        self._made = [made for made in self._made if made.group in known]
        _end(destroyed)
        self._ended = destroyed


def _known_groups() -> Any:
    import torch.distributed as dist

    return dist.distributed_c10d._world.pg_map


def _end(all_made: list[_Made]) -> None:
    there = _open_sockets() if all_made else set()
    for fd, _ in set().union(*(made.among(there) for made in all_made)):
        # An OSError: gloo has closed it by itself meanwhile.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
            # Not the listening one: gloo's thread that accepts would end the process.
            if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                sock.shutdown(socket.SHUT_RDWR)


def _abort_nccl(resting: Callable[[], Collection[Any]]) -> None:
    """Abort all NCCL communicators of this process. One that does not let go ends the process."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_nccl_available():
        return
    groups = dict.fromkeys([*_newest_first(), *resting()])
    backends = [backend for backend in map(_nccl_of, groups) if backend is not None]
    if not backends:
        return
    end = threading.Timer(_ABORT_S, _end_process)
    end.daemon = True
    end.start()
    try:
        # Inside one group call, or one abort may wait for another's for ever.
        start, finish = (getattr(backends[0], name, None) for name in ("_group_start", "_group_end"))
        if start is not None and finish is not None:
            start()
        for backend in backends:
            # torch before 2.6 has an abort under another name.
            abort = getattr(backend, "abort", None) or backend._shutdown
            abort()
        if start is not None and finish is not None:
            finish()
    finally:
        end.cancel()


def _newest_first() -> list[Any]:
    import torch.distributed as dist

    names: Any = dist.distributed_c10d._world.pg_names
    return sorted(names, key=lambda group: names[group], reverse=True)


def _nccl_of(group: Any) -> Any:
    import torch
    import torch.distributed as dist

    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:  # it has none for GPUs
        return None
    return backend if isinstance(backend, dist.ProcessGroupNCCL) else None


def _end_process() -> None:
    os.write(2, _HANGING_ABORT.encode())
    os.kill(os.getpid(), signal.SIGKILL)


def _open_sockets() -> _Sockets:
    """This process's sockets, as descriptor and inode (a number may be used again by another socket)."""
    found = set()
    for fd in open_descriptors():
        with contextlib.suppress(OSError):  # the listing's own
            status = os.fstat(fd)
            if stat.S_ISSOCK(status.st_mode):
                found.add((fd, status.st_ino))
    return found
