"""The rank's process group: made before the cell runs, and again whenever the cell asks.

Scripts call `init_process_group` themselves. In a rank that call gives the group that exists, if
its arguments fit; after `destroy_process_group` it makes a fresh one, under a new prefix of the
store in which the ranks meet, so that stale addresses are never met.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from nbdist.errors import OptionError
from nbdist.messages import DEVICE_VARIABLE, RUN_VARIABLE, STRATEGY_VARIABLE, Assignment
from nbdist.worker.descriptors import open_descriptors

_LOOPBACK = "127.0.0.1"
_LOOPBACK_INTERFACES = ("lo", "lo0")


def environment(assignment: Assignment) -> dict[str, str]:
    """torchrun's environment for this rank, so that Lightning, Accelerate and plain ``env://`` work."""
    size, rank = str(assignment.world_size), str(assignment.rank)
    env = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(assignment.master_port),
        RUN_VARIABLE: assignment.mark,
        DEVICE_VARIABLE: assignment.device,
        STRATEGY_VARIABLE: assignment.strategy,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": f"nbdist-{os.getppid()}",
    }
    if assignment.visible_devices is not None:
        env["CUDA_VISIBLE_DEVICES"] = assignment.visible_devices
    loopback = _loopback_interface()
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        env[name] = os.environ.get(name, loopback)
    return env


def _loopback_interface() -> str:
    """``lo`` on Linux, ``lo0`` on macOS."""
    there = {name for _, name in socket.if_nameindex()}
    return next((name for name in _LOOPBACK_INTERFACES if name in there), _LOOPBACK_INTERFACES[0])


class Group:
    """The default process group of one rank.

    Attributes:
        generation: counts the groups that were made.
    """

    def __init__(self, assignment: Assignment):
        self._assignment = assignment
        self._store: Any = None
        self._store_name = ""
        self.generation = 0
        self._changing = threading.Lock()
        # Every group ever made. The last reference to a destroyed one may be dropped by C++ code that
        # holds the GIL, and its destructor waits for a thread that needs the GIL: for ever.
        self._kept: list[Any] = []
        self._sockets: set[tuple[int, int]] = set()

    def set_up(self) -> None:
        """Choose the device, answer `init_process_group` from now on, and make the group."""
        import torch
        import torch.distributed as dist

        if self._assignment.device.startswith("cuda"):
            torch.cuda.set_device(self._assignment.device)
        if dist.is_available():
            self._answer_init()
            if self._assignment.init:
                dist.init_process_group()

    def _answer_init(self) -> None:
        import torch.distributed as dist

        self._original = _stand_in(dist.init_process_group, self.init_process_group)
        self._new_group = _stand_in(dist.new_group, self.new_group)

    def new_group(self, *args: Any, **kwargs: Any) -> Any:
        """As `torch.distributed.new_group`."""
        with self._noting_sockets():
            group = self._new_group(*args, **kwargs)
        self._kept.append(group)
        return group

    @contextlib.contextmanager
    def _noting_sockets(self) -> Iterator[None]:
        before = _open_sockets()
        yield
        self._sockets |= _open_sockets() - before

    def break_off(self, generation: int) -> None:
        """Make every operation that waits for a peer fail, now. The groups cannot be used afterwards.

        Nothing happens once there is a later generation: it is not to suffer for the former one.

        gloo's own abort does not free a thread that waits; the end of its connections does. One that
        waits at the store opens its file again and again, by a name that is this rank's own.
        """
        with self._changing:
            if generation == self.generation:
                self._break_off()

    def _break_off(self) -> None:
        if self._store_name:
            os.unlink(self._store_name)
            os.mkdir(self._store_name)
            self._store_name, self._store = "", None
        for fd, _ in self._sockets & _open_sockets():
            # An OSError: gloo has closed it by itself meanwhile.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as sock:
                # Not the listening one: gloo's thread that accepts would end the process.
                if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    sock.shutdown(socket.SHUT_RDWR)

    def init_process_group(
        self,
        backend: Any = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        group_name: str = "",
        pg_options: Any = None,
        **further: Any,
    ) -> None:
        """As `torch.distributed.init_process_group`; where the peers meet is the kernel's to say.

        Raises:
            OptionError: rank, world size or backend are not those of this run.
        """
        import torch.distributed as dist

        del init_method  # whatever MASTER_ADDR and MASTER_PORT say: one store serves this run
        self._check("world_size", world_size, self._assignment.world_size)
        self._check("rank", rank, self._assignment.rank)
        backend = str(backend).lower() if backend is not None else None
        if dist.is_initialized():
            self._check("backend", backend or dist.get_backend(), dist.get_backend())
            return
        if timeout is None and self._assignment.timeout_s is not None:
            timeout = timedelta(seconds=self._assignment.timeout_s)
        store = self._next_store()
        with self._noting_sockets():
            self._make_group(backend, store, timeout, group_name, pg_options, further)

    def _make_group(
        self,
        backend: str | None,
        store: Any,
        timeout: timedelta | None,
        group_name: str,
        pg_options: Any,
        further: dict[str, Any],
    ) -> None:
        import torch.distributed as dist

        self._original(
            backend or self._assignment.backend,
            store=store,
            rank=self._assignment.rank,
            world_size=self._assignment.world_size,
            timeout=timeout,
            group_name=group_name,
            pg_options=pg_options,
            **further,
        )
        self._kept.append(dist.group.WORLD)

    def _check(self, what: str, asked: Any, have: Any) -> None:
        if asked not in (-1, have) and not (what == "backend" and _covers(have, asked)):
            raise OptionError(
                f"init_process_group({what}={asked!r}): this run's process group has {what} {have!r}. "
                f"Leave {what} out, or {_NEXT_STEP[what]}."
            )

    def _next_store(self) -> Any:
        import torch.distributed as dist

        with self._changing:
            store = self._opened_store()
            self.generation += 1
        return dist.PrefixStore(f"nbdist/{self.generation}", store)

    def _opened_store(self) -> Any:
        import torch.distributed as dist

        if self._store is None:
            # No TCPStore: each of its clients asks for the name of 127.0.0.1, and where the name server
            # does not answer, which is so on many a machine without internet, waits for seconds.
            # A name of this rank's own, and a new one after each `break_off`.
            name = f"store-{self._assignment.rank}-{self.generation}"
            path = os.path.join(self._assignment.scratch, name)
            os.symlink("store", path)
            self._store_name = path
            self._store = dist.FileStore(self._store_name, self._assignment.world_size)
        return self._store


def _open_sockets() -> set[tuple[int, int]]:
    """This process's sockets, as descriptor and inode (a number may be used again by another socket)."""
    found = set()
    for fd in open_descriptors():
        with contextlib.suppress(OSError):  # the listing's own
            status = os.fstat(fd)
            if stat.S_ISSOCK(status.st_mode):
                found.add((fd, status.st_ino))
    return found


def _stand_in(wrapper: Any, ours: Callable[..., Any]) -> Callable[..., Any]:
    """Answer a function of torch, also where it was imported by name before; the real one is returned.

    torch wraps it in a logging decorator whose closure holds the real one: whoever has the function
    has the wrapper.
    """
    cell = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__, strict=True))["func"]
    real: Callable[..., Any] = cell.cell_contents
    cell.cell_contents = ours
    return real


_NEXT_STEP = {
    "backend": "start the cell with --backend, or call destroy_process_group() first",
    "rank": "use the ready-made name `rank`",
    "world_size": "choose the number of ranks with --devices",
}


def _covers(have: str, asked: str) -> bool:
    """Whether a plain backend name is one of a group's per-device backends (``cpu:gloo,cuda:nccl``)."""
    return set(_backends(asked)) <= set(_backends(have))


def _backends(name: str) -> list[str]:
    return [part.rpartition(":")[2] for part in name.split(",")]
