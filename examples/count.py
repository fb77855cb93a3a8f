"""Count the lines that make an example out of the template.

    python examples/count.py

Counted are the lines of code that are new or changed in the student's files, plot.py and run.sh
included. Not counted are deleted and blank lines, comments, docstrings, and the network: classes of
nn.Module and the table MODELS. The second column has the docstrings, too.
"""

import ast
import io
import sys
import tokenize
from difflib import SequenceMatcher
from pathlib import Path

from merge import EXAMPLES, TEMPLATE, names


def counts(example: str) -> dict[str, tuple[int, int]]:
    """Return by file how many lines an example adds and changes, without and with docstrings."""
    found = {}
    for file in sorted([*(EXAMPLES / example).glob("*.py"), *(EXAMPLES / example).glob("*.sh")]):
        before = TEMPLATE / file.name
        found[file.name] = changed(before, file, False), changed(before, file, True)
    return found


def changed(before: Path, after: Path, docstrings: bool) -> int:
    """Return how many lines of a file are new or changed."""
    old = code(before, docstrings) if before.exists() else []
    new = code(after, docstrings)
    edits = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return sum(last - first for kind, _, _, first, last in edits if kind in ("insert", "replace"))


def code(file: Path, docstrings: bool = False) -> list[str]:
    """Return the lines of a file that count, without their comments."""
    text = file.read_text()
    lines = text.splitlines()
    if file.suffix != ".py":
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for node in ast.walk(ast.parse(text)):
        if is_network(node) or (is_docstring(node) and not docstrings):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return [line for line in lines if line]


def is_network(node: ast.AST) -> bool:
    """Return whether a statement is part of the network."""
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base).startswith("nn.") for base in node.bases)
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "MODELS"


def is_docstring(node: ast.AST) -> bool:
    """Return whether a statement is a text alone: of a module, class, function or field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def main() -> int:
    """Print a table for each example."""
    for example in names():
        found = counts(example)
        found["sum"] = tuple(map(sum, zip(*found.values(), strict=True)))
        print(f"{example:15} code  with docstrings")
        for name, (lines, documented) in found.items():
            print(f"  {name:13} {lines:4}  {documented:15}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
