"""A job whose functions are watched: does its fingerprint have all those of the project that run?

    python -m engine.watched run.py FLAGS

does what `python run.py FLAGS` does. If a function of the project has run in `main` that the job's
fingerprint lacks, the last line names it, and the exit status is 6: a change of that function would
not have made the job stale.
"""

import ast
import runpy
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from engine.cli.parser import parse
from engine.evidence import Fingerprint
from engine.job import code
from engine.job.runtime import Runtime
from engine.job.terminal import leave
from engine.paths import CODE

OUTSIDE = 6
"""Exit status if a function ran that the fingerprint lacks."""

NOT_THE_PROJECT = ("engine", "tests")


class Watch:
    """The code that has run since the script's `main` began, in all threads."""

    def __init__(self, script: Path) -> None:
        self._script = str(script)
        self._begun = False
        self.ran: set[CodeType] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch all functions that are called."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, _about: Any) -> None:
        if event != "call":
            return
        called = frame.f_code
        if called.co_name == "main" and called.co_filename == self._script:
            self._begun = True
        if self._begun:
            self.ran.add(called)


def outside(ran: set[CodeType], fingerprint: Fingerprint) -> list[str]:
    """Return the definitions of the project that have run and that a fingerprint lacks, as in
    Python: `models.MLP`."""
    known = {part.partition("[")[0] for part in fingerprint.parts}
    found = {definition for each in ran if (definition := _definition(each))}
    whole = {module for module, _ in found if f"{module}:<file>" in known}
    lacking = {each for each in found if ":".join(each) not in known and each[0] not in whole}
    return sorted(".".join(each) for each in lacking)


def _definition(called: CodeType) -> tuple[str, str] | None:
    """The module of the project and what is defined there at the top, of which some code is."""
    path = Path(called.co_filename)
    if not path.is_relative_to(CODE):
        return None
    parts = path.relative_to(CODE).with_suffix("").parts
    if parts[0] in NOT_THE_PROJECT or parts[0].startswith(".") or called.co_name == "<module>":
        return None
    names = _names(path)
    name = next((name for first, last, name in names if first <= called.co_firstlineno <= last), "")
    return (".".join(parts).removesuffix(".__init__"), name) if name else None


@cache
def _names(path: Path) -> list[tuple[int, int, str]]:
    """The first and the last line of what a file defines at the top, and its name."""
    found = []
    for node in ast.parse(path.read_bytes()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                pass
            case ast.Assign(targets=[ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name))]):
                pass
            case _:
                continue
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        found.append((first, node.end_lineno or first, name))
    return found


def main() -> int:
    """Do the job, and say which of its functions its fingerprint lacks; returns the exit status."""
    script = (CODE / sys.argv[1]).resolve()
    sys.argv = [str(script), *sys.argv[2:]]
    sys.path[0] = str(CODE)
    watch, status = Watch(script), 0
    with watch.watching():
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            status = int(end.code or 0)
    if status:
        return status
    settings, _ = parse(sys.modules["settings"].Settings, Runtime, sys.argv[1:])
    lacking = outside(watch.ran, code.present(settings, script.stem))
    line = f"not in the job's fingerprint: {', '.join(lacking)}; see docs/evidence.md"
    return leave(OUTSIDE, line) if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
