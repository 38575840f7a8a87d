"""What `nbdist.session` offers on a system on which ranks cannot be started: Windows.

A kernel and its ranks hand each other descriptors and signals, which Windows does not have. All else of
nbdist works there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from nbdist import defaults
from nbdist.cell import Cell
from nbdist.errors import LaunchError, SessionError
from nbdist.looks import NameInfo
from nbdist.options import Options, from_keywords
from nbdist.session.giving_back import held_back as held_back
from nbdist.views.overview import SessionStatus


def run_cell(
    shell: Any,  # noqa: ARG001
    cell: Cell,  # noqa: ARG001
    first_line: str,  # noqa: ARG001
    options: Options,
    given: Collection[str] = (),  # noqa: ARG001
) -> Any:
    """Refuse to run a cell on ranks.

    Raises:
        LaunchError: always.
    """
    raise _refusal(options)


def launch(function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:  # noqa: ARG001
    """Refuse to run a function on ranks.

    Raises:
        OptionError: a wrong option.
        LaunchError: always else.
    """
    raise _refusal(from_keywords(defaults.current(), **options))


class Session:
    """Refuses to be made.

    Raises:
        OptionError: a wrong option.
        LaunchError: always else.
    """

    names: Collection[str] = ()
    names_bound: tuple[NameInfo, ...] = ()
    options: Options
    deaths: Mapping[int, Any] = {}

    def __init__(self, **options: Any):
        raise _refusal(from_keywords(defaults.current(), **options))

    @classmethod
    def of(cls, options: Options) -> Session:
        """Refuse to make one.

        Raises:
            LaunchError: always.
        """
        raise _refusal(options)

    def start(self) -> None:
        """There is nothing to start."""

    def stop(self) -> None:
        """There is nothing to end."""

    def options_for(self, cell: Options, given: Collection[str]) -> Options:
        """They are not needed."""
        return cell

    def send_names(self, *names: str) -> None:
        """There is nobody to send them to."""

    def bring_names(self, *names: str, rank: int | None = None) -> int:
        """There is nobody who has them.

        Raises:
            SessionError: always.
        """
        raise no_such_session(self.options.name)

    def look(
        self, expression: str, help: Mapping[str, Any] | None = None
    ) -> tuple[str, ...] | Mapping[str, str] | None:
        """There is nobody to ask."""
        return None

    def status(self) -> SessionStatus:
        """There are no ranks.

        Raises:
            SessionError: always.
        """
        raise no_such_session(self.options.name)

    def logs(self, rank: int, lines: int = 200) -> str:
        """There are no logs.

        Raises:
            SessionError: always.
        """
        raise no_such_session(self.options.name)


class Run:
    """None is begun here."""

    status = "failed"
    world_size = 0

    def __init__(self) -> None:
        raise LaunchError("On Windows no ranks can be started.")

    def stop(self) -> None:
        """There is nothing to end."""

    def logs(self, rank: int = 0, lines: int | None = None) -> str:
        """There are no logs."""
        return ""

    def overview(self) -> SessionStatus:
        """There are no ranks.

        Raises:
            SessionError: always.
        """
        raise no_such_session("")


def live_runs() -> dict[str, Run]:
    """None is up."""
    return {}


def ended_runs() -> dict[str, Run]:
    """None was begun."""
    return {}


def stop_runs() -> None:
    """None is up."""


def live_sessions() -> dict[str, Session]:
    """No session is up."""
    return {}


def no_such_session(name: str) -> SessionError:
    """What is raised where somebody asks for a session that is not up."""
    return SessionError(f"There is no session {name!r}: on Windows no ranks can be started.")


def session_named(name: str) -> Session | None:  # noqa: ARG001
    """No session is up."""
    return None


def stop_sessions() -> None:
    """There is nothing to end."""


def where_ranks_stand() -> list[str]:
    """No ranks are up."""
    return []


def anything_held() -> bool:
    """No ranks are kept."""
    return False


def release() -> bool:
    """There is nothing to end."""
    return False


def debug(rank: int | None = None) -> None:  # noqa: ARG001
    """Refuse to look into a rank.

    Raises:
        SessionError: always.
    """
    raise SessionError("%distributed debug: no ranks are kept, and on Windows none can be started.")


def warm_up(*, with_ipython: bool) -> None:
    """There is nothing to start ahead of need."""


def shut_down() -> None:
    """Nothing was started."""


def _refusal(options: Options) -> LaunchError:
    return LaunchError(
        f"--start-method {options.start_method}: ranks cannot be started on Windows. "
        "Allowed: Linux, macOS, and Linux inside Windows. "
        "Install that with `wsl --install`, then run Jupyter and nbdist in there. "
        "(What is called inside a rank, nbdist.setup and the like, works here too, under torchrun.)"
    )
