"""What crosses the boundary between the kernel and a rank: plain frozen records.

Rank to kernel: `Mark`, `Ready`, `Text`, `Display`, `Progress`, `Asking`, `Standing`, `Raised`, `HandingOver`,
`Finished`, `Looked`, and numbers: `Logged`, `Usage`. Kernel to rank: `Run`, `Look`, `Debug`, `Reply`,
`SendAgain`, `Leave`.
What the kernel sees or does by itself of a rank (`Wrote`, `Answered`, `Died`, `Stuck`) has the same form, so
that one `fold` takes them all.

Longer than 400 lines because all that crosses is read together.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nbdist.errors import Failure
from nbdist.figures import Logged, Usage
from nbdist.looks import Look, Looked, NameInfo

# Environment variables that tell `nbdist.setup` and its relatives in a rank what the run was asked for.
DEVICE_VARIABLE = "NBDIST_DEVICE"
STRATEGY_VARIABLE = "NBDIST_STRATEGY"
PRECISION_VARIABLE = "NBDIST_PRECISION"
# Marks programs that a rank started, whatever session they are in.
RUN_VARIABLE = "NBDIST_RUN"

FIRST_RUN = 1  # the number of what ranks do first: getting ready, and the work that they are born to

Stream = Literal["stdout", "stderr"]

MARK = re.compile(rb"\0nbdist-mark-([0-9a-f]{12})\0")
"""A `Mark` in a pipe; a system writes so few bytes at once or not at all."""
MARK_BYTES = 26
Outcome = Literal["ok", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """How the values in a shared-memory file (sent beside the message) are laid out.

    Attributes:
        frames: for each value its key and the byte range of its pickle.
        buffers: byte ranges of the out-of-band buffers, in pickle order over all frames.
        size_bytes: the file's size.
    """

    frames: tuple[tuple[str, int, int], ...]
    buffers: tuple[tuple[int, int], ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Made:
    """What a rank has made under a name.

    Attributes:
        digest: of its `values.outline`.
        keys: of rank 0's objects in it.
    """

    digest: bytes
    keys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What a finished rank hands over.

    Attributes:
        parcel: bound names, changed objects and the last expression's value.
        unbound: names that the notebook had and the rank's namespace lost.
        lost: values that stay behind, with the reason.
        result_data: the last expression's rich display as the rank formatted it, where its value
            stays behind.
        imported: parts of torch that the rank had to import by itself.
        names: of rank 0 in a live session: all that its work has bound until now.
        kept: names that the work bound and that live on the rank alone, with what they are.
        changed: names that lead to objects of the notebook whose changes stay there, with what they are.
        newer: keys of those objects.
        made: what a live rank has made under names that it bound.
    """

    parcel: Parcel
    unbound: tuple[str, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)
    changed: Mapping[str, str] = field(default_factory=dict)
    newer: tuple[int, ...] = ()
    made: Mapping[str, Made] = field(default_factory=dict)
    result_data: Mapping[str, Any] | None = None
    imported: tuple[str, ...] = ()
    names: tuple[NameInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Who a worker is, and where its peers meet.

    Attributes:
        device: torch's name of the rank's device, in the rank.
        chosen_device: its name in the kernel, where other devices may be seen.
        visible_devices: CUDA_VISIBLE_DEVICES in the rank; None leaves it as it is.
        backend: for `init_process_group`.
        master_port: kept free for scripts in which rank 0 hosts a store.
        scratch: a folder for temporary files, removed after the run.
        logs: the run's folder, which stays; it may not exist.
        timeout_s: process-group timeout; None is torch's own.
        strategy: default for `nbdist.setup()`.
        init: whether the worker makes the process group before the work begins.
        background: whether cells of the notebook run meanwhile, whose interrupts are none of the rank's.
        gauges: whether it measures what it uses of the machine.
        gpu_uuid: NVML's name of its GPU; empty for a CPU.
    """

    rank: int
    world_size: int
    device: str
    backend: str
    master_port: int
    scratch: str = ""
    logs: str = ""
    timeout_s: float | None = None
    seed: int | None = None
    strategy: str = "ddp"
    init: bool = True
    background: bool = False
    visible_devices: str | None = None
    chosen_device: str = "cpu"
    gauges: bool = False
    gpu_uuid: str = ""

    @property
    def mark(self) -> str:
        """Unlike that of any other worker on this machine."""
        return f"{os.path.basename(self.scratch)}-{self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The rank is up and its process group is made (or left to the cell).

    Attributes:
        works: whether it goes on with the work that it was born to; else it waits for some.
    """

    pid: int
    works: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Begins a batch of messages; what lies before the same mark in the rank's pipes is older."""

    number: int

    @property
    def in_pipe(self) -> bytes:
        """What stands for it in a pipe, see `MARK`."""
        return b"\0nbdist-mark-%012x\0" % self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Text that Python code of the rank wrote."""

    stream: Stream
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """A rich display: what Jupyter's ``display_data`` and its relatives carry.

    Attributes:
        kind: a "result" is the value of an earlier expression of the cell, where IPython shows those too.
        at_end: made when the cell's code had ended, as open figures are: it comes after the result.
    """

    kind: Literal["display", "result", "update", "clear"]
    data: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    wait: bool = False
    at_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The rank waits for a line from the user.

    Attributes:
        secret: whether what is typed stays hidden.
    """

    prompt: str
    secret: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a progress bar is.

    Attributes:
        name: its first label without numbers.
        number: the how manieth of that name it is on its rank. Bars of several ranks with the same name
            and number are one.
        order: the how manieth of all bars it is on its rank.
        label: what it stands for.
        done: in steps, as `total`; None for a total that is not known.
        detail: the text behind the bar, where the bar's library writes one.
        drawn: the whole bar as text, where the user said how it is to look.
        elapsed_s: since it began, by the rank's own clock.
        stream: where its text belongs.
        phase: whether it goes on, has ended and stays, or is to leave nothing behind.
    """

    name: str
    number: int
    order: int
    label: str = ""
    done: float = 0
    total: float | None = None
    detail: str = ""
    drawn: str = ""
    elapsed_s: float = 0.0
    stream: Stream = "stdout"
    phase: Literal["open", "kept", "gone"] = "open"

    @property
    def key(self) -> str:
        """The same for what is one bar."""
        return f"{self.name}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """An operation of several ranks.

    Attributes:
        name: as in torch.distributed: ``all_reduce``; ``backward`` for DDP's.
        ranks: who must take part; empty where that is not known. Of ``send`` and ``recv`` the sender
            and the receiver.
        group: the process group's name, the same on all its ranks.
        data: dtype and shape of the tensor, where it must have the same on all of them.
    """

    name: str
    ranks: tuple[int, ...]
    group: str = ""
    data: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where the rank's main thread is.

    Attributes:
        cell_line: the cell's line, if there is a cell.
        function: the innermost Python function.
        since_s: since when it is inside one call of C code, monotonic; None for one that moves.
        idle: whether it uses next to no CPU there: it waits.
        alone: whether nothing else moves in its process: no other thread of the work, next to no CPU.
        collective: what it waits in, if that is an operation of several ranks.
        stack: its stack as a traceback's lines, the most recent call last.
        came_s: since when it has been seen at this line of the cell and no other, monotonic.
    """

    cell_line: int | None
    function: str
    came_s: float | None = None
    since_s: float | None = None
    idle: bool = False
    alone: bool = False
    collective: Collective | None = None
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The rank's work has raised; the traceback is being made, and `Finished` follows.

    Attributes:
        type_name: the exception's class.
        time_s: when, monotonic.
    """

    type_name: str
    time_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandingOver:
    """The rank's work has ended, one way or another; its values are being packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The rank's work has ended. A shared-memory file travels beside it when it holds values.

    Attributes:
        time_s: when, monotonic.
        threads: whether threads that the work has started go on.
        untaken: whether it did not begin, because the rank could not take what the notebook had new for it.
    """

    outcome: Outcome
    threads: bool = False
    untaken: bool = False
    time_s: float = field(default_factory=time.monotonic)
    failure: Failure | None = None
    values: Values | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Next work for live ranks. Two shared-memory files travel beside it: what the notebook has new since
    the rank saw it, and the work itself.

    Attributes:
        news: what the first file holds, under the keys of `values.news`.
        work: what the second one holds.
        unbound: names that the notebook has deleted.
        dropped: keys of objects that no longer exist on both sides.
        taken: whether the kernel has taken what the rank handed over last.
        made: under names that all ranks have bound alike the keys of what each has made there, in the order
            of its `values.outline`; None for what is not in the notebook.
        ranks: who does the work, in a process group of their own; None for all. The others take what the
            notebook has new, and say nothing.
        number: of the run, counted by the kernel.
        group: number of the process group that the work needs: with another one than before, the ranks leave
            all groups and meet anew first. None needs none.
    """

    news: Parcel
    work: Parcel
    unbound: tuple[str, ...] = ()
    dropped: tuple[int, ...] = ()
    taken: bool = True
    made: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    ranks: tuple[int, ...] | None = None
    number: int = FIRST_RUN
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Debug:
    """To all ranks: let the user look into the one whose work has failed. It counts as a run."""

    rank: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """To a rank that is `Asking`: the user's line, or why there is none."""

    text: str = ""
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAgain:
    """The kernel could not read some values: send the rest again.

    Attributes:
        without: those, by key, with the reason.
        copied: whether memory that was written is to be sent, because the kernel may not read it.
    """

    without: Mapping[str, str] = field(default_factory=dict)
    copied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Nothing more to do: the rank's process may end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote:
    """Bytes that came through the rank's own descriptor 1 or 2, decoded."""

    stream: Stream
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The kernel has sent the rank its `Reply`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """The rank's process has ended.

    Attributes:
        time_s: when the kernel saw it, monotonic.
        exit_code: as `subprocess.Popen.returncode`: minus the signal's number for a signal.
        trace: what Python itself wrote of its stack at a fatal signal, the most recent call first.
        memory_ran_out: whether the system ended processes meanwhile because its memory ran out.
        mute: whether nbdist ended it, because it had closed its connection to the kernel.
    """

    time_s: float
    pid: int
    exit_code: int
    trace: tuple[str, ...] = ()
    memory_ran_out: bool = False
    mute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """The kernel has found that the rank's work will not go on by itself.

    Attributes:
        time_s: when, monotonic.
        reason: what it waits for, and why that will not come.
    """

    time_s: float
    reason: str


FromRank = (
    Mark
    | Ready
    | Text
    | Display
    | Progress
    | Asking
    | Standing
    | Raised
    | HandingOver
    | Finished
    | Looked
    | Logged
    | Usage
)
ToRank = Run | Look | Debug | Reply | SendAgain | Leave
Event = FromRank | Wrote | Answered | Died | Stuck
