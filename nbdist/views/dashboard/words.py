"""What a picture says, in words and numbers: the same wherever it is shown. Nothing here is escaped.

How numbers are written is said here and, once more, in `dashboard.js`; a test holds them together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context
from math import floor, isfinite
from typing import Literal

from nbdist.errors import bytes_text, ranks_text, tenths_text
from nbdist.metrics import Shown
from nbdist.views.dashboard.picture import (
    BarPicture,
    Heading,
    Picture,
    RankPicture,
    RankWord,
    RunWord,
)
from nbdist.views.visible import one_line

Tone = Literal["good", "bad", "busy", "held", "rest"]
"""What a colour stands for: done, gone wrong, at work, held up, nothing to do."""

_TONES: Mapping[str, Tone] = {
    "starting": "rest",
    "running": "busy",
    "waiting": "busy",
    "asking": "held",
    "finishing": "busy",
    "finished": "good",
    "failed": "bad",
    "interrupted": "held",
    "stopped": "held",
    "dead": "bad",
    "idle": "rest",
}
_FIRST_TOLD: Sequence[RankWord] = (
    *("failed", "dead", "asking", "interrupted", "running", "waiting", "starting"),
    *("finishing", "finished", "idle"),
)
_CHANGES = re.compile(r"0x[0-9a-fA-F]{4,16}|\bpid \d+")


def tone_of(state: RunWord | RankWord) -> Tone:
    """What a state's colour stands for."""
    return _TONES.get(state, "rest")


def number_text(value: Shown) -> str:
    """A number as people read it: whole ones with all digits, of others those that matter.

    >>> [number_text(value) for value in (3.0, 0.123456, 12345.67, 1234567, 1.5e-7, "nan")]
    ['3', '0.1235', '12345.7', '1,234,567', '1.5e-7', 'nan']
    """
    if isinstance(value, str) or not isfinite(value):
        return f"{value}"
    size = abs(value)
    if value == int(value) and size < 1e9:
        return f"{int(value):,}"
    is_extreme = size >= 1e6 or size < 1e-3
    digits = 6 if 1000 <= size < 1e6 else 4
    # As JavaScript rounds: halves away from zero.
    rounded = Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal_from_float(value).normalize()
    return f"{rounded:e}".replace("e+", "e") if is_extreme else f"{rounded:f}"


def percent_text(share: float) -> str:
    """A share as whole percents.

    >>> percent_text(0.125)
    '13%'
    """
    return f"{floor(share * 100 + 0.5)}%"


def cores_text(cores: float) -> str:
    """CPU cores in use.

    >>> cores_text(0.93)
    '0.9 cores'
    """
    return f"{tenths_text(cores)} cores"


def elapsed_text(elapsed_ms: float) -> str:
    """A time that has gone by.

    >>> [elapsed_text(ms) for ms in (1_240, 45_000, 200_000, 7_500_000)]
    ['1.2 s', '45 s', '3 min 20 s', '2 h 05 min']
    """
    seconds = max(elapsed_ms, 0) / 1000
    if seconds < 10:
        return f"{tenths_text(seconds)} s"
    minutes, whole_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02} min"
    return f"{minutes} min {whole_s:02} s" if minutes else f"{whole_s} s"


def count_text(number: int, what: str) -> str:
    """So many of something.

    >>> count_text(1, "rank"), count_text(1024, "rank")
    ('1 rank', '1,024 ranks')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def facts_of(heading: Heading, now_ms: float | None) -> list[str]:
    """What stands behind the title and the state: ranks, devices, time.

    Args:
        now_ms: of a run that goes on; None where nobody knows.
    """
    until_ms = heading["ended_ms"] if heading["ended_ms"] is not None else now_ms
    elapsed = elapsed_text(until_ms - heading["begun_ms"]) if until_ms is not None else ""
    ranks = count_text(heading["world_size"], "rank")
    return [fact for fact in (ranks, heading["devices"], elapsed) if fact]


def state_of(one: Heading | RankPicture, most_chars: int) -> str:
    """The state in words, or else in a word."""
    return one_line(one["told"], most_chars) or one["state"]


def place_of(rank: RankPicture) -> str:
    """Where a rank is: ``line 3: loss.backward()``; empty where nobody knows."""
    if rank["line"] is None:
        return rank["function"]
    text = f"line {rank['line']}: {rank['text'].strip()}" if rank["text"] else f"line {rank['line']}"
    is_told = not rank["function"] or rank["function"] in rank["told"]
    return text if is_told else f"{text} (in {rank['function']})"


def since_of(rank: RankPicture, now_ms: float | None) -> str:
    """How long a rank has been where it is, if that is worth a word."""
    if now_ms is None or rank["since_ms"] is None or now_ms - rank["since_ms"] < 1000:
        return ""
    return elapsed_text(now_ms - rank["since_ms"])


def use_of(rank: RankPicture) -> list[str]:
    """What a rank uses: its GPU or its cores, and memory."""
    gpu, parts = rank["gpu"], []
    if gpu is not None and gpu["use"] is not None:
        parts.append(f"GPU {percent_text(gpu['use'])}")
    elif rank["cpu"] is not None:
        parts.append(cores_text(rank["cpu"]))
    of_gpu = None if gpu is None else gpu["memory_bytes"] if gpu["used_bytes"] is None else gpu["used_bytes"]
    if gpu is not None and of_gpu is not None:
        parts.append(part_text(of_gpu, gpu["total_bytes"]))
    elif rank["memory_bytes"] is not None:
        parts.append(bytes_text(rank["memory_bytes"]))
    return parts


def bar_facts(bar: BarPicture) -> list[str]:
    """How far a bar is: its share, its steps, their rate, the time to its end."""
    share = min(max(bar["done"] / bar["total"], 0.0), 1.0) if bar["total"] else None
    steps = number_text(bar["done"])
    left_s = bar["left_s"] if share != 1 else None
    return [
        *([] if share is None else [percent_text(share)]),
        steps if bar["total"] is None else f"{steps} of {number_text(bar['total'])}",
        *([bar["rate"]] if bar["rate"] else []),
        *([] if left_s is None else [f"{elapsed_text(left_s * 1000)} left"]),
    ]


def metrics_of(rank: RankPicture, most: int, most_chars: int = 40) -> list[str]:
    """A rank's last metrics, a word on those that are left out, and its throughput."""
    shown = [
        f"{one_line(name, most_chars)} {number_text(value)}"
        for name, value in list(rank["metrics"].items())[:most]
    ]
    left_out = len(rank["metrics"]) - len(shown)
    return [*shown, *([f"{left_out} more"] if left_out else []), *([rank["rate"]] if rank["rate"] else [])]


def metric_names(picture: Picture) -> list[str]:
    """All that ranks have logged, drawn or not."""
    of_ranks = (name for _, one in ranks_of(picture) for name in one["metrics"])
    return list(dict.fromkeys((*picture["charts"], *of_ranks)))


def counts_of(picture: Picture) -> list[tuple[RankWord, list[int]]]:
    """Which ranks are in which state, what needs a look first."""
    by_state: dict[RankWord, list[int]] = {}
    for rank, one in ranks_of(picture):
        by_state.setdefault(one["state"], []).append(rank)
    return sorted(by_state.items(), key=lambda entry: _order(entry[0]))


def odd_ones(picture: Picture) -> list[tuple[int, RankPicture]]:
    """Ranks that one wants to see among many: those that failed first, then those that hold up others."""
    odd = [
        (rank, one)
        for rank, one in ranks_of(picture)
        if one["straggler"] or one["state"] in ("failed", "dead", "asking")
    ]
    return sorted(odd, key=lambda entry: (_order(entry[1]["state"]), entry[0]))


def ranks_of(picture: Picture) -> Iterable[tuple[int, RankPicture]]:
    """Ranks with their numbers, ascending."""
    return sorted((int(rank), one) for rank, one in picture["ranks"].items())


def spread_of(picture: Picture, most: int) -> list[tuple[str, str, str]]:
    """Of each metric, over ranks: its name, the mean of its last values, and between what these lie, with the
    number of ranks where it is not finite."""
    values: dict[str, list[float]] = {}
    for _, one in ranks_of(picture):
        for name, value in one["metrics"].items():
            values.setdefault(name, []).append(float(value))
    return [(name, *_spread(all_)) for name, all_ in list(values.items())[:most]]


def _spread(values: Sequence[float]) -> tuple[str, str]:
    finite = [value for value in values if isfinite(value)]
    lost = Counter(number_text(value) for value in values if not isfinite(value))
    between = [f"{number_text(min(finite))} to {number_text(max(finite))}"] if finite else []
    told = [f"{word} on {count_text(number, 'rank')}" for word, number in lost.items()]
    return number_text(sum(value / len(values) for value in values)), ", ".join((*between, *told))


def picture_text(picture: Picture) -> str:
    """The run on one line that is the same whenever the same happens: without times, sizes and addresses.

    It is what stands where no HTML is shown, and what tests of notebooks compare.
    """
    heading = picture["heading"]
    title, size = one_line(heading["title"], 100) or "run", heading["world_size"]
    causes = [failure for failure in picture["failures"] if not failure["consequence"]]
    if heading["state"] != "failed" or not causes:
        return f"{title}: {heading['state']} on {count_text(size, 'rank')}"
    ranks = one_line(causes[0]["ranks"], 60)
    several = "s" if re.search("[-,]", ranks) else ""
    told = one_line(_CHANGES.sub("…", causes[0]["title"][:2_000]), 300)
    return f"{title}: failed on rank{several} {ranks} of {size:,}: {told}"


def list_text(ranks: Sequence[int], most_chars: int = 60) -> str:
    """Ranks, the first ones where they are many.

    >>> list_text([0, 1, 2, 5, 7, 9], 8)
    '0-2,5, …'
    """
    whole = ranks_text(ranks)
    if len(whole) <= most_chars:
        return whole
    return f"{whole[: most_chars - 2].rpartition(',')[0]}, …"


def part_text(part_bytes: int, total_bytes: int | None) -> str:
    """``61.0 of 139 GiB``."""
    if not total_bytes:
        return bytes_text(part_bytes)
    part, total = bytes_text(part_bytes), bytes_text(total_bytes)
    same = part.split()[-1] == total.split()[-1]
    return f"{part.split()[0] if same else part} of {total}"


def _order(state: RankWord) -> int:
    return _FIRST_TOLD.index(state) if state in _FIRST_TOLD else len(_FIRST_TOLD)
