"""The last lines of the log, merged and by rank, in what can be folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from nbdist.views.dashboard.picture import LogLine, Picture
from nbdist.views.dashboard.room import Room, lines, size_of, text
from nbdist.views.dashboard.styles import DIM, INSET, PRE, SCROLLED, SUMMARY
from nbdist.views.dashboard.words import count_text, list_text

_STDERR = "background-color:rgba(231,92,88,0.15)"
_MOST_RANKS = 16
_LINES_BY_RANK = 20


def log_html(picture: Picture, room: Room) -> str:
    """The log; displays stand in it as the user's code made them."""
    log, heading = picture["log"], picture["heading"]
    entries = [line for _, line in sorted(log["lines"].items(), key=lambda entry: int(entry[0]))]
    by_rank = _by_rank(entries)
    merged, kept = _fitting(entries, room.log if not by_rank else room.log * 2 // 3, room)
    left_out = log["left_out"] + len(entries) - kept
    parts = []
    if left_out:
        where = f", all of it is in {text(heading['logs'], 200)}" if heading["logs"] else ""
        parts.append(f'<div style="{DIM}">… {count_text(left_out, "line")} left out{where}</div>')
    parts += merged
    if not parts:
        return ""
    told = "log" if not left_out else f"log: last {count_text(kept, 'line')}"
    page = _folded(told, parts, is_open=heading["log_is_open"])
    own = list(_rank_logs(by_rank, room))
    if not own:
        return page
    told = f"log of each rank's own lines ({list_text(list(by_rank))})"
    inner = "\n".join(own)
    body = f'<div style="{INSET}">\n{inner}\n</div>'
    return f'{page}\n<details><summary style="{SUMMARY}">{told}</summary>{body}</details>'


def _folded(title: str, parts: Sequence[str], *, is_open: bool = False) -> str:
    inner = "\n".join(parts)
    return (
        f'<details{" open" if is_open else ""}><summary style="{SUMMARY}">{title}</summary>'
        f'<div style="{SCROLLED}">\n{inner}\n</div></details>'
    )


def _by_rank(entries: Sequence[LogLine]) -> dict[int, list[LogLine]]:
    """Lines that some ranks alone wrote, by rank."""
    found: dict[int, list[LogLine]] = {}
    for line in entries:
        if line["kind"] != "html":
            for rank in line["of"]:
                found.setdefault(rank, []).append(line)
    return dict(sorted(found.items())) if len(found) > 1 else {}


def _rank_logs(by_rank: dict[int, list[LogLine]], room: Room) -> Iterator[str]:
    if not by_rank:
        return
    most = room.log // 3 // min(len(by_rank), _MOST_RANKS)
    for rank in list(by_rank)[:_MOST_RANKS]:
        own = by_rank[rank][-_LINES_BY_RANK:]
        parts, kept = _fitting(own, most, room, labelled=False)
        yield _folded(f"rank {rank}: last {count_text(kept, 'line')}", parts)
    if len(by_rank) > _MOST_RANKS:
        more = count_text(len(by_rank) - _MOST_RANKS, "more rank")
        yield f'<div style="{DIM}">{more} with lines of their own</div>'


def _fitting(
    entries: Sequence[LogLine], most_bytes: int, room: Room, *, labelled: bool = True
) -> tuple[list[str], int]:
    """The last entries that fit, as markup, and how many they are."""
    rows: list[tuple[bool, str]] = []
    for line in reversed(entries):
        is_display = line["kind"] == "html"
        label = _label(line) if labelled else ""
        row = _display(line, label, most_bytes) if is_display else _row(line, label, room)
        most_bytes -= size_of(row) + (1 if not is_display else 0)
        if most_bytes < 400:  # of the `<pre>` around them
            break
        rows.append((is_display, row))
    blocks = []
    for is_display, group in groupby(reversed(rows), key=lambda entry: entry[0]):
        markup = [row for _, row in group]
        blocks += markup if is_display else [f'<pre style="{PRE}">{chr(10).join(markup)}</pre>']
    return blocks, len(rows)


def _label(line: LogLine) -> str:
    return f'<span style="{DIM}">[{text(line["ranks"], 40)}]</span> ' if line["ranks"] else ""


def _row(line: LogLine, label: str, room: Room) -> str:
    inner = lines(line["text"], room.line_chars, room.line_chars * 2)
    if line["kind"] == "gap":
        return f'{label}<i style="{DIM}">{inner}</i>'
    return label + (f'<span style="{_STDERR}">{inner}</span>' if line["kind"] == "stderr" else inner)


def _display(line: LogLine, label: str, most_bytes: int) -> str:
    size = len(line["text"])
    if size > most_bytes:
        return f'<div style="{DIM}">{label}a display of {size:,} characters is not kept here</div>'
    return f"<div>{label}{line['text'].encode(errors='replace').decode()}</div>"
