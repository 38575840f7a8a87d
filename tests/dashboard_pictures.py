"""Pictures of runs as a dashboard gets them, for the tests of all that shows them."""

from __future__ import annotations

import math
from typing import Any

from nbdist.views.dashboard.picture import (
    BarPicture,
    ChartPicture,
    FailurePicture,
    Gpu,
    Heading,
    LogLine,
    Picture,
    RankPicture,
)

BEGUN_MS = 1_700_000_000_000.0
NOW_MS = BEGUN_MS + 83_000
GIB = 2**30


def heading(**more: Any) -> Heading:
    """Of a run that goes on, unless said otherwise."""
    made: Heading = {
        "title": "train",
        "state": "running",
        "told": "running",
        "begun_ms": BEGUN_MS,
        "ended_ms": None,
        "world_size": 4,
        "devices": "4 × NVIDIA H200",
        "button": None,
        "hint": "",
        "logs": "nbdist-logs/train-3",
        "log_is_open": False,
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def gpu(use: float = 0.93, memory_bytes: int = 61 * GIB) -> Gpu:
    """One that tells all."""
    return {
        "use": use,
        "memory_bytes": memory_bytes,
        "used_bytes": memory_bytes + GIB,
        "total_bytes": 139 * GIB,
        "power_w": 540.0,
        "temperature_c": 61.0,
    }


def a_rank(rank: int = 0, **more: Any) -> RankPicture:
    """One that trains on a GPU, unless said otherwise."""
    made: RankPicture = {
        "state": "running",
        "told": "running",
        "device": f"cuda:{rank}",
        "pid": 4_000 + rank,
        "line": 12,
        "text": "    loss.backward()",
        "function": "",
        "since_ms": NOW_MS - 2_400,
        "cpu": 1.02,
        "memory_bytes": 3 * GIB,
        "gpu": gpu(0.90 + rank % 8 / 100),
        "metrics": {"loss": 0.4231 + rank % 4 / 100, "accuracy": 0.881},
        "rate": "12.5 steps/s",
        "share": 0.4,
        "straggler": "",
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def a_bar(**more: Any) -> BarPicture:
    """One that is not half done."""
    made: BarPicture = {
        "label": "epoch 1",
        "text": "epoch 1:  42%|████▏     | 421/1000 [00:33<00:46, 12.5it/s]",
        "done": 421,
        "total": 1000,
        "left_s": 46.0,
        "rate": "12.5 it/s",
        "ranks": "0-3",
        "by_rank": {"0": 421, "1": 422, "2": 421, "3": 423},
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def a_chart(points: int = 200, ranks: int = 4, start: float = 2.3, **more: Any) -> ChartPicture:
    """A loss that falls."""
    x = [float(number * 10) for number in range(points)]

    def value(number: int, rank: int) -> float:
        wave = math.sin(number * 1.7 + rank * 2) + math.sin(number * 0.6 + rank)
        return start * math.exp(-number / 60) + 0.2 + 0.05 * start * wave * math.exp(-number / 120)

    lines = {str(rank): [value(number, rank) for number in range(points)] for rank in range(ranks)}
    columns = list(zip(*lines.values(), strict=True))
    made: ChartPicture = {
        "x": x,
        "mean": [sum(column) / ranks for column in columns],
        "low": [min(column) for column in columns],
        "high": [max(column) for column in columns],
        "lines": lines,  # type: ignore[typeddict-item]
        "points": points * ranks * 5,
        "x_label": "step",
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def a_line(text: str, ranks: str = "", of: list[int] | None = None, kind: Any = "stdout") -> LogLine:
    """A line of the log."""
    return {"ranks": ranks, "of": of or [], "kind": kind, "text": text}


def a_failure(ranks: str = "1", *, consequence: bool = False, **more: Any) -> FailurePicture:
    """As IPython shows one."""
    traceback = (
        "\x1b[31m---------------------------------------------------------------------------\x1b[39m\n"
        "\x1b[31mValueError\x1b[39m                                Traceback (most recent call last)\n"
        "\x1b[36mCell In[3], line 12\x1b[39m\n"
        "     \x1b[32m10\x1b[39m output = model(batch)\n"
        "\x1b[32m---> 12\x1b[39m loss = check(criterion(output, target))\n\n"
        "\x1b[36mCell In[2], line 4\x1b[39m, in \x1b[36mcheck\x1b[39m\x1b[34m(loss)\x1b[39m\n"
        "\x1b[32m----> 4\x1b[39m \x1b[38;5;28;01mraise\x1b[39;00m \x1b[38;5;167;01mValueError\x1b[39;00m("
        "\x1b[33mf\x1b[39m\x1b[33m'\x1b[39m\x1b[33mloss is \x1b[39m\x1b[33m{\x1b[39mloss\x1b[33m}\x1b[39m\x1b[33m'\x1b[39m)\n"
        "\n\x1b[31mValueError\x1b[39m: loss is nan in batch 17"
    )
    made: FailurePicture = {
        "ranks": ranks,
        "title": "ValueError: loss is nan in batch 17",
        "traceback": traceback,
        "consequence": consequence,
        "line": 4,
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def a_picture(**parts: Any) -> Picture:
    """Four ranks that train, unless said otherwise.

    Args:
        parts: what is else; `lines` are the log's lines, `left_out` those before them.
    """
    lines = parts.pop("lines", [a_line(f"epoch 1 step {n}: loss {2 / (n + 1):.4f}") for n in range(12)])
    left_out = parts.pop("left_out", 0)
    made: Picture = {
        "heading": heading(),
        "ranks": {str(rank): a_rank(rank) for rank in range(4)},
        "bars": {"epoch 1": a_bar()},
        "charts": {"loss": a_chart(), "accuracy": a_chart(start=0.3)},
        "log": {
            "first": left_out,
            "lines": {str(left_out + number): line for number, line in enumerate(lines)},
            "left_out": left_out,
        },
        "failures": [],
    }
    return {**made, **parts}  # type: ignore[typeddict-item]


def finished() -> Picture:
    """The same, done."""
    own = [a_line(f"rank {rank} has {1000 + rank} samples", str(rank), [rank]) for rank in range(4)]
    colours = a_line("\x1b[32m✓ checkpoint saved\x1b[0m to \x1b[1mcheckpoints/last.pt\x1b[0m", "0", [0])
    warning = a_line("UserWarning: the lr is read before the optimizer has stepped", "2-3", [2, 3], "stderr")
    return a_picture(
        heading=heading(state="finished", told="finished", ended_ms=NOW_MS + 60_000),
        ranks={
            str(rank): a_rank(rank, state="finished", told="finished", line=None, text="", share=1.0)
            for rank in range(4)
        },
        bars={},
        charts={
            "loss": a_chart(),
            "accuracy": a_chart(start=0.3),
            "learning rate": a_chart(start=1e-3, lines={}),
            "gradient norm": a_chart(start=40_000),
        },
        lines=[
            *own,
            *(a_line(f"epoch 1 step {n}: loss {2 / (n + 1):.4f}") for n in range(40)),
            warning,
            colours,
        ],
        left_out=1210,
    )


def failed() -> Picture:
    """One rank failed; the others were cut off."""
    ends: Any = {"since_ms": None}
    ranks = {
        str(rank): a_rank(rank, state="interrupted", told="stopped: rank 1 failed", **ends)
        for rank in range(4)
    }
    ranks["1"] = a_rank(
        1, state="failed", told="failed", text="loss = check(criterion(output, target))", **ends
    )
    gone = "RuntimeError: Connection closed by peer [127.0.0.1]:43211"
    return a_picture(
        heading=heading(state="failed", told="failed on rank 1", ended_ms=NOW_MS),
        ranks=ranks,
        bars={},
        failures=[a_failure(), a_failure("0,2-3", consequence=True, title=gone)],
        lines=[a_line("before it", "1", [1]), a_line("all were here")],
    )


def many(number: int, **more: Any) -> Picture:
    """So many ranks, some of them odd."""
    ranks = {str(rank): a_rank(rank, device=f"cuda:{rank % 8}") for rank in range(number)}
    for rank in range(0, number, 9):
        ranks[str(rank)] = a_rank(rank, state="waiting", told="waits in all_reduce", function="all_reduce")
    ranks["5"] = a_rank(5, straggler="18 steps behind the others")
    ranks[str(number - 1)] = a_rank(number - 1, state="dead", told="killed by SIGKILL", gpu=None)
    return a_picture(
        heading=heading(world_size=number, devices=f"{number} × NVIDIA H200"), ranks=ranks, **more
    )


def empty() -> Picture:
    """Nothing has happened yet."""
    start = heading(state="starting", told="starting", devices="", logs="", hint="")
    return a_picture(heading=start, ranks={}, bars={}, charts={}, lines=[])
