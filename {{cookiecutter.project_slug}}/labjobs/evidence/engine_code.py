"""The engine's modules as evidence: their results versions, or their code if edited locally.

versions.json beside this file holds, for each engine module that can change a job's results:

    results  its results version; a maintainer raises it when the same job gives other results
    code     the hash of its canonical text
    text     the hash of its text, which is quicker to compare
    imports  those of these modules that it imports

The template's scripts/results_versions.py writes it.
"""

import ast
import json
import os
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from labjobs.evidence.canonical import Code, Writer, short
from labjobs.evidence.symbols import UNREADABLE, Module, Symbols
from labjobs.evidence.understood import parents
from labjobs.files import ENGINE

CAN_CHANGE_RESULTS = (
    *("labjobs.launch", "labjobs.attempt", "labjobs.training", "labjobs.vision"),
    *("labjobs.data", "labjobs.devices", "labjobs.distributed"),
    "labjobs.settings",  # lengths, and which of two values is better
)
"""All other modules (the command line, identity, tracking, sweeps, results, …) never change
results."""

FIRST = "v1"
"""The results version of a module whose results never changed. Such modules are left out, because
adding or removing a module does not change results."""

MANIFEST = Path(__file__).with_name("versions.json")

NO_PROJECT = Code(Symbols(Path(os.devnull), "", {}))
"""The engine knows no project."""


def counts(module: str) -> bool:
    """Return whether a module of the engine can change results."""
    return any(name in CAN_CHANGE_RESULTS for name in parents(module))


def text_hash(data: bytes) -> str:
    """Return the hash of a file, regardless of its line endings."""
    return short(b"\n".join(data.splitlines()))


class EngineCode:
    """The engine that a project's jobs run with: the one in its folder, or the installed one."""

    def __init__(self, project: Path) -> None:
        self._folder = project if (project / "labjobs").is_dir() else ENGINE.parent
        self._file = cache(self._find)  # of a module of the engine; None if there is no such module
        self._known_code = cache(self._read)

    @cached_property
    def known(self) -> dict[str, dict[str, Any]]:
        """The content of versions.json for each module."""
        held = json.loads(MANIFEST.read_bytes()) if MANIFEST.exists() else {}
        return dict(held.get("modules", {}))

    @cached_property
    def door(self) -> dict[str, str]:
        """Where the names come from that a project may use, by their dotted paths."""
        try:
            tree = ast.parse((self._folder / "labjobs" / "__init__.pyi").read_bytes())
        except UNREADABLE:
            return {}
        return {
            f"labjobs.{name.asname or name.name}": f"{statement.module}.{name.name}"
            for statement in tree.body
            if isinstance(statement, ast.ImportFrom)
            for name in statement.names
        }

    def _find(self, module: str) -> Path | None:
        path = self._folder.joinpath(*module.split("."))
        files = (path.with_suffix(".py"), path / "__init__.py")
        return next((file for file in files if file.is_file()), None)

    def reached(self, paths: set[str]) -> dict[str, str]:
        """Return the modules behind some names, with all that they import: their results versions,
        or the hash of their code if it was edited. Those in their first version are left out."""
        waiting = [module for path in paths for module in parents(path)]
        found: dict[str, str] = {}
        while waiting:
            module = waiting.pop()
            if module not in found and counts(module) and (file := self._file(module)):
                found[module], imported = self._known_code(module, file)
                waiting.extend(imported)
        return {module: evidence for module, evidence in found.items() if evidence != FIRST}

    def _read(self, module: str, file: Path) -> tuple[str, list[str]]:
        """Return the results version of a module, or the hash of its code, and its imports."""
        data, known = file.read_bytes(), self.known.get(module)
        if not known or known["text"] != text_hash(data):
            code, imported = self.look(data)
            if not known or known["code"] != code:
                return code, imported
        return f"v{known['results']}", known["imports"]

    def look(self, data: bytes) -> tuple[str, list[str]]:
        """Return the hash of a module's code, or of its bytes if it cannot be read, and the modules
        of the engine that it imports and that can change results."""
        try:
            module = Module("labjobs", "", data, "labjobs", False)
            writer = Writer(NO_PROJECT, module, {})
            writer.statements(module.statements)
        except UNREADABLE:
            return text_hash(data), []
        named = (name for node in module.nodes for name in module.modules_of(node))
        found = {package for name in named for package in parents(name)}
        imported = sorted(name for name in found if counts(name) and self._file(name))
        return short("".join(writer.out).encode()), imported

    def source(self, module: str) -> str:
        """Return the source of a module if it was edited, otherwise a line with its results
        version."""
        evidence = self.reached({module})[module]
        if (file := self._file(module)) and not evidence.startswith("v"):
            return file.read_bytes().decode(errors="replace")
        return f"{module}: results version {evidence[1:]}\n"
