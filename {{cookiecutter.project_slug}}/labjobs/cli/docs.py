"""Headings and help texts of a dataclass, read from its source.

The docstring below a field is its help. A one-line comment between two fields, such as `# Data`, is
the heading of the fields that follow, if it begins with a capital letter and has no full stop;
other comments are ignored.
"""

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass

HEADING = re.compile(r"# ([A-Z][\w ,()/&'-]*)")


@dataclass(frozen=True)
class Doc:
    """What the source says about a field."""

    heading: str
    text: str


def of_fields(kind: type) -> dict[str, Doc]:
    """Return what the source says about each field of a dataclass and of its base classes."""
    found: dict[str, Doc] = {}
    for base in reversed(kind.__mro__[:-1]):
        found |= _of_class(base)
    return found


def _of_class(kind: type) -> dict[str, Doc]:
    """What the body of one class says about its fields; empty if the class has no source."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
        definition = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError):  # made by a function; changed since it was imported
        return {}
    lines, body = source.splitlines(), definition.body  # type: ignore[attr-defined]
    found, heading, end = {}, kind.__name__, definition.lineno
    for node, after in zip(body, [*body[1:], None], strict=True):
        heading = _heading(lines[end : node.lineno - 1]) or heading
        end = node.end_lineno
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = Doc(heading, _docstring(after))
    return found


def _heading(gap: list[str]) -> str:
    """The last heading between two statements, where there can only be comments."""
    blocks = re.split(r"\n\s*\n", "\n".join(gap))
    found = [match[1] for block in blocks if (match := HEADING.fullmatch(block.strip()))]
    return found[-1] if found else ""


def _docstring(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""
