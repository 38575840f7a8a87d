"""What is known of ranks that are up, without asking them: they may be busy."""

from __future__ import annotations

import psutil

from nbdist.devices import memory_of_gpus
from nbdist.looks import NameInfo
from nbdist.session.fitting import devices_of
from nbdist.session.ranks import Ranks, running
from nbdist.session.standing import where_they_stand
from nbdist.session.telling import of_dead
from nbdist.views.doing import in_the_session
from nbdist.views.overview import RankStatus, SessionStatus


def where_ranks_stand() -> list[str]:
    """For all ranks that are up where they are, and their stacks; where there are several sets, whose."""
    up = [ranks for ranks in running if ranks.owner.is_here]
    if len(up) == 1:
        return where_they_stand(up[0].state)
    return [line for ranks in up for line in (f"{ranks.label}:", *where_they_stand(ranks.state))]


def status_of(name: str, what: str, ranks: Ranks, names: tuple[NameInfo, ...] | None) -> SessionStatus:
    """A session, or a run in the background, now.

    Args:
        what: it is, in words.
        names: that live on rank 0; None where nobody asks for them.
    """
    devices = devices_of(ranks)
    gpus = memory_of_gpus([device for device in devices if device.startswith("cuda")])
    rows = []
    for rank in ranks.state.ranks:
        state, detail = in_the_session(rank)
        pid, device = ranks.pid(rank.rank), devices[rank.rank]
        used, total = gpus.get(device, (None, None))
        rows.append(
            RankStatus(
                rank=rank.rank,
                pid=pid,
                device=device,
                state=state,
                detail=detail,
                cells=ranks.runs[rank.rank],
                memory_bytes=_memory_bytes(pid) if state != "dead" else None,
                device_used_bytes=used,
                device_total_bytes=total,
            )
        )
    title = f"{what} ({ranks.assignments[0].backend}, started by {ranks.start_method})"
    if ranks.state.deaths:
        title += f"; {of_dead(ranks.state.deaths, ranks.ended)}"
    return SessionStatus(name=name, title=title, ranks=tuple(rows), names=names)


def _memory_bytes(pid: int) -> int | None:
    """A process's share of the memory; None if it has ended."""
    try:
        process = psutil.Process(pid)
        try:
            memory = process.memory_full_info()
        except psutil.AccessDenied:  # macOS tells of one's own processes only, and not of all of those
            return int(process.memory_info().rss)
        return int(getattr(memory, "pss", memory.uss))
    except psutil.Error:
        return None
