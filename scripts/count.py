"""Count the lines that make an example out of the template, and those of the same without it.

    python scripts/count.py    the tables of docs/compared.md

Counted are the lines of code that are new or changed in the student's files, plot.py, run.sh and
C++ included; of the scripts in docs/compared, which not all examples have, all. Not counted are
deleted and blank lines, comments, docstrings, and the network: classes of nn.Module and the table
MODELS, which the scripts import.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from merge import EXAMPLES, REPOSITORY, TEMPLATE, names

COMMENT = {".py": "#", ".sh": "#", ".cpp": "//"}
"""What a comment begins with, in the files that are counted."""


def counts(example: str) -> dict[str, int]:
    """Return by file how many lines an example adds and changes."""
    files = sorted(f for f in (EXAMPLES / example).glob("*.*") if f.suffix in COMMENT)
    return {file.name: changed(TEMPLATE / file.name, file) for file in files}


def whole(example: str) -> int:
    """Return how many lines the student's files have in a project made from an example."""
    files = [*TEMPLATE.glob("*.py"), *TEMPLATE.glob("*.sh")]
    own = [EXAMPLES / example / file.name for file in files]
    pairs = zip(own, files, strict=True)
    return sum(len(code(mine if mine.exists() else file)) for mine, file in pairs)


def changed(before: Path, after: Path) -> int:
    """Return how many lines of a file are new or changed."""
    old = code(before) if before.exists() else []
    edits = SequenceMatcher(None, old, code(after), autojunk=False).get_opcodes()
    return sum(last - first for kind, _, _, first, last in edits if kind in ("insert", "replace"))


def code(file: Path) -> list[str]:
    """Return the lines of a file that count, without their comments."""
    text = file.read_text()
    lines = text.splitlines()
    if file.suffix != ".py":
        comment = COMMENT[file.suffix]
        return [line for line in lines if line.strip() and not line.lstrip().startswith(comment)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    for node in ast.walk(ast.parse(text)):
        if is_network(node) or is_docstring(node):
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


def script(example: str, way: str) -> Path:
    """Return where the script is that does the same without the template."""
    return REPOSITORY / "docs" / "compared" / f"{example}_{way}.py"


def table(head: Sequence[str], rows: Mapping[str, Sequence[int]]) -> str:
    """Return a Markdown table of rows of numbers, by their names."""
    cells = [head, ["---"] * len(head), *([name, *each] for name, each in rows.items())]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in cells)


def main() -> int:
    """Print the tables."""
    found = {example: counts(example) for example in names()}
    compared = [example for example in found if script(example, "plain").exists()]
    lines: dict[str, list[int]] = {
        "this template, new and changed": [sum(found[example].values()) for example in compared],
        "this template, all in the student's files": [*map(whole, compared)],
    }
    for way, name in {"lightning": "Lightning", "plain": "plain script with MLflow"}.items():
        lines[name] = [len(code(script(example, way))) for example in compared]
    print(table(["lines", *compared], lines), end="\n\n")
    files = sorted({file for each in found.values() for file in each})
    by_file = {f"`{file}`": [each.get(file, 0) for each in found.values()] for file in files}
    by_file["all of them"] = [sum(each.values()) for each in found.values()]
    print(table(["new and changed in", *found], by_file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
