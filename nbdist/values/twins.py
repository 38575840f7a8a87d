"""The notebook's objects as they stood when the ranks began, and what a rank changed of them.

Longer than 400 lines because what a key stands for, and what is known of it, is read together.

An object has a key that both sides understand: its ``id`` in the kernel. A forked rank has the same
object at the same address; a rank that was started otherwise is told which of its objects is whose twin.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from types import MappingProxyType
from typing import Any

from nbdist.values.files import (
    FileKind,
    HeldFileKind,
    files_among,
    forget_pending,
    layers_below,
)
from nbdist.values.foreign import Refusal, call_foreign
from nbdist.values.kind import Buffer, Content, Kind, Spans, attributes_of
from nbdist.values.kinds import KindCache, kind_of
from nbdist.values.memory import Original, same_bytes
from nbdist.values.pages import MemoryWatch
from nbdist.values.plain import Instance
from nbdist.values.remote import Remote
from nbdist.values.shards import Shards, Whole
from nbdist.values.snapshot import PLAIN, Changes, Snapshot
from nbdist.values.walk import reached_inside, without_gc

_SHARDED_ONES = ("_is_param", "_fsdp_flattened")  # attributes that a parameter is given by what shards it


class Twins:
    """Objects that exist on both sides.

    Args:
        namespace: the notebook's global names, in this process.
        known: the objects by key; holding them keeps the ids valid.
        labels: for each key the name by which the notebook reaches the object, for messages.
        told: whether this process was told the keys; else they are the objects' own ids.
        original: of the file in which the objects' memory came here, if it did.
        held: keys of files that no name leads to.

    Attributes:
        names: the namespace as it was when this was made.
        modules: what was imported then.
        shards: tensors that are sharded over the ranks.
        barred: why objects stay in this process, whatever holds them, by their ids.
        files: the open files among them.
        stand_ins: by the id of a sharded parameter the key of the notebook's own that it was made of.
        shared: keys of what the ranks have made, each of its own, that all of them have.
        lone: by their ids the keys of objects that not all ranks have: they are watched, and go by value.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        known: dict[int, Any],
        labels: dict[int, str],
        *,
        told: bool = False,
        original: Original | None = None,
        held: Collection[int] = (),
    ):
        self.namespace = namespace
        self.names = dict(namespace)
        self.modules = frozenset(sys.modules)
        self.known = known
        self.labels = labels
        self._keys = {id(obj): key for key, obj in known.items()} if told else None
        self._before: dict[int, tuple[Kind, Content | Refusal]] = {}
        self._memory: dict[int, Buffer] = {}
        self._at: dict[Buffer, int] = {}
        self._sharers: dict[Buffer, set[int]] = {}
        self._inside: Twins | None = None
        self.shards = Shards()
        self.stand_ins: dict[int, int] = {}
        self.shared: set[int] = set()
        self.lone: dict[int, int] = {}
        self.barred: Mapping[int, str] = {}
        self._spans: Spans | None = None
        self._watch = MemoryWatch(original)
        kinds = KindCache()
        with without_gc():
            objects = [known[key] for key in labels]
            self.files = files_among(objects)
            below = {id(layer) for layer in layers_below(self.files)}
            for key, obj in zip(labels, objects, strict=True):
                if type(obj) not in PLAIN and id(obj) not in below:
                    kind = HeldFileKind() if key in held else kinds[type(obj)]
                    self._remember(key, obj, kind, self._watch.add)
            self._plain = Snapshot(list(labels), objects)
            if told:
                self._note_without_key(known, original)

    def _note_without_key(self, rebuilt: Mapping[int, Any], original: Original | None) -> None:
        """Keep what this process was not told of, because the way in which objects of the other side were
        rebuilt made it anew: the label of each is the key of the object that holds it."""
        found = reached_inside(self.namespace, rebuilt, self.known)
        labels = {
            key: label
            for key, label in found.labels.items()
            if call_foreign(partial(kind_of(found.objects[key]).memory, found.objects[key])) not in self._at
        }
        if self._inside is None:
            self._inside = Twins(self.namespace, {}, {})
            self._inside.names = {}
        watch = partial(self._inside._watch.add_own, original=original)
        self._inside._take(found.objects, labels, watch)

    def _remember(self, key: int, obj: Any, kind: Kind, watch: Callable[[Buffer], None]) -> None:
        self._before[key] = (kind, call_foreign(partial(kind.content, obj)))
        memory = call_foreign(partial(kind.memory, obj))
        if isinstance(memory, Buffer):
            self._memory[key] = memory
            owner = self._owner(memory)
            self._sharers.setdefault(memory, set()).add(key)
            if owner is None:
                self._watch.drop(memory)  # it was watched for one that has other memory now
                watch(memory)
            self._at[memory] = key if owner is None else owner

    def adopt(
        self,
        new: Mapping[int, Any],
        labels: Mapping[int, str],
        *,
        told: bool = False,
        rebuilt: bool = False,
        original: Original | None = None,
    ) -> None:
        """Take further objects that exist on both sides, as they are now.

        Args:
            new: by key.
            told: whether the keys may be others than the objects' ids; else an object whose key is another
                is found by its key alone, until it is `share`d.
            rebuilt: whether they were made here from what the other side sent.
            original: of the file in which their memory came here, if it did.
        """
        watch = partial(self._watch.add_own, original=original)
        if self._keys is None and told and new:
            self._keys = {id(obj): key for key, obj in self.known.items()}  # no longer their ids
        if not told:
            self.lone.update({id(obj): key for key, obj in new.items() if key < 0})
        if self._keys is not None:
            self._keys.update({id(obj): key for key, obj in new.items() if told or key > 0})
        self._take(new, labels, watch)
        if rebuilt:
            self._note_without_key(new, original)

    def share(self, keys: Iterable[int]) -> None:
        """All ranks have these objects of their making: each key stands for that of each rank."""
        objects = {key: self.known[key] for key in keys if key in self.known}
        self.shared |= objects.keys()
        if self._keys is None and objects:
            self._keys = {id(obj): key for key, obj in self.known.items() if key > 0}
        for key, obj in objects.items():
            self.lone.pop(id(obj), None)
            assert self._keys is not None
            self._keys.setdefault(id(obj), key)

    def _take(
        self,
        new: Mapping[int, Any],
        labels: Mapping[int, str],
        watch: Callable[[Buffer], None],
        was: Mapping[int, Kind] = MappingProxyType({}),
    ) -> None:
        kinds = KindCache()
        self._spans = None
        with without_gc():
            self.known.update(new)
            self.labels.update({key: labels[key] for key in new if key in labels})
            chosen = [key for key in new if key in labels]
            files = files_among([new[key] for key in chosen])
            below = {id(layer) for layer in layers_below(files)}
            for key in chosen:
                if type(new[key]) not in PLAIN and id(new[key]) not in below:
                    self._remember(key, new[key], was.get(key, kinds[type(new[key])]), watch)
            self._plain.add(chosen, [new[key] for key in chosen])
            self.files += files

    def renew(self, keys: AbstractSet[int]) -> None:
        """What these objects hold now is what the other side has, too."""
        known = keys & self.labels.keys()
        new, labels = {key: self.known[key] for key in known}, {key: self.labels[key] for key in known}
        was = {key: self._before[key][0] for key in known & self._before.keys()}
        self._forget(known)
        self._take(new, labels, self._watch.add_own, was)
        for memory in {self._memory[key] for key in known & self._memory.keys()}:
            self._watch.renew(memory)  # another owner may have kept it as it was
        if self._inside is not None:
            self._inside.renew({key for key, holder in self._inside.labels.items() if int(holder) in known})

    def drop(self, keys: AbstractSet[int]) -> None:
        """These objects no longer exist on both sides."""
        known = keys & self.known.keys()
        if self._inside is not None and known:
            self._inside.drop({key for key, holder in self._inside.labels.items() if int(holder) in known})
        self._forget(known)
        for key in known:
            obj = self.known.pop(key)
            self.labels.pop(key, None)
            self.shared.discard(key)
            if self.lone.get(id(obj)) == key:
                del self.lone[id(obj)]
            if self._keys is not None and self._keys.get(id(obj)) == key:
                del self._keys[id(obj)]

    def _forget(self, keys: AbstractSet[int]) -> None:
        """How they were."""
        self._spans = None
        self._plain.drop(keys)
        gone = {id(self.known[key]) for key in keys}
        self.files = [file for file in self.files if id(file) not in gone]
        for key in keys:
            self._before.pop(key, None)
            memory = self._memory.pop(key, None)
            if memory is None:
                continue
            others = self._sharers[memory] = self._sharers[memory] - {key}
            if self._at.get(memory) == key and others - keys:
                self._at[memory] = min(others - keys)
            elif not others:
                del self._at[memory], self._sharers[memory]
                self._watch.drop(memory)

    @property
    def ids_are_keys(self) -> bool:
        """Whether the key of an object is its id here, without exception."""
        return self._keys is None and not self.stand_ins and not self.barred

    def key_of(self, obj: object) -> int | None:
        """The key of one of the notebook's objects; None for any other."""
        return self.finder()(id(obj))

    def finder(self) -> Callable[[int], int | None]:
        """What gives the key of one of the notebook's objects by its id; None for any other id."""
        known, told, stand_ins, barred = self.known, self._keys, self.stand_ins, self.barred

        def find(id_: int) -> int | None:
            if id_ in barred:
                return None
            return stand_ins.get(id_) or (id_ if id_ in known else None)

        if told is None:
            return find
        if not stand_ins and not barred:
            return told.get
        return {id_: key for id_, key in {**told, **stand_ins}.items() if id_ not in barred}.get

    def key_at(self, memory: Buffer) -> int | None:
        """The key of an object of the notebook that this memory still belongs to."""
        if self.lone and self.owners(memory):  # in the graph they are like any other
            mine = self.owners(memory) - set(self.lone.values())
            return min(filter(self._still_has, mine), default=None)
        return self._owner(memory)

    def owners(self, memory: Buffer) -> AbstractSet[int]:
        """Keys of all objects that have had this memory."""
        return self._sharers.get(memory, frozenset())

    def key_around(self, memory: Buffer) -> tuple[int, int] | None:
        """As `key_at` for memory that lies inside an object's: its key, and where in it, in bytes."""
        if self._spans is None:
            self._spans = Spans(self._at)
        outer = self._spans.around(memory)
        key = self.key_at(outer) if outer is not None else None
        return (key, memory.address - outer.address) if key is not None and outer is not None else None

    def _owner(self, memory: Buffer) -> int | None:
        """The key under which memory is told: of an object that still has it. What others have let go may
        be somebody else's by now."""
        key = self._at.get(memory)
        if key is None or self._still_has(key):
            return key
        return min((other for other in self._sharers[memory] if self._still_has(other)), default=None)

    def below(self, objects: Iterable[Any]) -> set[int]:
        """Keys of those on whose memory objects without a key lie: these are sent as views of it."""
        find, kinds = self.finder(), KindCache()
        memories = (
            call_foreign(partial(kinds[type(obj)].memory, obj))
            for obj in objects
            if type(kinds[type(obj)]).memory is not Kind.memory and find(id(obj)) is None
        )
        found = {memory for memory in memories if isinstance(memory, Buffer)}
        around = {inner[0] for inner in map(self.key_around, found) if inner is not None}
        return around | {key for key in map(self.key_at, found) if key is not None}

    def _still_has(self, key: int) -> bool:
        return kind_of(self.known[key]).memory(self.known[key]) == self._memory[key]

    def settle_files(self) -> None:
        """Open files stand where this process finds them: threads may have written meanwhile."""
        forget_pending(self.files)
        for key, (kind, _) in self._before.items():
            if isinstance(kind, FileKind):
                self._before[key] = (kind, call_foreign(partial(kind.content, self.known[key])))

    def watch_forks(self) -> None:
        """Keep track of written memory while the rank forks children of its own."""
        os.register_at_fork(before=self._watch.note_written)

    def changes(self, among: Container[int] | None = None) -> Changes:
        """What is no longer as it was.

        Args:
            among: ids of objects of this process; no others are looked at. None for all.
        """
        self._watch.note_written()
        found = Changes()
        for key in self._before:
            obj = self.known[key]
            if id(obj) in self.barred:
                if isinstance(self._kind(key), Instance):  # a model or an optimizer
                    found.refused.setdefault(key, self.barred[id(obj)])
            elif self.shards.is_flat(obj):
                self._send(key, partial(self._whole, obj, obj), found)
            elif among is None or id(obj) in among or isinstance(self._kind(key), FileKind):
                self._compare(key, found)
        for key in self._left_behind(found):
            self._compare(key, found)
        for key, obj in self._plain.changed():
            if id(obj) not in self.barred and (among is None or id(obj) in among):
                found.contents[key] = kind_of(obj).portable(obj)
        self._send_sharded(found)
        for key in self._changed_inside():
            if among is None or id(self.known[key]) in among:
                self._send(key, partial(kind_of(self.known[key]).portable, self.known[key]), found)
        return found

    def _left_behind(self, found: Changes) -> set[int]:
        """Those that had the memory of one that has another now: when a storage grows, all of them move."""
        moved = {
            self._memory[key]
            for key in found.contents.keys() & self._memory.keys()
            if not self._still_has(key)
        }
        return {key for memory in moved for key in self.owners(memory)} - found.contents.keys()

    def _send_sharded(self, found: Changes) -> None:
        """A parameter that is sharded now is the notebook's own with another content."""
        self.stand_ins = {}
        coming = self.shards.paths.keys() - self.barred.keys()
        for key, now in self._plain.changed() if coming else ():
            if type(now) is not dict:
                continue
            names, values = self._plain.before(key)
            for name, old in zip(names, values, strict=True):
                new = now.get(name)
                known = self.key_of(old)
                if known is None or new is old or id(new) not in coming:
                    continue
                self.stand_ins[id(new)] = known
                self._send(known, partial(self._whole, new, old), found)

    def _whole(self, tensor: Any, before: Any) -> Any:
        """As `portable` of the notebook's own parameter, which `before` is here."""
        held = {**attributes_of(before), **vars(tensor)}
        own = {name: value for name, value in held.items() if name not in _SHARDED_ONES}
        data, state = Whole(self.shards.path_of(tensor)), self.shards.leaf_state(tensor)
        return data, tensor.requires_grad, state, own, False

    def _changed_inside(self) -> set[int]:
        """Objects of the notebook that hold something without a key which has changed."""
        if self._inside is None:
            return set()
        changed = self._inside.changes()
        return {
            int(self._inside.labels[key]) for key in (*changed.contents, *changed.memory, *changed.refused)
        }

    def _compare(self, key: int, found: Changes) -> None:
        obj = self.known[key]
        kind, before = self._before[key]
        if not self._is_as_before(key):
            give = partial(kind.portable, obj)
            if isinstance(before, Content):
                give = partial(kind.difference, obj, before)
            self._send(key, give, found)
        memory = self._memory.get(key)
        if memory is None or not self._still_has(key):
            return
        owner = self._owner(memory)
        if owner is not None and owner not in found.memory and self._watch.changed(memory):
            found.memory[owner] = memory

    def whole(self, keys: Iterable[int]) -> Changes:
        """All that these objects hold, changed or not."""
        found = Changes()
        for key in keys:
            obj = self.known[key]
            kind = kind_of(obj)
            self._send(key, partial(kind.portable, obj), found)
            memory = kind.memory(obj)
            if memory is not None:
                found.memory[key] = memory
        return found

    def moved_on(self, keys: Iterable[int]) -> list[int]:
        """Those of these objects that hold something else than when this was made, their memory apart."""
        plain = {key for key, _ in self._plain.changed()}
        return [key for key in keys if key in plain or (key in self._before and not self._is_as_before(key))]

    def _is_as_before(self, key: int) -> bool:
        kind, before = self._before[key]
        after = call_foreign(partial(kind.content, self.known[key]))
        if isinstance(before, Refusal):
            return isinstance(after, Refusal)
        return isinstance(after, Content) and before.same_as(after)

    @property
    def memory(self) -> Mapping[int, Buffer]:
        """The memory of the objects that have one, by key."""
        return self._memory

    def _send(self, key: int, give: Callable[[], Any], found: Changes) -> None:
        portable = call_foreign(give)
        if isinstance(portable, Refusal):
            found.refused[key] = portable.reason
        else:
            found.contents[key] = portable

    def land(self, key: int, portable: Any) -> None:
        """Write a changed content into the notebook's own object."""
        self._kind(key).land(self.known[key], portable)

    def _kind(self, key: int) -> Kind:
        return self._before[key][0] if key in self._before else kind_of(self.known[key])

    def land_memory(self, key: int, data: Any) -> None:
        """Write changed bytes into the memory of the notebook's own object, if they differ.

        Args:
            data: the bytes, or where they lie in the rank.
        """
        obj = self.known[key]
        mine = kind_of(obj).memory(obj)  # a rank may have put its own elsewhere, as all of them have
        if mine is None or mine.size_bytes != len(data):
            raise RuntimeError("it has another size there by now")
        if isinstance(data, Remote):
            data.read_into(mine, obj)
        elif same_bytes(mine.view(), memoryview(data)):
            return
        else:
            mine.view()[:] = data
        kind_of(obj).after_memory(obj)

    def bound(self) -> dict[str, Any]:
        """Names of the namespace that hold another object than before."""
        missing = object()
        return {
            name: value
            for name, value in self.namespace.items()
            if self.names.get(name, missing) is not value
        }

    def unbound(self) -> list[str]:
        """Names that the namespace has lost."""
        return [name for name in self.names if name not in self.namespace]
