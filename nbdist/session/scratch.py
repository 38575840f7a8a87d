"""The folder of a session's temporary files."""

from __future__ import annotations

import tempfile

from nbdist.errors import LaunchError


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
