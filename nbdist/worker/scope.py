"""Who a rank's process groups are of: all ranks of the session, or those that a cell runs on.

torch numbers the ranks of the default group from 0. So within a subset they are numbered anew, as if torchrun
had started just these: what `rank` says is what every operation of torch.distributed means by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nbdist.messages import Assignment

# What torch knows of process groups.
_TABLES = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg")
# Hidden in a subset of the session's: whoever destroys the default group destroys all that have a name.
_HIDDEN = ("pg_names", "tags_to_pg")
# Groups are named by numbers. A subset's begin here: no two scopes use the same.
_MOST_GROUPS = 10**12


@dataclass(slots=True)
class Scope:
    """Ranks that run a cell together.

    Attributes:
        ranks: what they are called in the session, in ascending order.
        session_rank: this one.
        count: how many default groups they have made.
        groups: what torch knows of their groups while they do not run.
    """

    ranks: tuple[int, ...]
    session_rank: int
    count: int = 0
    groups: Groups | None = None
    _others: frozenset[int] = frozenset()

    @property
    def rank(self) -> int:
        """This one's number among them."""
        return self.ranks.index(self.session_rank)

    @property
    def world_size(self) -> int:
        """How many they are."""
        return len(self.ranks)

    @property
    def name(self) -> str:
        """The same for all of them, and no other scope's."""
        return ",".join(map(str, self.ranks))

    def in_session(self, numbers: Sequence[int], group: Any = None) -> tuple[int, ...]:
        """What ranks are called in the session.

        Args:
            numbers: what torch calls them.
            group: the process group that they are of.
        """
        if id(group) in self._others:
            return tuple(numbers)
        return tuple(self.ranks[number] for number in numbers)

    def enter(self) -> Groups:
        """Have torch forget the default group in favour of this scope's; what is to be given to `leave`."""
        before = Groups.now()
        self._others = frozenset(map(id, before.tables["pg_map"]))
        first = sum(1 << rank for rank in self.ranks) * _MOST_GROUPS
        own = self.groups or Groups(None, first, {name: {} for name in _TABLES})
        known = {
            name: {**({} if name in _HIDDEN else table), **own.tables[name]}
            for name, table in before.tables.items()
        }
        Groups(own.default, own.count, known).install()
        return before

    def leave(self, before: Groups) -> None:
        """Take the default group back that there was before `enter`."""
        now = Groups.now()
        tables = {
            name: {key: value for key, value in table.items() if name in _HIDDEN or key not in old}
            for (name, table), old in zip(now.tables.items(), before.tables.values(), strict=True)
        }
        self.groups = Groups(now.default, now.count, tables)
        self._others = frozenset()
        before.install()
        before.register()


def whole_session(assignment: Assignment) -> Scope:
    """All ranks of the session."""
    return Scope(tuple(range(assignment.world_size)), assignment.rank)


@dataclass(frozen=True, slots=True)
class Groups:
    """What torch knows of process groups.

    Attributes:
        default: the default group.
        count: torch's count of them, which names the next one.
        tables: copies of torch's own, by name.
    """

    default: Any
    count: int
    tables: dict[str, dict[Any, Any]] = field(default_factory=dict)

    @classmethod
    def now(cls) -> Groups:
        """What it knows now."""
        world = _world()
        return cls(
            world.default_pg, world.group_count, {name: dict(getattr(world, name)) for name in _TABLES}
        )

    def install(self) -> None:
        """Have torch know this, and nothing else."""
        from torch.distributed.distributed_c10d import _update_default_pg

        world = _world()
        for name, content in self.tables.items():
            table = getattr(world, name)
            table.clear()
            table.update(content)
        world.group_count = self.count
        _update_default_pg(self.default)

    def register(self) -> None:
        """Have torch's C++ side find each group by its name: it forgets all when one default group is
        destroyed."""
        from torch._C._distributed_c10d import _register_process_group, _resolve_process_group

        for group, name in self.tables["pg_names"].items():
            with contextlib.suppress(RuntimeError):
                _resolve_process_group(name)
                continue
            _register_process_group(name, group)


def _world() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._world
