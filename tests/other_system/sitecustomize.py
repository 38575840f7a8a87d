"""Makes a Python on Linux look like one on another system, as far as the libraries around it bear that.

Python runs this file at its start, in the process that a test starts and in all that come of it, if the
folder is on PYTHONPATH. `OTHER_SYSTEM=darwin` in the environment then takes away at once what macOS lacks. For
Windows, `become("win32")` does it later, when IPython and torch, which need their Linux, have been imported.

What the other system lacks is gone: functions, constants, C functions, modules, ``/proc``. What it has and Linux
has not is not here: this shows what is never called, not that what is called does on that system what it should.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import select
import selectors
import signal
import socket
import sys
import sysconfig
import time
import types
from typing import Any

import psutil  # while it can see where it really is

LACKS: dict[str, dict[types.ModuleType, str]] = {
    "darwin": {
        os: "MFD_CLOEXEC O_TMPFILE P_PID P_PIDFD WNOWAIT copy_file_range eventfd fdatasync getrandom memfd_create "
        "pidfd_open pipe2 posix_fadvise posix_fallocate preadv pwritev sched_getaffinity sched_setaffinity splice "
        "waitid",
        signal: "SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo",
        socket: "AF_NETLINK AF_PACKET MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK SO_DOMAIN SO_PEERCRED SO_PROTOCOL",
        select: "epoll",
        mmap: "MAP_POPULATE MAP_STACK",
        time: "CLOCK_BOOTTIME pthread_getcpuclockid",
    },
    "win32": {
        os: "WEXITED WNOHANG fork forkpty geteuid getpgid getsid getuid killpg mkfifo nice openpty pread pwrite "
        "register_at_fork setsid statvfs sysconf",
        signal: "SIGCHLD SIGHUP SIGKILL pthread_kill pthread_sigmask",
        socket: "AF_UNIX CMSG_LEN CMSG_SPACE MSG_DONTWAIT SCM_RIGHTS recv_fds send_fds",
        select: "poll",
        mmap: "MAP_PRIVATE MAP_SHARED PROT_READ PROT_WRITE",
        time: "CLOCK_PROCESS_CPUTIME_ID clock_gettime",
    },
}
"""Names by module; Windows lacks those of macOS too."""

LACKS_MODULES = {"darwin": (), "win32": ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")}
LACKS_C = frozenset({"memfd_create", "pidfd_open", "prctl", "pthread_getcpuclockid", "sem_init"})
LACKS_FILES = ("/proc", "/dev/shm", "/dev/nvidia")


def become(system: str) -> None:
    """From now on this process is on another system."""
    for name in ("darwin", "win32")[: 2 if system == "win32" else 1]:
        for module, lacking in LACKS[name].items():
            for attribute in lacking.split():
                vars(module).pop(attribute, None)
    selectors.DefaultSelector = selectors.PollSelector
    for name in LACKS_MODULES[system]:
        sys.modules[name] = None  # type: ignore[assignment]  # to import it is an ImportError
    _hide_c_functions()
    _hide_files()
    sysconfig.get_config_vars()  # it remembers what the files of this Python say
    platform.mac_ver = lambda *_, **__: ("14.5", ("", "", ""), "arm64")
    # What others import on macOS: ipykernel and urllib.
    _put_module("appnope", nope=lambda: None)
    _put_module("_scproxy", _get_proxies=dict, _get_proxy_settings=dict)
    sys.platform = system


def _put_module(name: str, **content: object) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)


def _hide_c_functions() -> None:
    real = ctypes.CDLL.__getattr__

    def lookup(library: ctypes.CDLL, name: str) -> Any:
        if name in LACKS_C:
            raise AttributeError(f"symbol not found: {name}")
        return real(library, name)

    ctypes.CDLL.__getattr__ = lookup  # type: ignore[method-assign]


def _hide_files() -> None:
    def refuse(path: object) -> None:
        if (
            isinstance(path, (str, bytes))
            and os.fsdecode(path).startswith(LACKS_FILES)
            and not _asked_by_psutil()
        ):
            raise FileNotFoundError(2, "No such file or directory", path)

    def audit(event: str, args: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir"):
            refuse(args[0])

    sys.addaudithook(audit)
    for name in ("access", "lstat", "readlink", "stat"):
        setattr(os, name, _refusing(getattr(os, name), refuse))


def _refusing(function: Any, refuse: Any) -> Any:
    def asked(path: object, *args: Any, **kwargs: Any) -> Any:
        refuse(path)
        return function(path, *args, **kwargs)

    return asked


def _asked_by_psutil() -> bool:
    """It is the psutil of Linux, and would ask the system itself on another."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(psutil.__name__):
            return True
        frame = frame.f_back
    return False


if os.environ.get("OTHER_SYSTEM"):
    become(os.environ["OTHER_SYSTEM"])
