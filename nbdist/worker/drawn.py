"""Bars that tqdm and rich draw by themselves: heard where these libraries have one place for it.

Neither library offers a hook, so a little of each is replaced, in the rank alone and once it is
imported: the file that a tqdm bar writes to and how a bar travels, and the draws of rich's live displays.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from nbdist.messages import Stream
from nbdist.worker.bars import Bar, Bars
from nbdist.worker.capture import stream_of

_PERCENTAGE = re.compile(r"\d+(\.\d+)?%")


def hear_drawn_bars(bars: Bars) -> None:
    """Send what tqdm and rich draw to `bars`, whenever they are imported."""
    adopt: dict[str, Callable[[Any], None]] = {
        "tqdm.std": lambda module: _hear_tqdm(module, bars),
        "rich.live": lambda module: _hear_rich(module, bars),
    }
    for name in adopt.keys() & sys.modules.keys():
        adopt.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(adopt))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Does something with modules as soon as they have been imported."""

    def __init__(self, actions: Mapping[str, Callable[[Any], None]]):
        self._actions = dict(actions)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that others find, with the action behind its execution."""
        action = self._actions.pop(fullname, None)
        spec = importlib.util.find_spec(fullname) if action is not None else None
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            assert action is not None
            action(module)

        loader.exec_module = execute_and_act
        return spec


# ── tqdm ────────────────────────────────────────────────────────────────────────────────────────────────────


def _hear_tqdm(std: Any, bars: Bars) -> None:
    """Give each tqdm bar a file of its own in the place of the rank's stream.

    tqdm wraps the file of every bar, those of `tqdm.write` apart, in a `DisableOnWriteError`.
    """
    wrap = getattr(std, "DisableOnWriteError", None)
    if wrap is None:  # tqdm of 2020: its bars are text, as other programs' are
        return

    def wrap_or_hear(file: Any, tqdm_instance: Any) -> Any:
        stream = stream_of(file)
        return wrap(file, tqdm_instance) if stream is None else _BarFile(file, tqdm_instance, bars)

    std.DisableOnWriteError = wrap_or_hear
    std.tqdm.__reduce_ex__ = lambda bar, _protocol: _reduce_tqdm(bar)


def _reduce_tqdm(bar: Any) -> Any:
    """A bar that is closed comes back, as what it is still good for: its numbers, and to be printed."""
    if not bar.disable:
        raise TypeError("a progress bar that is open works only on its own rank")
    # Without how it was drawn: on the rank's stream by a function, or by a widget.
    state = {name: value for name, value in vars(bar).items() if name not in ("fp", "sp", "container")}
    file = vars(bar).get("fp")
    stream = stream_of(getattr(file, "_wrapped", file))
    # tqdm's own `__new__` would count it among the bars that are open.
    return object.__new__, (type(bar),), (state, "sp" in vars(bar), stream), None, None, _fill_tqdm


def _fill_tqdm(bar: Any, filling: tuple[dict[str, Any], bool, Stream | None]) -> None:
    state, has_printer, stream = filling
    vars(bar).update(state)
    if stream is not None:
        from tqdm import utils

        bar.fp = utils.DisableOnWriteError(getattr(sys, stream), tqdm_instance=bar)
        if has_printer:
            bar.sp = bar.status_printer(bar.fp)


class _BarFile:
    """What a tqdm bar draws on: each draw says how far it is, and the text is dropped."""

    def __init__(self, file: Any, tqdm: Any, bars: Bars):
        self._wrapped = file  # tqdm looks for this name
        self._tqdm = tqdm
        self._bars = bars
        self._bar: Bar | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._wrapped == getattr(other, "_wrapped", other))

    __hash__ = None  # type: ignore[assignment]  # as tqdm's own wrapper

    def write(self, text: str) -> None:
        """A draw begins with a return. A bar that is closed draws itself once more if it stays, and
        blanks if it does not; the rest moves the cursor."""
        if not self._bars.in_rank:
            self._wrapped.write(text)
        elif text.startswith("\r"):
            is_closed = self._tqdm.disable
            if text.strip():
                self._draw()
            if self._bar is not None and is_closed:
                self._bar.end(kept=bool(text.strip()))

    def _draw(self) -> None:
        meter = self._tqdm.format_dict
        label = str(meter["prefix"] or "").removesuffix(": ")
        if self._bar is None or not self._bar.is_open:
            stream = stream_of(self._wrapped)
            assert stream is not None
            self._bar = self._bars.begin(label, stream)
        drawn = self._tqdm.format_meter(**meter) if meter["bar_format"] else ""
        # Without a label and a bar, the rest: steps, times, speed, postfix.
        counts = {**meter, "prefix": "", "bar_format": "{r_bar}" if meter["total"] else None}
        detail = self._tqdm.format_meter(**counts).removeprefix("| ")
        self._bar.show(label=label, done=meter["n"], total=meter["total"], detail=detail, drawn=drawn)


# ── rich ────────────────────────────────────────────────────────────────────────────────────────────────────


def _hear_rich(live_module: Any, bars: Bars) -> None:
    """Say what a `rich.progress.Progress` would draw; of other live displays show the last state.

    In a notebook rich draws anew, several times a second, into an output widget; elsewhere it moves a
    terminal's cursor, which ipykernel makes it believe in.
    """
    live_class = live_module.Live
    begin, refresh, stop = live_class.start, live_class.refresh, live_class.stop
    heard: dict[int, dict[int, Bar]] = {}  # by live display, by task

    def is_ours(live: Any) -> bool:
        return bars.in_rank and (live.console.is_jupyter or stream_of(live.console.file) is not None)

    def start(live: Any, refresh: bool = False) -> None:
        if is_ours(live):
            live.console.is_interactive = live.console._force_terminal = False
        begin(live, refresh)

    def hear(live: Any) -> None:
        if not is_ours(live):
            refresh(live)
        elif (progress := _progress_of(live)) is not None:
            _show_tasks(progress, heard.setdefault(id(live), {}), bars)

    def end(live: Any) -> None:
        was_shown, in_jupyter = live.is_started and is_ours(live), live.console.is_jupyter
        if was_shown:
            live.refresh()
            live.console.is_jupyter = False  # it would show an empty display
        try:
            stop(live)
        finally:
            live.console.is_jupyter = in_jupyter
        for bar in heard.pop(id(live), {}).values():
            bar.end(kept=not live.transient)
        is_nested = getattr(live, "_nested", False)  # rich 14 and later: shown by its outermost one
        if was_shown and not is_nested and not live.transient and _progress_of(live) is None:
            live.console.print(live.get_renderable())

    live_class.start, live_class.refresh, live_class.stop = start, hear, end


def _progress_of(live: Any) -> Any:
    """The `rich.progress.Progress` that a live display shows, if it shows one."""
    owner = getattr(getattr(live, "_get_renderable", None), "__self__", None)
    return owner if hasattr(owner, "tasks") else None


def _show_tasks(progress: Any, heard: dict[int, Bar], bars: Bars) -> None:
    from rich.text import Text  # the user has imported rich

    tasks = {task.id: task for task in progress.tasks if task.visible}
    for task_id in heard.keys() - tasks.keys():
        heard.pop(task_id).end(kept=False)
    for task_id, task in tasks.items():
        label = Text.from_markup(task.description).plain.strip()
        if task_id not in heard:
            heard[task_id] = bars.begin(label)
        detail = _columns_text(progress, task, label)
        heard[task_id].show(label=label, done=task.completed, total=task.total, detail=detail)


def _columns_text(progress: Any, task: Any, label: str) -> str:
    """What columns of the user's or of another library's say behind the bar, a loss say; empty where there
    are only those that rich has for times and counts, which a bar of ours has too."""
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn

    texts, says_more = [], False
    for column in progress.columns:
        if isinstance(column, (BarColumn, SpinnerColumn)):
            continue
        is_text = isinstance(column, (str, TextColumn))
        drawn = column.format(task=task) if isinstance(column, str) else column(task)
        text = str(getattr(drawn, "plain", drawn if isinstance(drawn, str) else "")).strip()
        if text and text != label and not _PERCENTAGE.fullmatch(text):
            texts.append(text)
            says_more |= is_text or type(column).__module__ != ProgressColumn.__module__
    return " ".join(texts) if says_more else ""
