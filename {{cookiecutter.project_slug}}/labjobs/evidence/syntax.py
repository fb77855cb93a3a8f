"""Which names are local, and which are looked up in the module.

Python's own `symtable` needs the source again for each piece, and its answers for comprehensions
and annotations depend on Python's version.
"""

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache

# The canonical text of a syntax tree: equal for equal programs, on each version of Python.
#
# `ast.dump` will not do: Python 3.12 and 3.13 changed it. Positions, comments, formatting and
# docstrings are not in the text, nor are fields that are empty.

SCHEME = 1
"""Number of the scheme; raise it if the same code would get a different text."""

IGNORED_FIELDS = {"ctx", "kind", "type_comment", "type_ignores", "type_params"}


class Canonical:
    """A writer of canonical text."""

    def __init__(self) -> None:
        self.out: list[str] = []

    def text(self) -> str:
        """Return what has been written."""
        return "".join(self.out)

    def write(self, node: ast.AST) -> None:
        """Write a node; a method such as `_Name` writes that kind of node."""
        getattr(self, f"_{type(node).__name__}", self.plain)(node)

    def plain(self, node: ast.AST) -> None:
        """Write a node field by field."""
        self.out.append(f"{type(node).__name__}(")
        for name, value in ast.iter_fields(node):
            if name not in IGNORED_FIELDS and value is not None and value != []:
                self.field(name, value)
        self.out.append(")")

    def field(self, name: str, value: object) -> None:
        """Write a field of a node."""
        self.out.append(f"{name}=")
        if name in ("body", "orelse", "finalbody") and isinstance(value, list):
            self.block(value)
        else:
            self.value(value)
        self.out.append(";")

    def value(self, value: object) -> None:
        """Write the content of a field: a node, a list or a plain value."""
        if isinstance(value, ast.AST):
            self.write(value)
        elif isinstance(value, list):
            self.out.append("[")
            for part in value:
                self.value(part)
                self.out.append(",")
            self.out.append("]")
        else:
            self.out.append(constant(value))

    def block(self, statements: Iterable[ast.stmt]) -> None:
        """Write statements, except those that do nothing."""
        self.out.append("[")
        for statement in statements:
            if not does_nothing(statement):
                self.write(statement)
                self.out.append(",")
        self.out.append("]")

    def _Constant(self, node: ast.Constant) -> None:
        self.out.append(constant(node.value))

    def _JoinedStr(self, node: ast.JoinedStr) -> None:
        """An f-string; versions of Python differ in how they cut the text between its values."""
        text = ""
        self.out.append("f(")
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            self.out.append(constant(text))
            text = ""
            self.write(part)
        self.out.append(f"{constant(text)})")


def does_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement is `pass`, a docstring or another constant."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def constant(value: object) -> str:
    """Return a constant with its type: 1, 1.0 and True differ."""
    if type(value) is int:
        return f"int:{value:x}"  # decimals of huge numbers are refused
    return f"{type(value).__name__}:{value!a}"


def whole(tree: ast.Module) -> str:
    """Return the canonical text of a module, with every name as it is written there."""
    writer = Canonical()
    writer.block(tree.body)
    return writer.text()


def short(data: bytes) -> str:
    """Return 16 hex digits of a SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


# Calls that change nothing, and names that may reach anything.

BUILT_IN = (
    *("abs", "all", "any", "bool", "bytes", "classmethod", "complex", "dict", "enumerate"),
    *("filter", "float", "frozenset", "getattr", "int", "isinstance", "len", "list", "map", "max"),
    *("min", "object", "print", "property", "range", "reversed", "round", "set", "sorted"),
    *("staticmethod", "str", "sum", "super", "tuple", "type", "zip"),
)

HARMLESS = {
    *BUILT_IN,
    *("functools.partial", "functools.cache", "functools.lru_cache", "functools.wraps"),
    *("re.compile", "pathlib.Path", "logging.getLogger", "dataclasses.field", "enum.auto"),
    *("typing.TypeVar", "typing.NewType", "typing.NamedTuple", "typing.ParamSpec", "typing.cast"),
    *(
        "torch.tensor",
        "torch.zeros",
        "torch.ones",
        "torch.arange",
        "torch.linspace",
        "torch.device",
    ),
    *("torch.Size", "numpy.array", "numpy.zeros", "numpy.ones", "numpy.arange", "numpy.linspace"),
}
HARMLESS_MODULES = (
    "math.",
    "operator.",
    "itertools.",
    "collections.",
    "fractions.",
    "labjobs.settings.",
)
"""Calling these changes nothing but the name that takes the result."""

METRIC = {"labjobs.settings.Metric"}

TAKES_NAMES = {"sorted", "list", "tuple", "set", "frozenset", "len", "iter", "enumerate", "bool"}
"""These use only the names in a registry, not its values."""

REFLECTIVE = {
    *("eval", "exec", "importlib.reload", "importlib.util.spec_from_file_location"),
    *("runpy.run_path", "runpy.run_module", "sys.modules", "sys._getframe", "gc.get_objects"),
    *("inspect.currentframe", "inspect.stack", "pkgutil.iter_modules", "pkgutil.walk_packages"),
    *("importlib.import_module", "__import__", "sys.path", "site.addsitedir"),
}

IMPORTS = ("importlib.import_module", "__import__")

LOGS = ("debug", "info", "warning", "error", "exception", "critical", "log")

READS = {
    *("item", "mean", "std", "sum", "min", "max", "size", "numel", "dim", "tolist", "cpu"),
    *("detach", "format", "join", "strip", "upper", "lower", "keys", "values", "items", "ljust"),
    *("rjust", "norm", "memory_allocated", "max_memory_allocated", "float", "removeprefix"),
}
"""Methods that only read, of tensors, texts and dicts."""


def to_call(path: str) -> bool:
    """Return whether a call of something outside the project changes nothing."""
    return path in HARMLESS or path.startswith(HARMLESS_MODULES)


def is_pure(node: ast.AST) -> bool:
    """Return whether an expression visibly changes nothing."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(inner, ast.Call) and not _reads(inner.func):
            return False
    return True


def only_prints(statement: ast.stmt, path: Callable[[ast.expr], str]) -> bool:
    """Return whether a statement is `print(…)` or `log.info(…)` with arguments that change nothing.
    `path` returns what a name refers to, such as "print" or "logging.info".
    """
    match statement:
        case ast.Expr(value=ast.Call(func=function, args=args, keywords=keywords)):
            named = path(function)
            if named == "print":
                prints = not any(keyword.arg == "file" for keyword in keywords)
            else:
                prints = named.startswith("logging.") and named.split(".")[-1] in LOGS
            return prints and all(map(is_pure, [*args, *keywords]))
    return False


def _reads(function: ast.expr) -> bool:
    match function:
        case ast.Name(id=name):
            return name in BUILT_IN and name not in ("print", "map", "filter", "super", "object")
        case ast.Attribute(attr=name):
            return name in READS
    return False


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Bindings = dict[str, list[ast.AST]]


class Scope:
    """The names that a function, class or comprehension binds, within the scope around it."""

    def __init__(self, node: ast.AST, parent: "Scope | None") -> None:
        self.node, self.parent = node, parent
        self.nodes = [inner for part in own_parts(node) for inner in here(part)]
        """What runs in this scope."""
        self._global = _declared(self.nodes, ast.Global)
        self._nonlocal = _declared(self.nodes, ast.Nonlocal)
        self.bound: Bindings = {}
        for inner in [*_parameters(node), *self.nodes]:
            for name in names_bound(inner):
                if name not in self._global | self._nonlocal:
                    self.bound.setdefault(name, []).append(inner)

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

    def is_variable(self, name: str) -> bool:
        """Return whether a name is a plain local variable, whose name does not matter."""
        if isinstance(self.node, ast.ClassDef):
            return False
        return all(isinstance(node, ast.Name) for node in self.bound[name])

    def is_generator(self) -> bool:
        """Return whether this is a function that yields."""
        return any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in self.nodes)


def own_parts(node: ast.AST) -> list[ast.AST]:
    """Return what runs inside the scope of a node."""
    if isinstance(node, Comprehension):
        return [generator.target for generator in node.generators]
    body = getattr(node, "body", [])
    return list(body) if isinstance(body, list) else [body]


def bound_by(statement: ast.AST) -> set[str]:
    """Return the names that a statement binds in the scope that it stands in."""
    return {name for inner in here(statement) for name in names_bound(inner)}


def here(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it that run in the same scope, in their order."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        yield inner
        waiting.extend(reversed(outside(inner)))


def everywhere(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, as ast.walk does, in less time."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        yield inner
        waiting.extend(children(inner))


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


def children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes in the fields of a node."""
    found: list[ast.AST] = []
    for name in _fields(type(node)):  # type: ignore[arg-type]  # mypy: no type can be hashed
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found.extend(part for part in value if isinstance(part, ast.AST))
    return found


@cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    plain = ("ctx", "op", "ops", "id", "attr", "arg", "name", "lineno", "kind", "type_comment")
    if kind.__name__ == "TypeAlias":
        return kind._fields
    return tuple(name for name in kind._fields if name not in plain)


def annotations(node: Function) -> Iterator[ast.expr]:
    """Yield the annotations of a function."""
    yield from (a.annotation for a in _parameters(node) if a.annotation)
    if returns := getattr(node, "returns", None):
        yield returns


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


def _parameters(node: ast.AST) -> list[ast.arg]:
    if not isinstance(node, Function):
        return []
    found = node.args
    every = [*found.posonlyargs, *found.args, found.vararg, *found.kwonlyargs, found.kwarg]
    return [argument for argument in every if argument]


def _declared(nodes: list[ast.AST], kind: type[ast.Global] | type[ast.Nonlocal]) -> set[str]:
    return {name for node in nodes if isinstance(node, kind) for name in node.names}
