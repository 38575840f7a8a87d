"""One display in the notebook that is written anew: from whatever thread, it stays where it began.

What a thread prints or displays lands in whatever cell ran last. An update of a display goes to where that
stands.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from nbdist.forksafety import fork_gate


class Slot:
    """A display under the cell that runs now.

    Args:
        shell: the notebook's IPython.
    """

    def __init__(self, shell: Any):
        self._shell = shell
        self._id = uuid.uuid4().hex
        self._parent = shell.display_pub.parent_header
        self._shown: dict[str, Any] = {}

    def show(self, data: Mapping[str, Any], *, update: bool) -> None:
        """Show it, first or in the place of what was shown before."""
        self._shown = dict(data)
        with fork_gate:
            publisher = self._shell.display_pub
            publisher.publish(data=dict(data), metadata={}, transient={"display_id": self._id}, update=update)

    def show_here(self) -> None:
        """Show it in the cell that runs, too, if it does not stand there: both places go on together."""
        if not self.is_here and self._shown:
            self.show(self._shown, update=False)

    @property
    def is_here(self) -> bool:
        """Whether it stands under the cell that runs now."""
        return bool(self._shell.display_pub.parent_header == self._parent)

    @contextlib.contextmanager
    def in_its_cell(self) -> Iterator[None]:
        """What this thread sends belongs to the cell that began it, where ipykernel can say so."""
        publisher = self._shell.display_pub
        if not hasattr(publisher, "set_thread_parent"):
            yield
            return
        token = publisher.set_thread_parent(self._parent)
        try:
            yield
        finally:
            publisher.reset_thread_parent(token)
