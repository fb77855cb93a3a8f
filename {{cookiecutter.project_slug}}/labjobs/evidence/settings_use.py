"""What the project's code does with the settings of its job.

A condition such as `if settings.ema:` can be evaluated for a job if `settings` is always the job's
own settings. If code replaces settings or makes new ones, no condition is evaluated.
"""

import ast
import sys
from collections.abc import Iterator

from labjobs.evidence.modules import Module
from labjobs.evidence.resolution import Resolver, chain_of

MODULE = "settings"
SETS_ATTRIBUTES = {"setattr", "delattr", ".__setattr__", "SimpleNamespace", "Namespace"}
REPLACES = ("dataclasses.replace", "copy.replace")

BINDS = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.comprehension),
    *(ast.withitem, ast.MatchAs, ast.MatchStar, ast.arg),
)
"""Statements that may give `settings` another value."""


def setting(node: ast.AST) -> str:
    """Return the name x of `settings.x` or `job.settings.x`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) and is_settings(node.value) else ""


def is_settings(node: ast.AST | None) -> bool:
    """Return whether an expression is `settings`, `job.settings` or `self.settings`."""
    match node:
        case ast.Name(id="settings"):
            return True
        case ast.Attribute(value=ast.Name(id="job" | "self"), attr="settings"):
            return True
        case ast.Attribute(value=ast.Attribute(attr="job"), attr="settings"):
            return True
    return False


def names_others(node: ast.AST) -> bool:
    """Return whether a name refers to other settings: `teacher.settings`, `old_settings`."""
    match node:
        case ast.Name(id=name):
            return "settings" in name and name != "settings"
        case ast.Attribute(attr="settings"):
            return not is_settings(node)
    return False


def is_dataclass(node: ast.AST) -> bool:
    """Return whether a statement is a class with `@dataclass`."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(inner, ast.Name | ast.Attribute) and (chain_of(inner) or [""])[-1] == "dataclass"
        for decorator in node.decorator_list
        for inner in ast.walk(decorator)
    )


class SettingsUse:
    """Whether conditions on settings can be decided, and whether their values can be known.

    `own`: `settings` is the job's own everywhere. `known`: if the code makes other settings, their
    values are literals.
    """

    def __init__(self, modules: list[Module], resolver: Resolver) -> None:
        self._resolver = resolver
        self._classes, self.fields, self.undecided = _declared(modules)
        self.conditions = set(_conditions(modules))
        """The settings that conditions ask for."""
        others = [other for module in modules for other in self._others(module)]
        self.own = not others
        self.known = all(others)

    def _others(self, module: Module) -> Iterator[bool]:
        """Yield, for each place where settings may not be the job's own, whether their values are
        literals."""
        if module.name != MODULE and SETS_ATTRIBUTES & module.mentioned:
            yield False
        for node in module.nodes:
            if isinstance(node, ast.Call):
                yield from self._made(module, node)
            elif (isinstance(node, BINDS) and not self._keeps(node)) or names_others(node):
                yield False

    def _made(self, module: Module, call: ast.Call) -> Iterator[bool]:
        """Yield whether the values of the settings that a call makes are literals."""
        values = [keyword.value for keyword in call.keywords]
        names = {keyword.arg for keyword in call.keywords}
        if self._makes(module, call, names):
            yield all(_is_written_out(v) for v in [*values, *call.args] if not is_settings(v))
        if any(k.arg == "settings" and not is_settings(k.value) for k in call.keywords):
            yield False
        place = self._place_of_settings(module, call)
        if place < len(call.args) and not is_settings(call.args[place]):
            yield False

    def _place_of_settings(self, module: Module, call: ast.Call) -> int:
        """Return which argument a function of the project takes as `settings`; a large number if
        none."""
        chain = chain_of(call.func)
        target = self._resolver.resolve(module, chain) if chain else None
        home = self._resolver.modules.get(target.module) if target else None
        if target and home and target.kind == "definition" and target.used == len(chain):
            for function in home.definitions[target.name]:
                if isinstance(function, ast.FunctionDef):
                    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
                    return names.index("settings") if "settings" in names else sys.maxsize
        return sys.maxsize

    def _makes(self, module: Module, call: ast.Call, names: set[str | None]) -> bool:
        chain = chain_of(call.func)
        if isinstance(call.func, ast.Call):  # type(settings)(…)
            return any(is_settings(argument) for argument in call.func.args)
        if (chain and chain[-1] in self._classes) or chain[-1:] == ["__class__"]:
            return True
        replaces = chain and self._resolver.resolve(module, chain).path in REPLACES
        return bool(replaces) and (None in names or names <= self.fields)

    def _keeps(self, node: ast.AST) -> bool:
        """Whether `settings` stays the job's in an assignment, a loop, …"""
        match node:
            case ast.Assign(targets=targets, value=value):
                return all(_keeps(target, value) for target in targets)
            case ast.AnnAssign(target=target, value=value) if value:
                return _keeps(target, value)
            case ast.AugAssign(target=target) | ast.NamedExpr(target=target):
                return not _names_settings(target)
            case ast.For(target=target) | ast.comprehension(target=target):
                return not _names_settings(target)
            case ast.withitem(optional_vars=ast.expr() as target):
                return not _names_settings(target)
            case ast.MatchAs(name="settings") | ast.MatchStar(name="settings"):
                return False
            case ast.arg(arg="settings", annotation=ast.Name(id=kind)):
                return kind in self._classes
        return True


def _conditions(modules: list[Module]) -> Iterator[str]:
    nodes = (node for module in modules for node in module.nodes)
    tests = (node.test for node in nodes if isinstance(node, ast.If | ast.IfExp))
    yield from (name for test in tests for node in ast.walk(test) if (name := setting(node)))


def _declared(modules: list[Module]) -> tuple[set[str], set[str], set[str]]:
    """Return the settings dataclasses, their fields, and those fields that are compared with other
    than what the identity holds: paths, and tuples, which are lists there."""
    classes: set[str] = {"Settings"}
    fields: set[str] = set()
    undecided: set[str] = set()
    for module in modules:
        for statement in module.statements if module.name == MODULE else []:
            if isinstance(statement, ast.ClassDef) and is_dataclass(statement):
                classes.add(statement.name)
                for field in statement.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        fields.add(field.target.id)
                        kinds = {n.id for n in ast.walk(field.annotation) if type(n) is ast.Name}
                        if kinds & {"Path", "tuple"}:
                            undecided.add(field.target.id)
    return classes, fields, undecided


def _keeps(target: ast.expr, value: ast.expr) -> bool:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        return len(target.elts) == len(value.elts) and all(_keeps(*pair) for pair in pairs)
    return not _names_settings(target) or is_settings(value)


def _names_settings(target: ast.expr) -> bool:
    """Whether `settings`, an attribute of that name or an attribute of settings is set."""
    return any(is_settings(inner) for inner in ast.walk(target)) or any(
        isinstance(inner, ast.Attribute) and inner.attr == "settings" for inner in ast.walk(target)
    )


def _is_written_out(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or bool(setting(node))
