"""The cell's output: items of the text view, written where the notebook shows them."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Protocol

from nbdist.messages import Asking, Display, Reply
from nbdist.views.items import Item, Shown, Stream, label_text


def is_watched(shell: Any) -> bool:
    """Whether somebody looks on: False in batch runs (nbclient, papermill), where no input is allowed."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        return bool(getattr(kernel, "_allow_stdin", True))
    return sys.stdout is not None and sys.stdout.isatty()


class Output(Protocol):
    """Where a run's text and displays go, and whom it asks."""

    def show(self, items: Sequence[Item]) -> None:
        """Write items in their order."""

    def note(self, text: str) -> None:
        """A word of nbdist's own, beside the run's output."""

    def ask(self, question: Asking) -> Reply:
        """Put a rank's question to the user."""


class Screen:
    """Writes to the cell that runs. Used from one thread.

    Args:
        shell: the notebook's IPython, or None in a plain Python process.
    """

    def __init__(self, shell: Any):
        self._shell = shell

    def show(self, items: Sequence[Item]) -> None:
        """Write items in their order: neighbours on one stream at once, as one message."""
        for stream, run in groupby(items, key=lambda item: getattr(item, "stream", None)):
            if stream is not None:
                self._write(stream, "".join(item.labelled for item in run if isinstance(item, Stream)))
                continue
            for item in run:
                assert isinstance(item, Shown)
                self._show_display(item)

    def _show_display(self, item: Shown) -> None:
        if isinstance(item.display, Display) and item.display.at_end and self._shell is not None:
            self._display_at_end(item)
        else:
            self._display(item)

    def _show_result(self, display: Display) -> None:
        hook = self._shell.displayhook
        hook.start_displayhook()
        hook.write_output_prompt()
        hook.write_format_data(dict(display.data), dict(display.metadata))
        hook.finish_displayhook()

    def note(self, text: str) -> None:
        """A word of nbdist's own, beside the cell's output."""
        self._write("stderr", f"nbdist: {text}\n")

    def ask(self, question: Asking) -> Reply:
        """Put a rank's question to the user."""
        ask = getpass.getpass if question.secret else input
        try:
            return Reply(text=ask(question.prompt))
        except (EOFError, NotImplementedError, OSError) as error:  # nobody is there to be asked
            return Reply(error=error)

    def _write(self, name: str, text: str) -> None:
        stream = getattr(sys, name)
        if stream is not None:  # a process without a terminal may have none
            stream.write(text)
            stream.flush()

    def _display_at_end(self, item: Shown) -> None:
        """Show it behind the result of the cell that runs, where an ordinary cell shows open figures."""
        events = self._shell.events

        def show() -> None:
            events.unregister("post_execute", show)
            self._display(item)

        events.register("post_execute", show)

    def _display(self, item: Shown) -> None:
        display = item.display
        assert isinstance(display, Display)
        if self._shell is None:
            self._write("stdout", f"{display.data.get('text/plain', '')}\n")
            return
        publisher = self._shell.display_pub
        if display.kind == "clear":
            publisher.clear_output(wait=display.wait)
            return
        if display.kind == "result" and not item.ranks:
            self._show_result(display)
            return
        if item.ranks and display.kind != "update":
            self._write("stdout", f"{label_text(item.ranks)}\n")
        transient = {"display_id": display.display_id} if display.display_id else {}
        publisher.publish(
            data=dict(display.data),
            metadata=dict(display.metadata),
            transient=transient,
            update=display.kind == "update",
        )
