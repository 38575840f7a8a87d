"""What a rank asks the user: ``input()``, ``getpass()`` and pdb. The kernel asks, where the user is.

Rank 0 alone asks: what one rank were told and the others not would make them diverge. A rank that has failed
may be looked into, whichever it is.
"""

from __future__ import annotations

import builtins
import contextlib
import getpass
import pdb  # noqa: T100  (for the user, not left behind)
import selectors
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from nbdist.channel import Channel
from nbdist.errors import ChannelEnded
from nbdist.messages import Asking, Reply
from nbdist.shell import current_shell
from nbdist.worker import interrupts
from nbdist.worker.capture import Outbox


class Questions:
    """Asks through the kernel.

    Args:
        rank: gives this rank's number among those that run the cell: 0 may ask.
    """

    def __init__(self, channel: Channel, outbox: Outbox, rank: Callable[[], int]):
        self._channel = channel
        self._outbox = outbox
        self._rank = rank
        self._debugs = False

    def install(self) -> None:
        """Answer ``input()``, ``getpass()`` and ``breakpoint()`` of this process from now on."""
        builtins.input = self._input
        getpass.getpass = self._getpass
        sys.breakpointhook = self._breakpoint  # a kernel's belongs to a front end's debugger
        kernel = getattr(current_shell(), "kernel", None)
        if kernel is not None:  # whose methods the user may have bound to names before the fork
            kernel._input_request = self._for_kernel

    def post_mortem(self, trace: types.TracebackType | None) -> None:
        """Open pdb at the innermost frame of a traceback."""
        self._debugs = True
        try:
            debugger = _debugger()
            debugger.reset()
            debugger.interaction(None, trace)
        finally:
            self._debugs = False

    def _input(self, prompt: object = "", /) -> str:
        return self._ask("input", str(prompt), secret=False)

    def _getpass(self, prompt: str = "Password: ", stream: Any = None, **_: Any) -> str:
        return self._ask("getpass", prompt, secret=True)

    def _for_kernel(self, prompt: str, *_: Any, password: bool = False, **__: Any) -> str:
        return self._ask("getpass" if password else "input", prompt, secret=password)

    def _breakpoint(self, *_: Any, **__: Any) -> None:
        self._check("breakpoint()")
        _debugger().set_trace(sys._getframe(1))

    def _check(self, call: str, advice: str = "") -> None:
        rank = self._rank()
        if rank != 0 and not self._debugs:
            raise RuntimeError(
                f"{call}: rank 0 alone can ask, and this is rank {rank}. Do it under `if rank == 0:`{advice}."
            )
        if not self._outbox.in_owner or threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"{call}: only the main thread of a rank can ask.")

    def _ask(self, function: str, prompt: str, *, secret: bool) -> str:
        call = f"{function}({prompt!r})" if prompt else f"{function}()"
        self._check(call, ", and send the answer to all by torch.distributed.broadcast_object_list")
        self._outbox.post(Asking(prompt=prompt, secret=secret))
        reply = self._wait()
        if reply.error is not None:
            raise reply.error
        return reply.text

    def _wait(self) -> Reply:
        with contextlib.closing(selectors.DefaultSelector()) as selector:
            selector.register(self._channel.fileno(), selectors.EVENT_READ)
            while not selector.select():  # an interrupt ends this
                pass
        with interrupts.listening(False):  # and never strikes in the middle of a message
            reply = self._channel.receive()
        if not isinstance(reply, Reply):  # the run is being ended
            raise ChannelEnded("the kernel answers no questions any more")
        return reply


def _debugger() -> Any:
    """A pdb that asks by ``input()``."""
    if current_shell() is None:
        return pdb.Pdb()
    from IPython.core.debugger import Pdb

    return Pdb()
