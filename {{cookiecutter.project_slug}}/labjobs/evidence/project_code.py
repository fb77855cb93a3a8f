"""What is known about a project's code as a whole, independent of the job."""

import ast
from functools import cached_property

from labjobs.evidence.effects import Effects
from labjobs.evidence.engine_code import EngineCode
from labjobs.evidence.keys import KeyFinder
from labjobs.evidence.modules import Module
from labjobs.evidence.project_files import Modules
from labjobs.evidence.registries import Registries
from labjobs.evidence.resolution import Resolver, Target, chain_of
from labjobs.evidence.settings_use import MODULE as SETTINGS
from labjobs.evidence.settings_use import SettingsUse, is_dataclass

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
        self.resolver = Resolver(modules, engine.facades)
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
