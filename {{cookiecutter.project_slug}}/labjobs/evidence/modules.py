"""A module of the project, analysed into what its names refer to."""

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib.util import decode_source
from typing import NamedTuple

from labjobs.evidence import scopes
from labjobs.evidence.evidence_files import patterns

Import = ast.Import | ast.ImportFrom
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Alias(NamedTuple):
    """What an imported name refers to: a module, or a name in one."""

    module: str
    name: str | None


class Module:
    """A module's source, its definitions and its imports.

    `definitions` has, for each name, the statements at the top level that bind it; `aliases` the
    names that are imported and nothing else. Raises SyntaxError, ValueError or RecursionError if
    the source cannot be read.
    """

    def __init__(self, name: str, data: bytes, package: str, is_entry: bool) -> None:
        self.name, self.package, self.is_entry = name, package, is_entry
        self.source = decode_source(data)
        self.lines = self.source.splitlines()
        self.statements = [s for s in ast.parse(self.source).body if self._counts(s)]
        bound: dict[str, list[ast.stmt]] = {}
        for statement in self.statements:
            for local in scopes.bound_by(statement):
                bound.setdefault(local, []).append(statement)
        self.aliases = {local: alias for local in bound if (alias := self._alias(local, bound))}
        self.definitions = {local: s for local, s in bound.items() if local not in self.aliases}
        self.nodes = [node for s in self.statements for node in scopes.everywhere(s)]
        self.mentioned = set(_mentioned(self.nodes))

    def _counts(self, statement: ast.stmt) -> bool:
        """Whether a statement runs in a job."""
        if isinstance(statement, ast.If):
            if is_guard(statement):
                return self.is_entry
            return "TYPE_CHECKING" not in set(_mentioned(ast.walk(statement.test)))
        return True

    def _alias(self, name: str, bound: dict[str, list[ast.stmt]]) -> Alias | None:
        """Return what a name refers to, if it is bound only by imports of the same thing."""
        found = {self.imported(s).get(name) for s in bound[name]}
        return found.pop() if len(found) == 1 else None

    def imported(self, statement: ast.AST) -> dict[str, Alias]:
        """Return the names that an import statement binds; nothing for another statement."""
        match statement:
            case ast.Import(names=names):
                return {
                    n.asname or n.name.split(".")[0]: Alias(
                        n.name if n.asname else n.name.split(".")[0], None
                    )
                    for n in names
                }
            case ast.ImportFrom(names=names):
                base = self.absolute(statement)
                return {n.asname or n.name: Alias(base, n.name) for n in names if n.name != "*"}
        return {}

    def absolute(self, statement: ast.ImportFrom) -> str:
        """Return the module that `from … import` names, without leading dots."""
        if not statement.level:
            return statement.module or ""
        parents = self.package.split(".") if self.package else []
        parents = parents[: len(parents) - statement.level + 1]
        return ".".join([*parents, statement.module] if statement.module else parents)

    def stars(self) -> list[str]:
        """Return the modules of `from … import *`, the one with precedence first."""
        return [
            self.absolute(s)
            for s in reversed(self.statements)
            if isinstance(s, ast.ImportFrom) and s.names[0].name == "*"
        ]

    def exports(self, name: str) -> bool:
        """Return whether `from … import *` takes a name along."""
        for statement in self.definitions.get("__all__", []):
            if isinstance(statement, ast.Assign):
                listed = {n.value for n in ast.walk(statement.value) if isinstance(n, ast.Constant)}
                return name in listed
        return not name.startswith("_")

    @cached_property
    def imports(self) -> list[str]:
        """The modules that are imported when the module is."""
        nodes = (node for statement in self.statements for node in scopes.here(statement))
        return [name for node in nodes for name in self.modules_of(node)]

    def imports_anywhere(self) -> Iterator[str]:
        """Yield the modules that are imported anywhere in the module."""
        for node in self.nodes:
            yield from self.modules_of(node)

    def modules_of(self, node: ast.AST) -> Iterator[str]:
        """Yield the modules that an import statement names, and names that may be modules."""
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(names=names):
                base = self.absolute(node)
                yield base
                yield from (f"{base}.{name.name}" for name in names)

    @cached_property
    def dependencies(self) -> list[tuple[int, str]]:
        """The patterns of files after `# depends:`, each with its line, counted from 0."""
        return list(patterns(self.lines))

    def segment(self, node: ast.AST) -> str:
        """Return the lines of a statement, decorators included, or of an expression."""
        return "\n".join(self.lines[slice(*extent(node))])

    def definition_at(self, line: int) -> str:
        """Return a name that the statement at a line, counted from 0, binds; empty if none."""
        return next(
            (
                name
                for name, statements in self.definitions.items()
                for statement in statements
                if line in range(*extent(statement))
            ),
            "",
        )

    @cached_property
    def lines_outside(self) -> list[int]:
        """The lines, counted from 0, that are outside all definitions."""
        inside = {
            line
            for statements in self.definitions.values()
            for statement in statements
            for line in range(*extent(statement))
        }
        return [line for line in range(len(self.lines)) if line not in inside]


def extent(node: ast.AST) -> tuple[int, int]:
    """Return the first line of a node, counted from 0, and the one after its last."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])  # type: ignore[attr-defined]
    return first - 1, node.end_lineno  # type: ignore[attr-defined]


def is_guard(statement: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__":`."""
    return isinstance(statement, ast.If) and "__name__" in set(_mentioned(ast.walk(statement.test)))


def _mentioned(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield names, and attributes with a dot before them, that are read or set."""
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield f".{node.attr}"
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield "except as"
