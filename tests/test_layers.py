"""The package's layout: who may import whom, what an import costs, how long a file may be."""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "nbdist"

ROWS = (
    {"errors", "checks", "looks", "figures", "audience"},
    {"options", "messages", "forksafety", "shell", "nvml", "role"},
    {"cell", "channel", "help", "defaults", "devices"},
    {"values", "state", "metrics"},
    {"training", "views", "digits"},
    {"worker"},
    {"start"},
    {"session"},
    {"auto"},
    {"commands", "lookup", "cluster", "doctor", "demo"},
    {"magics"},
    {"cli"},
    {"__main__"},  # calls cli
    {"__init__"},  # re-exports what users name; nothing in the package needs it
)
"""Modules and sub-packages of nbdist, each importing only from rows above its own."""

ROW_OF = {unit: number for number, row in enumerate(ROWS, 1) for unit in row}

LONG_FILE_LINES = 400


@dataclass(frozen=True)
class Import:
    """One import of the package by itself."""

    file: str
    line: int
    unit: str
    imported: str
    for_types: bool
    """Inside `if TYPE_CHECKING:`."""

    def fault(self) -> str | None:
        """What is wrong with it, if anything."""
        here, there = ROW_OF.get(self.unit), ROW_OF.get(self.imported)
        if here is None or there is None:
            return f"{self.file}:{self.line}: {_homeless(self.unit if here is None else self.imported)}"
        if self.unit == self.imported or there < here or (there == here and self.for_types):
            return None
        where = "its own row" if there == here else "a row below"
        allowed = f"rows 1 to {here - 1}" if here > 1 else "none"
        return (
            f"{self.file}:{self.line}: {self.unit!r} (row {here}) imports {self.imported!r} (row {there}), "
            f"from {where}; allowed: {allowed}"
        )


def imports_of(package: Path) -> Iterator[Import]:
    """Every import of `package` from itself, wherever in a file it stands."""
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(), str(path))
        for_types = _nodes_for_types(tree)
        file, unit = str(path.relative_to(package.parent)), _unit_of_file(path, package)
        for node in ast.walk(tree):
            for line, name in _imported_names(node, path, package):
                imported = _unit_of(name, package)
                if imported is not None:
                    yield Import(file, line, unit, imported, node in for_types)


def _nodes_for_types(tree: ast.AST) -> set[ast.AST]:
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }


def _imported_names(node: ast.AST, path: Path, package: Path) -> list[tuple[int, str]]:
    """The absolute dotted names that a node imports, each with its line."""
    if isinstance(node, ast.Import):
        return [(node.lineno, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parts = [node.module] if node.module else []
        if node.level:
            parts = [*path.parents[node.level - 1].relative_to(package.parent).parts, *parts]
        # Each name may be a module or something in one; `_unit_of` knows.
        return [(node.lineno, ".".join([*parts, alias.name])) for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return [(node.lineno, first.value)]
    return []


def _unit_of_file(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def _unit_of(name: str, package: Path) -> str | None:
    """The module or sub-package directly under `package` that a dotted name leads to; None: outside."""
    first, *rest = name.split(".")
    if first != package.name:
        return None
    if rest and ((package / rest[0]).is_dir() or (package / f"{rest[0]}.py").exists()):
        return rest[0]
    return "__init__"


def faults_of(package: Path) -> list[str]:
    """What breaks the table, a line each."""
    units = {_unit_of_file(path, package) for path in package.rglob("*.py")}
    return [
        *(_homeless(unit) for unit in sorted(units - ROW_OF.keys())),
        *(fault for found in imports_of(package) if (fault := found.fault())),
    ]


def _homeless(unit: str) -> str:
    return f"{unit!r} has no row; give it one in {Path(__file__).name}"


def too_long(package: Path) -> list[str]:
    """Files beyond the limit that do not say why."""
    return [
        f"{path.relative_to(package.parent)}: {lines} lines, and no line with 'Longer than 400 lines because'"
        for path in sorted(package.rglob("*.py"))
        if (lines := len((text := path.read_text()).splitlines())) > LONG_FILE_LINES
        and f"Longer than {LONG_FILE_LINES} lines because" not in text
    ]


# ── The package as it is ────────────────────────────────────────────────────────────────────────────────────


def test_modules_import_only_from_rows_above() -> None:
    assert list(imports_of(PACKAGE)), f"no import found under {PACKAGE}: is this the package?"
    assert faults_of(PACKAGE) == []


def test_long_files_say_why() -> None:
    assert too_long(PACKAGE) == []


def test_the_root_only_re_exports() -> None:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    defined = {node.name for node in tree.body if isinstance(node, definitions)}
    assert defined <= {"__getattr__", "__dir__", "load_ipython_extension", "unload_ipython_extension"}


def test_import_of_the_package_is_light_and_without_effects() -> None:
    seen = _in_fresh_interpreter(
        """
        import nbdist
        report["loaded"] = list(sys.modules)
        """
    )
    assert not {"torch", "IPython", "ipywidgets", "numpy"}.intersection(seen["loaded"])
    assert seen["changed"] == []


def test_every_public_name_can_be_had_and_says_what_it_is() -> None:
    seen = _in_fresh_interpreter(
        """
        import nbdist
        public = {name: getattr(nbdist, name, None) for name in nbdist.__all__}
        report["names"] = list(public)
        report["missing"] = [name for name, value in public.items() if value is None]
        report["undocumented"] = [name for name, value in public.items() if not value.__doc__]
        report["not offered by the tab key"] = [name for name in public if name not in dir(nbdist)]
        """
    )
    assert seen.pop("names")
    seen.pop("changed")  # torch, which some of them load, may change what it likes
    assert {what: names for what, names in seen.items() if names} == {}


def test_no_module_does_anything_when_imported() -> None:
    names = [
        module.name
        for module in pkgutil.walk_packages([str(PACKAGE)], "nbdist.")
        if not module.name.endswith(".__main__")
    ]
    # What others do at their import is not looked at: they come first.
    seen = _in_fresh_interpreter(
        f"""
        import importlib
        for name in {names!r}:
            importlib.import_module(name)
        """,
        before="import IPython, ipykernel.kernelapp, ipywidgets, torch.distributed, torch.utils.data",
    )
    assert seen == {"changed": []}


def _in_fresh_interpreter(code: str, before: str = "") -> dict[str, list[str]]:
    """Run `code`, which may add to `report`; `changed` has what it changed in the process."""
    script = """
import json, os, signal, sys, threading
{before}
def state():
    return {{
        "environment": dict(os.environ),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "handlers": {{number: repr(signal.getsignal(number)) for number in signal.valid_signals()}},
        "hooks": [repr(hook) for hook in (sys.excepthook, sys.displayhook, threading.excepthook)],
        "streams": [repr(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "descriptors": sorted(os.listdir("/proc/self/fd")),
    }}
old, report = state(), {{}}
{code}
report["changed"] = [name for name, value in state().items() if value != old[name]]
print(json.dumps(report))
"""
    filled = script.format(before=before, code=textwrap.dedent(code))
    command = [sys.executable, "-W", "error", "-c", filled]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report: dict[str, list[str]] = json.loads(done.stdout)
    return report


# ── The checks themselves, on packages made for them ────────────────────────────────────────────────────────


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with the real one's name and an empty module or sub-package for each row."""
    package = tmp_path / "nbdist"
    for unit in ("errors", "options", "messages", "cell", "channel", "digits", "session", "cli", "__init__"):
        write(package, f"{unit}.py")
    for unit in ("values", "worker", "views", "start"):
        write(package, f"{unit}/__init__.py")
        write(package, f"{unit}/main.py")
    return package


def write(package: Path, name: str, text: str = "") -> None:
    (package / name).parent.mkdir(parents=True, exist_ok=True)
    (package / name).write_text(text)


FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "cell.py",
            "import os, torch\nfrom nbdist.errors import A\nimport nbdist.options\nfrom . import messages",
        ),
        ("worker/main.py", "from . import other\nfrom .other import x\nfrom nbdist.worker import y"),
        ("worker/main.py", "from ..cell import x\nfrom .. import errors"),
        ("worker/main.py", FOR_TYPES + "from nbdist.views import x"),
        ("options.py", "import typing\nif typing.TYPE_CHECKING:\n    from .messages import x"),
        ("cli.py", "def main():\n    from nbdist.session import Session"),
        ("__init__.py", "def __getattr__(name):\n    from . import cli, session\n"),
        ("errors.py", "import nbdistance\nfrom nbdistance.session import x\nfrom session import y"),
    ],
)
def test_what_the_table_allows(package: Path, file: str, text: str) -> None:
    write(package, file, text)
    assert faults_of(package) == []


OWN, BELOW = "from its own row", "from a row below"


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("options.py", "import nbdist.messages", f"'options' (row 2) imports 'messages' (row 2), {OWN}"),
        ("options.py", "from .messages import x", f"'options' (row 2) imports 'messages' (row 2), {OWN}"),
        ("errors.py", "from nbdist import options", f"'errors' (row 1) imports 'options' (row 2), {BELOW}"),
        ("errors.py", "from . import session", f"'errors' (row 1) imports 'session' (row 8), {BELOW}"),
        ("errors.py", "\n\nimport nbdist.cell as c", "nbdist/errors.py:3: 'errors' (row 1) imports 'cell'"),
        ("errors.py", "def f():\n    if f:\n        from .cell import x", "nbdist/errors.py:3: 'errors'"),
        ("errors.py", "from importlib import import_module\nimport_module('nbdist.cli')", "imports 'cli'"),
        ("worker/main.py", "from ..start.main import x", "'worker' (row 6) imports 'start' (row 7)"),
        ("worker/__init__.py", "from ..start import x", "'worker' (row 6) imports 'start' (row 7)"),
        ("worker/main.py", "from .. import start", "'worker' (row 6) imports 'start' (row 7)"),
        ("views/text.py", "from nbdist import digits", f"'views' (row 5) imports 'digits' (row 5), {OWN}"),
        ("cell.py", FOR_TYPES + "import nbdist.start", f"imports 'start' (row 7), {BELOW}"),
        ("cell.py", FOR_TYPES + "pass\nelse:\n    from . import channel", f"'channel' (row 3), {OWN}"),
        ("session.py", "import nbdist", "imports '__init__'"),
        ("session.py", "from nbdist import launch", "imports '__init__'"),
        ("helpers.py", "", "'helpers' has no row"),
        ("helpers/x.py", "", "'helpers' has no row"),
    ],
)
def test_what_the_table_forbids(package: Path, file: str, text: str, fault: str) -> None:
    write(package, file, text)
    faults = faults_of(package)
    assert len(faults) == 1
    assert fault in faults[0]


def test_a_long_file_must_say_why(package: Path) -> None:
    write(package, "cell.py", "x = 1\n" * LONG_FILE_LINES)
    assert too_long(package) == []
    write(package, "cell.py", "x = 1\n" * (LONG_FILE_LINES + 1))
    assert too_long(package) == [
        "nbdist/cell.py: 401 lines, and no line with 'Longer than 400 lines because'"
    ]
    write(package, "cell.py", "# Longer than 400 lines because it must be.\n" + "x = 1\n" * LONG_FILE_LINES)
    assert too_long(package) == []
