"""Tensors that are sharded over the ranks, as `DTensor` or in FSDP's flat parameters: every rank hands over
its part, the kernel puts them together.

Ranks agree on which tensor is which by its path: the name that leads to it, and the attributes, keys
and indices from there. No rank waits for another, so a rank that has failed cannot hold them up.
"""

from __future__ import annotations

import collections
import gc
import math
import sys
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbdist.values.kind import ATOMS, attributes_of
from nbdist.values.kinds import kind_of
from nbdist.values.models import flat_wrapper_class, inside_wrapper
from nbdist.values.numeric import leaf_state
from nbdist.values.pieces import FlatPart, Piece, are_all, put_together
from nbdist.values.plain import Instance

Path = tuple[Any, ...]

MISSING = "missing"
"""Begins the keys of what has not all come."""
INCOMPLETE = "it is sharded over the ranks, and not all of them handed over their part"
_GRAD = "grad"


class Whole:
    """Stands in a graph for the whole tensor.

    Args:
        grad: whether it is a gradient; one that is not all there is none.
    """

    def __init__(self, path: Path, *, grad: bool = False):
        self._path = path
        self._grad = grad

    def __reduce__(self) -> Any:
        return _whole, (SHARDS, self._path, self._grad)


def _whole(shards: Shards, path: Path, grad: bool) -> Any:
    return shards.grad(path) if grad else shards.whole(path)


class FlatState:
    """Stands for the state of an optimizer whose parameters were made flat.

    Attributes:
        rest: what it keeps for other parameters.
        parameters: the flat ones.
        entries: for each of them what this rank has, as `FlatPart.entries` gives it.
        path: the optimizer's, once it is known.
    """

    def __init__(self, rest: dict[Any, Any], parameters: list[Any], entries: list[dict[str, Any]]):
        self.rest = rest
        self.parameters = parameters
        self.entries = entries
        self.path: Path | None = None

    def __reduce__(self) -> Any:
        if self.path is None:
            raise TypeError("no name leads to this optimizer, whose parameters are sharded over the ranks")
        return _whole_state, (SHARDS, self.path, self.parameters, self.rest)


def _whole_state(shards: Shards, path: Path, parameters: list[Any], rest: dict[Any, Any]) -> Any:
    state = collections.defaultdict(dict, rest)
    for at, parameter in enumerate(parameters):
        entries = shards.entries(path, at)
        if entries:
            state[parameter] = entries
    return state


@dataclass(slots=True)
class Flat:
    """What was flat in this rank.

    Attributes:
        parts: of each parameter this rank's, by the id of the parameter that stands for it.
        states: of each optimizer that has such parameters, by the optimizer's id.
        refused: why a parameter, or one that an optimizer has, cannot be put together, by its id.
    """

    parts: dict[int, FlatPart] = field(default_factory=dict)
    states: dict[int, FlatState] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


Sent = Mapping[Path, Any]
"""By path a `Piece`, or for an optimizer the entries of each of its parameters."""


class Shards:
    """In a rank the paths of its sharded tensors, in the kernel the pieces that the ranks sent."""

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self._found: dict[Path, Any] = {}
        self._flat = Flat()
        self._sent: dict[int, Sent] = {}

    def find(self, roots: Mapping[str, Any], flat: Flat) -> None:
        """Look for this rank's sharded tensors in what names lead to.

        Args:
            flat: models that have been taken apart, with their optimizers.
        """
        self._flat = flat
        self._found = dict(_found(roots, flat)) if flat.parts or _exist() else {}
        self.paths = {id(found): path for path, found in self._found.items()}
        for id_, state in flat.states.items():
            state.path = self.paths.get(id_)

    def find_none(self) -> None:
        """Look for nothing: no sharded tensor can be sent then."""
        self._flat, self._found, self.paths = Flat(), {}, {}

    def are_sharded(self, obj: Any) -> bool:
        """Whether an object is one of this rank's sharded tensors, or stands for one."""
        cls = sharded_class()
        return self.is_flat(obj) or (cls is not None and issubclass(type(obj), cls))

    def is_flat(self, obj: Any) -> bool:
        """Whether an object stands for a parameter that is a part of a flat one."""
        return id(obj) in self._flat.parts

    def lost(self, without: Mapping[str, str]) -> dict[int, str]:
        """Tensors and optimizers that cannot be put together, by id, with the reason.

        Args:
            without: the keys of those that have not all come, as `missing` gives them.
        """
        missing = {id_: without[key] for id_, path in self.paths.items() if (key := _key(path)) in without}
        return {**self._flat.refused, **missing}

    def pieces(self, without: Container[int]) -> Sent:
        """This rank's parts, but for those of objects with the ids in `without`."""
        sent: dict[Path, Any] = {}
        for path, found in self._found.items():
            if id(found) in without:
                continue
            if id(found) in self._flat.states:
                sent[path] = self._flat.states[id(found)].entries
            elif id(found) in self._flat.parts:
                part = self._flat.parts[id(found)]
                sent[path], sent[(*path, _GRAD)] = part.piece(), part.piece_of_grad()
            else:
                sent[path] = _piece(found)
        return sent

    def path_of(self, tensor: Any) -> Path:
        """The path of one of this rank's sharded tensors.

        Raises:
            TypeError: no name leads to it, or it cannot be put together from its parts.
        """
        path = self.paths.get(id(tensor))
        if path is None and self.is_flat(tensor):
            raise TypeError(
                "its model is sharded over the ranks, and no name leads to that. Bind it to a name"
            )
        if path is None:
            raise TypeError("it holds a DTensor that no name leads to. Bind tensor.full_tensor() to a name")
        if not self.is_flat(tensor):
            _check_placements(tensor)
        return path

    def leaf_state(self, tensor: Any) -> tuple[Any, Any, Any]:
        """As `numeric.leaf_state`, with the whole gradient."""
        grad, hooks, post_hooks = leaf_state(tensor)
        if id(tensor) in self._flat.parts:
            grad = Whole((*self.path_of(tensor), _GRAD), grad=True)
        return grad, hooks, post_hooks

    def add(self, rank: int, pieces: Sent) -> None:
        """Take what a rank sent, in the place of what it sent before."""
        self._sent[rank] = pieces

    def missing(self) -> str | None:
        """The key of something of rank 0's that has not all come; None if nothing is missing."""
        for path, own in self._sent.get(0, {}).items():
            if isinstance(own, Piece):
                complete = path[-1] == _GRAD or are_all(self._pieces(path))
            else:
                complete = all(
                    are_all(pieces)
                    for at in range(len(own))
                    for pieces in self._entries(path, at)[0].values()
                )
            if not complete:
                return _key(path)
        return None

    def whole(self, path: Path) -> Any:
        """Put a tensor together.

        Raises:
            RuntimeError: parts of it have not come.
        """
        pieces = self._pieces(path)
        if not are_all(pieces):
            raise RuntimeError(INCOMPLETE)
        return put_together(pieces)

    def grad(self, path: Path) -> Any:
        """Put a gradient together; None where there is none, or not all of it."""
        pieces = self._pieces(path)
        return put_together(pieces) if are_all(pieces) else None

    def entries(self, path: Path, at: int) -> dict[str, Any]:
        """What an optimizer keeps for one of its parameters, as it does where nothing is sharded.

        Raises:
            RuntimeError: parts of it have not come.
        """
        pieces, values = self._entries(path, at)
        if not all(map(are_all, pieces.values())):
            raise RuntimeError(INCOMPLETE)
        whole = {name: put_together(of_name) for name, of_name in pieces.items()}
        # A count of steps is each parameter's own.
        own = {name: value.clone() if hasattr(value, "clone") else value for name, value in values.items()}
        return {**own, **whole}

    def _pieces(self, path: Path) -> list[Piece]:
        return [sent[path] for sent in self._sent.values() if path in sent]

    def _entries(self, path: Path, at: int) -> tuple[dict[str, list[Piece]], dict[str, Any]]:
        """Pieces, and values of the first rank that has any, by name."""
        pieces: dict[str, list[Piece]] = {}
        values: dict[str, Any] = {}
        for rank in sorted(self._sent):
            of_rank = self._sent[rank].get(path, ())
            for name, entry in of_rank[at].items() if at < len(of_rank) else ():
                if isinstance(entry, Piece):
                    pieces.setdefault(name, []).append(entry)
                else:
                    values.setdefault(name, entry)
        return pieces, {name: value for name, value in values.items() if name not in pieces}

    def clear(self) -> None:
        """Let the pieces go."""
        self._sent.clear()


SHARDS = Shards()
"""Stands in a graph for the reader's own `Shards`."""


def _key(path: Path) -> str:
    return f"{MISSING}:{path!r}"


def sharded_class() -> Any:
    """torch's `DTensor`, if it is loaded."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def _exist() -> bool:
    cls = sharded_class()
    # Asked of the class: an object may lie about its own.
    return cls is not None and any(issubclass(type(obj), cls) for obj in gc.get_objects())


def _found(roots: Mapping[str, Any], flat: Flat) -> Iterator[tuple[Path, Any]]:
    """Sharded tensors, and optimizers of such, with their paths, in the same order on every rank."""
    cls, seen = sharded_class(), set()
    todo: list[tuple[Path, Any]] = [((name,), roots[name]) for name in sorted(roots, reverse=True)]
    while todo:
        path, obj = todo.pop()
        if type(obj) in ATOMS or id(obj) in seen:
            continue
        seen.add(id(obj))
        if id(obj) in flat.parts or id(obj) in flat.states:
            yield path, obj
        if cls is not None and issubclass(type(obj), cls):
            yield path, obj
            todo.append(((*path, "grad"), obj.grad if obj.is_leaf else None))
        elif id(obj) not in flat.parts:
            todo.extend(((*path, step), held) for step, held in _steps(obj))


def _steps(obj: Any) -> Iterator[tuple[Any, Any]]:
    """What a container or an instance holds, and what leads there."""
    kind = type(obj)
    wrapper = flat_wrapper_class()
    if issubclass(kind, (list, tuple)):
        yield from enumerate(obj)
    elif issubclass(kind, dict):
        for at, (key, value) in enumerate(obj.items()):
            yield (key if type(key) in (int, str) else at), value
            yield ("key", at), key
    elif wrapper is not None and issubclass(kind, wrapper):
        yield "module", inside_wrapper(obj)
    elif isinstance(kind_of(obj), Instance):
        yield from attributes_of(obj).items()


def _check_placements(tensor: Any) -> None:
    for placement in tensor.placements:
        kind = type(placement).__name__
        if kind not in ("Shard", "Replicate", "Partial") or getattr(placement, "reduce_op", "sum") != "sum":
            raise TypeError(
                f"a DTensor placed as {placement} cannot be put together from its parts. "
                "Bind tensor.full_tensor() to a name"
            )


def _piece(tensor: Any) -> Piece:
    """This rank's part, without its data where another rank has the same."""
    utilities: Any = sys.modules["torch.distributed.tensor._utils"]
    mesh, placements = tensor.device_mesh, tensor.placements
    where = mesh.get_coordinate()
    kinds = [type(placement).__name__ for placement in placements]
    size = [1 if kind == "Replicate" else mesh.size(at) for at, kind in enumerate(kinds)]
    wanted = where is not None and not any(
        kind == "Replicate" and at for kind, at in zip(kinds, where, strict=True)
    )
    starts: tuple[int, ...] = ()
    data = None
    if wanted:
        _, starts = utilities.compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
        data = tensor.detach().to_local()
        data = (data.wait() if hasattr(data, "wait") else data).cpu()
    return Piece(
        data=data,
        shape=tuple(tensor.shape),
        starts=tuple(starts),
        parts=math.prod(size),
        adds="Partial" in kinds,
    )
