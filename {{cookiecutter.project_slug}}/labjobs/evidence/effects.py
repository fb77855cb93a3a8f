"""What importing a module does besides defining names. It counts for all jobs."""

import ast
from collections.abc import Iterator

from labjobs.evidence import harmless, scopes
from labjobs.evidence.modules import Definition, Module, is_guard
from labjobs.evidence.registries import Registries
from labjobs.evidence.resolution import DEPTH, Resolver, chain_of
from labjobs.evidence.settings_use import is_dataclass


class Effects:
    """The statements of a module that do more than define names."""

    def __init__(self, resolver: Resolver, registries: Registries) -> None:
        self._resolver, self._registries = resolver, registries
        self._found: dict[str, list[ast.stmt]] = {}

    def of(self, module: Module) -> list[ast.stmt]:
        """Return these statements in their order, with those that bind a name again."""
        if module.name not in self._found:
            self._found[module.name] = self._find(module)
        return self._found[module.name]

    def _find(self, module: Module) -> list[ast.stmt]:
        again = {
            statement
            for name, statements in module.definitions.items()
            if len(statements) > 1 and (module.name, name) not in self._registries
            for statement in statements
        }
        return [s for s in module.statements if s in again or self._counts(module, s)]

    def _counts(self, module: Module, statement: ast.stmt) -> bool:
        for name in _defined(statement):
            key = (module.name, name)
            if key in self._registries and self._registries.has_code(key):
                return False  # an object, which counts where it is used
        if statement not in self._registries.later:
            return self._does_something(module, statement)
        return isinstance(statement, Definition) and self._body(module, statement)

    def _does_something(self, module: Module, statement: ast.stmt) -> bool:
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Global():
                return False
            case ast.Assert(test=test):
                return self._acts(module, test)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return self._definition(module, statement)
            case ast.Assign(targets=targets, value=value):
                return not all(map(_is_name, targets)) or self._acts(module, value)
            case ast.AnnAssign(target=target, value=value):
                return not _is_name(target) or bool(value and self._acts(module, value))
            case ast.Expr(value=value):
                return not isinstance(value, ast.Constant)
            case ast.If(test=test) if not is_guard(statement):
                return self._acts(module, test) or self._any(module, _blocks(statement))
            case ast.Try():
                return self._any(module, _blocks(statement))
        return type(statement).__name__ != "TypeAlias"

    def _any(self, module: Module, statements: Iterator[ast.stmt]) -> bool:
        return any(self._does_something(module, statement) for statement in statements)

    def _definition(self, module: Module, node: Definition) -> bool:
        decorates = any(self._decorates(module, decorator) for decorator in node.decorator_list)
        is_noted = isinstance(node, ast.ClassDef) and self._is_noted(module, node)
        return decorates or is_noted or self._body(module, node)

    def _is_noted(self, module: Module, node: ast.ClassDef, depth: int = 0) -> bool:
        """Whether a class, or one that it inherits from, acts on its subclasses."""
        for base in node.bases:
            chain = chain_of(base)
            target = self._resolver.resolve(module, chain) if chain else None
            home = self._resolver.modules.get(target.module) if target else None
            if target and home and target.kind == "definition" and depth < DEPTH:
                for found in home.definitions[target.name]:
                    if isinstance(found, ast.ClassDef) and (
                        acts_on_subclasses(found) or self._is_noted(home, found, depth + 1)
                    ):
                        return True
        return False

    def _body(self, module: Module, node: Definition) -> bool:
        """Whether the defaults, bases or body of a class do something."""
        parts = [p for p in scopes.outside(node) if p not in node.decorator_list]
        if any(self._acts(module, part) for part in parts):
            return True
        return isinstance(node, ast.ClassDef) and self._any(module, iter(node.body))

    def _decorates(self, module: Module, decorator: ast.expr) -> bool:
        """Whether a decorator does more than replace a function."""
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        path = self._resolver.path(module, function)
        if not path and _tail(function) in ("setter", "getter", "deleter"):
            return False
        return not path or "regist" in path or path.startswith(("torch.library.", "atexit."))

    def _acts(self, module: Module, node: ast.AST) -> bool:
        """Whether evaluating an expression may change something."""
        for inner in scopes.here(node):
            if isinstance(inner, ast.NamedExpr | ast.Await):
                return True
            if isinstance(inner, ast.Call) and not self._is_harmless(module, inner.func):
                return True
        return False

    def _is_harmless(self, module: Module, function: ast.expr) -> bool:
        chain = chain_of(function)
        if not chain:
            return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant)
        target = self._resolver.resolve(module, chain)
        if target.kind == "definition":
            return self._is_plain_class(target.module, target.name)
        return harmless.to_call(target.path)

    def _is_plain_class(self, module_name: str, name: str) -> bool:
        """Whether a name stands for a dataclass whose making runs no code of the student's."""
        module = self._resolver.modules.get(module_name)
        statements = module.definitions[name] if module else []
        return len(statements) == 1 and all(
            isinstance(s, ast.ClassDef)
            and is_dataclass(s)
            and not s.bases
            and not any(isinstance(f, ast.FunctionDef) and f.name.startswith("__") for f in s.body)
            for s in statements
        )


def acts_on_subclasses(node: ast.ClassDef) -> bool:
    """Return whether a class does something when a subclass is defined, such as registering it."""
    hook = any(getattr(s, "name", "") == "__init_subclass__" for s in node.body)
    return hook or any(
        keyword.arg == "metaclass" and (chain_of(keyword.value) or [""])[-1] != "ABCMeta"
        for keyword in node.keywords
    )


def _defined(statement: ast.stmt) -> list[str]:
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_name(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return all(map(_is_name, target.elts))
    return isinstance(target, ast.Name)


def _tail(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def _blocks(statement: ast.If | ast.Try) -> Iterator[ast.stmt]:
    yield from (*statement.body, *statement.orelse)
    if isinstance(statement, ast.Try):
        yield from (*statement.finalbody, *(s for h in statement.handlers for s in h.body))
