"""What is known of a session that is up: a record, shown as a table in text and in HTML."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nbdist.errors import bytes_text, ranks_phrase
from nbdist.looks import NameInfo
from nbdist.views.doing import Presence

_MOST_NAMES = 30
_CELL = "text-align: left; padding: 2px 12px 2px 0; white-space: pre-wrap"
_DEAD = "color: #b00020"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """One rank of a session.

    Attributes:
        rank: its number.
        pid: its process.
        device: its device as torch in the notebook would name it: ``cuda:2``.
        state: what it does.
        detail: of a running rank where it was seen last, of a dead one how it died, of an idle one how its
            last work ended if that did not end well; else empty.
        cells: how many pieces of work it was given.
        memory_bytes: its share of the system's memory: what is shared with other processes counts in parts
            (the proportional set size; where the system does not tell, what it has for itself).
        device_used_bytes: what is in use of its GPU's memory, by whomever; None on the CPU.
        device_total_bytes: all of its GPU's memory; None on the CPU.
    """

    rank: int
    pid: int
    device: str
    state: Presence
    detail: str = ""
    cells: int = 0
    memory_bytes: int | None = None
    device_used_bytes: int | None = None
    device_total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """A session, as far as is known without asking its ranks.

    Shows as a table.

    Attributes:
        name: the session's.
        title: what is up, in words.
        ranks: one entry per rank.
        names: what lives on rank 0, as it said when its last work ended: names that were bound there. None
            of a run in the background, which ends with its work.
    """

    name: str
    title: str
    ranks: tuple[RankStatus, ...]
    names: tuple[NameInfo, ...] | None = ()

    def __str__(self) -> str:
        rows = [_HEADS, *(_cells(rank) for rank in self.ranks)]
        wanted = _columns(self.ranks)
        widths = [max(len(row[column]) for row in rows) for column in wanted]
        lines = [
            "  ".join(
                f"{row[column]:<{width}}" for column, width in zip(wanted, widths, strict=True)
            ).rstrip()
            for row in rows
        ]
        names = _names_line(self)
        return "\n".join([self.title, *lines, *([names] if names else [])])

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}

    def _html(self) -> str:
        wanted = _columns(self.ranks)
        rows = [_row("th", [_HEADS[column] for column in wanted])]
        for rank in self.ranks:
            style = _DEAD if rank.state == "dead" else ""
            rows.append(_row("td", [_cells(rank)[column] for column in wanted], style))
        return (
            f"<div><b>{html.escape(self.title)}</b></div>"
            f'<table style="border-collapse: collapse">{"".join(rows)}</table>'
            f"<div>{html.escape(_names_line(self))}</div>"
        )


_HEADS = ("rank", "pid", "device", "state", "memory", "GPU memory", "cells")
_GPU_MEMORY = _HEADS.index("GPU memory")


def _columns(ranks: Sequence[RankStatus]) -> list[int]:
    on_gpu = any(rank.device_total_bytes is not None for rank in ranks)
    return [column for column in range(len(_HEADS)) if on_gpu or column != _GPU_MEMORY]


def _cells(rank: RankStatus) -> tuple[str, ...]:
    gpu = ""
    if rank.device_used_bytes is not None and rank.device_total_bytes is not None:
        gpu = f"{bytes_text(rank.device_used_bytes)} of {bytes_text(rank.device_total_bytes)}"
    memory = bytes_text(rank.memory_bytes) if rank.memory_bytes is not None else ""
    return str(rank.rank), str(rank.pid), rank.device, _state_text(rank), memory, gpu, str(rank.cells)


def _state_text(rank: RankStatus) -> str:
    if rank.state == "running" and rank.detail:
        return rank.detail
    return f"{rank.state}: {rank.detail}" if rank.detail else rank.state


def _row(tag: str, texts: Sequence[str], style: str = "") -> str:
    styles = "; ".join(filter(None, [_CELL, style]))
    cells = (f'<{tag} style="{styles}">{html.escape(text)}</{tag}>' for text in texts)
    return f"<tr>{''.join(cells)}</tr>"


def _names_line(status: SessionStatus) -> str:
    if status.names is None:
        return ""
    busy = [rank.rank for rank in status.ranks if rank.state == "running"]
    before = f", before the work of {ranks_phrase(busy)}" if busy else ""
    return f"names on rank 0{before}: {', '.join(_names(status.names))}"


def _names(infos: Sequence[NameInfo]) -> Iterator[str]:
    """The largest first, without modules."""
    infos = [info for info in infos if info.type_name != "module"]
    if not infos:
        yield "none"
    for info in sorted(infos, key=lambda info: (-(info.size_bytes or 0), info.name))[:_MOST_NAMES]:
        size = f", {bytes_text(info.size_bytes)}" if info.size_bytes is not None else ""
        yield f"{info.name} ({info.type_name}{size})"
    if len(infos) > _MOST_NAMES:
        yield f"and {len(infos) - _MOST_NAMES:,} more"
