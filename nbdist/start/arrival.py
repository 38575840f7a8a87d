"""The worker's side of start methods other than ``fork``: a process that was never the kernel."""

from __future__ import annotations

import os
import sys
import time
import types
from typing import Any

from nbdist.channel import Channel
from nbdist.errors import Failure, ValueLost
from nbdist.messages import Finished
from nbdist.start.luggage import unpack_luggage
from nbdist.start.orders import Begin
from nbdist.worker.main import run_rank


def make_main(with_ipython: bool) -> None:
    """Give this process a ``__main__`` like the notebook's, and an IPython if the notebook is one."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if with_ipython:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        class RankShell(InteractiveShell):
            """A shell without a front end of its own."""

            def enable_gui(self, gui: str | None = None) -> None:
                """Nothing to do: figures are shown by the notebook."""

        # The notebook keeps the history; a database of our own would only be written for nothing.
        config = Config({"HistoryManager": {"enabled": False}})
        RankShell.instance(config=config, user_module=main)


def arrive(channel: Channel) -> None:
    """Receive the luggage and be a rank."""
    begin = channel.receive()
    assert isinstance(begin, Begin)
    namespace: dict[str, Any] = sys.modules["__main__"].__dict__
    try:
        unpacked = unpack_luggage(begin.parcel, channel.take_fd(), namespace)
    except ValueLost as lost:
        _refuse(channel, begin.assignment.rank, lost)
        return
    _follow_matplotlib()
    run_rank(begin.assignment, channel, unpacked.twins, unpacked.wanted, unpacked.work)


def _refuse(channel: Channel, rank: int, lost: ValueLost) -> None:
    """A value's own code does not rebuild it here: the run fails with its name and its reason."""
    message = f"{lost.key.partition(':')[2]} was sent to the rank and cannot be rebuilt there: {lost.reason}"
    failure = Failure(rank=rank, time_s=time.monotonic(), type_name="ValueLost", message=message)
    channel.send(Finished(outcome="failed", failure=failure))
    channel.receive()


def _follow_matplotlib() -> None:
    """Figures are shown where the notebook shows them: at the end of the cell."""
    if "inline" not in os.environ.get("MPLBACKEND", "") or "matplotlib" not in sys.modules:
        return
    from IPython import get_ipython
    from matplotlib_inline.backend_inline import configure_inline_support

    configure_inline_support(get_ipython(), "inline")
