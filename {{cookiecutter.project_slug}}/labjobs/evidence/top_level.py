"""What stands at the top level of modules besides definitions: registries, and side effects.

Registries are dicts whose entries count by their keys:

    MODELS = {"mlp": MLP, **OTHERS}
    MODELS["vit"] = ViT                       # anywhere at a module's top level
    MODELS |= {"vit": ViT}                    # or MODELS.update({"vit": ViT})

    @register("vit")                          # or @register(MODELS, "vit"), @MODELS.register("vit")
    class ViT: ...
"""

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from labjobs.evidence.symbols import (
    DEPTH,
    Definition,
    Module,
    Scope,
    Symbols,
    Target,
    chain_of,
    here,
    is_dataclass,
    is_guard,
    outside,
    parents,
    tail,
)

BUILT_IN = {
    *("abs", "all", "any", "bool", "bytes", "classmethod", "complex", "dict", "enumerate"),
    *("filter", "float", "frozenset", "getattr", "int", "isinstance", "len", "list", "map", "max"),
    *("min", "object", "print", "property", "range", "reversed", "round", "set", "sorted"),
    *("staticmethod", "str", "sum", "super", "tuple", "type", "zip"),
}
HARMLESS = {
    *BUILT_IN,
    *("functools.partial", "functools.cache", "functools.lru_cache", "functools.wraps"),
    *("re.compile", "pathlib.Path", "logging.getLogger", "dataclasses.field", "enum.auto"),
    *("typing.TypeVar", "typing.NewType", "typing.NamedTuple", "typing.ParamSpec", "typing.cast"),
    *("torch.device", "torch.Size", "torch.tensor", "numpy.array"),
    *(f"{m}.{f}" for m in ("torch", "numpy") for f in ("zeros", "ones", "arange", "linspace")),
}
HARMLESS_MODULES = ("math", "operator", "itertools", "collections", "fractions", "labjobs.settings")
"""Calling these changes nothing but the name that takes the result."""

Name = tuple[str, str]
"""A module and a name in it."""


class Entry(NamedTuple):
    """The value of a key, and the module in which it is written."""

    key: str
    module: Module
    node: ast.AST


class Registries:
    """The registries of all modules of a job."""

    def __init__(self, modules: list[Module], symbols: Symbols) -> None:
        self._symbols = symbols
        self.entries: dict[Name, list[Entry]] = {}
        """The entries of each registry, in the order of the source."""
        self.included: dict[Name, list[Target]] = {}
        """What a registry includes by `**`."""
        self.later: set[ast.stmt] = set()
        """Statements, and decorated definitions, that do nothing but add entries."""
        for module in modules:
            for name in module.definitions:
                if (value := _written_out(module, name)) and value.keys:
                    self._include(module, name, value)
            for statement in module.statements:
                for registry, entry in self._added(module, statement):
                    self.entries.setdefault(registry, []).append(entry)
                    self.later.add(statement)

    def has_code(self, name: Name) -> bool:
        """Return whether a registry is more than a dict, such as an instance of a class."""
        module = self._symbols.get(name[0])
        first = module.definitions[name[1]][0] if module else None
        return not isinstance(getattr(first, "value", None), ast.Dict)

    def _include(self, module: Module, name: str, value: ast.Dict) -> None:
        found = self.entries.setdefault((module.name, name), [])
        for key, part in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant):
                found.append(Entry(str(key.value), module, part))
            else:
                target = self._symbols.resolve(module, chain_of(part))
                self.included.setdefault((module.name, name), []).append(target)

    def _added(self, module: Module, statement: ast.stmt) -> Iterator[tuple[Name, Entry]]:
        """Yield the entries that a statement or a decorator adds, and their registries."""
        for decorator in getattr(statement, "decorator_list", []):
            match decorator:
                case ast.Call(ast.Attribute(value=owner, attr="register"), [key]):
                    found = self._symbols.definition(module, owner)
                case ast.Call(ast.Name(), [owner, key]):
                    found = self._symbols.definition(module, owner)
                case ast.Call(ast.Name() | ast.Attribute(), [key]):
                    found = None
                case _:
                    continue
            found = found or self._filled_by(module, decorator.func)
            if found and _text(key):
                yield (found[0].name, found[1]), Entry(_text(key), module, statement)
        match statement:
            case ast.Assign(targets=[ast.Subscript(value=owner, slice=key)], value=value):
                new = ast.Dict([key], [value])
            case ast.AugAssign(target=owner, op=ast.BitOr(), value=ast.Dict() as new):
                pass
            case ast.Expr(
                ast.Call(ast.Attribute(value=owner, attr="update"), [ast.Dict() as new], [])
            ):
                pass
            case _:
                return
        found = self._symbols.definition(module, owner)
        if found and _written_out(*found) and all(map(_text, new.keys)):
            for added, value in zip(new.keys, new.values, strict=True):
                yield (found[0].name, found[1]), Entry(_text(added), module, value)

    def _filled_by(self, module: Module, function: ast.expr) -> tuple[Module, str] | None:
        """Return the registry of a function such as `register`, by what it does."""
        found = self._symbols.definition(module, function)
        body = found[0].definitions[found[1]] if found else []
        stored = [node for s in body for node in _stored_under_parameters(s)]
        if found and len(body) == 1 and len(stored) == 1 and _only_stores(body[0]):
            return self._symbols.definition(found[0], stored[0])
        return None


def _text(key: ast.AST | None) -> str:
    """Return the key that is written out as a text."""
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def _written_out(module: Module, name: str) -> ast.Dict | None:
    """Return the dict that a name stands for, if it is only added to, and is empty or has text keys
    or `**OTHER`, and code as values."""
    first, *others = module.definitions[name]
    value = getattr(first, "value", None)
    named = isinstance(first, ast.AnnAssign) or len(getattr(first, "targets", [])) == 1
    if (
        not named
        or not isinstance(value, ast.Dict)
        or not all(isinstance(o, ast.AugAssign) for o in others)
    ):
        return None
    keyed = (_text(k) if k else chain_of(v) for k, v in zip(value.keys, value.values, strict=True))
    code = (ast.Lambda, ast.Name, ast.Attribute)
    has_code = any(isinstance(node, code) for v in value.values for node in ast.walk(v))
    return value if not value.keys or (all(keyed) and has_code) else None


def _only_stores(function: ast.stmt) -> bool:
    """Whether a function calls nothing, but to raise an error, and has nothing besides definitions,
    assignments, tests and returns."""
    raised = {id(n) for r in ast.walk(function) if isinstance(r, ast.Raise) for n in ast.walk(r)}
    plain = (ast.FunctionDef, ast.Assign, ast.Return, ast.If, ast.Raise, ast.Assert)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and id(node) not in raised:
            return False
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not isinstance(node, plain) and not is_text:
            return False
    return True


def _stored_under_parameters(function: ast.stmt) -> Iterator[ast.expr]:
    """Yield X of each `X[key] = …` in a function, `key` being its parameter."""
    if isinstance(function, ast.FunctionDef):
        names = {argument.arg for argument in function.args.args}
        for node in ast.walk(function):
            match node:
                case ast.Subscript(
                    value=ast.Name(id=name) as owner, slice=ast.Name(id=key), ctx=ast.Store()
                ) if key in names and name not in Scope(function, None).bound:
                    yield owner


# What importing a module does besides defining names. It counts for all jobs.


class Effects:
    """The statements of a module that do more than define names."""

    def __init__(self, symbols: Symbols, registries: Registries, module: Module) -> None:
        self._module, self._symbols = module, symbols
        objects = {
            name
            for name in module.definitions
            if (module.name, name) in registries.entries
            and registries.has_code((module.name, name))
        }  # which count where they are used
        again = {
            statement
            for name, statements in module.definitions.items()
            if len(statements) > 1 and (module.name, name) not in registries.entries
            for statement in statements
        }
        self.statements = [
            s
            for s in module.statements
            if s in again
            or (not objects.intersection(_assigned(s)) and self._counts(s, registries))
        ]
        """In their order, with those that bind a name again."""

    def _counts(self, statement: ast.stmt, registries: Registries) -> bool:
        if statement not in registries.later:
            return self._does_something(statement)
        return isinstance(statement, Definition) and self._body(statement)

    def _does_something(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Global():
                return False
            case ast.Assert(test=test):
                return self._acts(test)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if any(map(self._decorates, statement.decorator_list)) or self._body(statement):
                    return True
                return isinstance(statement, ast.ClassDef) and self._is_noted(
                    self._module, statement
                )
            case ast.Assign(targets=targets, value=value):
                return not all(map(_is_name, targets)) or self._acts(value)
            case ast.AnnAssign(target=target, value=value):
                return not _is_name(target) or bool(value and self._acts(value))
            case ast.Expr(value=value):
                return not isinstance(value, ast.Constant)
            case ast.If(test=test, body=body, orelse=orelse) if not is_guard(statement):
                return self._acts(test) or self._any([*body, *orelse])
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                caught = (inner for handler in handlers for inner in handler.body)
                return self._any([*body, *orelse, *finalbody, *caught])
        return type(statement).__name__ != "TypeAlias"

    def _any(self, statements: Iterable[ast.stmt]) -> bool:
        return any(map(self._does_something, statements))

    def _is_noted(self, module: Module, node: ast.ClassDef, depth: int = 0) -> bool:
        """Whether a class that a class inherits from acts on its subclasses."""
        for base in node.bases if depth < DEPTH else []:
            home, name = self._symbols.definition(module, base) or (module, "")
            for found in home.definitions.get(name, []):
                if isinstance(found, ast.ClassDef) and (
                    acts_on_subclasses(found) or self._is_noted(home, found, depth + 1)
                ):
                    return True
        return False

    def _body(self, node: Definition) -> bool:
        """Whether the defaults, bases or body of a definition do something."""
        parts = [part for part in outside(node) if part not in node.decorator_list]
        return any(map(self._acts, parts)) or (
            isinstance(node, ast.ClassDef) and self._any(node.body)
        )

    def _decorates(self, decorator: ast.expr) -> bool:
        """Whether a decorator does more than replace a function."""
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        path = self._symbols.path_of(self._module, function)
        if not path:
            return tail(function) not in ("setter", "getter", "deleter")
        return "regist" in path or path.startswith(("torch.library.", "atexit."))

    def _acts(self, node: ast.AST) -> bool:
        """Whether evaluating an expression may change something."""
        return any(
            isinstance(inner, ast.NamedExpr | ast.Await)
            or (isinstance(inner, ast.Call) and not self._is_harmless(inner.func))
            for inner in here(node)
        )

    def _is_harmless(self, function: ast.expr) -> bool:
        chain = chain_of(function)
        if not chain:
            return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant)
        if found := self._symbols.definition(self._module, function):
            return all(map(_is_plain_class, found[0].definitions[found[1]]))
        path = self._symbols.path_of(self._module, function)
        return path in HARMLESS or any(name in HARMLESS_MODULES for name in parents(path)[:-1])


def acts_on_subclasses(node: ast.ClassDef) -> bool:
    """Return whether a class does something when a subclass is defined, such as registering it."""
    hook = any(getattr(s, "name", "") == "__init_subclass__" for s in node.body)
    metaclasses = [keyword.value for keyword in node.keywords if keyword.arg == "metaclass"]
    return hook or any(tail(metaclass) != "ABCMeta" for metaclass in metaclasses)


def _is_plain_class(node: ast.stmt) -> bool:
    """Whether a statement is a dataclass whose making runs no code of the student's."""
    return (
        isinstance(node, ast.ClassDef)
        and is_dataclass(node)
        and not node.bases
        and not any(isinstance(f, ast.FunctionDef) and f.name.startswith("__") for f in node.body)
    )


def _assigned(statement: ast.stmt) -> list[str]:
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_name(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(map(_is_name, target.elts))
    return isinstance(target, ast.Name)
