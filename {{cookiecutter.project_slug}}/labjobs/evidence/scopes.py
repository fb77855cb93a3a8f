"""Which names are local, and which are looked up in the module.

Python's own `symtable` needs the source again for each piece, and its answers for comprehensions
and annotations depend on Python's version.
"""

import ast
from collections.abc import Iterator
from functools import cache

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
