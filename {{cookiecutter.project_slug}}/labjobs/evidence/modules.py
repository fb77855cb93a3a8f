"""A module of the project, analysed into what its names refer to."""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib.util import decode_source
from pathlib import Path
from typing import NamedTuple

from labjobs.evidence import syntax
from labjobs.evidence.syntax import Scope, short

# Files that a job depends on and Python does not open for it: those that comments name, and the
# sources of other programs that constants name. Files that Python opens are recorded by
# labjobs.job.data_evidence.
#
# # depends: kernels/*.cu, config.yaml

DEPENDS = re.compile(r"#\s*depends:\s*(.+)")

SOURCES = (
    ".c",
    ".cc",
    ".cpp",
    ".cu",
    ".cuh",
    ".h",
    ".hpp",
    ".jl",
    ".py",
    ".pyx",
    ".r",
    ".rs",
    ".sh",
)
"""How the names of programs' sources end."""


class Files:
    """Files below the project's folder, read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hashes: dict[str, str] = {}

    def hash(self, name: str) -> str:
        """Return the hash of a file's bytes; empty if the file is missing."""
        if name not in self._hashes:
            try:
                self._hashes[name] = short((self._folder / name).read_bytes())
            except OSError:
                self._hashes[name] = ""
        return self._hashes[name]

    def named(self, text: str) -> str:
        """Return the name of the program source that a constant names; empty if it does not name
        one."""
        if len(text) > 200 or not text.lower().endswith(SOURCES) or text.startswith(("/", "..")):
            return ""
        try:
            file = self._folder / text
            return file.relative_to(self._folder).as_posix() if file.is_file() else ""
        except (OSError, ValueError):
            return ""

    def matching(self, pattern: str) -> list[str]:
        """Return the files that a pattern matches, by their names."""
        try:
            found = [file for file in self._folder.glob(pattern) if file.is_file()]
            return sorted(file.relative_to(self._folder).as_posix() for file in found)
        except (OSError, ValueError, NotImplementedError, IndexError):
            return []

    def text(self, name: str) -> str:
        """Return what is in a file."""
        try:
            return (self._folder / name).read_bytes().decode(errors="replace")
        except OSError:
            return ""


def patterns(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the line, counted from 0, and the pattern of each `# depends:` comment."""
    for number, line in enumerate(lines):
        if "depends:" in line and (found := DEPENDS.search(line)):
            for pattern in re.split(r"[,\s]+", found.group(1).strip()):
                yield number, pattern


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
            for local in syntax.bound_by(statement):
                bound.setdefault(local, []).append(statement)
        self.aliases = {local: alias for local in bound if (alias := self._alias(local, bound))}
        self.definitions = {local: s for local, s in bound.items() if local not in self.aliases}
        self.nodes = [node for s in self.statements for node in syntax.everywhere(s)]
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
        nodes = (node for statement in self.statements for node in syntax.here(statement))
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


# The project's modules: where they lie, read once.

ENGINE = "labjobs"
NO_PART_OF_A_JOB = {"plot", "jobs", "conftest", "tests", ENGINE}
"""These count only if a job's code imports them."""

UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


class Modules:
    """The student's modules, by their dotted names."""

    def __init__(self, folder: Path, entry: str) -> None:
        self.folder, self.entry = folder, entry
        self._modules: dict[str, Module | None] = {}
        self._files: dict[str, Path | None] = {}

    def __contains__(self, name: str) -> bool:
        """Whether there is such a module, readable or not."""
        return self.file(name) is not None

    def file(self, name: str) -> Path | None:
        """Return the file of a module, or the folder of a package without `__init__.py`."""
        if name not in self._files:
            self._files[name] = self._find(name)
        return self._files[name]

    def name_of(self, file: Path) -> str:
        """Return the name of the module in a file; empty if that cannot be a part of a job."""
        if not file.is_relative_to(self.folder):
            return ""
        parts = file.relative_to(self.folder).with_suffix("").parts
        if parts[0] in NO_PART_OF_A_JOB or not all(part.isidentifier() for part in parts):
            return ""
        return ".".join(parts).removesuffix(".__init__")

    def path(self, name: str) -> str:
        """Return where a module lies below the project's folder."""
        file = self.file(name)
        return file.relative_to(self.folder).as_posix() if file else f"{name}.py"

    def _find(self, name: str) -> Path | None:
        first, *rest = name.split(".")
        if not name or first == ENGINE or not all(part.isidentifier() for part in (first, *rest)):
            return None
        path = self.folder.joinpath(first, *rest)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
        return path if path.is_dir() and next(path.glob("*.py"), None) else None

    def get(self, name: str) -> Module | None:
        """Return a module; None if there is none, or if it cannot be read."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | None:
        file = self.file(name)
        if file is None:
            return None
        is_package = file.name == "__init__.py" or file.is_dir()
        package = name if is_package else name.rpartition(".")[0]
        try:
            data = b"" if file.is_dir() else file.read_bytes()
            return Module(name, data, package, name == self.entry)
        except UNREADABLE:
            return None

    def imported(self) -> list[Module]:
        """Return the modules that can be read and that the entry imports, itself or by others."""
        found, seen, waiting = [], {self.entry}, [self.entry]
        while waiting:
            if module := self.get(waiting.pop(0)):
                found.append(module)
                for name in module.imports_anywhere():
                    names = [n for n in parents(name) if n in self and n not in seen]
                    seen.update(names)
                    waiting.extend(names)
        return found

    def everything(self) -> Iterator[str]:
        """Yield the names of all modules that may be a part of a job."""
        yield from filter(None, map(self.name_of, sorted(self.folder.rglob("*.py"))))


def parents(name: str) -> list[str]:
    """Return the packages of a module, outermost first, and the module."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


# What a name refers to, wherever it was imported from. `data.load`, `load` after `from data import
# load` and `load` within data.py are the same.

DEPTH = 20
"""The number of imports through which a name is followed."""


class Target(NamedTuple):
    """What a name stands for.

    kind is "definition" (of the student's), "module" (the student's), "outside" (of the project,
    `name` being its dotted path) or "nothing" (a name that its module does not have).
    """

    kind: str
    module: str
    name: str
    used: int
    """How many of the names `a.b.c` were needed."""

    @property
    def path(self) -> str:
        """Its dotted path, if it is outside the project; otherwise empty."""
        return self.name if self.kind == "outside" else ""


def chain_of(node: ast.AST) -> list[str]:
    """Return ["a", "b", "c"] for `a.b.c`; empty if the expression does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def imported_as(module: Module, owner: Scope, name: str) -> Alias | None:
    """Return what a local name refers to, if it is only bound by an import."""
    found = {module.imported(node).get(name) for node in owner.bound[name]}
    return found.pop() if len(found) == 1 else None


class Resolver:
    """Follows names through the project's modules."""

    def __init__(self, modules: Modules, door: dict[str, str]) -> None:
        """`door`: where names that the engine passes on come from, by their dotted paths."""
        self.modules, self._door = modules, door

    def resolve(self, module: Module, chain: Sequence[str], depth: int = 0) -> Target:
        """Return what a chain of names refers to at the top level of a module."""
        first = chain[0]
        if depth > DEPTH:
            return Target("nothing", module.name, first, 1)
        if first in module.definitions:
            return Target("definition", module.name, first, 1)
        if first in module.aliases:
            base, name = module.aliases[first]
            return self.imported(base, name, chain, depth)
        for star in module.stars():
            found = self._of_star(star, first, depth)
            if found and (found.kind != "outside" or not hasattr(builtins, first)):
                return found
        if hasattr(builtins, first):
            return self._outside(first, chain[1:])
        return Target("nothing", module.name, first, 1)

    def imported_by(self, module: Module) -> list[Target]:
        """Return the definitions that a module has from others, by name or by a star."""
        names = sorted({*module.aliases, *self._by_stars(module, 0)})
        found = (self.resolve(module, [name]) for name in names)
        return [target for target in found if target.kind == "definition"]

    def _by_stars(self, module: Module, depth: int) -> Iterator[str]:
        for star in module.stars() if depth < DEPTH else []:
            if other := self.modules.get(star):
                every = {*other.definitions, *other.aliases, *self._by_stars(other, depth + 1)}
                yield from filter(other.exports, every)

    def within(self, module: Module, scope: Scope | None, chain: Sequence[str]) -> Target | None:
        """Return what a chain of names refers to in a function or class; None if it begins with a
        local variable."""
        owner = scope.owner(chain[0]) if scope else None
        if owner is None:
            return self.resolve(module, chain)
        alias = imported_as(module, owner, chain[0])
        return self.imported(*alias, chain) if alias else None

    def imported(self, base: str, name: str | None, chain: Sequence[str], depth: int = 0) -> Target:
        """Return what a chain refers to whose first name is a module, or `name` in that module."""
        rest = list(chain[1:])
        if base not in self.modules:
            return self._outside(f"{base}.{name}" if name else base, rest)
        if name:
            rest.insert(0, name)
        while rest:
            module, step = self.modules.get(base), rest[0]
            if module and (step in module.definitions or step in module.aliases):
                found = self.resolve(module, rest, depth + 1)
                return found._replace(used=len(chain) - len(rest) + found.used)
            if f"{base}.{step}" in self.modules:
                base = f"{base}.{rest.pop(0)}"
                continue
            return self._unknown(base, module, chain, rest, depth)
        return Target("module", base, "", len(chain))

    def _unknown(
        self, base: str, module: Module | None, chain: Sequence[str], rest: list[str], depth: int
    ) -> Target:
        """Return what a name refers to that its module imports by a star, or does not have."""
        used = max(len(chain) - len(rest), 0)
        if module and any(self._of_star(star, rest[0], depth) for star in module.stars()):
            found = self.resolve(module, rest, depth + 1)
            return found._replace(used=used + found.used)
        return Target("nothing", base, rest[0], used + 1)

    def _of_star(self, star: str, name: str, depth: int) -> Target | None:
        """Return what a name from `from star import *` refers to, if it may come from there."""
        if star not in self.modules:
            return Target("outside", "", f"{star}.{name}", 1)
        module = self.modules.get(star)
        if not module or not module.exports(name):
            return None
        found = self.resolve(module, [name], depth + 1)
        return found if found.kind in ("definition", "module") else None

    def _outside(self, path: str, rest: Sequence[str]) -> Target:
        used, full = 1 + len(rest), ".".join([path, *rest])
        if full.split(".")[0] == ENGINE:
            for prefix in parents(full):
                if prefix in self._door:
                    full = self._door[prefix] + full[len(prefix) :]
                    break
        return Target("outside", "", full, used)

    def path(self, module: Module, node: ast.AST) -> str:
        """Return the dotted path of what a node names outside of the project, else nothing."""
        chain = chain_of(node)
        return self.resolve(module, chain).path if chain else ""
