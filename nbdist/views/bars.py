"""Progress bars as text: one line for all ranks, and for all bars that are open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nbdist.messages import Progress
from nbdist.state import Bar

_CELLS = 10
_BLOCKS = " ▏▎▍▌▋▊▉█"


def bar_line(progress: Progress) -> str:
    """A bar as tqdm draws it.

    >>> bar_line(Progress(name="train", number=1, order=1, label="train", done=3, total=8, elapsed_s=6.0))
    'train:  38%|███▊      | 3/8 [00:06<00:10, 2.00s/it]'
    """
    if progress.drawn:
        return progress.drawn
    label = f"{progress.label}: " if progress.label else ""
    detail = progress.detail or _counts(progress)
    if not progress.total:
        return f"{label}{detail}"
    share = min(max(progress.done / progress.total, 0.0), 1.0)
    return f"{label}{share:4.0%}|{_blocks(share)}| {detail}"


def bars_in_view(bars: Sequence[Bar]) -> list[Bar]:
    """The bars of the rank that is least far: ranks that are out of step have different ones open, and
    nested loops have several at once."""

    def position(rank: int) -> list[tuple[int, float]]:
        own = [bar for bar in bars if rank in bar.parts]
        return [(bar.parts[rank].order, bar.share) for bar in own]

    last = min({rank for bar in bars for rank in bar.parts}, key=position, default=None)
    return [bar for bar in bars if last in bar.parts]


def may_still_come(progress: Progress, bars: Iterable[Bar]) -> bool:
    """Whether a rank has a bar open that is this one, or that comes before this one."""
    return any(
        part.name == progress.name and part.number <= progress.number
        for bar in bars
        for part in bar.parts.values()
    )


def status_of(bars: Sequence[Bar]) -> tuple[str, tuple[int, ...]]:
    """Bars as one line, and the ranks that are there, where rank 0 is not."""
    ranks = set(bars[0].parts).intersection(*(bar.parts for bar in bars))
    text = "  ".join(bar_line(bar.progress) for bar in bars)
    return text, () if 0 in ranks else tuple(sorted(ranks))


def rate_of(progress: Progress) -> float:
    """Steps a second since the bar began; 0 where that is not known yet."""
    return progress.done / progress.elapsed_s if progress.elapsed_s else 0.0


def _blocks(share: float) -> str:
    eighths = int(share * _CELLS * 8)
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_BLOCKS[part] if part else "")).ljust(_CELLS)


def _counts(progress: Progress) -> str:
    """What tqdm writes behind the bar: steps, time gone and to come, speed."""
    done, total, elapsed_s = progress.done, progress.total, progress.elapsed_s
    rate = rate_of(progress)
    if not total:
        return f"{done:g}it [{_clock(elapsed_s)}, {_speed(rate)}]"
    left = _clock((total - done) / rate) if rate else "?"
    return f"{done:g}/{total:g} [{_clock(elapsed_s)}<{left}, {_speed(rate)}]"


def _clock(seconds: float) -> str:
    minutes, whole_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_s:02}" if hours else f"{minutes:02}:{whole_s:02}"


def _speed(rate: float) -> str:
    if not rate:
        return "?it/s"
    return f"{rate:.2f}it/s" if rate >= 1 else f"{1 / rate:.2f}s/it"
