"""The name that a run in the background gets in the notebook, which may have something of that name."""

from __future__ import annotations

from typing import Any

from nbdist.errors import OptionError
from nbdist.role import is_notebooks_own
from nbdist.worker.work import CallWork, CellWork, Work


def check_name(name: str, work: Work, namespace: dict[str, Any]) -> str:
    """Whether a run may have that name.

    Returns:
        What to tell of it: something loses its name. Empty where there is nothing to tell.

    Raises:
        OptionError: the work needs what has the name now; done again, it would find the run.
    """
    former = namespace.get(name)
    if former is None or is_notebooks_own(former):
        return ""
    what = f"{name} ({type(former).__name__})"
    if _needs(work, name, former):
        raise OptionError(
            f"--background {name}: the work reads the notebook's {what}, and the run would take that name "
            f"from it: next time the work would find the run. Take another name: --background {name}_run."
        )
    return f"--background {name}: the notebook's {what} is out of reach by that name: it is this run's now."


def _needs(work: Work, name: str, former: Any) -> bool:
    if isinstance(work, CellWork):
        return name in work.cell.needs
    return isinstance(work, CallWork) and any(obj is former for obj in (work.function, *work.args))
