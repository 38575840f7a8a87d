"""Cell text -> `Cell`: which names it reads and binds, and whether it has a result. Pure: nothing runs.

The compiler decides which names are global, so its code objects are asked: whatever reads or binds in
whatever version of Python (a walrus in a comprehension, a match capture, a class body) is then covered.
"""

from __future__ import annotations

import ast
import dis
import io
import keyword
import re
import tokenize
import unicodedata
import warnings
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType

READY_MADE_NAMES = ("rank", "local_rank", "world_size", "device")
"""Names that a cell finds on every rank, whatever the notebook holds."""

_LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
# Names that code objects mention although the text does not.
_MADE_BY_COMPILER = {"__name__", "__doc__", "__annotations__", "__annotate__", "__conditional_annotations__"}

# Calls that IPython's transform makes of magics, and how many arguments stand before the text.
_MAGIC_CALLS = {"run_line_magic": 1, "run_cell_magic": 1, "system": 0, "getoutput": 0}
_MAY_BIND_ANYTHING = {"exec", "globals", "locals", "vars"}
_MAGIC_MAY_BIND_ANYTHING = re.compile(r"%(run|store|pylab|macro)\b")

# What the parser and the compiler raise for text that is no Python: a null byte is a ValueError
# before Python 3.12, and too deep nesting a RecursionError or a MemoryError.
NO_PYTHON = (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell's text and what it says without being run.

    Attributes:
        source: as written.
        code: after IPython's transform: pure Python.
        reads: global names that its code may read, those of builtins and the words of magics included.
        needs: those of them that its code finds as the notebook has them: not what it has bound before, nor
            words of magics, nor what is ready-made.
        binds: global names that it binds by itself, at the top level or by ``global`` in a function.
        deletes: global names that it may unbind: ``del x``, and the ``x`` of ``except ... as x``.
        star_import: whether it holds ``from ... import *``.
        dotted_imports: submodules that it imports through their package, ``import email.mime.text``: that
            binds the package alone; the submodule is there because it was imported.
        has_result: whether its last statement is an expression that IPython would show.
        syntax_error: why it cannot run as it stands.
    """

    source: str
    code: str
    reads: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    binds: frozenset[str] = frozenset()
    deletes: frozenset[str] = frozenset()
    star_import: bool = False
    dotted_imports: tuple[str, ...] = ()
    has_result: bool = False
    syntax_error: SyntaxError | None = None


def parse_cell(source: str, transform: Callable[[str], str] | None = None) -> Cell:
    """Analyse a cell's text. Never raises for text that is no Python: see `Cell.syntax_error`.

    Args:
        source: the cell as written.
        transform: the shell's ``transform_cell``; None leaves the text as it is.

    Example:
        >>> cell = parse_cell("total = sum(xs)")
        >>> sorted(cell.reads), sorted(cell.binds), cell.has_result
        (['sum', 'xs'], ['total'], False)
    """
    code = source
    try:
        code = transform(source) if transform else source
        tree = _compiled(code, ast.PyCF_ONLY_AST)
    except NO_PYTHON as error:
        return Cell(source=source, code=code, syntax_error=_as_syntax_error(error))
    assert isinstance(tree, ast.Module)
    names, syntax_error = _names_of(tree)
    nodes = list(ast.walk(tree))
    imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return Cell(
        source=source,
        code=code,
        reads=frozenset(names.reads - _MADE_BY_COMPILER).union(_names_in_magics(nodes)),
        needs=frozenset(names.at_once | (names.reads - names.binds)).difference(READY_MADE_NAMES),
        binds=frozenset(names.binds - _MADE_BY_COMPILER),
        deletes=frozenset(names.deletes),
        star_import=any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes),
        dotted_imports=tuple(name for name in imported if "." in name),
        has_result=_has_result(tree, code),
        syntax_error=syntax_error,
    )


def names_read_by(function: Callable[..., object]) -> frozenset[str]:
    """Global names that a Python function or method reads, those of builtins and nested functions included.

    Example:
        >>> sorted(names_read_by(lambda x: scale * len(x)))
        ['len', 'scale']
    """
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    names = _Names()
    if isinstance(code, CodeType):
        names.add(code, is_module=False)
    return frozenset(names.reads - _MADE_BY_COMPILER)


def unknown_outputs(cell: Cell, names: Iterable[str], namespace: Container[str]) -> tuple[str, ...]:
    """Which of *names*, asked for by ``-o`` or ``--gather``, will surely not be there when the cell ends.

    A name is known if the notebook has it, if it stands anywhere in the cell's text, or if the cell
    could bind any name: ``import *``, ``exec``, ``%run`` and the like.

    Example:
        >>> unknown_outputs(parse_cell("loss = 1"), ["loss", "los"], {})
        ('los',)
    """
    if cell.star_import or cell.reads & _MAY_BIND_ANYTHING or _MAGIC_MAY_BIND_ANYTHING.search(cell.source):
        return ()
    known = {*_identifiers(cell.source), *READY_MADE_NAMES}
    return tuple(name for name in names if name not in known and name not in namespace)


@dataclass(slots=True)
class _Names:
    """Global names that code objects mention."""

    reads: set[str] = field(default_factory=set)
    at_once: set[str] = field(default_factory=set)  # by a statement, before any has bound them
    binds: set[str] = field(default_factory=set)
    deletes: set[str] = field(default_factory=set)

    def add(self, code: CodeType, *, is_module: bool) -> None:
        """Collect from a code object and from those nested in it."""
        # A class body looks in itself first: what it surely bound before (no jump until then, no
        # handler) is no global, as in `@size.setter`. Modules and functions have no such names.
        own: set[str] = set()
        straight = not is_module and not getattr(code, "co_exceptiontable", b"")
        for instruction in dis.get_instructions(code):
            operation, name = instruction.opname, instruction.argval
            straight = straight and instruction.opcode not in _JUMPS
            if operation in _LOADS and name not in own:
                self.reads.add(name)
                if is_module and name not in self.binds:
                    self.at_once.add(name)
            elif operation == "STORE_GLOBAL" or (operation == "STORE_NAME" and is_module):
                self.binds.add(name)
            elif operation == "DELETE_GLOBAL" or (operation == "DELETE_NAME" and is_module):
                self.deletes.add(name)
            elif operation == "STORE_NAME" and straight:
                own.add(name)
            elif operation == "DELETE_NAME":
                own.discard(name)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self.add(constant, is_module=False)


def _names_of(tree: ast.Module) -> tuple[_Names, SyntaxError | None]:
    """The names of all statements that compile, with the first error of those that do not."""
    names, first_error = _Names(), None
    for statement in tree.body:
        # One by one, as IPython runs them: `global x` or a `__future__` import holds for its own
        # statement, and under `from __future__ import annotations` annotations still count as read.
        try:
            code = _compiled(ast.Module(body=[statement], type_ignores=[]))
        except NO_PYTHON as error:
            first_error = first_error or _as_syntax_error(error)
            continue
        assert isinstance(code, CodeType)
        names.add(code, is_module=True)
    return names, first_error


def _compiled(source: str | ast.Module, flags: int = 0) -> ast.AST | CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a SyntaxWarning is shown where the cell runs
        compiled: ast.AST | CodeType = compile(
            source,
            "<cell>",
            "exec",
            flags=flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,  # of this file's own __future__ import
            optimize=0,
        )
    return compiled


def _as_syntax_error(error: BaseException) -> SyntaxError:
    if isinstance(error, SyntaxError):
        return error.with_traceback(None)
    return SyntaxError(str(error) or type(error).__name__)


def _names_in_magics(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Words in the text of magics and of shell commands, which may use the notebook's names."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=attr)):
                for argument in node.args[_MAGIC_CALLS.get(attr, len(node.args)) :]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield from _identifiers(argument.value)


def evaluated(cell: Cell) -> frozenset[str]:
    """Words of a cell's strings that could be names, where it evaluates text or looks names up by theirs.

    Example:
        >>> sorted(evaluated(parse_cell("frame.query('x > @limit')")))
        ['limit', 'x']
        >>> sorted(evaluated(parse_cell("globals()['x'], __main__.y")))
        ['x', 'y']
    """
    if not _EVALUATES.search(cell.source):
        return frozenset()
    strings = (text for quote in _STRING.findall(cell.source) for text in quote)
    words = (name for text in strings for name in _identifiers(text))
    return frozenset([*words, *_OF_MAIN.findall(cell.source)])


_EVALUATES = re.compile(
    r"\b(exec|eval|query|run_cell|run_line_magic|globals|locals|vars)\s*\(|\b__main__\s*[.,)]"
)
_OF_MAIN = re.compile(r"\b__main__\s*\.\s*(\w+)")
_STRING = re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'|\"([^\"\\]*(?:\\.[^\"\\]*)*)\"", re.DOTALL)


def _identifiers(text: str) -> Iterator[str]:
    for word in re.findall(r"[^\W\d]\w*", text):
        name = unicodedata.normalize("NFKC", word)  # as Python's own parser does
        if not keyword.iskeyword(name):
            yield name


def _has_result(tree: ast.Module, code: str) -> bool:
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return False
    skipped = (tokenize.ENDMARKER, tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT)
    tokens = [
        token for token in tokenize.generate_tokens(io.StringIO(code).readline) if token.type not in skipped
    ]
    return tokens[-1].string != ";"
