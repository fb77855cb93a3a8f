"""The canonical text of a syntax tree: equal for equal programs, on each version of Python.

`ast.dump` will not do: Python 3.12 and 3.13 changed it. Positions, comments, formatting and
docstrings are not in the text, nor are fields that are empty.
"""

import ast
import hashlib
from collections.abc import Iterable

SCHEME = 1
"""Number of the scheme; raise it if the same code would get a different text."""

IGNORED_FIELDS = {"ctx", "kind", "type_comment", "type_ignores", "type_params"}


class Canonical:
    """A writer of canonical text."""

    def __init__(self) -> None:
        self.out: list[str] = []

    def text(self) -> str:
        """Return what has been written."""
        return "".join(self.out)

    def write(self, node: ast.AST) -> None:
        """Write a node; a method such as `_Name` writes that kind of node."""
        getattr(self, f"_{type(node).__name__}", self.plain)(node)

    def plain(self, node: ast.AST) -> None:
        """Write a node field by field."""
        self.out.append(f"{type(node).__name__}(")
        for name, value in ast.iter_fields(node):
            if name not in IGNORED_FIELDS and value is not None and value != []:
                self.field(name, value)
        self.out.append(")")

    def field(self, name: str, value: object) -> None:
        """Write a field of a node."""
        self.out.append(f"{name}=")
        if name in ("body", "orelse", "finalbody") and isinstance(value, list):
            self.block(value)
        else:
            self.value(value)
        self.out.append(";")

    def value(self, value: object) -> None:
        """Write the content of a field: a node, a list or a plain value."""
        if isinstance(value, ast.AST):
            self.write(value)
        elif isinstance(value, list):
            self.out.append("[")
            for part in value:
                self.value(part)
                self.out.append(",")
            self.out.append("]")
        else:
            self.out.append(constant(value))

    def block(self, statements: Iterable[ast.stmt]) -> None:
        """Write statements, except those that do nothing."""
        self.out.append("[")
        for statement in statements:
            if not does_nothing(statement):
                self.write(statement)
                self.out.append(",")
        self.out.append("]")

    def _Constant(self, node: ast.Constant) -> None:
        self.out.append(constant(node.value))

    def _JoinedStr(self, node: ast.JoinedStr) -> None:
        """An f-string; versions of Python differ in how they cut the text between its values."""
        text = ""
        self.out.append("f(")
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            self.out.append(constant(text))
            text = ""
            self.write(part)
        self.out.append(f"{constant(text)})")


def does_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement is `pass`, a docstring or another constant."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def constant(value: object) -> str:
    """Return a constant with its type: 1, 1.0 and True differ."""
    if type(value) is int:
        return f"int:{value:x}"  # decimals of huge numbers are refused
    return f"{type(value).__name__}:{value!a}"


def whole(tree: ast.Module) -> str:
    """Return the canonical text of a module, with every name as it is written there."""
    writer = Canonical()
    writer.block(tree.body)
    return writer.text()


def short(data: bytes) -> str:
    """Return 16 hex digits of a SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]
