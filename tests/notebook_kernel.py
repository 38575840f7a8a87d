"""A real ipykernel for tests: run cells, see what a front end would get, judge what was left behind.

    with NotebookKernel() as kernel:
        before = kernel.footprint()
        run = kernel.run("print('hello'); 6 * 7")
        assert run.stdout == "hello\\n"
        assert run.result == {"text/plain": "42"}
        kernel.assert_no_leaks(before)

The kernel has a home, Jupyter folders, a working and a temporary folder of its own, gone at the end. One
thread owns the sockets, so that messages carry the time they came at and none is lost while a test looks
away. Every process that the kernel starts inherits a marker in its environment, so that orphans are found
too. Needs Linux: what a process holds is read from /proc.

Longer than 400 lines because a run, a footprint and the wire to the kernel are of use only together.
"""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import zmq
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from jupyter_client.session import Session

MARKER = "NOTEBOOK_KERNEL_UNDER_TEST"
"""Environment variable by which the kernel's descendants are known, whoever is their parent by now."""

COMES_AND_GOES = ("IPythonHistorySavingThread", "*/history.sqlite*", "anon_inode:[eventfd]")
"""What the kernel opens and closes by itself: IPython stops its history thread for each fork and starts it
when there is something to write; ipykernel keeps a zmq socket (an eventfd) for each thread that printed, and
drops those of ended threads every ten seconds."""

# The last traceback, and with it all that its frames hold, is kept in two places; %reset frees the rest.
RESET = """\
import sys
for name in ("last_exc", "last_type", "last_value", "last_traceback"):
    sys.__dict__.pop(name, None)
get_ipython().InteractiveTB.tb = None
%reset -f
"""

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class CellTimeoutError(AssertionError):
    """What was waited for did not come in time; says what came until then."""


class KernelDiedError(AssertionError):
    """The kernel's process ended while a test waited for it; says what it left on its terminal."""


# ── What a front end gets ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Message:
    """One message of the iopub channel; `time_s` is this process' monotonic clock at its arrival."""

    time_s: float
    msg_type: str
    content: dict[str, Any]
    metadata: dict[str, Any]
    buffers: list[Any]


@dataclass(frozen=True)
class CellError:
    """An error as the front end shows it; `text` is the joined traceback without colours."""

    ename: str
    evalue: str
    traceback: list[str]
    text: str


@dataclass
class CellRun:
    """One execute request: a handle while it runs, the result once `finish()` has returned.

    All properties can be read at any time; they tell what has come so far.
    """

    kernel: NotebookKernel = field(repr=False)
    code: str
    msg_id: str
    sent_s: float
    messages: list[Message] = field(default_factory=list, repr=False)
    reply: dict[str, Any] | None = field(default=None, repr=False)
    input_requests: deque[dict[str, Any]] = field(default_factory=deque, repr=False)
    idle_s: float | None = None

    @property
    def stdout(self) -> str:
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        return self._stream("stderr")

    @property
    def displays(self) -> list[dict[str, Any]]:
        """The mime bundles of `display()`, without later updates (those are in `messages`)."""
        return [content["data"] for content in self.contents("display_data")]

    @property
    def result(self) -> dict[str, Any] | None:
        """The mime bundle of `Out[n]`."""
        return next((content["data"] for content in self.contents("execute_result")), None)

    @property
    def error(self) -> CellError | None:
        for content in self.contents("error"):
            text = without_ansi("\n".join(content["traceback"]))
            return CellError(content["ename"], content["evalue"], content["traceback"], text)
        return None

    @property
    def finished(self) -> bool:
        return self.reply is not None and self.idle_s is not None

    @property
    def status(self) -> str | None:
        """`ok`, `error` or `aborted`; None while the cell runs."""
        return None if self.reply is None else str(self.reply["status"])

    @property
    def execution_count(self) -> int | None:
        return None if self.reply is None else self.reply.get("execution_count")

    @property
    def duration_s(self) -> float:
        """Seconds from sending the request to the kernel's `idle`."""
        assert self.idle_s is not None, f"still running: {self.describe()}"
        return self.idle_s - self.sent_s

    def contents(self, msg_type: str) -> Iterator[dict[str, Any]]:
        """The contents of all messages of one type, in order."""
        return (message.content for message in list(self.messages) if message.msg_type == msg_type)

    def wait_for_text(self, substring: str, timeout_s: float = 30) -> CellRun:
        """Wait until `substring` stands in stdout or stderr, which may be after the cell's end."""

        def seen() -> bool:
            return substring in self.stdout or substring in self.stderr

        def over() -> bool:
            return seen() or (self.finished and self.status != "ok")

        self.kernel.wait_for(over, timeout_s, f"the text {substring!r}", self)
        assert seen(), f"the cell failed without the text {substring!r}; {self.describe()}"
        return self

    def answer_input(self, text: str, timeout_s: float = 30) -> str:
        """Answer the next `input()` or `getpass()` of the cell; gives its prompt."""
        self.kernel.wait_for(
            lambda: bool(self.input_requests) or self.finished, timeout_s, "a request for input", self
        )
        assert self.input_requests, f"the cell ended without asking for input; {self.describe()}"
        request = self.input_requests.popleft()
        self.kernel.send("stdin", "input_reply", {"value": text, "status": "ok"})
        return str(request["prompt"])

    def finish(self, timeout_s: float = 60) -> CellRun:
        """Wait until the kernel is idle again.

        Raises:
            CellTimeoutError: with what the cell gave until then. The cell runs on.
            KernelDiedError: the kernel's process ended.
        """
        self.kernel.wait_for(lambda: self.finished, timeout_s, "the end of the cell", self)
        return self

    def check(self) -> CellRun:
        """This run if it ended well; otherwise fails with what it gave."""
        assert self.status == "ok", f"the cell did not end well; {self.describe()}"
        return self

    def describe(self) -> str:
        """All that came so far, for a failed test's message."""
        error = self.error
        parts = {
            "cell": self.code,
            "status": str(self.status),
            "stdout": _tail(self.stdout),
            "stderr": _tail(self.stderr),
            "displays": "\n".join(f"{' '.join(data)}: {data.get('text/plain')}" for data in self.displays),
            "result": str((self.result or {}).get("text/plain", "")),
            "error": error.text if error else "",
            "message types": " ".join(message.msg_type for message in self.messages[-20:]),
        }
        return "what came:\n" + "\n".join(
            f"{name}:\n{textwrap.indent(text.rstrip(), '    ')}" for name, text in parts.items() if text
        )

    def _stream(self, name: str) -> str:
        return "".join(content["text"] for content in self.contents("stream") if content["name"] == name)


def without_ansi(text: str) -> str:
    """`text` without colours and cursor movements."""
    return _ANSI.sub("", text)


def _tail(text: str, limit: int = 4000) -> str:
    return text if len(text) <= limit else f"(… {len(text) - limit} characters)" + text[-limit:]


# ── What a kernel holds ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Footprint:
    """What a kernel and its descendants hold at one moment."""

    processes: Mapping[int, str]
    """pid → command line of every descendant, orphans and zombies included."""
    threads: Mapping[int, str]
    """thread id → Python's name, or the name that native code gave it. The nameless ones, numeric libraries'
    pools, live as long as the process and are left out."""
    descriptors: Mapping[int, str]
    shared_memory: frozenset[str]
    listening: frozenset[str]
    environment: Mapping[str, str]
    temporary: frozenset[str]
    """Paths in the kernel's temporary folder, relative to it."""


def leaks(before: Footprint, after: Footprint, allow: Collection[str] = ()) -> list[str]:
    """What `after` holds beyond `before`, a line each; entries that match a pattern of `allow` are left out.

    Patterns are `fnmatch`'s, for thread names, descriptors' targets, `/dev/shm` names, variables and paths. A
    process is never allowed.
    """

    def unexpected(name: str) -> bool:
        # As a name too: in a pattern, the brackets of `anon_inode:[eventfd]` are a set of characters.
        patterns = (*COMES_AND_GOES, *allow)
        return name not in patterns and not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    processes = sorted(after.processes.items() - before.processes.items())
    threads = Counter(after.threads.values()) - Counter(before.threads.values())
    descriptors = _new_descriptors(before.descriptors, after.descriptors)
    lines = [f"process {pid}: {command}" for pid, command in processes]
    lines += [f"{count} thread(s) {name!r}" for name, count in sorted(threads.items()) if unexpected(name)]
    lines += [line for target, line in descriptors if unexpected(target)]
    for what in ("shared_memory", "listening", "temporary"):
        new = getattr(after, what) - getattr(before, what)
        lines += [f"{what.replace('_', ' ')}: {name}" for name in sorted(new) if unexpected(name)]
    for name in sorted(before.environment.keys() | after.environment.keys()):
        old, new = before.environment.get(name), after.environment.get(name)
        if old != new and unexpected(name):
            lines.append(f"environment variable {name} was {old!r}, is {new!r}")
    return lines


def _new_descriptors(before: Mapping[int, str], after: Mapping[int, str]) -> list[tuple[str, str]]:
    # By kind and number, not one by one: a socket that was closed and opened again is no leak.
    def kind(target: str) -> str:
        return re.sub(r":\[\d+\]$", "", target)

    new = Counter(map(kind, after.values())) - Counter(map(kind, before.values()))
    return [
        (target, f"descriptor {number} -> {target} ({new[kind(target)]} more of this kind than before)")
        for number, target in sorted(after.items() - before.items())
        if kind(target) in new
    ]


def poll_until(condition: Callable[[], bool], timeout_s: float, failure: Callable[[], str]) -> None:
    """Ask again and again, for what nothing announces (an exit elsewhere, a file); fails with `failure()`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {failure()}"
        time.sleep(0.02)


# ── The kernel ──────────────────────────────────────────────────────────────────────────────────────────────


class NotebookKernel:
    """A started ipykernel, as a context manager.

    Args:
        environment: variables to set for the kernel, or to unset where the value is None.
    """

    def __init__(self, environment: Mapping[str, str | None] | None = None) -> None:
        self._extra_environment = dict(environment or {})
        self._marker = uuid.uuid4().hex
        self._changed = threading.Condition()
        self._runs: dict[str, CellRun] = {}
        self._replies: dict[str, dict[str, Any]] = {}
        self._idle: set[str] = set()
        self._dead = False
        self._resources = ExitStack()

    def __enter__(self) -> NotebookKernel:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nbk-")))
            stack.callback(self._end_descendants)
            self._manager = stack.enter_context(_started_manager(self.folder, self._environment()))
            self.pid: int = self._manager.provisioner.pid  # type: ignore[union-attr]
            self._wire = stack.enter_context(_Wire(self._manager, self.pid, self._receive, self._exited))
            self._wait_until_ready()
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self.alive and self.unfinished:
            self.kill()  # a busy kernel takes its time to be asked
        self._resources.close()

    # Cells

    def run(
        self,
        code: str,
        timeout_s: float = 60,
        *,
        allow_stdin: bool = False,
        store_history: bool = True,
        answers: Sequence[str] = (),
    ) -> CellRun:
        """Run a cell to its end; `answers` go to its requests for input, in order.

        Raises:
            CellTimeoutError: it did not end in time; the message has what it gave until then.
        """
        run = self.start_run(code, allow_stdin=allow_stdin or bool(answers), store_history=store_history)
        for answer in answers:
            run.answer_input(answer, timeout_s)
        return run.finish(timeout_s)

    def start_run(self, code: str, *, allow_stdin: bool = False, store_history: bool = True) -> CellRun:
        """Send a cell and return at once.

        Code that begins with a line break, as in triple quotes, is dedented; any other is sent as it is.
        """
        cell = textwrap.dedent(code[1:]) if code.startswith("\n") else code
        content = {
            "code": cell,
            "silent": False,
            "store_history": store_history,
            "user_expressions": {},
            "allow_stdin": allow_stdin,
            # Front ends say True, so that the cells they have queued are dropped. ipykernel 6 then also drops
            # a cell that is sent right after the failure, and a test could not tell when it may go on.
            "stop_on_error": False,
        }
        with self._changed:  # so that the thread meets no answer before the run is known
            msg_id = self.send("shell", "execute_request", content)
            run = self._runs[msg_id] = CellRun(self, cell, msg_id, time.monotonic())
        return run

    def value(self, expression: str, timeout_s: float = 30) -> Any:
        """The value of an expression in the notebook, if it is a literal, otherwise its `repr`.

        Leaves no trace in the notebook: no count, no history, no `_`.
        """
        content = {
            "code": "",
            "silent": True,
            "store_history": False,
            "user_expressions": {"value": f"__import__('builtins').repr(({expression}))"},
            "allow_stdin": False,
        }
        answer = self._ask("execute_request", content, timeout_s)["user_expressions"]["value"]
        assert answer["status"] == "ok", f"{expression}: {answer['ename']}: {answer['evalue']}"
        representation = ast.literal_eval(answer["data"]["text/plain"])
        try:
            return ast.literal_eval(representation)
        except (ValueError, SyntaxError):
            return representation

    def complete(self, code: str, cursor_pos: int | None = None, timeout_s: float = 30) -> list[str]:
        """What the tab key offers at `cursor_pos` (default: the end)."""
        content = {"code": code, "cursor_pos": len(code) if cursor_pos is None else cursor_pos}
        return list(self._ask("complete_request", content, timeout_s)["matches"])

    def inspect(self, code: str, cursor_pos: int | None = None, timeout_s: float = 30) -> str:
        """The help text at `cursor_pos` (default: the end), without colours; empty where there is none."""
        position = len(code) if cursor_pos is None else cursor_pos
        content = {"code": code, "cursor_pos": position, "detail_level": 0}
        return without_ansi(self._ask("inspect_request", content, timeout_s)["data"].get("text/plain", ""))

    def interrupt(self) -> None:
        """The stop button: SIGINT to the kernel's process group, as Jupyter sends it."""
        self._manager.interrupt_kernel()

    def kill(self) -> None:
        """SIGKILL to the kernel alone; returns when it has ended."""
        os.kill(self.pid, signal.SIGKILL)
        with self._changed:
            assert self._changed.wait_for(lambda: self._dead, 10), "the kernel outlived SIGKILL"

    def reset(self) -> None:
        """An empty namespace, without what a failed cell's traceback keeps alive, and an empty folder."""
        self.run(RESET, store_history=False).check()
        for path in self.working_folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    # What there is

    @property
    def alive(self) -> bool:
        return not self._dead

    @property
    def unfinished(self) -> list[CellRun]:
        return [run for run in self._runs.values() if not run.finished]

    @property
    def working_folder(self) -> Path:
        return self.folder / "work"

    @property
    def terminal(self) -> str:
        """What went to the terminal that a Jupyter server would run in: no front end shows it."""
        return (self.folder / "terminal.log").read_text(errors="replace")

    def processes(self) -> dict[int, psutil.Process]:
        """All living or zombie descendants of the kernel, orphans included; also after the kernel's death."""
        found = {}
        with suppress(psutil.NoSuchProcess):
            found = {child.pid: child for child in psutil.Process(self.pid).children(recursive=True)}
        for process in psutil.process_iter():
            if process.pid != self.pid and _environment_of(process).get(MARKER) == self._marker:
                found[process.pid] = process
        return found

    def footprint(self) -> Footprint:
        """What the idle kernel and its descendants hold now."""
        environment, thread_names = self.value(
            "(dict(__import__('os').environ),"
            " {t.native_id: t.name for t in __import__('threading').enumerate() if t.native_id})"
        )
        processes = self.processes()
        temporary = self.folder / "tmp"
        return Footprint(
            processes={pid: _command_of(process) for pid, process in processes.items()},
            threads=_threads_of(self.pid, thread_names),
            descriptors=_descriptors_of(self.pid),
            shared_memory=_shared_memory({self.pid, *processes}),
            listening=frozenset(_listening([psutil.Process(self.pid), *processes.values()])),
            environment=environment,
            temporary=frozenset(str(path.relative_to(temporary)) for path in temporary.rglob("*")),
        )

    def assert_no_leaks(self, before: Footprint, within_s: float = 5, allow: Collection[str] = ()) -> None:
        """Fail unless, within `within_s` seconds, the kernel holds nothing beyond `before`; see `leaks`."""
        last: list[str] = []

        def clean() -> bool:
            last[:] = leaks(before, self.footprint(), allow)
            return not last

        poll_until(clean, within_s, lambda: "left behind:\n  " + "\n  ".join(last))

    # Messages

    def send(self, channel: str, msg_type: str, content: Mapping[str, Any]) -> str:
        """Send a request of any kind (a comm message, say); gives its message id."""
        message = self._manager.session.msg(msg_type, content=dict(content))
        self._wire.send(channel, message)
        return str(message["header"]["msg_id"])

    def tell_widget(self, comm_id: str, content: Mapping[str, Any]) -> CellRun:
        """Send what a page's part of a widget says; collects what comes of it, like a cell."""
        with self._changed:
            data = {"method": "custom", "content": dict(content)}
            msg_id = self.send("shell", "comm_msg", {"comm_id": comm_id, "data": data})
            told = self._runs[msg_id] = CellRun(self, f"to a widget: {data}", msg_id, time.monotonic())
            told.reply = {"status": "ok"}  # there is none
        return told

    def wait_for(
        self, condition: Callable[[], bool], timeout_s: float, what: str, run: CellRun | None = None
    ) -> None:
        """Wait until messages have made `condition` true.

        Raises:
            CellTimeoutError: they did not within `timeout_s`.
            KernelDiedError: the kernel's process ended first.
        """
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._dead, timeout_s)
            if condition():
                return
            died = self._dead
        came = run.describe() if run else ""
        if died:
            terminal = _tail(self.terminal)
            raise KernelDiedError(f"the kernel died before {what}; {came}\nits terminal:\n{terminal}")
        raise CellTimeoutError(f"{what} did not come within {timeout_s} s; {came}")

    def _ask(self, msg_type: str, content: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        msg_id = self.send("shell", msg_type, content)

        def answered() -> bool:
            # Idle too: otherwise the next cell could begin while this request still winds up.
            return msg_id in self._replies and msg_id in self._idle

        self.wait_for(answered, timeout_s, f"the reply to {msg_type}")
        return self._replies[msg_id]

    def _receive(self, channel: str, raw: dict[str, Any]) -> None:
        now_s = time.monotonic()
        msg_id, msg_type, content = raw["parent_header"].get("msg_id", ""), raw["msg_type"], raw["content"]
        with self._changed:
            run = self._runs.get(msg_id)
            if channel == "shell":
                self._replies[msg_id] = content
                if run:
                    run.reply = content
            elif channel == "stdin" and run:
                run.input_requests.append(content)
            elif channel == "iopub":
                if msg_type == "status" and content["execution_state"] == "idle":
                    self._idle.add(msg_id)
                    if run:
                        run.idle_s = now_s
                if run:
                    run.messages.append(Message(now_s, msg_type, content, raw["metadata"], raw["buffers"]))
            self._changed.notify_all()

    def _exited(self) -> None:
        with self._changed:
            self._dead = True
            self._changed.notify_all()

    # Beginning and end

    def _wait_until_ready(self) -> None:
        # The iopub subscription takes hold at a moment nobody announces: ask until an answer arrives there.
        for _ in range(60):
            msg_id = self.send("shell", "kernel_info_request", {})
            try:
                self.wait_for(lambda: msg_id in self._idle, 1, "the kernel's first sign of life")  # noqa: B023
            except CellTimeoutError:
                continue
            return
        raise CellTimeoutError(f"the kernel did not start; its terminal:\n{_tail(self.terminal)}")

    def _environment(self) -> dict[str, str]:
        folders = {
            "HOME": "home",
            "IPYTHONDIR": "ipython",
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "TMPDIR": "tmp",
        }
        for name in (*folders.values(), "work"):
            (self.folder / name).mkdir()
        own = {variable: str(self.folder / name) for variable, name in folders.items()}
        # A cell that takes a second on a busy machine would have a panel: tests of that ask for it.
        own["NBDIST_DASHBOARD"] = "none"
        # The user's own: to make the font cache takes seconds.
        own["MPLCONFIGDIR"] = str(Path.home() / ".cache" / "matplotlib")
        wanted = {**os.environ, **own, MARKER: self._marker, **self._extra_environment}
        return {name: value for name, value in wanted.items() if value is not None}

    def _end_descendants(self) -> None:
        for process in self.processes().values():
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def _started_manager(folder: Path, environment: dict[str, str]) -> Iterator[KernelManager]:
    spec = folder / "kernels" / "under-test"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = {"argv": argv, "display_name": "test", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(kernel))
    manager = KernelManager(
        kernel_name=spec.name,
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(spec.parent)], ensure_native_kernel=False),
        connection_file=str(folder / "runtime" / "kernel.json"),
        transport="ipc",  # no port that another program could take between its choice and its use
        session=Session(digest_history_size=0),  # two threads use it; the history is its only shared state
    )
    with (folder / "terminal.log").open("wb") as terminal:
        manager.start_kernel(env=environment, cwd=str(folder / "work"), stdout=terminal, stderr=terminal)
    try:
        yield manager
    finally:
        manager.shutdown_kernel()


class _Wire(threading.Thread):
    """The one thread that touches the kernel's sockets."""

    def __init__(
        self,
        manager: KernelManager,
        pid: int,
        on_message: Callable[[str, dict[str, Any]], None],
        on_exit: Callable[[], None],
    ) -> None:
        super().__init__(name="notebook-kernel-wire", daemon=True)
        self._manager, self._pid, self._on_message, self._on_exit = manager, pid, on_message, on_exit
        self._outbox: deque[tuple[str, dict[str, Any]] | None] = deque()
        self._bell, self._ring = os.pipe()

    def __enter__(self) -> _Wire:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._put(None)
        self.join()
        os.close(self._bell)
        os.close(self._ring)

    def send(self, channel: str, message: dict[str, Any]) -> None:
        self._put((channel, message))

    def _put(self, item: tuple[str, dict[str, Any]] | None) -> None:
        self._outbox.append(item)
        os.write(self._ring, b"!")

    def run(self) -> None:
        manager = self._manager
        with ExitStack() as stack:
            # One name for both: by the shell socket's the kernel finds the stdin socket.
            identity = manager.session.bsession
            connected = {
                "shell": manager.connect_shell(identity),
                "stdin": manager.connect_stdin(identity),
                "iopub": manager.connect_iopub(),
            }
            sockets = {name: stack.enter_context(closing(socket)) for name, socket in connected.items()}
            poller = zmq.Poller()
            for source in (*sockets.values(), self._bell):
                poller.register(source, zmq.POLLIN)
            exit_watch = os.pidfd_open(self._pid)
            stack.callback(os.close, exit_watch)
            poller.register(exit_watch, zmq.POLLIN)
            while True:
                ready = dict(poller.poll())
                for name, socket in sockets.items():
                    if socket in ready:
                        self._on_message(name, manager.session.recv(socket)[1])
                if exit_watch in ready:
                    poller.unregister(exit_watch)
                    self._on_exit()
                if self._bell in ready:
                    os.read(self._bell, 1)
                    item = self._outbox.popleft()
                    if item is None:
                        return
                    manager.session.send(sockets[item[0]], item[1])


# ── What the system says ────────────────────────────────────────────────────────────────────────────────────


def _environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):  # gone by now, or somebody else's
        return {}


def _command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.ZombieProcess:
        return f"{process.name()} (zombie)"
    except psutil.NoSuchProcess:
        return "(gone)"


def _threads_of(pid: int, python_names: Mapping[int, str]) -> dict[int, str]:
    names = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # ended meanwhile
            names[int(task.name)] = (task / "comm").read_text().strip()
    # A thread that nobody named has the name of the one that made it: the main thread's.
    return {**{thread: name for thread, name in names.items() if name != names[pid]}, **python_names}


def _descriptors_of(pid: int) -> dict[int, str]:
    targets = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            targets[int(link.name)] = os.readlink(link)
    return targets


def _shared_memory(tree: Collection[int]) -> frozenset[str]:
    """Names in /dev/shm, without those that a process outside of the kernel's tree has mapped."""
    names = set(os.listdir("/dev/shm"))
    for process in psutil.process_iter() if names else ():
        if process.pid not in tree:
            with suppress(OSError):
                maps = Path(f"/proc/{process.pid}/maps").read_text()
                names -= {name for name in names if f"/dev/shm/{name}" in maps}
    return frozenset(names)


def _listening(processes: Sequence[psutil.Process]) -> Iterator[str]:
    for process in processes:
        with suppress(psutil.Error):
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    yield f"{connection.laddr.ip}:{connection.laddr.port} of {_command_of(process)}"
