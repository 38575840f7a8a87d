"""The cell's output: items of the text view, written where the notebook shows them."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Protocol

from nbdist.messages import Asking, Display, Reply
from nbdist.views.footer import footer, terminal_size
from nbdist.views.items import Item, Shown, Stream, label_text
from nbdist.views.status import MOST_CHARS


def is_watched(shell: Any) -> bool:
    """Whether somebody looks on: False in batch runs (nbclient, papermill), where no input is allowed."""
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        return bool(getattr(kernel, "_allow_stdin", True))
    return sys.stdout is not None and sys.stdout.isatty()


def status_chars(shell: Any) -> int:
    """How long a line that is written anew may be."""
    is_page = getattr(shell, "kernel", None) is not None
    return MOST_CHARS if is_page else min(MOST_CHARS, terminal_size().columns - 1)


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
        with footer.aside():
            for stream, run in groupby(items, key=lambda item: getattr(item, "stream", None)):
                if stream is not None:
                    footer.write(stream, "".join(item.labelled for item in run if isinstance(item, Stream)))
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
        footer.write("stderr", f"nbdist: {text}\n")

    def ask(self, question: Asking) -> Reply:
        """Put a rank's question to the user."""
        ask = getpass.getpass if question.secret else input
        try:
            with footer.aside():
                footer.follow(question.prompt)
                reply = Reply(text=ask(question.prompt))
                footer.follow("\n")
                return reply
        except (EOFError, NotImplementedError, OSError) as error:  # nobody is there to be asked
            return Reply(error=error)

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
        footer.follow("\n")  # where IPython writes it, it ends a line
        if self._shell is None:
            footer.write("stdout", f"{display.data.get('text/plain', '')}\n")
            return
        publisher = self._shell.display_pub
        if display.kind == "clear":
            publisher.clear_output(wait=display.wait)
            return
        if display.kind == "result" and not item.ranks:
            self._show_result(display)
            return
        if item.ranks and display.kind != "update":
            footer.write("stdout", f"{label_text(item.ranks)}\n")
        transient = {"display_id": display.display_id} if display.display_id else {}
        publisher.publish(
            data=dict(display.data),
            metadata=dict(display.metadata),
            transient=transient,
            update=display.kind == "update",
        )
