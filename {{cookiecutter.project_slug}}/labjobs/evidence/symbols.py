"""What the names in a project's code refer to: scopes, modules, and the imports between them.

Python's own `symtable` needs the source again for each piece, and its answers for comprehensions
and annotations depend on Python's version.
"""

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import decode_source
from pathlib import Path
from typing import Any, NamedTuple

from labjobs import sources
from labjobs.evidence.understood import LIBRARIES, parents

ENGINE = "labjobs"
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)

FOR_TYPES, TYPING = "TYPE_CHECKING", {"typing", "typing_extensions"}

DEPTH = 20
"""The number of imports, base classes or constants through which a name is followed."""

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Import = ast.Import | ast.ImportFrom


# Syntax trees


MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
"""What names no code: whether a name is read or bound, and which operator stands there."""


def children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes in the fields of a node, but for marks."""
    kept: dict[str, list[ast.AST]] = node.__dict__
    if "below" not in kept:  # asked for several times
        kept["below"] = [n for n in ast.iter_child_nodes(node) if not isinstance(n, MARKS)]
    return kept["below"]


def outside(node: ast.AST) -> list[ast.AST]:
    """Return the children of a node that run in the scope that it stands in."""
    if isinstance(node, Function):
        defaults = [default for default in node.args.kw_defaults if default]
        return [*getattr(node, "decorator_list", []), *node.args.defaults, *defaults]
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *node.keywords]
    if isinstance(node, Comprehension):
        walrus = [inner for inner in everywhere(node) if isinstance(inner, ast.NamedExpr)]
        return [node.generators[0].iter, *walrus]
    return children(node)


def everywhere(
    node: ast.AST, below: Callable[[ast.AST], list[ast.AST]] = children
) -> Iterator[ast.AST]:
    """Yield a node and all below it, in their order in the source."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        yield inner
        waiting.extend(reversed(below(inner)))


def at_import(node: ast.AST) -> list[ast.AST]:
    """Return the children of a node that run when the module is imported."""
    if not isinstance(node, Function):
        return children(node)
    types = [*(each.annotation for each in parameters(node)), getattr(node, "returns", None)]
    return [*outside(node), *filter(None, types)]


def here(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it that run in the same scope."""
    return everywhere(node, outside)


def chain_of(node: ast.AST) -> list[str]:
    """Return ["a", "b", "c"] for `a.b.c`; empty if the expression does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def tail(node: ast.AST) -> str:
    """Return c of `a.b.c` and of `f().c`; empty for anything else."""
    return getattr(node, "attr", "") or getattr(node, "id", "")


def parameters(node: ast.AST) -> list[ast.arg]:
    """Return the parameters of a function; none of anything else."""
    if not isinstance(node, Function):
        return []
    found = node.args
    every = [*found.posonlyargs, *found.args, found.vararg, *found.kwonlyargs, found.kwarg]
    return [argument for argument in every if argument]


def names_bound(node: ast.AST) -> list[str]:
    """Return the names that a node itself binds."""
    match node:
        case ast.Name(id=name):
            return [] if isinstance(node.ctx, ast.Load) else [name]
        case ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            return [name]
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            return [name]
        case ast.Import(names=aliases):
            return [alias.asname or alias.name.split(".")[0] for alias in aliases]
        case ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases if alias.name != "*"]
    return []


def extent(node: ast.AST) -> tuple[int, int]:
    """Return the first line of a node, counted from 0, and the one after its last."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])  # type: ignore[attr-defined]
    return first - 1, node.end_lineno  # type: ignore[attr-defined]


def does_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement is `pass`, a docstring or another constant."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


class Scope:
    """The names that a function, class or comprehension binds, within the scope around it."""

    def __init__(self, node: ast.AST, parent: "Scope | None") -> None:
        self.node, self.parent = node, parent
        self._class: str = parent._class if parent else ""
        if isinstance(node, ast.ClassDef):
            self._class = node.name.lstrip("_")
        if isinstance(node, Comprehension):
            parts: list[ast.AST] = [generator.target for generator in node.generators]
        else:
            body = getattr(node, "body", [])
            parts = body if isinstance(body, list) else [body]
        self.nodes = [inner for part in parts for inner in here(part)]
        """What runs in this scope."""
        declared = [n for n in self.nodes if isinstance(n, ast.Global | ast.Nonlocal)]
        elsewhere = {name for node in declared for name in node.names}
        self._global = {name for n in declared if isinstance(n, ast.Global) for name in n.names}
        self.bound: dict[str, list[ast.AST]] = {}
        for inner in [*parameters(node), *self.nodes]:
            for name in names_bound(inner):
                if name not in elsewhere:
                    self.bound.setdefault(name, []).append(inner)

    def mangled(self, name: str) -> str:
        """Return what Python makes of a private name within a class: `_C__k` of `__k`."""
        is_private = self._class and name.startswith("__") and not name.endswith("__")
        return f"_{self._class}{name}" if is_private else name

    def owner(self, name: str) -> "Scope | None":
        """Return the scope that a name belongs to; None for the module."""
        if name in self._global:
            return None
        if name in self.bound:
            return self
        outer = self.parent
        while outer and isinstance(outer.node, ast.ClassDef):  # methods do not see its names
            outer = outer.parent
        return outer.owner(name) if outer else None


# Modules


class Alias(NamedTuple):
    """What an imported name refers to: a module, or a name in one."""

    module: str
    name: str | None


class Module:
    """A module's source, its definitions and its imports.

    `bound` has, for each name, the statements at the top level that bind it; of these names,
    `aliases` are imported and nothing else, and `definitions` has all others. Raises one of
    UNREADABLE if the source cannot be read.
    """

    def __init__(self, name: str, path: str, data: bytes, package: str, is_entry: bool) -> None:
        self.name, self.path, self._package, self._is_entry = name, path, package, is_entry
        self.source = decode_source(data)
        body = ast.parse(self.source).body
        bound = [(name, node) for s in body for node in here(s) for name in names_bound(node)]
        if any(name == "__name__" for name, _ in bound):
            self._is_entry = True  # perhaps: it may call itself "__main__"
        flags = (getattr(node, "module", "") for name, node in bound if name == FOR_TYPES)
        self._has_own_flag = not TYPING.issuperset(flags)
        self.statements = [s for s in body if self._runs(s)]
        self.bound: dict[str, list[ast.stmt]] = {}
        for statement in self.statements:
            names = (name for inner in here(statement) for name in names_bound(inner))
            for local in dict.fromkeys(names):
                self.bound.setdefault(local, []).append(statement)
        self.aliases = {n: a for n, s in self.bound.items() if (a := self.alias(n, s))}
        self.definitions = {n: s for n, s in self.bound.items() if n not in self.aliases}
        self.nodes = [node for s in self.statements for node in everywhere(s)]

    def _runs(self, statement: ast.stmt) -> bool:
        """Whether a statement runs in a job: `if __name__ == "__main__":` does in the entry, and
        `if TYPE_CHECKING:` with nothing but imports does not; both are without `else`."""
        match statement:
            case ast.If(
                ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]), _, []
            ):
                return self._is_entry
            case ast.If(test, body, []) if tail(test) == FOR_TYPES and not self._has_own_flag:
                return not all(isinstance(inner, Import) for inner in body)
        return True

    def alias(self, name: str, bound: Iterable[ast.AST]) -> Alias | None:
        """Return what a name refers to, if nodes bind it only by imports of the same thing."""
        found = {self.imported(node).get(name) for node in bound}
        return found.pop() if len(found) == 1 else None

    def imported(self, statement: ast.AST) -> dict[str, Alias]:
        """Return the names that an import statement binds; nothing for another statement."""
        found = {}
        match statement:
            case ast.Import(names=names):
                for name in names:
                    first = name.name.split(".")[0]
                    found[name.asname or first] = Alias(name.name if name.asname else first, None)
            case ast.ImportFrom(names=names):
                base = self._absolute(statement)
                found = {n.asname or n.name: Alias(base, n.name) for n in names if n.name != "*"}
        return found

    def _absolute(self, statement: ast.ImportFrom) -> str:
        """Return the module that `from … import` names, without leading dots."""
        if not statement.level:
            return statement.module or ""
        around = self._package.split(".") if self._package else []
        around = around[: len(around) - statement.level + 1]
        return ".".join([*around, statement.module] if statement.module else around)

    @cached_property
    def stars(self) -> list[str]:
        """The modules of `from … import *`, the one with precedence first."""
        return [
            self._absolute(node)
            for node in reversed(self.nodes)
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        ]

    @cached_property
    def imports(self) -> list[tuple[str, int]]:
        """The modules that are imported when the module is, each with the line that does so."""
        nodes = (n for s in self.statements for n in everywhere(s, at_import))
        return [(name, node.lineno) for node in nodes for name in self.modules_of(node)]  # type: ignore[attr-defined]

    def modules_of(self, node: ast.AST) -> Iterator[str]:
        """Yield the modules that an import statement names, and names that may be modules."""
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(names=names):
                base = self._absolute(node)
                yield base
                yield from (f"{base}.{name.name}" for name in names)

    def segment(self, node: Any) -> str:
        """Return the lines of a statement, decorators included, or of an expression."""
        lines = self.source.split("\n")  # as Python counts them
        return "\n".join(lines[slice(*extent(node))])


# The project


class Target(NamedTuple):
    """What a name stands for, wherever it was imported from.

    kind is "definition" (of the student's), "module" (the student's), "outside" (of the project,
    `name` being its dotted path), "nothing" (a name that its module does not have) or "unclear" (a
    module, or something else of that name in its package).
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


class Symbols:
    """The student's modules, each read once, and what names in them refer to."""

    def __init__(self, folder: Path, entry: str, door: dict[str, str]) -> None:
        """`door`: where names that the engine passes on come from, by their dotted paths."""
        self.folder, self.entry, self._door = folder, entry, door
        self.file = cache(self._find)  # of a module, or the folder of a package without __init__.py
        self.get = cache(self._read)  # a module; None if there is none, or if it cannot be read
        self.scope = cache(Scope)  # of a function, class or comprehension, within another scope
        self._known = LIBRARIES.union(sources.declared(folder, "known-libraries"))

    def __contains__(self, name: str) -> bool:
        """Whether there is such a module, readable or not."""
        return self.file(name) is not None

    def _find(self, name: str) -> Path | None:
        parts = name.split(".")
        if parts[0] == ENGINE or not all(part.isidentifier() for part in parts):
            return None
        path = self.folder.joinpath(*parts)
        endings = [f"{path.name}{suffix}" for suffix in (*EXTENSION_SUFFIXES, ".py", ".pyc")]
        for file in (path / "__init__.py", *map(path.with_name, endings)):  # as Python prefers them
            if file.is_file():
                return file
        if compiled := next(path.parent.glob(f"{path.name}.*so"), None):
            return compiled
        return path if path.is_dir() and next(path.glob("*.py"), None) else None

    def _read(self, name: str) -> Module | None:
        file = self.file(name)
        if file is None:
            return None
        is_package = file.name == "__init__.py" or file.is_dir()
        package = name if is_package else name.rpartition(".")[0]
        try:
            data = b"" if file.is_dir() else file.read_bytes()
            return Module(name, self.path(name), data, package, name == self.entry)
        except UNREADABLE:
            return None

    def is_hidden(self, name: str) -> bool:
        """Return whether Python finds a module `a.py` in place of the folder of a module `a.b`."""
        around = [*filter(None, map(self.file, parents(name)[:-1]))]
        return any(file.is_file() and file.name != "__init__.py" for file in around)

    def is_folder(self, name: str) -> bool:
        """Return whether a folder without code can be imported under a name, if nothing else of
        that name is there."""
        parts = name.split(".")
        is_possible = all(map(str.isidentifier, parts)) and not self.is_library(name)
        return is_possible and not self.is_hidden(name) and self.folder.joinpath(*parts).is_dir()

    def is_library(self, name: str) -> bool:
        """Return whether a module outside of the project is one of a library that is understood, or
        that pyproject.toml declares."""
        return name.partition(".")[0] in self._known

    def is_unknown(self, name: str) -> bool:
        """Return whether a module is neither the project's nor one of a library that is known."""
        return bool(name) and name.partition(".")[0] not in self and not self.is_library(name)

    def name_of(self, file: Path) -> str:
        """Return the name of the module in one of the project's files; empty if that cannot be a
        part of a job."""
        parts = file.relative_to(self.folder).with_suffix("").parts
        if parts[0] == ENGINE or not all(part.isidentifier() for part in parts):
            return ""
        return ".".join(parts).removesuffix(".__init__")

    def path(self, name: str) -> str:
        """Return where a module lies below the project's folder."""
        file = self.file(name)
        return file.relative_to(self.folder).as_posix() if file else f"{name}.py"

    @cached_property
    def imported(self) -> list[Module]:
        """The modules that can be read and that the entry imports, itself or by others."""
        found, seen, waiting = [], {self.entry}, [self.entry]
        while waiting:
            if module := self.get(waiting.pop(0)):
                found.append(module)
                named = (name for node in module.nodes for name in module.modules_of(node))
                for name in (package for each in named for package in parents(each)):
                    if name not in seen and name in self:
                        seen.add(name)
                        waiting.append(name)
        return found

    # What a name refers to

    def names_in(self, module: Module, seen: frozenset[Module] = frozenset()) -> set[str]:
        """Return the names that a module has, also by `import *`; `*` stands for all of a library,
        or of a module that cannot be read."""
        names = {*module.bound}
        for star in module.stars if module not in seen else ():
            other = self.get(star)
            names |= self.names_in(other, seen | {module}) if other else {"*"}
        return names

    def is_unclear(self, star: str, module: Module) -> bool:
        """Return whether it cannot be known what `from star import *`, of a module of the project,
        gives another one: if that also has these names from elsewhere, if some of them come from a
        library, if there is an `__all__`, or if the import stands within `try` or `if`."""
        if (other := self.get(star)) is None:
            return False
        names = self.names_in(other)
        mentioned = {node.id for node in other.nodes if isinstance(node, ast.Name)}
        is_double = not all(name.startswith("_") for name in names & module.bound.keys())
        is_open = not {"*", "__all__"}.isdisjoint(names | mentioned)
        is_outermost = any(f"{star}.*" in module.modules_of(each) for each in module.statements)
        return is_double or is_open or not is_outermost

    def resolve(self, module: Module, chain: Sequence[str]) -> Target:
        """Return what a chain of names refers to at the top level of a module."""
        if found := self._bound(module, chain, 0):
            return found
        if hasattr(builtins, chain[0]):
            return Target("outside", "", ".".join(chain), len(chain))
        return Target("nothing", module.name, chain[0], 1)

    def _bound(self, module: Module, chain: Sequence[str], depth: int) -> Target | None:
        """Return what a chain refers to whose first name a module binds; None if it does not."""
        first = chain[0]
        if depth > DEPTH:
            return None
        if first in module.definitions:
            return Target("definition", module.name, first, 1)
        if first in module.aliases:
            return self.of_import(*module.aliases[first], chain, depth)
        for star in filter(self.__contains__, module.stars):
            other = self.get(star)
            found = self._bound(other, [first], depth + 1) if other else None
            if found and not first.startswith("_"):
                return found
        outside_stars = [star for star in module.stars if star not in self]
        if outside_stars and not hasattr(builtins, first):
            return Target("outside", "", f"{outside_stars[0]}.{first}", 1)
        return None

    def of_import(
        self, base: str, name: str | None, chain: Sequence[str], depth: int = 0
    ) -> Target:
        """Return what a chain refers to whose first name is a module, or `name` in that module."""
        rest = [*([name] if name else []), *chain[1:]]
        if base not in self:
            head, *more = ".".join([base, *rest]).split(".", 2)
            door = ".".join([head, *more[:1]])
            path = ".".join([self._door.get(door, door), *more[1:]])
            return Target("outside", "", path, len(chain))
        while rest:
            module = self.get(base)
            if module and (found := self._bound(module, rest, depth + 1)):
                if rest[0] in module.definitions and f"{base}.{rest[0]}" in self:
                    return Target("unclear", base, rest[0], len(chain))
                return found._replace(used=len(chain) - len(rest) + found.used)
            if f"{base}.{rest[0]}" not in self:
                return Target("nothing", base, rest[0], len(chain) - len(rest) + 1)
            base = f"{base}.{rest.pop(0)}"
        return Target("module", base, "", len(chain))

    def within(self, module: Module, scope: Scope | None, chain: Sequence[str]) -> Target | None:
        """Return what a chain of names refers to in a function or class; None if it begins with a
        local variable, or has no names."""
        owner = scope.owner(chain[0]) if scope and chain else None
        names = [scope.mangled(name) for name in chain] if scope else chain
        if not chain or not owner:
            return self.resolve(module, names) if chain else None
        alias = module.alias(chain[0], owner.bound[chain[0]])
        return self.of_import(*alias, names) if alias else None

    def path_of(self, module: Module, node: ast.AST, scope: Scope | None = None) -> str:
        """Return the dotted path of what a node names outside of the project, else nothing."""
        target = self.within(module, scope, chain_of(node))
        return target.path if target else ""

    def definition(self, module: Module, node: ast.AST) -> tuple[Module, str] | None:
        """Return the definition of the project that an expression `a.b` names, and its module."""
        chain = chain_of(node)
        target = self.resolve(module, chain) if chain else None
        home = self.get(target.module) if target else None
        if target and home and target.kind == "definition" and target.used == len(chain):
            return home, target.name
        return None
