"""Headings and help texts of a dataclass, as they stand in its source.

The docstring below a field is its help. A comment of one line that begins with a capital letter and
stands alone above a field, such as `# Data`, is the heading of the fields that follow.
"""

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass

HEADING = re.compile(r"# ([A-Z][\w ,()/&'-]*)")


@dataclass(frozen=True)
class Doc:
    """What stands about a field in the source."""

    heading: str
    text: str


def of_fields(kind: type) -> dict[str, Doc]:
    """Return what the source says about each field of a dataclass and of its base classes."""
    found: dict[str, Doc] = {}
    for base in reversed(kind.__mro__[:-1]):
        found |= _of_class(base)
    return found


def _of_class(kind: type) -> dict[str, Doc]:
    """What stands in the body of one class; nothing if it has no source."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return {}
    lines, body = source.splitlines(), ast.parse(source).body[0].body  # type: ignore[attr-defined]
    found, heading, end = {}, kind.__name__, body[0].lineno - 1
    for node, after in zip(body, [*body[1:], None], strict=True):
        heading = _heading(lines[end : node.lineno - 1]) or heading
        end = node.end_lineno
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = Doc(heading, _docstring(after))
    return found


def _heading(gap: list[str]) -> str:
    """The heading in the lines between two statements, where only comments can be."""
    comments = [line.strip() for line in gap if line.strip()]
    match = HEADING.fullmatch(comments[0]) if len(comments) == 1 else None
    return match[1] if match else ""


def _docstring(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""
