"""Where a rank's main thread stands: the cell's line, the function, the collective that it waits in.

A thread looks ten times a second and tells the kernel what is new. No signal is taken for it and the
work is not slowed down: a look costs some ten microseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import linecache
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nbdist.messages import Collective, Standing
from nbdist.shell import MODULE, place_text, plain_name
from nbdist.worker.capture import Outbox
from nbdist.worker.collectives import collective_in, line_of, module_of
from nbdist.worker.group import Group
from nbdist.worker.regularly import Regularly
from nbdist.worker.threads import threads_of_work

_EVERY_S = 0.1
_STILL_S = 0.15  # longer inside one call of C code is told at once
_TELL_EVERY_S = 1.0  # of a thread that moves
_IDLE_SHARE = 0.03  # of a core: less is waiting, be it by asking again and again
_QUIET_SHARE = 0.05  # of a core for the whole process: nothing is on its way to or from another rank
_MOST_FRAMES = 60

_MACHINERY = ("IPython.", "ipykernel.", "nbdist.")
# Below these there is nothing of the user's work.
_WORK = ("nbdist.worker.work", "nbdist.worker.notebook", "nbdist.worker.main")


class Pulse:
    """Tells whether the main thread runs Python, or is inside one call of C code all the time.

    The interpreter makes a pending call between two bytecodes of the main thread. Ours is `sigfillset`: C
    code that only fills some memory, so that no Python of ours runs there and no interrupt can be lost in it.

    Attributes:
        seen_s: when the main thread was last seen to run Python, monotonic.
    """

    def __init__(self) -> None:
        self._fill = ctypes.cast(ctypes.CDLL(None).sigfillset, ctypes.c_void_p)
        self._memory = ctypes.create_string_buffer(1024)  # more than any system's sigset_t
        self._asked = False
        self.seen_s = time.monotonic()

    def stands_since(self, now_s: float) -> float:
        """When it was last seen to run Python; `now_s` if it has done so since the last call."""
        if not self._asked or self._memory[0] != b"\0":
            self.seen_s = now_s
            self._memory[0] = b"\0"
            # The queue of pending calls may be full: then we ask next time.
            self._asked = ctypes.pythonapi.Py_AddPendingCall(self._fill, self._memory) == 0
        return self.seen_s


class _Place(NamedTuple):
    cell_line: int | None
    function: str
    collective: Collective | None


class _Share:
    """What share of a core a clock of CPU time has counted since it was last asked."""

    def __init__(self, clock: int):
        self._clock = clock
        self._cpu_s, self._at_s = 0.0, 0.0

    def since_last(self, now_s: float) -> float:
        cpu_s = time.clock_gettime(self._clock)
        used_s, passed_s = cpu_s - self._cpu_s, now_s - self._at_s
        self._cpu_s, self._at_s = cpu_s, now_s
        return used_s / passed_s if passed_s else 1.0


def _clock_of(thread: int) -> int:
    """The clock of a thread's CPU time; where threads have none, that of the whole process, which never
    takes a busy thread for an idle one."""
    if sys.platform == "linux":
        return time.pthread_getcpuclockid(thread)
    return time.CLOCK_PROCESS_CPUTIME_ID


class Watch:
    """Watches the main thread while it works.

    Args:
        namespace: the notebook's; a frame on it at module level is the cell's.
        group: of the ranks that wait in the collectives.
    """

    def __init__(self, namespace: dict[str, Any], group: Group, outbox: Outbox):
        self._namespace = namespace
        self._group = group
        self._outbox = outbox
        self._main = threading.main_thread().ident or 0
        self._looks = Regularly(self._look, name="nbdist-watch", every_s=_EVERY_S)
        self._pulse = Pulse()
        self._told: tuple[Any, ...] = ()
        self._told_still = False
        self._told_s = 0.0
        self._line: int | None = None
        self._came_s = 0.0
        self._cpu = _Share(_clock_of(self._main))
        self._cpu_of_all = _Share(time.CLOCK_PROCESS_CPUTIME_ID)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Watch while this block runs, in the main thread."""
        self._told, self._told_still, self._told_s = (), False, time.monotonic()
        self._line, self._came_s = None, self._told_s
        with self._looks.working():
            yield

    def tell(self) -> None:
        """Tell the kernel now, from whatever thread: something is about to move the main thread."""
        frames = _frames_of_work(self._main)
        self._post(frames, self._place(frames), self._pulse.seen_s, idle=True, alone=False)

    def _look(self) -> None:
        now_s = time.monotonic()
        since_s = self._pulse.stands_since(now_s)
        still = now_s - since_s >= _STILL_S
        idle = self._cpu.since_last(now_s) < _IDLE_SHARE
        alone = self._cpu_of_all.since_last(now_s) < _QUIET_SHARE and not threads_of_work()
        frames = _frames_of_work(self._main)
        line = self._cell_line(frames)
        if line != self._line:
            self._line, self._came_s = line, now_s
        if not still and not self._told_still and now_s - self._told_s < _TELL_EVERY_S:
            return
        place = self._place(frames)
        news = (since_s, idle, alone) if still else (place.cell_line, place.function, self._came_s)
        if news != self._told:
            self._told, self._told_still, self._told_s = news, still, now_s
            self._post(frames, place, since_s if still else None, idle=idle, alone=alone)

    def _post(
        self,
        frames: Sequence[types.FrameType],
        place: _Place,
        since_s: float | None,
        *,
        idle: bool,
        alone: bool,
    ) -> None:
        still = since_s is not None
        self._outbox.post(
            Standing(
                cell_line=place.cell_line,
                function=place.function,
                came_s=self._came_s if place.cell_line == self._line else time.monotonic(),
                since_s=since_s,
                idle=still and idle,
                alone=still and alone,
                collective=place.collective if still else None,
                stack=_stack(frames),
            )
        )

    def _cell_line(self, frames: Sequence[types.FrameType]) -> int | None:
        for frame in reversed(frames):
            if frame.f_globals is self._namespace and plain_name(frame.f_code.co_name) == MODULE:
                return line_of(frame)
        return None

    def _place(self, frames: Sequence[types.FrameType]) -> _Place:
        users = (frame.f_code.co_name for frame in frames if not module_of(frame).startswith(_MACHINERY))
        return _Place(
            self._cell_line(frames), plain_name(next(users, "")), collective_in(frames, self._group.scope)
        )


def _frames_of_work(thread: int) -> list[types.FrameType]:
    """A thread's frames in the user's code, the innermost first."""
    found = []
    frame = sys._current_frames().get(thread)
    while frame is not None and not module_of(frame).startswith(_WORK):
        found.append(frame)
        frame = frame.f_back
    return found


def _stack(frames: Sequence[types.FrameType]) -> tuple[str, ...]:
    """A stack as a traceback shows it, the most recent call last, without IPython's frames and ours."""
    users = [frame for frame in frames if not module_of(frame).startswith(_MACHINERY)]
    lines = []
    for frame in reversed(users[:_MOST_FRAMES]):
        code = frame.f_code
        lines.append(place_text(code.co_filename, line_of(frame), code.co_name))
        text = linecache.getline(code.co_filename, line_of(frame), frame.f_globals).strip()
        if text:
            lines.append(f"    {text}")
    return tuple(lines)
