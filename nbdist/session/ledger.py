"""What a session's ranks have seen of the notebook, and what they must be told before their next work.

The notebook and the ranks each have a namespace of their own. Objects that exist on both sides are twins:
what changes on one side is written into its twin on the other, when a cell needs it.
"""

from __future__ import annotations

import os
import pickle
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from nbdist.messages import Made, Parcel, Run, Values
from nbdist.session.anew import lone_ones, with_holders
from nbdist.session.news import Draft, News
from nbdist.session.sendable import asked_for, check_sendable, pack_work
from nbdist.session.stale import Stale, memory_bytes
from nbdist.shell import SHELLS_OWN
from nbdist.values.landing import Landed
from nbdist.values.parcel import Echo, pack
from nbdist.values.refitting import layouts_of
from nbdist.values.size import described
from nbdist.values.snapshot import Changes
from nbdist.values.surroundings import Surroundings, difference, surroundings
from nbdist.values.twins import Twins
from nbdist.values.walk import Reached, is_definition, reached
from nbdist.worker.handover import is_shells
from nbdist.worker.sources import sources_of
from nbdist.worker.work import Wanted, Work

_MISSING = object()
_OTHER = object()
_LARGE_BYTES = 1 << 20


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
        self._stale = Stale(twins)
        self._ranks_own: set[str] = set()
        self._dropped: set[int] = set()
        self._unsure: set[int] = set()  # keys of what some rank could not take
        self._before = _Before({}, {})
        self._taken = True
        self._shared: dict[str, tuple[int | None, ...]] = {}  # that the ranks do not know of yet
        self._next_key = -1
        self.kept: dict[str, str] = {}

    def news(
        self,
        work: Work,
        wanted: Wanted,
        push: Iterable[str],
        ranks: Collection[int] | None,
        looking: AbstractContextManager[None],
    ) -> News:
        """What the ranks need for a piece of work.

        Args:
            push: names that are sent whatever the ranks have.
            ranks: who does the work; None for all.
            looking: the block in which all is compared and packed; an interrupt may be raised there.

        Raises:
            SessionError: the work, or a name that it reads, cannot be sent; nothing was.
        """
        self._let_go()
        with looking:
            return self._news(work, wanted, frozenset(push), ranks)

    def _news(self, work: Work, wanted: Wanted, push: frozenset[str], ranks: Collection[int] | None) -> News:
        draft = Draft()
        found = self._found(work, wanted, push)
        reads = found.names
        changes, apart = self._changes(found, push, draft)
        names = self._new_names(found) | (push & self._twins.namespace.keys())
        anew = lone_ones(self._twins, changes, map(self._twins.namespace.get, names))
        if anew:
            found = self._found(work, wanted, push, whole=True)
            names |= self._send_anew(anew, found, changes, draft)
        written = changes.contents.keys() | changes.memory.keys()
        labels = {self._label(key, found) for key in written}
        missing = self._missing(reads - names, ranks) | (labels & self._twins.namespace.keys() - names)
        around = surroundings(given=True, live=True)
        find = self._twins.finder()
        new = {id_: obj for id_, obj in found.objects.items() if find(id_) is None}
        echo = Echo(new, found.labels)
        values = {
            **{f"around:{title}": value for title, value in difference(self._around, around).items()},
            "sources": sources_of(new.values()),
            **self._values(names, missing, changes),
            **self._led(changes, found),
        }
        packed = pack(values, self._twins, echo=echo)
        try:
            check_sendable(packed.lost, work, names, self._twins)
            work_parcel, work_fd = pack_work(work, wanted, self._twins)
        except BaseException:
            os.close(packed.fd)
            raise
        return News(
            message=self._message(packed.parcel, work_parcel, draft, asked_for(work, wanted)),
            fds=(packed.fd, work_fd),
            names=frozenset(names - {key.partition(":")[2] for key in packed.lost}),
            missing=frozenset(missing),
            written=frozenset(written),
            echo=echo,
            around=around,
            told=tuple(sorted(name for name in names | labels if not self._is_module(name))),
            apart=apart,
            draft=draft,
            unsent=self._unsent(changes, found, draft),
        )

    def _missing(self, names: AbstractSet[str], ranks: Collection[int] | None) -> set[str]:
        """Those of names that only other ranks have bound."""
        return {
            name
            for name in self._bound_by.keys() & names
            if ranks is None or not self._bound_by[name].issuperset(ranks)
        }

    def _unsent(self, changes: Changes, found: Reached, draft: Draft) -> dict[str, str]:
        """What has changed and cannot be sent; it is said once."""
        keys = changes.refused.keys() - self._newer.keys()
        draft.renewed |= keys
        return {self._label(key, found): changes.refused[key] for key in sorted(keys)}

    def _label(self, key: int, found: Reached) -> str:
        """The name that leads to an object."""
        return found.labels.get(id(self._twins.known[key]), self._twins.labels[key])

    def _values(self, names: set[str], missing: set[str], changes: Changes) -> dict[str, Any]:
        """Names and new contents, in the order in which the ranks take them."""
        definitions = {name for name in names if self._is_definition(name)}
        return {
            **self._named("name", definitions),  # what is made behind them may call them
            **({"layouts": layouts_of(changes.memory, self._twins)} if changes.memory else {}),
            **{f"memory:{key}": pickle.PickleBuffer(held.view()) for key, held in changes.memory.items()},
            **{f"object:{key}": content for key, content in changes.contents.items()},
            **self._named("name", names - definitions),
            **self._named("missing", missing),
        }

    def _led(self, changes: Changes, found: Reached) -> dict[str, Any]:
        """The names that lead to what has changed: a rank may have put something else in its place."""
        led: dict[str, list[int]] = {}
        for key in changes.contents.keys() | changes.memory.keys():
            if id(self._twins.known[key]) in found.objects:  # others lie below, or lay beside them
                led.setdefault(self._label(key, found), []).append(key)
        return {"led": led} if led else {}

    def _named(self, kind: str, names: Iterable[str]) -> dict[str, Any]:
        return {f"{kind}:{name}": self._twins.namespace[name] for name in sorted(names)}

    def _message(self, news: Parcel, work: Parcel, draft: Draft, asked: AbstractSet[str]) -> Run:
        unbound = self._seen.keys() - self._twins.namespace.keys() - self.kept.keys() - asked
        return Run(
            news=news,
            work=work,
            unbound=tuple(unbound),
            dropped=(*self._dropped, *draft.dropped),
            taken=self._taken,
            made=self._shared,
        )

    def sent(self, news: News) -> None:
        """It is on its way."""
        namespace = self._twins.namespace
        self._twins.drop(news.draft.dropped)
        self._newer |= news.draft.newer
        self._seen = {name: value for name, value in self._seen.items() if name not in news.message.unbound}
        self._seen |= news.draft.seen
        self._seen |= {name: namespace[name] for name in news.names}
        bound = self._bound_by.keys() & {*news.names, *news.missing}
        self._before = _Before(self._around, {name: self._bound_by.pop(name) for name in bound})
        self.kept = {name: what for name, what in self.kept.items() if name not in news.names}
        self._ranks_own -= news.names
        self._forget_newer(news.written | news.draft.dropped)
        self._unsure -= news.written
        self._dropped, self._shared, self._taken = set(), {}, False
        self._around = news.around
        self._twins.renew(news.written | news.draft.renewed)
        self._twins.adopt(news.echo.packed, news.echo.labels)

    def untaken(self, news: News) -> None:
        """Some rank could not take what was sent: all of it is sent again, to all of them."""
        self._seen |= dict.fromkeys(news.names, _OTHER)
        self._around = self._before.around
        self._bound_by = {**self._before.bound_by, **self._bound_by}
        self._unsure |= news.written
        adopted = news.echo.packed.keys() & self._twins.known.keys()
        self._twins.drop(adopted)
        self._dropped |= adopted

    def took(self, landed: Landed, handed_over: Sequence[Values | None]) -> None:
        """What rank 0 handed over is in the notebook now.

        Args:
            handed_over: what each rank said of it; None for one that said nothing.
        """
        namespace, values = self._twins.namespace, handed_over[0]
        if values is None:
            return
        self._taken = True
        for name in (*landed.names, *values.unbound):
            self.kept.pop(name, None)
            self._ranks_own.discard(name)
        self._stale.add((*landed.names, *values.unbound))
        self._seen = {name: value for name, value in self._seen.items() if name not in values.unbound}
        self._forget_newer(landed.written)
        self._twins.renew(landed.written)
        self._twins.adopt(landed.twins, landed.labels, rebuilt=True)
        self._share(values.made, handed_over[1:])
        self.kept |= {**values.kept, **values.changed}
        self._ranks_own |= values.kept.keys()
        self._newer |= {
            key: _version(self._twins.known[key])
            for key in values.newer
            if key not in self._newer and key in self._twins.known
        }
        self._seen |= {name: namespace.get(name, _MISSING) for name in (*landed.names, *values.kept)}
        if landed.around:
            self._around = surroundings(given=True, live=True)

    def _share(self, made: Mapping[str, Made], others: Sequence[Values | None]) -> None:
        """What all ranks have built alike stands for itself from now on, on each of them."""
        for name, own in made.items():
            if all(other is not None and other.made.get(name) == Made(own.digest) for other in others):
                keys = tuple(key if key in self._twins.known else None for key in own.keys)
                self._shared[name] = keys
                self._twins.share(key for key in keys if key is not None)

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
        bound = {name: namespace[name] for name in names if name in namespace}
        self._seen |= bound
        self._stale.add(bound)
        find, lone = self._twins.finder(), self._twins.lone
        found = reached(namespace, bound, without=namespace.keys() - bound.keys())
        copies = [obj for id_, obj in found.objects.items() if find(id_) is None and id_ not in lone]
        keys = range(self._next_key, self._next_key - len(copies), -1)
        self._next_key -= len(copies)
        labels = {key: found.labels[id(obj)] for key, obj in zip(keys, copies, strict=True)}
        self._twins.adopt(dict(zip(keys, copies, strict=True)), labels)

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

    def _found(self, work: Work, wanted: Wanted, push: frozenset[str], *, whole: bool = False) -> Reached:
        """What the work may reach, or, `whole`, all that the ranks have of the notebook, too; what they have
        of their own leads nowhere here."""
        output = {*(wanted.output or ())} - asked_for(work, wanted)
        roots = {*work.reads, *work.mentions, *output, *wanted.gather, *push} - SHELLS_OWN
        if whole:
            roots |= {name for name in self._seen if name.strip("_") and not is_shells(name)}
        return reached(self._twins.namespace, roots, work.objects, without=self._ranks_own - push)

    def _new_names(self, found: Reached) -> set[str]:
        """Names to be bound on the ranks."""
        namespace = self._twins.namespace
        return {name for name in found.names if self._seen.get(name, _MISSING) is not namespace[name]}

    def _send_anew(self, anew: set[int], found: Reached, changes: Changes, draft: Draft) -> set[str]:
        """Have objects that only some ranks have sent as new ones to all, with what holds them.

        Returns:
            The names that are bound to them.
        """
        twins, namespace = self._twins, self._twins.namespace
        anew = with_holders(twins, found, anew, changes)
        draft.dropped |= {key for id_, key in twins.lone.items() if id_ in anew}
        for key in draft.dropped:
            changes.contents.pop(key, None)
            changes.memory.pop(key, None)
        return {name for name in found.names if id(namespace[name]) in anew}

    def _changes(self, found: Reached, push: frozenset[str], draft: Draft) -> tuple[Changes, tuple[str, ...]]:
        """What the notebook has changed, and names that the ranks have changed too: theirs stay."""
        twins, namespace = self._twins, self._twins.namespace
        forced = self._forced(found, push)
        newer = {key for key in self._newer.keys() - forced if id(twins.known[key]) in found.objects}
        # Their memory may be large, and it is not sent in any case: no full comparison.
        unlike = {key for key in newer if memory_bytes(twins.known[key]) > _LARGE_BYTES}
        below = {id(twins.known[key]) for key in twins.below(found.objects.values())}
        changes = twins.changes((found.objects.keys() | below) - {id(twins.known[key]) for key in unlike})
        whole = twins.whole(forced)
        changes.contents.update(whole.contents)
        changes.memory.update(whole.memory)
        both = (changes.contents.keys() | changes.memory.keys()) & newer
        for key in both:
            changes.contents.pop(key, None)
            changes.memory.pop(key, None)
        draft.renewed |= both  # said once
        both |= {key for key in unlike if _version(twins.known[key]) != self._newer[key]}
        draft.newer = {key: _version(twins.known[key]) for key in both}
        apart = {self._label(key, found) for key in both}
        for name in found.left_out & namespace.keys():
            if self._seen.get(name, _MISSING) is not namespace[name] or self._changed_inside(name, draft):
                apart.add(name)
                draft.seen[name] = namespace[name]
        return changes, tuple(sorted(apart))

    def _forced(self, found: Reached, push: frozenset[str]) -> set[int]:
        """Keys of what is sent whatever any rank has made of it."""
        ids = reached(self._twins.namespace, push).objects.keys() if push else set()
        known = self._twins.known
        unsure = {key for key in self._unsure & known.keys() if id(known[key]) in found.objects}
        return unsure | {key for key, obj in known.items() if id(obj) in ids} if ids else unsure

    def _changed_inside(self, name: str, draft: Draft) -> bool:
        """Whether the notebook has changed what it has under a name that the ranks have bound anew."""
        newer = {id(self._twins.known[key]) for key in self._newer}
        inside = reached(self._twins.namespace, [name]).objects.keys()
        changes = self._twins.changes(inside - newer)
        keys = changes.contents.keys() | changes.memory.keys()
        draft.renewed |= keys
        return bool(keys)

    def _is_definition(self, name: str) -> bool:
        return self._is_module(name) or is_definition(self._twins.namespace[name])

    def _is_module(self, name: str) -> bool:
        return isinstance(self._twins.namespace.get(name), types.ModuleType)

    def _let_go(self) -> None:
        """Objects that the notebook no longer has need not be known; no reference of ours keeps them."""
        namespace = self._twins.namespace
        rebound = {
            name
            for name, value in self._seen.items()
            if value is not _OTHER and value is not _MISSING and namespace.get(name, _MISSING) is not value
        }
        self._seen |= dict.fromkeys(rebound, _OTHER)
        self._stale.add(rebound)
        gone = self._stale.let_go()
        self._dropped |= gone
        self._unsure -= gone
        self._forget_newer(gone)


@dataclass(frozen=True, slots=True)
class _Before:
    """What the ranks were known to have before the last news."""

    around: Surroundings
    bound_by: Mapping[str, frozenset[int]]


def _version(obj: Any) -> int:
    """A tensor's count of changes in place, which knows most of them."""
    return int(getattr(obj, "_version", 0))
