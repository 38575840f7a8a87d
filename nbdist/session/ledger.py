"""What a session's ranks have seen of the notebook, and what they must be told before their next work.

The notebook and the ranks each have a namespace of their own. Objects that exist on both sides are twins:
what changes on one side is written into its twin on the other, when a cell needs it.
"""

from __future__ import annotations

import os
import pickle
import types
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from nbdist.errors import SessionError
from nbdist.messages import Parcel, Run, Values
from nbdist.session.news import News
from nbdist.shell import SHELLS_OWN
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.kind import Buffer
from nbdist.values.kinds import kind_of
from nbdist.values.landing import Landed
from nbdist.values.parcel import Echo, pack
from nbdist.values.reasons import explain, explain_parts
from nbdist.values.size import described
from nbdist.values.snapshot import Changes
from nbdist.values.surroundings import difference, surroundings
from nbdist.values.twins import Twins
from nbdist.values.walk import Reached, is_definition, reached
from nbdist.worker.sources import sources_of
from nbdist.worker.work import CallWork, Wanted, Work

_MISSING = object()
_OTHER = object()
_LARGE_BYTES = 1 << 20
_PRUNE_BYTES = 1 << 20
_PRUNE_OBJECTS = 10_000


class Ledger:
    """Of one session.

    Args:
        twins: the notebook's objects that the ranks began with.
        names: the namespace that they began with.

    Attributes:
        kept: names that live on the ranks alone, or in a newer form, with what they are.
    """

    def __init__(self, twins: Twins, names: Mapping[str, Any]):
        self._twins = twins
        # Names that some ranks have bound, and others may lack.
        self._bound_by: dict[str, frozenset[int]] = {}
        self._seen = dict(names)
        self._around = surroundings(given=True, live=True)
        self._newer: dict[int, int] = {}
        self._rebound: set[str] = set()
        self._ranks_own: set[str] = set()
        self._made: dict[str, set[int]] = {}  # keys of rank 0's by the names that lead to them
        self._dropped: set[int] = set()
        self._taken = True
        self.kept: dict[str, str] = {}

    def news(
        self, work: Work, wanted: Wanted, push: Iterable[str] = (), ranks: Collection[int] | None = None
    ) -> News:
        """What the ranks need for a piece of work.

        Args:
            push: names that are sent whatever the ranks have.
            ranks: who does the work; None for all.

        Raises:
            SessionError: the work, or a name that it reads, cannot be sent; nothing was.
        """
        push = frozenset(push)
        self._let_go()
        found = self._found(work, wanted, push)
        changes, apart = self._changes(found, push)
        names = self._names(found, changes, push)
        missing = self._missing(found.names - names, ranks)
        around = surroundings(given=True, live=True)
        new = {key: obj for key, obj in found.objects.items() if key not in self._twins.known}
        echo = Echo(new, found.labels)
        definitions = {name for name in names if self._is_definition(name)}
        values = {
            **{f"around:{title}": value for title, value in difference(self._around, around).items()},
            "sources": sources_of(new.values()),
            **self._named(names & definitions),  # what is made there may call them
            **self._written(changes),
            **self._named(names - definitions),
            **{f"missing:{name}": self._twins.namespace[name] for name in sorted(missing)},
        }
        packed = pack(values, self._twins, echo=echo)
        try:
            self._check(packed.lost, work, names)
            work_parcel, work_fd = self._pack_work(work, wanted)
        except SessionError:
            os.close(packed.fd)
            raise
        written = changes.contents.keys() | changes.memory.keys()
        labels = {found.labels.get(key, self._twins.labels[key]) for key in written}
        return News(
            message=self._message(packed.parcel, work_parcel),
            fds=(packed.fd, work_fd),
            names=frozenset(names - {key.partition(":")[2] for key in packed.lost}),
            missing=frozenset(missing),
            written=frozenset(written),
            echo=echo,
            around=around,
            told=tuple(sorted(name for name in names | labels if not self._is_module(name))),
            apart=apart,
            unsent=self._unsent(changes, found),
        )

    def _missing(self, names: AbstractSet[str], ranks: Collection[int] | None) -> set[str]:
        """Those of names that only other ranks have bound."""
        return {
            name
            for name in self._bound_by.keys() & names
            if ranks is None or not self._bound_by[name].issuperset(ranks)
        }

    def _unsent(self, changes: Changes, found: Reached) -> dict[str, str]:
        """What has changed and cannot be sent; it is said once."""
        keys = changes.refused.keys() - self._newer.keys()
        self._twins.renew(keys)
        labels = {key: found.labels.get(key, self._twins.labels[key]) for key in keys}
        return {labels[key]: changes.refused[key] for key in sorted(keys)}

    def _written(self, changes: Changes) -> dict[str, Any]:
        return {
            **{f"memory:{key}": pickle.PickleBuffer(held.view()) for key, held in changes.memory.items()},
            **{f"object:{key}": content for key, content in changes.contents.items()},
        }

    def _named(self, names: Iterable[str]) -> dict[str, Any]:
        return {f"name:{name}": self._twins.namespace[name] for name in sorted(names)}

    def _pack_work(self, work: Work, wanted: Wanted) -> tuple[Parcel, int]:
        packed = pack({"work": (work, wanted)}, self._twins, definitions_only=True)
        if packed.lost:
            os.close(packed.fd)
            parts = work.parts if isinstance(work, CallWork) else {}
            raise SessionError(
                f"The call cannot be sent to the ranks: {explain_parts(parts, packed.lost['work'])}"
            )
        return packed.parcel, packed.fd

    def _message(self, news: Parcel, work: Parcel) -> Run:
        unbound = self._seen.keys() - self._twins.namespace.keys() - self.kept.keys()
        return Run(
            news=news,
            work=work,
            unbound=tuple(unbound),
            dropped=tuple(self._dropped),
            taken=self._taken,
        )

    def sent(self, news: News) -> None:
        """It is on its way."""
        namespace = self._twins.namespace
        self._seen = {name: value for name, value in self._seen.items() if name not in news.message.unbound}
        self._seen |= {name: namespace[name] for name in news.names}
        for name in (*news.names, *news.missing):
            self._bound_by.pop(name, None)
        self.kept = {name: what for name, what in self.kept.items() if name not in news.names}
        self._ranks_own -= news.names
        self._forget_newer(news.written)
        self._dropped = set()
        self._taken = False
        self._around = news.around
        self._twins.renew(news.written)
        self._twins.adopt(news.echo.packed, news.echo.labels)

    def took(self, landed: Landed, values: Values | None) -> None:
        """What rank 0 handed over is in the notebook now.

        Args:
            values: what it said of them; None where it said nothing.
        """
        namespace = self._twins.namespace
        if values is None:
            return
        self._taken = True
        for name in (*landed.names, *values.unbound):
            self._drop_ranks_own(name)
            self.kept.pop(name, None)
            self._ranks_own.discard(name)
        self._rebound |= self._seen.keys() & {*landed.names, *values.unbound}
        self._seen = {name: value for name, value in self._seen.items() if name not in values.unbound}
        self._forget_newer(landed.written)
        self._twins.renew(landed.written)
        self._twins.adopt(landed.twins, landed.labels, rebuilt=True)
        self.kept |= {**values.kept, **values.changed}
        self._ranks_own |= values.kept.keys()
        self._newer |= {
            key: _version(self._twins.known[key]) for key in values.newer if key not in self._newer
        }
        self._seen |= {name: namespace.get(name, _MISSING) for name in (*landed.names, *values.kept)}
        for key in landed.twins:
            self._made.setdefault(landed.labels.get(key, ""), set()).add(key)
        if landed.around:
            self._around = surroundings(given=True, live=True)

    def knows(self, name: str) -> bool:
        """Whether the ranks have been sent a name, or have said that they have it."""
        return name in self._seen or name in self._bound_by

    def bound_by(self, names: Iterable[str], ranks: Collection[int] | None) -> None:
        """Names that ranks have bound: all of them, or some, and others get them before they read them."""
        for name in names:
            had = self._bound_by.pop(name, frozenset())
            if ranks is not None:
                self._bound_by[name] = had.union(ranks)

    def bound_here(self, names: Iterable[str]) -> None:
        """Names that were bound in the notebook to a copy of what some rank has: that counts as seen."""
        namespace = self._twins.namespace
        self._seen |= {name: namespace[name] for name in names if name in namespace}

    def bound_there(self, values: Mapping[str, Any]) -> None:
        """Names that were bound on the ranks alone."""
        namespace = self._twins.namespace
        for name, value in values.items():
            self._seen[name] = namespace.get(name, _MISSING)
            if self._seen[name] is not value:
                self.kept[name] = described(value)
                self._ranks_own.add(name)

    def _forget_newer(self, keys: AbstractSet[int]) -> None:
        """Both sides have the same again."""
        self._newer = {key: version for key, version in self._newer.items() if key not in keys}

    def _found(self, work: Work, wanted: Wanted, push: frozenset[str]) -> Reached:
        """What the work may reach; what the ranks have of their own leads nowhere here."""
        roots = {*work.reads, *work.mentions, *(wanted.output or ()), *wanted.gather, *push} - SHELLS_OWN
        own = self._ranks_own - push
        return reached(self._twins.namespace, roots, work.objects, without=own)

    def _names(self, found: Reached, changes: Changes, push: frozenset[str]) -> set[str]:
        """Names to be bound on the ranks."""
        namespace = self._twins.namespace
        names = {name for name in found.names if self._seen.get(name, _MISSING) is not namespace[name]}
        ranks_own = {key for key in (*changes.contents, *changes.memory, *changes.refused) if key < 0}
        for key in ranks_own:
            changes.contents.pop(key, None)
            changes.memory.pop(key, None)
        if ranks_own:
            names |= self._send_anew(ranks_own, found, changes)
        for name in names:
            self._drop_ranks_own(name)
        return names | (push & namespace.keys())

    def _send_anew(self, ranks_own: AbstractSet[int], found: Reached, changes: Changes) -> set[str]:
        """Have objects that rank 0 made sent as new ones to all ranks, with what holds them.

        Returns:
            The names that are bound to them.
        """
        twins, namespace = self._twins, self._twins.namespace
        anew = {id(twins.known[key]) for key in ranks_own}
        while True:
            holders = {
                id_
                for id_, obj in found.objects.items()
                if id_ not in anew and any(id(part) in anew for part in found.parts(obj))
            }
            shared = holders & twins.known.keys()
            changes.contents |= {id_: kind_of(twins.known[id_]).portable(twins.known[id_]) for id_ in shared}
            if holders <= shared:
                break
            anew |= holders - shared  # theirs goes by value, and so do they
        gone = {key for keys in self._made.values() for key in keys if id(twins.known.get(key)) in anew}
        self._made = {name: keys - gone for name, keys in self._made.items()}
        twins.drop(gone)
        self._dropped |= gone
        return {name for name in found.names if id(namespace[name]) in anew}

    def _changes(self, found: Reached, push: frozenset[str]) -> tuple[Changes, tuple[str, ...]]:
        """What the notebook has changed, and names that the ranks have changed too: theirs stay."""
        twins, namespace = self._twins, self._twins.namespace
        pushed = reached(namespace, push).objects if push else {}
        newer = self._newer.keys() - pushed.keys()
        # Their memory may be large, and it is not sent in any case: no full comparison.
        unlike = {
            key for key in newer & found.objects.keys() if _memory_bytes(twins.known[key]) > _LARGE_BYTES
        }
        changes = twins.changes(found.objects.keys() - unlike)
        for key in twins.known.keys() & pushed.keys():  # whatever any rank has made of them
            content = call_foreign(partial(kind_of(pushed[key]).portable, pushed[key]))
            memory = kind_of(pushed[key]).memory(pushed[key])
            if not isinstance(content, Refusal):
                changes.contents[key] = content
            if isinstance(memory, Buffer):
                changes.memory[key] = memory
        both = (changes.contents.keys() | changes.memory.keys()) & newer
        for key in both:
            changes.contents.pop(key, None)
            changes.memory.pop(key, None)
        twins.renew(both)  # said once
        both |= {key for key in unlike if _version(twins.known[key]) != self._newer[key]}
        self._newer |= {key: _version(twins.known[key]) for key in both}
        apart = {found.labels.get(key, twins.labels[key]) for key in both}
        for name in found.left_out & namespace.keys():
            if self._seen.get(name, _MISSING) is not namespace[name] or self._changed_inside(name):
                apart.add(name)
                self._seen[name] = namespace[name]
        return changes, tuple(sorted(apart))

    def _changed_inside(self, name: str) -> bool:
        """Whether the notebook has changed what it has under a name that the ranks have bound anew."""
        inside = reached(self._twins.namespace, [name]).objects.keys()
        changes = self._twins.changes(inside - self._newer.keys())
        keys = changes.contents.keys() | changes.memory.keys()
        self._twins.renew(keys)
        return bool(keys)

    def _check(self, lost: Mapping[str, str], work: Work, names: set[str]) -> None:
        """What the work reads must be there; what it assigns by itself may be missing."""
        for key, why in lost.items():
            kind, _, name = key.partition(":")
            # What only some ranks lack, one that reads it asks for itself.
            if kind == "missing" or (kind == "name" and name in names and self._may_lack(name, work)):
                continue
            if kind in ("object", "memory"):
                name = self._twins.labels[int(name)]
            reason = explain(name, self._twins.namespace.get(name), why, advise=False)
            raise SessionError(
                f"{name} cannot be sent to the ranks, and the cell or a function that it calls reads it: "
                f"{reason}. Make {name} in a cell on the ranks."
            )

    def _may_lack(self, name: str, work: Work) -> bool:
        """Whether the work can do without: it assigns the name, or some text in it mentions it."""
        return name in work.assigns or (name in work.mentions and name not in work.reads)

    def _is_definition(self, name: str) -> bool:
        return self._is_module(name) or is_definition(self._twins.namespace[name])

    def _is_module(self, name: str) -> bool:
        return isinstance(self._twins.namespace.get(name), types.ModuleType)

    def _drop_ranks_own(self, name: str) -> None:
        """Objects that rank 0 made under a name that is bound to others now."""
        own = self._made.pop(name, set())
        self._twins.drop(own)
        self._dropped |= own

    def _let_go(self) -> None:
        """Objects that the notebook no longer has need not be known; no reference of ours keeps them."""
        namespace = self._twins.namespace
        rebound = {
            name
            for name, value in self._seen.items()
            if value is not _OTHER and value is not _MISSING and namespace.get(name, _MISSING) is not value
        }
        self._seen |= dict.fromkeys(rebound, _OTHER)
        self._rebound |= rebound
        if not self._rebound:
            return
        keys = {key for key, label in self._twins.labels.items() if label in self._rebound}
        sizes = map(_memory_bytes, map(self._twins.known.get, keys))
        if len(keys) < _PRUNE_OBJECTS and sum(sizes) < _PRUNE_BYTES:
            return
        self._rebound.clear()
        held = reached(namespace, namespace.keys() - SHELLS_OWN).objects
        gone = {key for key in self._twins.known if id(self._twins.known[key]) not in held}
        self._twins.drop(gone)
        self._dropped |= gone
        self._made = {name: keys - gone for name, keys in self._made.items()}
        self._forget_newer(gone)


def _version(obj: Any) -> int:
    """A tensor's count of changes in place, which knows most of them."""
    return int(getattr(obj, "_version", 0))


def _memory_bytes(obj: Any) -> int:
    memory = kind_of(obj).memory(obj)
    return memory.size_bytes if isinstance(memory, Buffer) else 0
