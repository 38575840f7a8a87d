"""Parts of a tensor that lie on several ranks, and how they become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One rank's part of a tensor.

    Attributes:
        data: None where nothing lies on this rank, or another rank has the same.
        shape: of the whole.
        starts: where in the whole it lies, by dimension.
        parts: how many pieces make up the whole.
        adds: whether pieces that lie in the same place are summed.
        layout: shape and stride that the whole is to have, if it is a tensor that was made flat.
    """

    data: Any
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    parts: int
    adds: bool = False
    layout: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def are_all(pieces: Sequence[Piece]) -> bool:
    """Whether nothing of the whole is missing."""
    return bool(pieces) and sum(piece.data is not None for piece in pieces) >= pieces[0].parts


def put_together(pieces: Sequence[Piece]) -> Any:
    """The whole tensor of all its pieces."""
    import torch

    there = [piece for piece in pieces if piece.data is not None]
    first = there[0]
    if len(there) == 1:
        # Flat ones share their memory with others.
        return first.data if first.layout is None else first.data.clone().as_strided(*first.layout)
    whole = torch.zeros(first.shape, dtype=first.data.dtype)
    for piece in there:
        ends = zip(piece.starts, piece.data.shape, strict=True)
        place = whole[tuple(slice(start, start + size) for start, size in ends)]
        place.add_(piece.data) if piece.adds else place.copy_(piece.data)
    return whole if first.layout is None else whole.as_strided(*first.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatPart:
    """What a rank has of one parameter that was made flat, with others, and sharded.

    Attributes:
        parameter: what stands for the parameter here.
        layout: the parameter's shape and stride.
        size: how many numbers it has,
        length: how many of them lie here,
        start: from which of them on.
        place: where in this rank's shard they begin.
        shard: that shard.
        kept: whether the parameter itself is a view of the shard, and has its own gradient.
        parts: how many ranks have some of it.
        wanted: whether this rank is to send its part; else another one has the same.
    """

    parameter: Any
    layout: tuple[tuple[int, ...], tuple[int, ...]]
    size: int
    length: int
    start: int
    place: int
    shard: Any
    grad: Any
    kept: bool
    parts: int
    wanted: bool

    def piece(self) -> Piece:
        """Of its values."""
        return self._piece(self.shard[self.place : self.place + self.length])

    def piece_of_grad(self) -> Piece:
        """Of its gradient."""
        vector = None if self.grad is None else self._vector(self.grad)
        return self._piece(None if vector is None else vector.to(self.shard.dtype))

    def entries(self, state: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """What an optimizer keeps for it: pieces, and values that count for the whole parameter.

        Returns:
            That by name, and the name of one that is neither, if there is one.
        """
        entries, odd = {}, ""
        for name, value in state.items():
            numbers = getattr(value, "numel", lambda: 1)()
            vector = self._vector(value) if getattr(value, "ndim", 0) else None
            if vector is not None:
                entries[name] = self._piece(vector)
            elif numbers == 1:
                entries[name] = value
            else:
                odd = name
        return entries, odd

    def _vector(self, tensor: Any) -> Any:
        """Numbers that belong to this part's, in one row; None for a tensor that has another size."""
        tensor = tensor.detach()
        if not self.kept and tensor.shape == self.shard.shape:
            return tensor[self.place : self.place + self.length]
        if tensor.numel() != self.length:
            return None
        if tensor.ndim == 1:
            return tensor
        shape, stride = self.layout
        if tensor.shape != shape:
            return None
        row = tensor.new_empty(self.size)
        row.as_strided(shape, stride).copy_(tensor)
        return row

    def _piece(self, vector: Any) -> Piece:
        there = vector is not None and self.wanted and (self.length or not self.size)
        return Piece(
            data=vector.detach().cpu() if there else None,
            shape=(self.size,),
            starts=(self.start,),
            parts=self.parts,
            layout=self.layout,
        )
