"""What a rank hands to the kernel when its work ends: names, changed objects, the result.

Keys tell the kernel what a value is: ``name:x`` is bound to ``x``, ``object:KEY`` and ``memory:KEY``
are written into the notebook's object, ``around:TITLE`` into the notebook's surroundings, ``gather:x`` is
this rank's entry of a list, ``result`` is the work's value.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from nbdist.messages import Finished, Parcel, SendAgain, Values
from nbdist.shell import SHELLS_OWN, current_shell
from nbdist.values.memory import write_memory
from nbdist.values.outline import Outline, outlines
from nbdist.values.parcel import Echo, Packed, pack
from nbdist.values.reasons import explain
from nbdist.values.shards import MISSING
from nbdist.values.size import described
from nbdist.values.snapshot import Changes
from nbdist.values.surroundings import Surroundings
from nbdist.values.twins import Twins
from nbdist.values.unwrapping import Unwrapped, gone_with, without_fsdp
from nbdist.values.walk import Reached, reached
from nbdist.worker.keeping import (
    DOES_NOT_TRAVEL,
    Kept,
    Offer,
    echo_of,
    keep_large_changes,
    keep_large_names,
    lies_on,
    said_of,
    with_what_belongs,
    with_whole,
)
from nbdist.worker.leaving import flush_files
from nbdist.worker.limits import Limits, is_in_place, save
from nbdist.worker.widgets import WIDGET_MIME
from nbdist.worker.work import Done, Wanted, Work

# What torch.compile keeps among the names of a compiled function's globals.
_COMPILERS_OWN = ("__builtins_dict__", "__compiled_fn_", "__resume_at_", "__import_", "___")
_RESULT = "the result"
_NEW_CONTENT = " (its new content)"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """What goes to the kernel.

    Attributes:
        message: ends the rank's work, without its failure.
        fd: the values' memory file, if there are any; whoever has this owns it.
        held: to be held until the kernel has read the values.
        offer: what both sides will know once the kernel has taken the values.
    """

    message: Finished
    fd: int | None = None
    held: Any = None
    offer: Offer = field(default_factory=lambda: Offer(Echo({}, {})))


def is_shells(name: str) -> bool:
    """Whether a name is none of the user's."""
    return (
        name in SHELLS_OWN
        or name.startswith(_COMPILERS_OWN)
        or (name.startswith("_") and name.lstrip("_i").isdigit())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a rank has at the end of its work.

    Attributes:
        names: the namespace, with the ready-made names that the work did not assign.
        around: what the work changed of the notebook's surroundings.
        logs: a folder for values that the notebook's memory cannot take.
    """

    work: Work
    done: Done
    twins: Twins
    wanted: Wanted
    names: Mapping[str, Any]
    around: Surroundings
    rank: int
    logs: str

    @property
    def leads(self) -> bool:
        """Whether this rank's names, changes and result come back."""
        return self.rank == self.wanted.lead

    @property
    def speaks_for_all(self) -> bool:
        """Whether it leads, and is the one whose objects are the notebook's."""
        return self.rank == 0 == self.wanted.lead

    def hand_over(self, again: SendAgain) -> HandOver:
        """How the work ended, with its values.

        Args:
            again: what is to be left out, and how the rest is to be sent.
        """
        twins, wanted, kept = self.twins, self.wanted, Kept()
        with contextlib.ExitStack() as undo:
            twins.barred = {}
            if wanted.live and not (wanted.output or wanted.gather):
                twins.shards.find_none()  # no rank sends its part before somebody asks for the whole
            else:
                models = undo.enter_context(without_fsdp(twins.known.values()))
                _find_sharded(models, self.done, twins, self.names, again.without)
            values, refused = self._values(kept)
            missing = self._missing() if self.done.error is None else {}
            made = self._made(values)
            if not self.leads and not (values or refused or missing or made):
                return HandOver(message=Finished(outcome=self.done.outcome))
            chosen = {key: value for key, value in values.items() if key not in again.without}
            echo = _echo(chosen, twins) if wanted.live and self.speaks_for_all else None
            packed, unpacked, saved = self._pack(chosen, echo, copied=again.copied)
            said = said_of(made, twins, with_keys=self.leads)
        without = {key: reason for key, reason in again.without.items() if not key.startswith(MISSING)}
        lost = {**missing, **refused, **without, **unpacked}
        if wanted.live and wanted.output is None:
            _keep_lost(lost, self.names, twins, kept)
        in_place = {int(key.partition(":")[2]) for key in chosen if is_in_place(key) and key not in lost}
        return HandOver(
            message=Finished(
                outcome=self.done.outcome, values=replace(self._said(packed, lost, saved, kept), made=said)
            ),
            fd=packed.fd,
            held=packed.held,
            offer=Offer(echo or Echo({}, {}), frozenset(in_place) if self.rank == 0 else frozenset(), made),
        )

    def _values(self, kept: Kept) -> tuple[dict[str, Any], dict[str, str]]:
        """All that is wanted of this rank, by key, and what of it cannot be sent."""
        values: dict[str, Any] = {}
        refused: dict[str, str] = {}
        if self.leads and self.wanted.output is None:
            values |= {f"around:{title}": value for title, value in self.around.items()}
        if self.twins.shards.paths:
            values["shards"] = self.twins.shards.pieces(self.twins.barred)
        values |= {f"gather:{name}": self.names[name] for name in self.wanted.gather if name in self.names}
        if self.leads:
            own, refused = self._of_lead(kept)
            values |= own
        if (self.leads or self.wanted.results) and self.done.result is not None:
            values["result"] = self.done.result
            held = set(_keys_in(self.done.result, self.twins)) if kept.newer else set()
            if kept.newer & held or lies_on(kept.newer, self.done.result, self.twins):
                refused["result"] = "its new content stays on the ranks"
                del values["result"]
        return values, refused

    def _made(self, values: Mapping[str, Any]) -> dict[str, Outline]:
        """What each rank of a live session has made of its own under the names that come from rank 0."""
        if not self.wanted.live or self.wanted.lead != 0 or self.wanted.results:
            return {}
        if self.leads:
            names = (key.partition(":")[2] for key in values if key.startswith("name:"))
            return outlines({name: self.names[name] for name in names}, self.twins)
        bound = self._bound()
        if self.wanted.max_return is not None and self.wanted.output is None:
            bound = keep_large_names(bound, self.twins, self.wanted.max_return, Kept())
        return outlines(bound, self.twins)

    def _of_lead(self, kept: Kept) -> tuple[dict[str, Any], dict[str, str]]:
        """What the leading rank hands over of the notebook, and what it cannot."""
        twins, wanted = self.twins, self.wanted
        if twins.files:
            flush_files(gc.get_objects())  # those of the cell, which may lie on the notebook's
        bound = self._bound()
        if wanted.lead != 0:  # the notebook's objects are rank 0's to change
            return {f"name:{name}": value for name, value in bound.items()}, {}
        changes = self._changes()
        if wanted.live and wanted.max_return is not None:
            changes = keep_large_changes(changes, twins, wanted.max_return, kept)
            if wanted.output is None:
                bound = keep_large_names(bound, twins, wanted.max_return, kept)
        values = {
            **{f"memory:{key}": memory for key, memory in changes.memory.items()},
            **{f"object:{key}": content for key, content in changes.contents.items()},
            **{f"name:{name}": value for name, value in bound.items()},
        }
        return values, {f"object:{key}": reason for key, reason in changes.refused.items()}

    def _bound(self) -> dict[str, Any]:
        output = self.wanted.output
        if output is not None:
            return {name: self.names[name] for name in output if name in self.names}
        return {name: value for name, value in self.twins.bound().items() if not is_shells(name)}

    def _changes(self) -> Changes:
        """Of the notebook's objects that are asked for, or that the work could reach."""
        twins, wanted, work = self.twins, self.wanted, self.work
        among = None
        if wanted.output is not None:
            among = _with_below(reached(twins.namespace, (*wanted.output, *wanted.gather)), twins)
        elif wanted.live:
            among = _with_below(reached(twins.namespace, work.reads | work.mentions, work.objects), twins)
        if wanted.live and wanted.output:
            changes = with_what_belongs(among or (), twins.changes(), twins)
            return with_whole(wanted.whole, changes, twins)
        return twins.changes(among)

    def _missing(self) -> dict[str, str]:
        output = (self.wanted.output or ()) if self.leads else ()
        keys = {f"name:{name}" for name in output} | {f"gather:{name}" for name in self.wanted.gather}
        return {key: "this rank did not bind it" for key in keys if key.partition(":")[2] not in self.names}

    def _pack(
        self, chosen: Mapping[str, Any], echo: Echo | None, *, copied: bool
    ) -> tuple[Packed, dict[str, str], dict[str, str]]:
        """Values packed, by key why some are not, and by title where those are that there was no room for."""
        limits = Limits(self.wanted.max_return, partial(_is_asked, self.wanted))
        packed = pack(
            chosen,
            self.twins,
            definitions_only=not self.speaks_for_all or self.wanted.results,
            admit=limits.admit,
            echo=echo,
            lends=not copied,
        )
        unpacked = {key: _explained(key, chosen, self.twins, why) for key, why in packed.lost.items()}
        unfit = {key: unpacked[key] for key in limits.unfit}
        return packed, unpacked, self._saved(unfit) if unfit and not self.wanted.live else {}

    def _saved(self, unfit: Mapping[str, str]) -> dict[str, str]:
        """Save what there is no room for.

        Args:
            unfit: why, by key.

        Returns:
            By title why it stays behind, and where it is now.
        """
        names, twins = self.names, self.twins
        everything = {**names, _RESULT: self.done.result}
        reasons: dict[str, str] = {}
        changed: dict[int, str] = {}
        for key, reason in unfit.items():
            if is_in_place(key):
                changed[id(twins.known[int(key.partition(":")[2])])] = reason
            else:
                reasons[_title(key, twins)] = reason
        titles = {name: name for name in reasons if name in everything}
        for name in sorted(set(twins.labels.values()) & names.keys()) if changed else ():
            held = changed.keys() & reached(twins.namespace, [name]).objects.keys()
            if held:
                titles[name] = f"{name}{_NEW_CONTENT}"
                reasons[name] = changed[min(held)]
        told = save({name: everything[name] for name in titles}, self.logs, self.rank)
        return {title: f"{reasons[name]}; {told[name]}" for name, title in titles.items()}

    def _said(self, packed: Packed, lost: Mapping[str, str], saved: Mapping[str, str], kept: Kept) -> Values:
        """What the kernel is told of the values."""
        twins, wanted = self.twins, self.wanted
        unbound = tuple(twins.unbound()) if self.speaks_for_all and wanted.output is None else ()
        return Values(
            parcel=packed.parcel,
            unbound=unbound,
            lost={**{_title(key, twins): reason for key, reason in lost.items()}, **saved},
            result_data=_rich(self.done.result) if "result" in lost else None,
            imported=_parts_of_torch(twins.modules) if self.rank == 0 and not wanted.live else (),
            kept=kept.names,
            changed=kept.contents,
            newer=tuple(kept.newer),
        )


def _echo(chosen: Mapping[str, Any], twins: Twins) -> Echo:
    pairs = [key.partition(":") for key in chosen]
    names = [name for kind, _, name in pairs if kind == "name"]
    return echo_of(names, [int(key) for kind, _, key in pairs if kind == "object"], twins)


def _with_below(found: Reached, twins: Twins) -> set[int]:
    """The ids of what was reached, and of what it lies on."""
    below = twins.below(found.objects.values())
    return {*found.objects, *(id(twins.known[key]) for key in below)}


def _keys_in(value: Any, twins: Twins) -> Iterator[int]:
    """Keys of the notebook's objects that a value leads to."""
    keys = map(twins.key_of, reached(twins.namespace, (), {_RESULT: value}).objects.values())
    return (key for key in keys if key is not None)


def _keep_lost(lost: dict[str, str], names: Mapping[str, Any], twins: Twins, kept: Kept) -> None:
    """What does not travel lives on in the rank of a live session: no loss."""
    for key in list(lost):
        kind, _, name = key.partition(":")
        if kind == "name":
            del lost[key]
            kept.names[name] = f"{described(names[name])}{DOES_NOT_TRAVEL}"
        elif is_in_place(key):
            kept.newer.add(int(name))
            kept.contents[twins.labels[int(name)]] = f"its new content: {lost.pop(key)}"


def _find_sharded(
    models: Unwrapped, done: Done, twins: Twins, names: Mapping[str, Any], without: Mapping[str, str]
) -> None:
    """Look for what is sharded over the ranks, and bar what cannot be put together."""
    roots = {name: value for name, value in names.items() if not is_shells(name)}
    # Arguments of a call, say: the key is the same on all ranks.
    unnamed = {f"#{key}": module for key, module in models.holding_flat(twins.known).items()}
    twins.shards.find({**unnamed, **roots, _RESULT: done.result}, models.flat)
    lost = twins.shards.lost(without)
    twins.barred = gone_with(lost, models) if lost else {}


def _is_asked(wanted: Wanted, key: str) -> bool:
    """Whether somebody wants just this value, or it is no new one."""
    kind = key.partition(":")[0]
    return kind not in ("name", "result") or wanted.results or (kind == "name" and wanted.output is not None)


def _parts_of_torch(before: frozenset[str]) -> tuple[str, ...]:
    """Sub-packages of torch that the work imported: some load only when they are first needed."""
    new = sys.modules.keys() - before
    return tuple(sorted(name for name in new if name.startswith("torch.") and name.count(".") == 1))


def nothing_to_hand_over(done: Done, reason: str) -> HandOver:
    """How a rank's work ended whose values cannot be handed over at all."""
    values = Values(parcel=Parcel(frames=(), buffers=(), size_bytes=0), lost={"everything": reason})
    return HandOver(message=Finished(outcome=done.outcome, values=values), fd=write_memory(0, ()))


def _explained(key: str, values: Mapping[str, Any], twins: Twins, reason: str) -> str:
    """Why a value could not be packed, told of the value as the notebook knows it."""
    if is_in_place(key):
        number = int(key.partition(":")[2])
        return explain(twins.labels[number], twins.known[number], reason)
    return explain(_title(key, twins), values[key], reason)


def _title(key: str, twins: Twins) -> str:
    """How a message names a value."""
    kind, _, name = key.partition(":")
    if is_in_place(key):
        return f"{twins.labels[int(name)]}{_NEW_CONTENT}"
    return _RESULT if kind == "result" else name


def _rich(value: Any) -> Mapping[str, Any] | None:
    """A value's rich display, for a front end that will not have the value itself."""
    shell = current_shell()
    if shell is None:
        return {"text/plain": repr(value)}
    data: Mapping[str, Any] = shell.display_formatter.format(value)[0]
    # A widget works only where it was made: a front end could only say "model not found".
    return {mime: content for mime, content in data.items() if mime != WIDGET_MIME} or None
