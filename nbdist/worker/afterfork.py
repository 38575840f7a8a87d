"""Turning a forked copy of the kernel into a process of its own.

The copy believes that it owns the kernel's sockets, streams and children. Descriptors are never
closed here but overwritten: zmq, torch and Python still hold their numbers, and a number that
was freed could come back as one of ours.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import importlib
import os
import resource
import signal
import stat
import sys
import threading
from collections.abc import Collection
from multiprocessing import process, resource_tracker, util
from typing import Any

from nbdist.worker.descriptors import open_descriptors
from nbdist.worker.leaving import forget_exit_handlers

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_MOST_DESCRIPTORS = 10_240  # macOS: more are refused, though its limit is called infinite
_SIGNALS = frozenset(signal.valid_signals())  # asking takes a millisecond
_libc = ctypes.CDLL(None, use_errno=True)


def become_rank(kernel_pid: int, fds: tuple[int, int, int]) -> None:
    """Cut what ties this fresh fork to the kernel.

    Args:
        kernel_pid: the process that forked us; we end when it does.
        fds: of its channel, and of the pipes that become descriptors 1 and 2.
    """
    channel_fd, stdout_fd, stderr_fd = fds
    if os.getsid(0) != os.getpid():
        os.setsid()
    end_with(kernel_pid)
    _reset_signals()
    os.dup2(stdout_fd, 1)
    os.dup2(stderr_fd, 2)
    _replace_descriptors({1, 2, channel_fd})
    forget_exit_handlers()
    _allow_tracing(kernel_pid)
    _allow_descriptors()
    _forget_imports_under_way()
    _follow_multiprocessing()
    gc.freeze()


def end_with(kernel_pid: int) -> None:
    """Have Linux kill this process when its parent's forking thread ends, SIGKILL included. Elsewhere the
    guard does."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != kernel_pid:  # it ended before the call above
        os._exit(1)


def _allow_descriptors() -> None:
    """As many as may be: a rank inherits all numbers that the kernel uses, and needs some of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else max(soft, _MOST_DESCRIPTORS)
    if soft != most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _allow_tracing(kernel_pid: int) -> None:
    """Let the kernel, and debuggers that it starts, look into this process where that needs leave."""
    _prctl(_PR_SET_PTRACER, kernel_pid)


def _prctl(what: int, value: int) -> None:
    """Ask Linux for something that it alone offers."""
    if sys.platform == "linux":
        _libc.prctl(what, value, 0, 0, 0)


def last_words_path(scratch: str, rank: int) -> str:
    """The file in which Python writes a rank's stack when a fatal signal comes."""
    return os.path.join(scratch, f"rank-{rank}.stack")


def note_last_words(scratch: str, rank: int) -> None:
    """Write the stack there at SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL."""
    faulthandler.enable(open(last_words_path(scratch, rank), "w"))  # noqa: SIM115


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if faulthandler.is_enabled():
        faulthandler.disable()


def _replace_descriptors(keep: Collection[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in open_descriptors():
        if fd in keep or fd == null:
            continue
        try:
            mode = os.fstat(fd).st_mode
        except OSError:  # the listing's own descriptor, gone by now
            continue
        if stat.S_ISREG(mode):
            _reopen(fd)
        elif fd == 0 or not (stat.S_ISDIR(mode) or stat.S_ISCHR(mode)):
            os.dup2(null, fd, inheritable=os.get_inheritable(fd))
    os.close(null)


def _reopen(fd: int) -> None:
    """Give this process its own offset in a file which it shares with the kernel."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_TRUNC | os.O_EXCL)
    offset = os.lseek(fd, 0, os.SEEK_CUR)
    try:
        own = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)
    except OSError:  # permissions changed, or sealed: the shared offset is the best there is
        return
    os.lseek(own, offset, os.SEEK_SET)
    os.dup2(own, fd, inheritable=os.get_inheritable(fd))
    os.close(own)


def _forget_imports_under_way() -> None:
    """Modules that another thread was importing at the fork are imported anew when they are needed:
    that thread is not in this process, and would hold their locks for ever."""
    bootstrap: Any = importlib._bootstrap
    for name, reference in list(bootstrap._module_locks.items()):
        lock = reference()
        if lock is not None and lock.owner not in (None, threading.get_ident()):
            bootstrap._module_locks.pop(name)
            sys.modules.pop(name, None)
    bootstrap._blocking_on.clear()


def _follow_multiprocessing() -> None:
    """What multiprocessing does at the start of a child that it forked itself."""
    process._children = set()  # type: ignore[attr-defined]
    util._finalizer_registry.clear()  # type: ignore[attr-defined]
    util._run_after_forkers()  # type: ignore[attr-defined]
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
