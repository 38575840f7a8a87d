"""The folder of a session's temporary files."""

from __future__ import annotations

import tempfile

from nbdist.errors import LaunchError
from nbdist.worker.interrupts import Board


def make_scratch() -> str:
    """A new one; whoever asks removes it.

    Raises:
        LaunchError: there is no place for it.
    """
    try:
        return tempfile.mkdtemp(prefix="nbdist-")
    except OSError as error:
        raise LaunchError(
            f"the ranks need a folder for temporary files: {error}. Set TMPDIR to one that can be written."
        ) from error


def make_board(scratch: str, world_size: int) -> Board:
    """Where ranks are told of interrupts, in the folder `scratch`.

    Raises:
        LaunchError: there is no room for it.
    """
    try:
        return Board(scratch, create=world_size)
    except OSError as error:
        raise LaunchError(f"the ranks need a folder for temporary files: {error}. Set TMPDIR.") from error
