"""Canonical text in which each name is replaced by what it refers to."""

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from labjobs.evidence import syntax
from labjobs.evidence.engine_code import EngineCode
from labjobs.evidence.modules import (
    DEPTH,
    Definition,
    Module,
    Modules,
    Resolver,
    Target,
    chain_of,
    imported_as,
    is_guard,
    parents,
)
from labjobs.evidence.registry_entries import Registries
from labjobs.evidence.settings_use import MODULE as SETTINGS
from labjobs.evidence.settings_use import TOKEN, KeyFinder, SettingsUse, Use, is_dataclass
from labjobs.evidence.syntax import Canonical, Comprehension, Function, Scope, annotations, outside

# What importing a module does besides defining names. It counts for all jobs.


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
        parts = [p for p in syntax.outside(node) if p not in node.decorator_list]
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
        for inner in syntax.here(node):
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
        return syntax.to_call(target.path)

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


# What is known about a project's code as a whole, independent of the job.

READS_ANNOTATIONS = {
    *("get_type_hints", ".get_type_hints", ".__annotations__", ".get_annotations"),
    *("get_annotations", "signature", ".signature", "inspect", ".getfullargspec", "fields"),
    ".fields",
}
READS_LOCALS = {"locals", "vars", "eval", "exec", "dir"}
READS_ERRORS = {"except as", ".exc_info", ".format_exc", ".last_value"}

IGNORE_ANNOTATIONS = {
    *("cache", "lru_cache", "wraps", "contextmanager", "no_grad", "inference_mode", "property"),
    *("staticmethod", "classmethod", "abstractmethod", "cached_property", "override", "overload"),
    *("final", "compile", "total_ordering", "setter", "enable_grad", "dataclass"),
}
"""Decorators, from outside of the project, that do not look at annotations."""


class ProjectCode:
    """The modules that the entry imports, and what follows from all of them together."""

    def __init__(self, modules: Modules, engine: EngineCode) -> None:
        self.modules, self.engine = modules, engine
        self.imported = modules.imported()
        self.resolver = Resolver(modules, engine.door)
        self.registries = Registries(self.imported, self.resolver)
        self.effects = Effects(self.resolver, self.registries)
        self.use = SettingsUse(self.imported, self.resolver)
        self.keys = KeyFinder(self.imported, self.use, self.resolver)

    @cached_property
    def _mentioned(self) -> set[str]:
        return {name for module in self.imported for name in module.mentioned}

    @cached_property
    def reads_locals(self) -> bool:
        """Whether code may see the names of local variables."""
        return bool(READS_LOCALS & self._mentioned)

    @cached_property
    def reads_errors(self) -> bool:
        """Whether code may see the text of errors."""
        return bool(READS_ERRORS & self._mentioned)

    @cached_property
    def reads_docstrings(self) -> bool:
        """Whether code may see docstrings."""
        return ".__doc__" in self._mentioned or "__doc__" in self._mentioned

    def reads_annotations(self, module: Module, function: ast.AST) -> bool:
        """Return whether anything may look at a function's annotations."""
        decorators = getattr(function, "decorator_list", [])
        functions = [d.func if isinstance(d, ast.Call) else d for d in decorators]
        return bool(READS_ANNOTATIONS & self._mentioned) or not all(
            self.is_own(module, f) or (chain_of(f) or [""])[-1] in IGNORE_ANNOTATIONS
            for f in functions
        )

    def keeps_annotations(self, module: Module, node: ast.AST) -> bool:
        """Return whether anything may look at the types of a class's fields."""
        bases = [self.resolver.path(module, base) for base in getattr(node, "bases", [])]
        plain = is_dataclass(node) or "typing.NamedTuple" in bases
        return bool(READS_ANNOTATIONS & self._mentioned) or not plain

    def is_own(self, module: Module, node: ast.expr) -> bool:
        """Return whether a name refers to something in the student's code."""
        chain = chain_of(node)
        return bool(chain) and self.resolver.resolve(module, chain).kind == "definition"

    def is_registry(self, target: Target, node: ast.AST) -> bool:
        """Return whether `a.b`, which refers to the target, is a registry."""
        return target.used == len(chain_of(node)) and (
            target.kind == "definition" and (target.module, target.name) in self.registries
        )

    def logger(self, target: Target, node: ast.expr) -> str:
        """Return "logging.info" of `log.info`, after `log = logging.getLogger(…)`."""
        module = self.modules.get(target.module)
        match module.definitions.get(target.name) if module else None:
            case [ast.Assign(value=ast.Call(func=function))] if module and (
                self.resolver.path(module, function) == "logging.getLogger"
            ):
                return ".".join(["logging", *chain_of(node)[target.used :]])
        return ""

    def body_of(self, module: Module, node: ast.ClassDef) -> list[ast.stmt]:
        """Return the parts of a class that count; the fields of a settings class belong to the
        identity."""
        if module.name != SETTINGS or not is_dataclass(node):
            return node.body
        return [s for s in node.body if not isinstance(s, ast.AnnAssign) or _is_class_variable(s)]

    def without_check(self, guard: ast.If) -> ast.If:
        """Return `if __name__ == "__main__":` without the check of run(main, check): it decides
        whether a job starts, not what its results are."""
        return ast.If(guard.test, [_without_check(s) for s in guard.body], guard.orelse)


def _without_check(statement: ast.stmt) -> ast.stmt:
    match statement:
        case ast.Expr(
            value=ast.Call(args=[ast.Call(func=ast.Attribute(attr="run"), args=[main, _]) as run])
        ):
            return ast.Expr(ast.Call(run.func, [main], []))
    return statement


def _is_class_variable(statement: ast.AnnAssign) -> bool:
    named = isinstance(statement.target, ast.Name) and statement.target.id == "FORMER"
    return "ClassVar" in ast.unparse(statement.annotation) and not named


REACH_ANYTHING = ("__subclasses__", "__globals__", "f_globals")


class NameWriter(Canonical):
    """Writes code of one module and notes what it uses. Local variables are numbered."""

    def __init__(self, code: ProjectCode, module: Module) -> None:
        super().__init__()
        self.code, self.module = code, module
        self.scope: Scope | None = None
        self.uses: dict[Use, None] = {}
        self._scopes: list[Scope] = []  # kept, so that each id() stays its own
        self._numbers: dict[tuple[int, str], int] = {}

    def use(self, use: Use) -> None:
        """Note what is used."""
        self.uses.setdefault(use)

    def target(self, node: ast.AST) -> Target | None:
        """Return what `a.b.c` refers to; None for local names and for other expressions."""
        chain = chain_of(node)
        return self.code.resolver.within(self.module, self.scope, chain) if chain else None

    # Names

    def _Name(self, node: ast.Name) -> None:
        target = self.target(node)
        if not self.scope and isinstance(node.ctx, ast.Store):  # the definition of the name
            self.out.append(TOKEN.format(self.module.name, node.id))
        elif target:
            self._write(target, [node.id])
        elif self.scope and (owner := self.scope.owner(node.id)):
            self._local(owner, node.id)

    def _Attribute(self, node: ast.Attribute) -> None:
        target = self.target(node)
        if target:
            self._write(target, chain_of(node))
        else:
            self.plain(node)
        if node.attr in REACH_ANYTHING:
            self.use(Use("everything", why=f"{node.attr} in {self.module.name}.py"))

    def _local(self, owner: Scope, name: str) -> None:
        if owner.is_variable(name) and not self.code.reads_locals:
            number = self._numbers.setdefault((id(owner), name), len(self._numbers))
            self.out.append(f"v{number}")
            return
        self.out.append(f"local:{name}")
        if isinstance(owner.node, ast.ClassDef) and name in self.module.definitions:
            self.use(Use("definition", self.module.name, name))  # before the class binds it

    def _write(self, target: Target, chain: Sequence[str]) -> None:
        """Write what a chain of names refers to, and note that it is used."""
        shown, here = ".".join(chain), f"{self.module.name}.py"
        match target.kind:
            case "definition":
                self.use(Use("definition", target.module, target.name))
                self.out.append(TOKEN.format(target.module, target.name))
            case "module":
                why = f"{here} uses {shown} as a value"
                self.use(Use("whole", target.module, why=why))
                self.out.append(f"module:{target.module}")
            case "outside":
                self._outside(target.path)
            case _:
                self.out.append(f"?{target.name}")
                if target.module != self.module.name:
                    why = f"{here} uses {shown}, which is not written there"
                    self.use(Use("whole", target.module, why=why))
        self.out.extend(f".{name}" for name in chain[target.used :])

    def _outside(self, path: str) -> None:
        self.out.append(f"<{path}>")
        why = f"{self.module.name}.py uses {path}"
        if path.startswith("labjobs."):
            self.use(Use("engine", path))
        elif path == "globals" or (path == "vars" and not self.scope):
            self.use(Use("whole", self.module.name, why=why))
        elif syntax.REFLECTIVE.intersection(parents(path)):
            self.use(Use("everything", why=why))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Write an import, unless its names refer to the same thing everywhere."""
        for name in self.module.modules_of(node):
            self.use(Use("import", name))
        for local, alias in self.module.imported(node).items():
            owner = self.scope.owner(local) if self.scope else None
            if owner:
                has_one_meaning = imported_as(self.module, owner, local) is not None
            else:
                has_one_meaning = local in self.module.aliases
            if not has_one_meaning:
                self.out.append(f"{local}=")
                self._write(self.code.resolver.imported(*alias, [local]), [local])

    _Import = _ImportFrom = _import

    # Functions, classes and comprehensions

    @contextmanager
    def _inside(self, node: ast.AST) -> Iterator[Scope]:
        outer, scope = self.scope, Scope(node, self.scope)
        self.scope = scope
        self._scopes.append(scope)
        yield scope
        self.scope = outer

    def _function(self, node: Function) -> None:
        self.out.append(f"{type(node).__name__}:{getattr(node, 'name', '')}(")
        self.value(outside(node))
        if self.code.reads_annotations(self.module, node):
            self.value(list(annotations(node)))
        self._arguments(node.args)
        with self._inside(node) as scope:
            self.out.append("generator;" if scope.is_generator() else "")
            self.field("body", node.body)
        self.out.append(")")

    _FunctionDef = _AsyncFunctionDef = _Lambda = _function

    def _arguments(self, node: ast.arguments) -> None:
        for kind in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            found = getattr(node, kind)
            names = [a.arg for a in (found if isinstance(found, list) else [found]) if a]
            self.out.append(f"{kind}:{','.join(names)};")
        required = [str(default is None)[0] for default in node.kw_defaults]
        self.out.append(f"{len(node.defaults)}{''.join(required)};")

    def _ClassDef(self, node: ast.ClassDef) -> None:
        self.out.append(f"class:{node.name}(")
        self.value(outside(node))
        with self._inside(node):
            self.block(self.code.body_of(self.module, node))
        self.out.append(")")
        if acts_on_subclasses(node):
            self.use(Use("subclasses", self.module.name, node.name))

    def _comprehension_of(self, node: Comprehension) -> None:
        self.out.append(f"{type(node).__name__}(")
        self.write(node.generators[0].iter)  # which does not see the names of the comprehension
        with self._inside(node):
            for name in ("elt", "key", "value", "generators"):
                if hasattr(node, name):
                    self.field(name, getattr(node, name))
        self.out.append(")")

    _ListComp = _SetComp = _DictComp = _GeneratorExp = _comprehension_of
