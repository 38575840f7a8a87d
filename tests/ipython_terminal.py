"""IPython in a terminal, as people use it: what they type, and what they see."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import pexpect
from terminal_screen import TerminalScreen

ENOUGH_S = 60.0
_PASTE, _PASTED, _RUN = "\x1b[200~", "\x1b[201~", "\x1b\r"
_PROMPT = re.compile(r"^In \[(\d+)\]:$")
_INPUT = re.compile(r" +(?:\.\.\.:|⋮)")  # the lines of a cell behind its first


class IPythonTerminal:
    """A process of IPython with nbdist loaded, in a terminal of its own.

    Args:
        folder: where it keeps its profile and the logs of runs.
        environment: what is different from this process' own; None takes a variable away.

    Example:
        >>> with IPythonTerminal(tmp_path) as terminal:
        ...     terminal.run("%%distributed --devices 2\\nrank")
        ...     terminal.text
    """

    def __init__(
        self,
        folder: Path,
        *,
        columns: int = 80,
        rows: int = 24,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        changed = {
            "TERM": "xterm-256color",
            "CUDA_VISIBLE_DEVICES": "",
            "IPYTHONDIR": str(folder / "ipython"),
            "NBDIST_LOG_DIR": str(folder / "logs"),
            "NO_COLOR": None,
            "COLUMNS": None,
            "LINES": None,
            **(environment or {}),
        }
        whole = {name: value for name, value in {**os.environ, **changed}.items() if value is not None}
        self.number = 0
        self._raw = bytearray()
        self._screen = TerminalScreen(columns, rows, answer=lambda text: self._process.send(text.encode()))
        with warnings.catch_warnings():
            # Python 3.12 warns of pexpect's fork while a thread watches a kernel.
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            self._process = pexpect.spawn(
                sys.executable,
                ["-m", "IPython", "--no-banner", "--colors=NoColor", "--HistoryManager.enabled=False"],
                env=whole,
                dimensions=(rows, columns),
            )

    def __enter__(self) -> IPythonTerminal:
        self.until(lambda: self._prompt)
        self.run("%load_ext nbdist")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.text)
        self._process.close(force=True)

    def begin(self, cell: str) -> None:
        """Run a cell and do not wait for its end."""
        self.number = self._prompt
        self.type(f"{_PASTE}{cell}{_PASTED}")
        self.until(lambda: self.text.endswith(cell.splitlines()[-1][-10:]))
        self.type(_RUN)

    def end(self) -> str:
        """Wait for the end of the cell; what has come of it."""
        self.until(lambda: self.is_asking)
        return self.output

    def run(self, cell: str) -> str:
        """Run a cell to its end; what has come of it."""
        self.begin(cell)
        return self.end()

    @property
    def output(self) -> str:
        """What has come of the last cell until now, and what stands below."""
        lines = self.text.rpartition(f"In [{self.number}]: ")[2].split("\n")[1:]
        while lines and _INPUT.match(lines[0]):
            del lines[0]
        if self._prompt:
            del lines[-1]
        return "\n".join(lines).strip("\n")

    @property
    def text(self) -> str:
        """All that has been written to the terminal, as it stands there."""
        return self._screen.text

    @property
    def screen(self) -> list[str]:
        """The lines that are to be seen now."""
        return self._screen.screen

    @property
    def raw(self) -> bytes:
        """All that has been written to the terminal, with its codes."""
        return bytes(self._raw)

    @property
    def cursor_is_seen(self) -> bool:
        """Whether it is not hidden."""
        return self._screen.cursor_is_seen

    @property
    def is_asking(self) -> bool:
        """Whether it waits for a cell."""
        return self._prompt > self.number

    @property
    def _prompt(self) -> int:
        """The number of the cell that is asked for; 0 while none is."""
        found = _PROMPT.match(self.text.rpartition("\n")[2])
        return int(found[1]) if found else 0

    def type(self, keys: str) -> None:
        """Press keys."""
        self._process.send(keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Change the terminal's size."""
        self._process.setwinsize(rows, columns)
        self._screen.resize(columns, rows)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until it is so on the screen."""
        end_s = time.monotonic() + ENOUGH_S
        while not condition():
            assert time.monotonic() < end_s, f"this was waited for in vain; the terminal shows:\n{self.text}"
            try:
                data = self._process.read_nonblocking(65_536, timeout=0.1)
            except pexpect.TIMEOUT:
                continue
            self._raw += data
            self._screen.feed(data)
