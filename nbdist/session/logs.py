"""A run's folder: everything that each rank printed, whole, in ``rank-N.log``."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Literal, TextIO

from nbdist.values.files import our_folders

_KEEP_DAYS = 7
_MOST_TAIL_BYTES = 200_000  # Jupyter's server drops output above 1 MB/s
_numbers = itertools.count(1)


def logs_root() -> Path:
    """Where all runs keep their logs: ``$NBDIST_LOG_DIR``, else the user's cache folder."""
    chosen = os.environ.get("NBDIST_LOG_DIR")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "nbdist" / "logs"


class RunLogs:
    """Log files of one run's ranks, opened when a rank first prints."""

    def __init__(self, world_size: int):
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.folder = logs_root() / f"{stamp}-{os.getpid()}-{next(_numbers)}"
        self._real_folder = os.path.join(os.path.realpath(self.folder), "")
        our_folders.add(self._real_folder)
        self.trouble: OSError | None = None
        self._files: list[TextIO | None] = [None] * world_size
        self._open_lines: list[Literal["text", "bar"] | None] = [None] * world_size
        self._lock = threading.Lock()  # who reads has all flushed while the monitor writes

    def path(self, rank: int) -> Path:
        """The log file of a rank; it exists once the rank has printed."""
        return self.folder / f"rank-{rank}.log"

    def write(self, rank: int, text: str) -> None:
        """Append to a rank's log. A disk that is full or read-only ends the logs, not the run."""
        self._write(rank, text, "text")

    def write_bar(self, rank: int, text: str) -> None:
        """Append a state of a progress bar, behind the former one in a line that holds nothing else."""
        self._write(rank, f"\r{text}", "bar")

    def read(self, rank: int) -> str:
        """All that a rank has printed until now; of a line that was written over again its last state."""
        self.flush()
        path = self.path(rank)
        text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        return "\n".join(map(_last_state, text.split("\n"))) if "\r" in text else text

    def _write(self, rank: int, text: str, kind: Literal["text", "bar"]) -> None:
        if self.trouble is None and text:
            try:
                with self._lock:
                    is_torn = self._open_lines[rank] not in (None, kind)
                    self._append(rank, f"\n{text}" if is_torn else text)
                    self._open_lines[rank] = None if text.endswith("\n") else kind
            except OSError as error:
                self.trouble = error

    def _append(self, rank: int, text: str) -> None:
        file = self._files[rank]
        if file is None:
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
                _remove_old(self.folder.parent)
            file = self._files[rank] = open(  # noqa: SIM115  closed by close()
                self.path(rank), "a", encoding="utf-8", errors="backslashreplace", newline=""
            )
        file.write(text)

    def flush(self) -> None:
        """Bring all that was written to the disk."""
        with self._lock:
            for file in filter(None, self._files):
                try:
                    file.flush()
                except OSError as error:
                    self.trouble = error

    def close(self) -> None:
        """Close the files; the folder stays."""
        self.flush()
        for file in filter(None, self._files):
            with contextlib.suppress(OSError):  # noted by the flush
                file.close()
        self._files = [None] * len(self._files)
        our_folders.discard(self._real_folder)


def tail(path: Path, lines: int) -> str:
    """The last lines of a log, empty if there is none. Of a line that was written over again and again, as a
    progress bar is, its last state."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:  # it has printed nothing
        return ""
    return "".join(f"{_last_state(line)}\n" for line in text.removesuffix("\n").split("\n")[-lines:])


def _last_state(line: str) -> str:
    return next((part for part in reversed(line.split("\r")) if part), "")


def _remove_old(root: Path) -> None:
    """Remove runs older than a week that hold nothing but logs."""
    oldest_s = time.time() - _KEEP_DAYS * 86_400
    for folder in root.iterdir():
        if folder.is_dir() and folder.stat().st_mtime < oldest_s and _only_logs(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _only_logs(folder: Path) -> bool:
    return all(file.name.startswith("rank-") and file.suffix == ".log" for file in folder.iterdir())
