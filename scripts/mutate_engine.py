"""Random changes of the engine's modules: how many of them the tests find.

    python scripts/mutate_engine.py [--count 40] [--seed 0] [MODULE …] > docs/mutations.md

Each change is made to the syntax tree of one module, in a copy of the template, and the module's
own tests in tests/engine are run. A change that they pass with is listed below the table; some of
these change nothing that anybody could notice.
"""

import argparse
import ast
import compileall
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import NamedTuple

import pytest
import torch  # noqa: F401  (slow: the forks that run tests have it already)

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from mutants import code_in, mutate  # noqa: E402
from pages import machine, page  # noqa: E402

INNER = "{{cookiecutter.project_slug}}"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "runs", "mlruns", "data")

MODULES = {
    "evidence/fingerprint.py": ("test_closure.py", "test_fingerprint.py", "test_code_edits.py"),
    "job/journal.py": ("test_lines.py", "test_journal.py", "test_resume.py"),
    "training/checkpoints.py": ("test_checkpoints.py", "test_resume.py"),
    "training/meters.py": ("test_meters.py", "test_measures.py", "test_loop.py", "test_resume.py"),
    "data/order.py": ("test_order.py", "test_batches.py", "test_data.py"),
}
"""Modules on which most guarantees rest, by their paths in labjobs/, with their tests."""

OF_ALL_CHANGES = "tests/engine/test_fingerprint.py::test_the_results_versions_are_recorded"
"""A test that finds any change, whatever it does."""


BY_CONTENT = PycInvalidationMode.CHECKED_HASH
"""Compiled code is used while its source is the same, however quickly that changes."""


class Mutant(NamedTuple):
    """A module after a random change."""

    source: str
    what: str


def mutant(source: str, chance: random.Random) -> Mutant:
    """Return a module after a random change that is more than another spelling."""
    while True:
        tree = ast.parse(source)
        node = chance.choice([*code_in(tree)])
        line, before = getattr(node, "lineno", 0), ast.unparse(node)
        if isinstance(node, ast.stmt | ast.expr) and mutate(node, chance):
            changed = ast.unparse(ast.fix_missing_locations(tree))
            if _code(ast.parse(changed)) != _code(ast.parse(source)):
                return Mutant(changed, f"line {line}: {_change(before, node)}")


def _code(tree: ast.Module) -> str:
    """Return what a module does, as text: without docstrings, types and the words of errors."""
    for node in ast.walk(tree):
        match node:
            case ast.arg():
                node.annotation = None
            case ast.FunctionDef():
                node.returns = None
            case ast.AnnAssign():
                node.annotation = ast.Constant(None)
            case ast.Module():  # its names for types
                node.body = [n for n in node.body if not _is_type(n)]
            case ast.Raise():
                _without_words(node)
            case ast.Constant(value=float(number)) if number.is_integer():
                node.value = int(number)
            case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=None)]):
                node.ops = [ast.Is()]
            case ast.Compare(ops=[ast.NotEq()], comparators=[ast.Constant(value=None)]):
                node.ops = [ast.IsNot()]
        if isinstance(body := getattr(node, "body", None), list):
            node.body = _done(body) or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _done(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a block that do something, and definitions once."""
    found: dict[str, ast.stmt] = {}
    for number, node in enumerate(body):
        if not isinstance(node, ast.Pass) and not _is_text(node):
            once = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)
            found[ast.dump(node) if once else str(number)] = node
        if isinstance(node, ast.Return | ast.Raise):
            break
    return [*found.values()]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_type(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)


def _without_words(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""


def _change(before: str, node: ast.AST) -> str:
    """Return the first line that differs, before and after."""
    pairs = zip(before.splitlines(), ast.unparse(node).splitlines(), strict=False)
    differ = [(old.strip(), new.strip()) for old, new in pairs if old != new]
    return "`{}` became `{}`".format(*differ[0]) if differ else "the last statement is there twice"


def passes(copy: Path, tests: Sequence[str], seconds: float | None = None) -> bool:
    """Return whether tests pass in a copy of the template, within a time if one is given.

    They run in a fork of this process, which has imported what is slow to import.
    """
    fork = multiprocessing.get_context("fork").Process(target=_test, args=(copy, tests))
    fork.start()
    fork.join(seconds)
    if fork.exitcode is None:
        assert fork.pid
        os.killpg(fork.pid, signal.SIGKILL)  # with what the tests started
        fork.join()
    return fork.exitcode == 0


def _test(copy: Path, tests: Sequence[str]) -> None:
    """Run tests in a copy of the template, and end this process with their exit status."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.chdir(copy)
    sys.path[:] = [path for path in sys.path if not Path(path).is_relative_to(REPOSITORY / "tests")]
    for own in ("mutants", "pages"):
        del sys.modules[own]
    files = [f"tests/engine/{name}" for name in tests]
    options = ["-x", "-q", "-p", "no:cacheprovider", "--deselect", OF_ALL_CHANGES]
    sys.exit(pytest.main([*options, "-m", "not (full or root or gpu)", *files]))


def survivors(copy: Path, module: str, count: int, chance: random.Random) -> list[str]:
    """Return the changes of a module, of so many, that its tests pass with."""
    file, tests = copy / INNER / "labjobs" / module, MODULES[module]
    source = file.read_text()
    assert passes(copy, tests), f"{module}: its tests fail without a change"
    found = []
    for number in range(count):
        changed = mutant(source, chance)
        file.write_text(changed.source)
        survived = passes(copy, tests, seconds=600)
        print(f"{module} {number + 1}: {changed.what}{' SURVIVES' * survived}", file=sys.stderr)
        found += [changed.what] * survived
    file.write_text(source)
    return found


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", default=[*MODULES], metavar="MODULE")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    left = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(
            REPOSITORY, Path(folder) / "template", symlinks=True, ignore=LEFT_OUT
        )
        shutil.copytree(REPOSITORY / INNER / "labjobs/data", copy / INNER / "labjobs/data")
        compileall.compile_dir(copy / INNER, quiet=2, invalidation_mode=BY_CONTENT)
        sys.dont_write_bytecode = True
        for module in arguments.modules:
            chance = random.Random(f"{arguments.seed} {module}")
            left[module] = survivors(copy, module, arguments.count, chance)
    about = (
        f"{machine('torch')}. {arguments.count} random changes of each module, and how many of "
        f"them its tests in `tests/engine` find, on a CPU. Of the others, many do nothing: they "
        "change an order that does not matter, or do a thing twice. "
        f"`python scripts/mutate_engine.py --seed {arguments.seed} --count {arguments.count}` "
        "makes this page."
    )
    count = arguments.count
    rows = [
        [f"`{module}`", str(count - len(found)), f"{(count - len(found)) / count:.0%}"]
        for module, found in left.items()
    ]
    page("Mutations of the engine", about, ["module", "found", ""], rows)
    for module, found in left.items():
        if found:
            print(f"\n`{module}`, not found:\n")
            print("\n".join(f"- {what}" for what in found))


if __name__ == "__main__":
    main()
