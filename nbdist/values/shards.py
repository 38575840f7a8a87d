"""Tensors that are sharded over the ranks (`DTensor`): every rank hands over its part, the kernel puts
them together.

Ranks agree on which tensor is which by its path: the name that leads to it, and the attributes, keys
and indices from there. No rank waits for another, so a rank that has failed cannot hold them up.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nbdist.values.kind import ATOMS, attributes_of
from nbdist.values.kinds import kind_of
from nbdist.values.plain import Instance

Path = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One rank's part of a tensor.

    Attributes:
        shape: of the whole.
        starts: where in the whole it lies, by dimension.
        parts: how many pieces make up the whole.
        adds: whether pieces that lie in the same place are summed.
    """

    data: Any
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    parts: int
    adds: bool


class Whole:
    """Stands in a graph for the whole tensor."""

    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self) -> Any:
        return _whole, (SHARDS, self._path)


def _whole(shards: Shards, path: Path) -> Any:
    return shards.whole(path)


class Shards:
    """In a rank the paths of its sharded tensors, in the kernel the pieces that the ranks sent."""

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self._tensors: dict[Path, Any] = {}
        self._pieces: dict[Path, dict[int, Piece]] = {}

    def find(self, roots: Mapping[str, Any]) -> None:
        """Look for this rank's sharded tensors in what names lead to."""
        self._tensors = dict(_found(roots)) if _exist() else {}
        self.paths = {id(tensor): path for path, tensor in self._tensors.items()}

    def pieces(self) -> dict[Path, Piece]:
        """This rank's parts, without those that another rank has too."""
        pieces = ((path, _piece(tensor)) for path, tensor in self._tensors.items())
        return {path: piece for path, piece in pieces if piece is not None}

    def path_of(self, tensor: Any) -> Path:
        """The path of one of this rank's sharded tensors.

        Raises:
            TypeError: no name leads to it, or it cannot be put together from its parts.
        """
        path = self.paths.get(id(tensor))
        if path is None:
            raise TypeError("it holds a DTensor that no name leads to. Bind tensor.full_tensor() to a name")
        _check_placements(tensor)
        return path

    def add(self, rank: int, pieces: Mapping[Path, Piece]) -> None:
        """Take what a rank sent."""
        for path, piece in pieces.items():
            self._pieces.setdefault(path, {})[rank] = piece

    def whole(self, path: Path) -> Any:
        """Put a tensor together.

        Raises:
            RuntimeError: parts of it have not come.
        """
        import torch

        pieces = list(self._pieces.get(path, {}).values())
        if not pieces or len(pieces) < pieces[0].parts:
            raise RuntimeError("it is sharded over the ranks, and not all of them handed over their part")
        first = pieces[0]
        if len(pieces) == 1:
            return first.data
        whole = torch.zeros(first.shape, dtype=first.data.dtype)
        for piece in pieces:
            ends = zip(piece.starts, piece.data.shape, strict=True)
            place = whole[tuple(slice(start, start + size) for start, size in ends)]
            place.add_(piece.data) if piece.adds else place.copy_(piece.data)
        return whole

    def clear(self) -> None:
        """Let the pieces go."""
        self._pieces.clear()


SHARDS = Shards()
"""Stands in a graph for the reader's own `Shards`."""


def sharded_class() -> Any:
    """torch's `DTensor`, if it is loaded."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def _exist() -> bool:
    cls = sharded_class()
    # Asked of the class: an object may lie about its own.
    return cls is not None and any(issubclass(type(obj), cls) for obj in gc.get_objects())


def _found(roots: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Sharded tensors with their paths, in an order that is the same on every rank."""
    cls, seen = sharded_class(), set()
    todo: list[tuple[Path, Any]] = [((name,), roots[name]) for name in sorted(roots, reverse=True)]
    while todo:
        path, obj = todo.pop()
        if type(obj) in ATOMS or id(obj) in seen:
            continue
        seen.add(id(obj))
        if issubclass(type(obj), cls):
            yield path, obj
            todo.append(((*path, "grad"), obj.grad if obj.is_leaf else None))
        else:
            todo.extend(((*path, step), held) for step, held in _steps(obj))


def _steps(obj: Any) -> Iterator[tuple[Any, Any]]:
    """What a container or an instance holds, and what leads there."""
    kind = type(obj)
    if issubclass(kind, (list, tuple)):
        yield from enumerate(obj)
    elif issubclass(kind, dict):
        for at, (key, value) in enumerate(obj.items()):
            yield (key if type(key) in (int, str) else at), value
            yield ("key", at), key
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


def _piece(tensor: Any) -> Piece | None:
    """This rank's part; None where it has none, or another rank has the same."""
    utilities: Any = sys.modules["torch.distributed.tensor._utils"]
    mesh, placements = tensor.device_mesh, tensor.placements
    where = mesh.get_coordinate()
    if where is None:
        return None
    kinds = [type(placement).__name__ for placement in placements]
    if any(kind == "Replicate" and at for kind, at in zip(kinds, where, strict=True)):
        return None
    size = [1 if kind == "Replicate" else mesh.size(at) for at, kind in enumerate(kinds)]
    _, starts = utilities.compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    parts = 1
    for length in size:
        parts *= length
    data = tensor.detach().to_local()
    data = data.wait() if hasattr(data, "wait") else data
    return Piece(
        data=data.cpu(),
        shape=tuple(tensor.shape),
        starts=tuple(starts),
        parts=parts,
        adds="Partial" in kinds,
    )
