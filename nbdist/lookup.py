"""Completion and help for names that live only on the ranks of a live session."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from IPython.core.completer import Completion

from nbdist import defaults
from nbdist.auto import LOCAL, auto
from nbdist.cell import READY_MADE_NAMES
from nbdist.errors import OptionError
from nbdist.options import parse_magic
from nbdist.session import Session, live_sessions, session_named

_MAGIC = "%%distributed"
_NAME = r"[^\W\d]\w*"
_BEFORE_CURSOR = re.compile(
    rf"""(?<![\w.)\]}}"'])"""
    rf"""(?:(?P<owner>{_NAME}(?:\.{_NAME}|\[(?:\d+|'[^'\n]*'|"[^"\n]*")\])*)\.)?(?P<start>(?:{_NAME})?)$"""
)
_IMPORT = re.compile(r"\s*(?:from|import)\b[^;]*$")
_ATTRIBUTE = "property"
_KINDS = {"type": "class", "function": "function", "module": "module"}


class Lookup:
    """Adds what the ranks have to what the notebook's shell offers."""

    def __init__(self) -> None:
        self._shell: Any = None
        self._kernel_pid = 0

    def load(self, shell: Any) -> None:
        """Begin."""
        self._shell, self._kernel_pid = shell, os.getpid()
        self._completions, self._inspect = shell.Completer.completions, shell.object_inspect_mime
        shell.Completer.completions, shell.object_inspect_mime = self.completions, self.inspect

    def unload(self) -> None:
        """Take all back."""
        if self._shell is not None:
            self._shell.Completer.completions = self._completions
            self._shell.object_inspect_mime = self._inspect
            self._shell = None

    def completions(self, text: str, offset: int) -> Iterator[Completion]:
        """As the completer's own, the ranks' before."""
        ours = list(self._ours(text, offset))
        yield from ours
        if any(found.type == _ATTRIBUTE for found in ours):  # of an object that the notebook knows nothing of
            return
        known = {(found.start, found.end, found.text) for found in ours}
        for found in self._completions(text, offset):
            if (found.start, found.end, found.text) not in known:
                yield found

    def _ours(self, text: str, offset: int) -> Iterator[Completion]:
        place = _BEFORE_CURSOR.search(text, 0, offset)
        line = text[:offset].rpartition("\n")[2]
        if place is None or not self._is_for_ranks(text, offset) or _IMPORT.match(line):
            return
        start = place["start"]
        for name, kind in sorted(self._offered(place["owner"], self._session_of(text)).items()):
            # As IPython does: names with an underscore for those who ask for them.
            if name.startswith(start) and (start.startswith("_") or not name.startswith("_")):
                yield Completion(offset - len(start), offset, name, type=kind, _origin="nbdist")

    def _offered(self, owner: str | None, session: Session | None) -> Mapping[str, str]:
        """What may stand behind an object that only the ranks have, or by itself; each with its kind."""
        if owner is None:
            return self._names(session)
        if session is None or not self._only_there(owner, session):
            return {}
        return dict.fromkeys(session.look(owner) or (), _ATTRIBUTE)

    def _is_for_ranks(self, text: str, offset: int) -> bool:
        """Whether what is being written will run on ranks."""
        first = text.lstrip().partition("\n")[0]
        begin = len(text) - len(text.lstrip())
        if first.split(" ")[0].strip() == _MAGIC:
            return offset > begin + len(first)
        return auto.options is not None and first.strip() != LOCAL

    def _session_of(self, text: str) -> Session | None:
        """The live session in which a cell will run."""
        first = text.lstrip().partition("\n")[0].strip()
        options = auto.options or defaults.current()
        if first.startswith(_MAGIC):
            try:
                options = parse_magic(first.removeprefix(_MAGIC), defaults.current())
            except OptionError:  # it is still being written
                return None
        return session_named(options.name)

    def _names(self, session: Session | None) -> Mapping[str, str]:
        names = dict.fromkeys(READY_MADE_NAMES, "instance")
        if session is not None:
            for info in session.names_bound:
                if info.name not in self._shell.user_ns:
                    names[info.name] = _KINDS.get(info.type_name, "instance")
        return names

    def _only_there(self, expression: str, session: Session) -> bool:
        root = re.match(_NAME, expression)
        return root is not None and root[0] in self._names(session).keys() - self._shell.user_ns.keys()

    def inspect(self, oname: str, *args: Any, **facts: Any) -> Mapping[str, str]:
        """As the shell's ``object_inspect_mime``.

        Raises:
            KeyError: there is no such object, here or there.
        """
        facts.update(zip(("detail_level", "omit_sections"), args, strict=False))
        found = self.help(oname, facts)
        if found is not None:
            return found
        here: Mapping[str, str] = self._inspect(oname, **facts)
        return here

    def help(self, expression: str, facts: Mapping[str, Any]) -> dict[str, str] | None:
        """What a rank says of an object that lives only on ranks, as a mime bundle.

        Args:
            facts: arguments of ``object_inspect_mime``.
        """
        if self._shell is None or os.getpid() != self._kernel_pid:
            return None
        for session in self._sessions():
            if self._only_there(expression, session):
                found = session.look(expression, facts)
                if isinstance(found, Mapping):
                    return dict(found)
        return None

    def _sessions(self) -> Iterator[Session]:
        """Those that are up, that of the next cell before all."""
        next_name = (auto.options or defaults.current()).name
        sessions = live_sessions()
        yield from (sessions[name] for name in sorted(sessions, key=lambda name: name != next_name))


lookup = Lookup()
"""The notebook's."""
