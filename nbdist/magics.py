"""The IPython side: ``%%distributed``, its help and its completion."""

from __future__ import annotations

from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, magics_class

from nbdist.cell import parse_cell
from nbdist.options import complete, help_text, parse_magic
from nbdist.session import run_cell

_COMPLETED = "%%distributed"


@magics_class
class DistributedMagics(Magics):
    """nbdist's magics."""

    @cell_magic
    def distributed(self, line: str, cell: str) -> Any:
        shell: Any = self.shell
        options = parse_magic(line)
        parsed = parse_cell(cell, shell.transform_cell)
        return run_cell(shell, parsed, f"%%distributed {line}".rstrip(), options)

    distributed.__doc__ = help_text()


def _complete(_shell: Any, event: Any) -> list[str]:
    return complete(event.line)


def load(shell: InteractiveShell) -> None:
    """What ``%load_ext nbdist`` does."""
    shell.register_magics(DistributedMagics)
    shell.set_hook("complete_command", _complete, str_key=_COMPLETED)


def unload(shell: InteractiveShell) -> None:
    """What ``%unload_ext nbdist`` does: take all back."""
    shell.magics_manager.magics["cell"].pop("distributed", None)
    shell.strdispatchers["complete_command"].strs.pop(_COMPLETED, None)
