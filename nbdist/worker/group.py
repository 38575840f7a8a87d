"""The rank's process group: made before the cell runs, and again whenever the cell asks.

Scripts call `init_process_group` themselves. In a rank that call gives the group that exists, if
its arguments fit; after `destroy_process_group` it makes a fresh one, under a new prefix of the
store in which the ranks meet, so that stale addresses are never met.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from nbdist.errors import OptionError
from nbdist.messages import DEVICE_VARIABLE, RUN_VARIABLE, STRATEGY_VARIABLE, Assignment
from nbdist.worker import interrupts
from nbdist.worker.connections import Connections
from nbdist.worker.scope import Groups, Scope, whole_session

_MOST_GROUPS = 1_000_000  # that ranks make between two failures
_LOOPBACK = "127.0.0.1"
_LOOPBACK_INTERFACES = ("lo", "lo0")


def _numbers(scope: Scope) -> dict[str, str]:
    """What torchrun's environment says of a rank among those that it runs with."""
    rank, size = str(scope.rank), str(scope.world_size)
    return {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
    }


def environment(assignment: Assignment) -> dict[str, str]:
    """torchrun's environment for this rank, so that Lightning, Accelerate and plain ``env://`` work."""
    env = {
        **_numbers(whole_session(assignment)),
        "LOCAL_RANK": str(assignment.rank),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
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
        scope: the ranks that make it.
        defaults: all default groups of the session that there have been, as far as somebody still holds them.
    """

    def __init__(self, assignment: Assignment):
        self._assignment = assignment
        self._session = self.scope = whole_session(assignment)
        self._subsets: dict[tuple[int, ...], Scope] = {}
        self._outside: Groups | None = None
        self._connections = Connections(self._resting)
        self._number = 0
        self._store: Any = None
        self._store_name = ""
        self._blocked: list[tuple[str, Any]] = []
        self.generation = 0
        self.defaults: weakref.WeakSet[Any] = weakref.WeakSet()
        self._changing = threading.Lock()

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
        with self._connections.noting() as made:
            made.append(self._new_group(*args, **kwargs))
        return made[0]

    def enter_subset(self, ranks: tuple[int, ...]) -> None:
        """From now on the default group is that of some ranks alone, this one among them: the one that they
        had when they ran together last, or a fresh one."""
        import torch.distributed as dist

        with interrupts.held_back():
            self.scope = self._subsets.setdefault(ranks, Scope(ranks, self._assignment.rank))
            self._outside = self.scope.enter()
            os.environ.update(_numbers(self.scope))
        if self._assignment.init and not dist.is_initialized():
            dist.init_process_group()

    def leave_subset(self) -> None:
        """The default group is that of all ranks again."""
        if self._outside is not None:
            self.scope.leave(self._outside)
            self._outside, self.scope = None, self._session
            os.environ.update(_numbers(self.scope))

    def renew(self, number: int) -> bool:
        """Before a work: meet the other ranks anew if the kernel's number of the group has changed.

        All groups are left, subgroups and those of subsets included, whatever still goes on in them, and a
        fresh default one is made. The number is the kernel's to give: cells may have made groups of their
        own on some ranks only.

        Returns:
            Whether there is a fresh group.
        """
        import torch.distributed as dist

        if number == self._number:
            self._connections.let_go()
            return False
        with interrupts.held_back():  # half of it, and the ranks would never meet again
            self.break_off(self.generation)
            self._forget_subsets()
            _forget_groups()
            self._unblock()
            gc.collect()  # frames of what was broken off refer to themselves, and to groups
            self._connections.let_go()
            former, self._number, self._session.count = self._number, number, 0
        if not self._assignment.init:
            return False
        dist.init_process_group()
        # By its name a mesh over all ranks finds the fresh group; no other group is to pass for a former one.
        dist.distributed_c10d._world.group_count = number * _MOST_GROUPS
        self._forget_meeting(former)
        return True

    def _resting(self) -> list[Any]:
        """Groups of the scopes that do not run now."""
        held = [*(scope.groups for scope in self._subsets.values()), self._outside]
        return [group for groups in held if groups is not None for group in groups.tables["pg_names"]]

    def _forget_subsets(self) -> None:
        for scope in self._subsets.values():
            outside = scope.enter()
            _forget_groups()
            scope.leave(outside)
        self._subsets.clear()

    def break_off(self, generation: int) -> None:
        """Make every operation that waits for a peer fail, now. The groups cannot be used afterwards.

        Nothing happens once there is a later generation: it is not to suffer for the former one.
        """
        with self._changing:
            if generation == self.generation:
                self._block_store()
                self._connections.break_off()

    def _block_store(self) -> None:
        """One that waits at the store opens its file again and again, by a name that is this rank's own."""
        if self._store_name:
            os.unlink(self._store_name)
            os.mkdir(self._store_name)
            self._blocked.append((self._store_name, self._store))  # a destructor would meet the folder
            self._store_name, self._store = "", None

    def _unblock(self) -> None:
        """Nobody waits at the store any more: without a file its destructor has nothing to do."""
        for name, _ in self._blocked:
            os.rmdir(name)
        self._blocked.clear()

    def _forget_meeting(self, number: int) -> None:
        if self._assignment.rank == 0:  # all are here by now
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._assignment.scratch, _meeting(number)))

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
        self._check("world_size", world_size, self.scope.world_size)
        self._check("rank", rank, self.scope.rank)
        backend = str(backend).lower() if backend is not None else None
        if dist.is_initialized():
            self._check("backend", backend or dist.get_backend(), dist.get_backend())
            return
        if timeout is None and self._assignment.timeout_s is not None:
            timeout = timedelta(seconds=self._assignment.timeout_s)
        store = self._next_store()
        with self._connections.noting() as made:
            self._make_group(backend, store, timeout, group_name, pg_options, further)
            made.append(dist.group.WORLD)
        if self.scope is self._session:
            self.defaults.add(dist.group.WORLD)

    def _make_group(
        self,
        backend: str | None,
        store: Any,
        timeout: timedelta | None,
        group_name: str,
        pg_options: Any,
        further: dict[str, Any],
    ) -> None:
        self._original(
            backend or self._assignment.backend,
            store=store,
            rank=self.scope.rank,
            world_size=self.scope.world_size,
            timeout=timeout,
            group_name=group_name,
            pg_options=pg_options,
            **further,
        )

    def _check(self, what: str, asked: Any, have: Any) -> None:
        if asked not in (-1, have) and not (what == "backend" and _covers(have, asked)):
            raise OptionError(
                f"init_process_group({what}={asked!r}): this run's process group has {what} {have!r}. "
                f"Leave {what} out, or {_NEXT_STEP[what]}."
            )

    def _next_store(self) -> Any:
        import torch.distributed as dist

        with interrupts.held_back(), self._changing:
            store = self._opened_store()
            self.generation += 1
            self.scope.count += 1
        return dist.PrefixStore(f"nbdist/{self.scope.name}/{self.scope.count}", store)

    def _opened_store(self) -> Any:
        import torch.distributed as dist

        if self._store is None:
            # No TCPStore: each of its clients asks for the name of 127.0.0.1, and where the name server
            # does not answer, which is so on many a machine without internet, waits for seconds.
            # A name of this rank's own, and a new one after each `break_off`.
            name = f"store-{self._assignment.rank}-{self.generation}"
            path = os.path.join(self._assignment.scratch, name)
            os.symlink(_meeting(self._number), path)
            self._store_name = path
            self._store = dist.FileStore(self._store_name, self._assignment.world_size)
        return self._store


def _meeting(number: int) -> str:
    """The file in which the ranks find one another: another one after each failure."""
    return f"meeting-{number}"


def _forget_groups() -> None:
    """As `destroy_process_group`, for groups that have been broken off, or never came to be."""
    import torch.distributed as dist

    inner: Any = dist.distributed_c10d
    if dist.is_initialized() and "nccl" in dist.get_backend() and hasattr(inner, "_abort_process_group"):
        inner._abort_process_group()  # `destroy_process_group` would wait for what has been aborted
    elif dist.is_initialized():
        dist.destroy_process_group()
    # Groups are named by this, and the ranks find one another by the name.
    inner._world.group_count = 0


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
