"""The engine's modules as evidence: their results versions, or their code if edited locally.

versions.json beside this file holds, for each engine module that can change a job's results:

    results  its results version; a maintainer raises it when the same job gives other results
    code     the hash of its canonical text
    text     the hash of its text, which is quicker to compare
    imports  those of these modules that it imports
"""

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from labjobs.evidence import syntax
from labjobs.evidence.modules import UNREADABLE, parents
from labjobs.evidence.syntax import SCHEME, short
from labjobs.files import ENGINE

CAN_CHANGE_RESULTS = (
    *("labjobs.training", "labjobs.data", "labjobs.devices", "labjobs.distributed"),
    *("labjobs.launch", "labjobs.attempt"),
    "labjobs.settings",  # lengths, and which of two values is better
)
"""All other modules (the command line, identity, tracking, sweeps, results, …) never change
results."""

DOOR = "labjobs"
"""The package whose `__init__.pyi` says where the names come from that a project may use."""

FIRST = "v1"
"""The results version of a module whose results never changed. Such modules are left out, because
adding or removing a module does not change results."""

MANIFEST = Path(__file__).with_name("versions.json")


def counts(module: str) -> bool:
    """Return whether a module of the engine can change results."""
    return any(name in CAN_CHANGE_RESULTS for name in parents(module))


def text_hash(data: bytes) -> str:
    """Return the hash of a file, regardless of its line endings."""
    return short(b"\n".join(data.splitlines()))


def code_hash(data: bytes) -> str:
    """Return the hash of a module's code, or of its bytes if it cannot be read."""
    try:
        return short(syntax.whole(ast.parse(data)).encode())
    except UNREADABLE:
        return text_hash(data)


class EngineCode:
    """The engine that a project's jobs run with: the one in its folder, or the installed one."""

    def __init__(self, project: Path) -> None:
        self._folder = project if (project / DOOR).is_dir() else ENGINE.parent
        self._hashes: dict[str, str] = {}
        self._imported: dict[str, list[str]] = {}
        self._files: dict[str, Path | None] = {}

    @cached_property
    def known(self) -> dict[str, dict[str, Any]]:
        """The content of versions.json for each module."""
        held = json.loads(MANIFEST.read_bytes()) if MANIFEST.exists() else {}
        modules: dict[str, dict[str, Any]] = held.get("modules", {})
        return modules

    @cached_property
    def door(self) -> dict[str, str]:
        """Where the names come from that a project may use, by their dotted paths."""
        try:
            tree = ast.parse((self._folder / DOOR / "__init__.pyi").read_bytes())
        except UNREADABLE:
            return {}
        return {
            f"{DOOR}.{name.asname or name.name}": f"{statement.module}.{name.name}"
            for statement in tree.body
            if isinstance(statement, ast.ImportFrom)
            for name in statement.names
        }

    def file(self, module: str) -> Path | None:
        """Return the file of a module of the engine; None if there is no such module."""
        if module not in self._files:
            path = self._folder.joinpath(*module.split("."))
            files = (path.with_suffix(".py"), path / "__init__.py")
            self._files[module] = next((file for file in files if file.is_file()), None)
        return self._files[module]

    def reached(self, paths: set[str]) -> dict[str, str]:
        """Return the modules behind some names, with all that they import: their results versions,
        or the hash of their code if it was edited. Those in their first version are left out."""
        waiting = [module for path in paths for module in parents(path) if self.file(module)]
        found: dict[str, str] = {}
        while waiting:
            module = waiting.pop()
            if module not in found and counts(module):
                found[module] = self._evidence(module)
                waiting.extend(self._imports(module))
        return {module: evidence for module, evidence in found.items() if evidence != FIRST}

    def _data(self, module: str) -> bytes:
        file = self.file(module)
        try:
            return file.read_bytes() if file else b""
        except OSError:
            return b""

    def _evidence(self, module: str) -> str:
        if module not in self._hashes:
            known, data = self.known.get(module, {}), self._data(module)
            is_known = known.get("text") == text_hash(data) or known.get("code") == code_hash(data)
            self._hashes[module] = f"v{known['results']}" if is_known else code_hash(data)
        return self._hashes[module]

    def is_edited(self, module: str) -> bool:
        """Return whether a module's code differs from the template's."""
        return not self._evidence(module).startswith("v")

    def source(self, module: str) -> str:
        """Return the source of a module if it was edited, otherwise a line with its results
        version."""
        if self.is_edited(module):
            return self._data(module).decode(errors="replace")
        return f"{module}: results version {self._evidence(module)[1:]}\n"

    def _imports(self, module: str) -> list[str]:
        if module not in self._imported:
            edited = self.is_edited(module)
            found = imports(self._tree(module), self) if edited else self.known[module]["imports"]
            self._imported[module] = sorted(set(found))
        return self._imported[module]

    def _tree(self, module: str) -> ast.Module:
        try:
            return ast.parse(self._data(module))
        except UNREADABLE:
            return ast.Module([], [])


def imports(tree: ast.Module, engine: EngineCode) -> Iterator[str]:
    """Yield the modules of the engine that a module imports and that can change results."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{name.name}" for name in node.names]
        for name in names:
            yield from (m for m in parents(name) if counts(m) and engine.file(m))


# Record the engine's modules in versions.json; for maintainers of the template.
#
#     python -m labjobs.evidence.engine_code                  # after a change without effect
#     python -m labjobs.evidence.engine_code --raise MODULE   # after one that changes results
#
# Raise the results version of a module if the same job would give other results: jobs that use the
# module are then stale in all projects that take the new engine over. For a change that leaves
# results as they are, run it without --raise.

COMMAND = "python -m labjobs.evidence.engine_code"


def record(folder: Path, raised: list[str]) -> dict[str, Any]:
    """Return what versions.json should hold, with the results version of some modules raised."""
    engine = EngineCode(folder)
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.joinpath("labjobs").rglob("*.py")):
        module = ".".join(file.relative_to(folder).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        if not counts(module):
            continue
        data = file.read_bytes()
        imported = set(imports(ast.parse(data), engine)) - {module}
        results = engine.known.get(module, {}).get("results", 1)
        found[module] = {
            "results": results + (module in raised),
            "code": code_hash(data),
            "text": text_hash(data),
            "imports": sorted(imported),
        }
    return {"scheme": SCHEME, "modules": found}


def main() -> int:
    """Write versions.json; refused in a project, where an edited engine counts as the project's
    code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--raise", dest="raised", nargs="+", default=[], metavar="MODULE")
    arguments = parser.parse_args()
    inner = ENGINE.parent
    if not (inner.parent / "cookiecutter.json").is_file():
        return _refused("for the template only: an engine that you edit counts as your own code")
    new = record(inner, arguments.raised)
    for module in arguments.raised:
        if module not in new["modules"]:
            return _refused(f"--raise {module}: no module of the engine that can change results")
    MANIFEST.write_text(json.dumps(new, indent=1) + "\n")
    return 0


def _refused(why: str) -> int:
    print(f"{COMMAND}: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
