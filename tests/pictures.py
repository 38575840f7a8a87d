"""Pictures of runs, as the kernel would hand them to whoever shows them: the states that a dashboard must bear."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

GIB = 1024**3
BEGUN_MS = 1_800_000_000_000.0
NOW_MS = BEGUN_MS + 754_000
NASTY = {
    "markup": "<img src=x onerror=\"window.broken='markup'\"><b>bold</b>",
    "script": "</script><script>window.broken='script'</script>",
    "entity": "&lt;i&gt; &amp; &quot;",
    "control": "bell\x07 back\x08 escape\x1b]0;title\x07 nul\x00 c1\x9b",
    "override": "user\u202egnp.exe\u2066 mark\u200f end",
    "hebrew": "שלום 123 עולם",
    "prototype": "__proto__",
    "long": "long_name_" * 40,
}
"""Texts that must be shown as text, wherever they stand."""


def heading(state: str = "running", **more: Any) -> dict[str, Any]:
    ended = NOW_MS if state in ("finished", "failed", "interrupted", "stopped") else None
    return {
        "title": "train", "state": state, "told": state, "begun_ms": BEGUN_MS, "ended_ms": ended, "world_size": 4,
        "devices": "CPU", "button": None, "hint": "", "logs": "~/.cache/nbdist/logs/train-17", "log_is_open": True,
    } | more  # fmt: skip


def rank(number: int, **more: Any) -> dict[str, Any]:
    return {
        "state": "running", "told": "", "device": f"cpu:{number}", "pid": 4100 + number, "line": 14,
        "text": "    loss = criterion(model(images), labels)", "function": "", "since_ms": NOW_MS - 400,
        "cpu": 0.93 + number % 3 / 50, "memory_bytes": int((1.21 + number % 5 / 40) * GIB), "gpu": None,
        "metrics": {"loss": 0.4123 + number / 100, "lr": 3e-4}, "rate": f"{12.5 - number % 4 / 10:.1f} steps/s",
        "share": 0.62, "straggler": "",
    } | more  # fmt: skip


def gpu_rank(number: int, **more: Any) -> dict[str, Any]:
    gpu = {
        "use": 0.97 - number % 4 / 50, "memory_bytes": int(61.2 * GIB), "used_bytes": int((62.1 + number) * GIB),
        "total_bytes": 139 * GIB, "power_w": 611.0 + number, "temperature_c": 61.0 + number % 4,
    }  # fmt: skip
    return rank(number, device=f"cuda:{number % 8}", gpu=gpu, **more)


def chart(ranks: int, points: int = 120, *, lines: bool = True, x_label: str = "step") -> dict[str, Any]:
    xs = [step * 10.0 for step in range(points)]
    by_rank = {
        str(r): [2.3 * math.exp(-x / 400) + 0.08 + 0.03 * math.sin(x / 31 + r) + 0.012 * (r % 8) for x in xs]
        for r in range(ranks)
    }
    columns = list(zip(*by_rank.values(), strict=True))
    return {
        "x": xs,
        "mean": [sum(column) / ranks for column in columns],
        "low": [min(column) for column in columns],
        "high": [max(column) for column in columns],
        "lines": by_rank if lines else {},
        "points": points * ranks * 10,
        "x_label": x_label,
    }


def line(text: str, of: list[int] | None = None, kind: str = "stdout") -> dict[str, Any]:
    of = of or []
    ranks = "" if not of else str(of[0]) if len(of) == 1 else f"{of[0]}-{of[-1]}"
    return {"ranks": ranks, "of": of, "kind": kind, "text": text}


def log(lines: list[dict[str, Any]], first: int = 0, left_out: int = 0) -> dict[str, Any]:
    return {
        "first": first,
        "left_out": left_out,
        "lines": {str(first + n): one for n, one in enumerate(lines)},
    }


def picture(ranks: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "heading": heading(world_size=len(ranks or {}) or 4), "ranks": dict(ranks or {}), "bars": {}, "charts": {},
        "log": log([]), "failures": [],
    } | more  # fmt: skip


def bar(done: float = 620, total: float | None = 1000, ranks: int = 4, **more: Any) -> dict[str, Any]:
    return {
        "label": "epoch 3", "text": "epoch 3:  62%", "done": done, "total": total,
        "left_s": 31.0 if total else None, "rate": "12.5 it/s", "ranks": f"0-{ranks - 1}",
        "by_rank": {str(r): done + r * 9 for r in range(ranks)},
    } | more  # fmt: skip


TRACEBACK = (
    "\x1b[31mRuntimeError\x1b[39m                              Traceback (most recent call last)\n"
    "Cell \x1b[32mIn[7]\x1b[39m, line 14\n"
    "\x1b[32m     12\x1b[39m \x1b[38;5;28;01mfor\x1b[39;00m images, labels \x1b[38;5;129;01min\x1b[39;00m loader:\n"
    "\x1b[32m     13\x1b[39m     optimizer.zero_grad()\n"
    "\x1b[32m---> 14\x1b[39m     loss = criterion(model(images), labels)\n"
    "\x1b[31mRuntimeError\x1b[39m: mat1 and mat2 shapes cannot be multiplied (64x784 and 512x10)"
)


def _log_of_training(count: int) -> list[dict[str, Any]]:
    lines = [line("loading digits: 1,797 images", [])]
    for n in range(count):
        kind = "stderr" if n % 23 == 7 else "stdout"
        text = (
            "UserWarning: no labels in this batch"
            if kind == "stderr"
            else f"step {n} loss {2.3 / (n + 1):.4f}"
        )
        lines.append(line(text, [n % 4] if n % 5 else [], kind))
    lines.append(
        line("\x1b[1;32mbest so far\x1b[0m \x1b[3mkept\x1b[0m \x1b[4;38;2;200;80;20mepoch 2\x1b[0m", [0])
    )
    return lines


def starting() -> dict[str, Any]:
    hint = "Interrupt with the notebook's stop button"
    return picture(heading=heading("starting", hint=hint, told="starting 4 ranks"))


def running() -> dict[str, Any]:
    charts = {"loss": chart(4), "accuracy": chart(4, x_label="call"), "lr": chart(4, lines=False)}
    charts["accuracy"]["mean"][40:60] = charts["accuracy"]["low"][40:60] = charts["accuracy"]["high"][
        40:60
    ] = [None] * 20
    for values in charts["accuracy"]["lines"].values():
        values[40:60] = [None] * 20
    return picture(
        {str(r): rank(r) for r in range(4)},
        heading=heading(button="interrupt"),
        bars={"a": bar(), "b": bar(total=None, label="batches", done=4123)},
        charts=charts,
        log=log(_log_of_training(40)),
    )


def failed() -> dict[str, Any]:
    ranks = {str(r): rank(r, state="interrupted", told="stopped after rank 1 failed") for r in range(4)}
    ranks["1"] = rank(1, state="failed", told="failed: RuntimeError", share=None, rate="")
    title = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x784 and 512x10)"
    failures = [
        {"ranks": "1", "line": 14, "title": title, "traceback": TRACEBACK, "consequence": False},
        {
            "ranks": "0,2-3",
            "line": None,
            "title": "Connection closed by peer",
            "traceback": TRACEBACK,
            "consequence": True,
        },
    ]
    return picture(ranks, heading=heading("failed", told="failed on rank 1"), failures=failures, log=log(_log_of_training(9)))  # fmt: skip


def on_gpus() -> dict[str, Any]:
    return picture(
        {str(r): gpu_rank(r) for r in range(8)},
        heading=heading(world_size=8, devices="8 × NVIDIA H200", button="stop"),
        charts={name: chart(8) for name in ("loss", "grad_norm", "tokens/s", "lr")},
        bars={"a": bar(ranks=8)},
        log=log(_log_of_training(200), first=1200, left_out=1200),
    )


def many(count: int) -> dict[str, Any]:
    ranks = {str(r): gpu_rank(r) for r in range(count)}
    for r in range(3, count, 17):
        ranks[str(r)] |= {"state": "waiting", "told": "waits in all_reduce"}
    ranks["7"] = gpu_rank(7, straggler="2.1 s behind the others at each all_reduce")
    return picture(
        ranks,
        heading=heading(world_size=count, devices=f"{count} × NVIDIA H200", button="stop"),
        charts={"loss": chart(count if count <= 64 else 8, lines=count <= 64), "lr": chart(8, lines=False)},
        log=log(_log_of_training(199)),
    )


def waiting() -> dict[str, Any]:
    waits = {"state": "waiting", "told": "waits in all_reduce", "since_ms": NOW_MS - 42_000, "line": 17}
    ranks = {str(r): rank(r, text="    loss.backward()", **waits) for r in range(4)}
    ranks["2"] = rank(
        2, straggler="41 s behind the others", since_ms=NOW_MS - 43_000, text="    batch = next(slow_batches)"
    )
    return picture(
        ranks, heading=heading(told="waiting for rank 2", hint="Interrupt with the notebook's stop button")
    )


def finished() -> dict[str, Any]:
    ranks = {str(r): rank(r, state="finished", told="finished", share=1.0) for r in range(4)}
    lines = [*_log_of_training(190), line("1,000 lines left out", kind="gap"), line("<b>Result</b>: <i>0.97</i>", [0], "html")]  # fmt: skip
    return picture(ranks, heading=heading("finished"), charts={"loss": chart(4)}, log=log(lines, 800, 800))


def empty() -> dict[str, Any]:
    return picture({str(r): rank(r, line=None, text="", cpu=None, memory_bytes=None, metrics={}, rate="", share=None, state="starting", since_ms=None) for r in range(2)})  # fmt: skip


def nasty() -> dict[str, Any]:
    """The corpus in every place that shows a text."""
    texts = list(NASTY.values())
    ranks = {
        str(n): rank(n, told=text, device=text, text=text, function=text, rate=text, straggler=text, metrics={text: 0.5})
        for n, text in enumerate(texts)
    }  # fmt: skip
    told = "".join(texts)
    failures = [
        {"ranks": "1", "line": 14, "title": text, "traceback": text, "consequence": n > 3}
        for n, text in enumerate(texts)
    ]
    return picture(
        ranks,
        heading=heading(title=told, told=told, devices=told, hint=told, logs=told, world_size=len(texts)),
        bars={text: bar() | {"label": text, "text": text, "rate": text, "ranks": text} for text in texts},
        charts={text: chart(2, x_label=text) for text in texts},
        log=log(
            [line(text, [n], kind) for kind in ("stdout", "stderr", "gap") for n, text in enumerate(texts)]
        ),
        failures=failures,
    )


SCENES = {
    "starting": starting, "running": running, "failed": failed, "gpus": on_gpus, "tiles": lambda: many(64),
    "heat": lambda: many(1024), "finished": finished, "waiting": waiting, "empty": empty, "nasty": nasty,
}  # fmt: skip
"""Each state that the dashboard must show well, by name."""
