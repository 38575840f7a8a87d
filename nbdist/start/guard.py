"""A small process that ends what ranks leave behind, also where the kernel is killed.

On Linux a rank dies with its kernel (PDEATHSIG), its own children do not; elsewhere neither does. The guard
is a process in a session of its own that reads from a pipe: the workers to watch, then which of them have
ended. When the pipe closes, be it that the run is over or that the kernel is gone, all of them have.

It is a shell, which starts in a millisecond; where there is no ``/proc`` for a shell to read, a Python.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
from collections.abc import Iterable

from nbdist.errors import LaunchError
from nbdist.messages import RUN_VARIABLE
from nbdist.start.process import python_command

_PATIENCE_S = 2.0

# A worker leads a session, which its children are in unless they begin one; programs have its mark in their
# environment then. Only processes younger than the first worker are looked at, unless the system has begun
# to count pids anew since then.
_SCRIPT = r"""
sweep() {  # $1: pids of ended workers, each between spaces; $2: their marks, as a pattern for grep
    left=1 round=0
    read -r _ _ _ _ last < /proc/loadavg
    [ "$last" -ge "$first" ] || first=1
    while [ "$left" ] && [ "$round" -lt 5 ]; do
        left='' round=$((round + 1))
        for folder in /proc/[0-9]*; do
            pid=${folder#/proc/}
            [ "$pid" -ge "$first" ] && [ "$pid" -ne $$ ] || continue
            { read -r status < "$folder/stat"; } 2>/dev/null || continue
            set -- "$1" "$2" ${status##*) }  # its state, parent, process group, session
            [ "$3" = Z ] && continue
            case "$1" in
                *" $6 "*) ;;
                *) grep -zqE "^@VARIABLE@=($2)\$" "$folder/environ" 2>/dev/null || continue ;;
            esac
            # Python's tracker of shared memory ends by itself, once it has removed what the others left.
            grep -zqF multiprocessing.resource_tracker "$folder/cmdline" 2>/dev/null && continue
            kill -KILL "$pid" 2>/dev/null && left=1
        done
    done
}
first=$1 pids=' ' marks='-'
while read -r what pid mark; do
    case $what in
        watch) pids="$pids$pid " marks="$marks|$mark" ;;
        ended) sweep " $pid " "$mark"; pids="${pids%% "$pid" *} ${pids#* "$pid" }" ;;  # it may be given anew
    esac
done
sweep "$pids" "$marks"
rm -rf -- "$2"
""".replace("@VARIABLE@", RUN_VARIABLE)


class Guard:
    """Watches workers until `close`.

    Args:
        workers: the pid and the mark of each.
        scratch: their folder for temporary files, which is removed at the end.

    Raises:
        LaunchError: the system allows no more processes.
    """

    def __init__(self, workers: Iterable[tuple[int, str]], scratch: str):
        self._marks = dict(workers)
        try:
            self._process = self._start(min(self._marks), scratch)
        except OSError as error:
            raise LaunchError(
                f"the ranks' guard process could not be started: {error}. "
                "Ask for fewer ranks (--devices), or raise the limit that it names (ulimit -u)."
            ) from error
        for pid, mark in self._marks.items():
            self._say(f"watch {pid} {mark}")

    def _start(self, first_pid: int, scratch: str) -> subprocess.Popen[bytes]:
        system = {"PATH": f"/usr/bin:/bin:{os.environ.get('PATH', '')}"}  # whatever the notebook has set
        if os.path.exists("/proc/loadavg"):
            command = ["/bin/sh", "-c", _SCRIPT, "nbdist-guard", str(first_pid), scratch]
        else:
            command = python_command(f"from nbdist.start.sweep import main; main({scratch!r})")
        return subprocess.Popen(
            command,
            env={**os.environ, **system},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # never written to: it closes when the guard ends
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to the kernel's group is none to it
        )

    def ended(self, pid: int) -> None:
        """A worker has died: end what it left."""
        self._say(f"ended {pid} {self._marks[pid]}")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody ended it
            os.write(self._process.stdin.fileno(), f"{line}\n".encode())

    def close(self) -> None:
        """All workers have ended: return when what they left has ended too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        ended, _, _ = select.select([self._process.stdout], [], [], _PATIENCE_S)
        self._process.stdout.close()
        if ended:
            self._process.wait()
        else:  # it goes on by itself, and is no zombie afterwards: a busy machine takes long
            threading.Thread(target=self._process.wait, name="nbdist-guard", daemon=True).start()
