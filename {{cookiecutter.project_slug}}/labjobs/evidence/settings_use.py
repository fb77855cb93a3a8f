"""What the project's code does with the settings of its job.

A condition such as `if settings.ema:` can be evaluated for a job, and a key as in
`MODELS[settings.model]` is known, if `settings` is always the job's own settings.
"""

import ast
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple, get_args

from labjobs.evidence.symbols import (
    Comprehension,
    Function,
    Module,
    Scope,
    Symbols,
    chain_of,
    children,
    is_dataclass,
    tail,
)

MODULE = "settings"
SETS_ATTRIBUTES = {"setattr", "delattr", ".__setattr__", "SimpleNamespace", "Namespace"}
REPLACES = ("dataclasses.replace", "copy.replace")


def setting(node: ast.AST) -> str:
    """Return the name x of `settings.x` or `job.settings.x`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) and is_settings(node.value) else ""


def is_settings(node: ast.AST) -> bool:
    """Return whether an expression is `settings`, `job.settings` or `self.settings`."""
    match node:
        case ast.Name(id="settings"):
            return True
        case ast.Attribute(value=ast.Name(id="job" | "self"), attr="settings"):
            return True
        case ast.Attribute(value=ast.Attribute(attr="job"), attr="settings"):
            return True
    return False


class SettingsUse:
    """Whether conditions on settings can be decided, and whether their values can be known.

    `own`: `settings` is the job's own everywhere. `known`: if the code makes other settings, their
    values are literals. `fields`: the settings; `conditions`: those that conditions ask for.
    """

    def __init__(self, modules: list[Module], symbols: Symbols) -> None:
        self._symbols = symbols
        self._classes, self.fields = {"Settings"}, set[str]()
        self.undecided: set[str] = set()
        """Settings whose identity is not what code compares: paths, and tuples (lists there)."""
        for module in modules:
            for statement in module.statements if module.name == MODULE else []:
                if isinstance(statement, ast.ClassDef) and is_dataclass(statement):
                    self._declare(statement)
        nodes = [node for module in modules for node in module.nodes]
        tests = (node.test for node in nodes if isinstance(node, ast.If | ast.IfExp))
        found = {setting(node) for test in tests for node in ast.walk(test)}
        self.conditions = sorted(found - {""})
        others = [other for module in modules for other in self._others(module)]
        self.own, self.known = not others, all(others)

    def _declare(self, settings: ast.ClassDef) -> None:
        self._classes.add(settings.name)
        for field in settings.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                self.fields.add(field.target.id)
                if {"Path", "tuple"} & set(map(tail, ast.walk(field.annotation))):
                    self.undecided.add(field.target.id)

    def _others(self, module: Module) -> Iterator[bool]:
        """Yield, for each place where settings may not be the job's own, whether their values are
        literals."""
        if module.name != MODULE and SETS_ATTRIBUTES & module.mentioned:
            yield False
        same: set[int] = set()  # the targets that are set to the job's own settings
        for node in module.nodes:
            match node:
                case ast.Call():
                    if self._makes(module, node):
                        values = [*(k.value for k in node.keywords), *node.args]
                        given = [value for value in values if not is_settings(value)]
                        yield all(isinstance(v, ast.Constant) or setting(v) for v in given)
                    if not all(map(is_settings, self._passed_as_settings(module, node))):
                        yield False
                case ast.Assign(targets=targets, value=value):
                    same.update(id(t) for target in targets for t in _same(target, value))
                case ast.AnnAssign(target=target, value=value):
                    same.update(map(id, _same(target, value) if value else [target]))
                case ast.Name() | ast.Attribute():
                    is_set = not isinstance(node.ctx, ast.Load) and id(node) not in same
                    if is_settings(node) or setting(node):
                        others = is_set  # to something else
                    else:  # old_settings, teacher.settings
                        others = tail(node) == "settings" or "settings" in getattr(node, "id", "")
                    if others:
                        yield False
                case ast.MatchAs(name="settings") | ast.MatchStar(name="settings"):
                    yield False
                case ast.arg(arg="settings", annotation=ast.Name(id=kind)):
                    if kind not in self._classes:
                        yield False

    def _makes(self, module: Module, call: ast.Call) -> bool:
        """Whether a call makes settings."""
        if isinstance(call.func, ast.Call):  # type(settings)(…)
            return any(map(is_settings, call.func.args))
        chain = chain_of(call.func)
        if chain and (chain[-1] in self._classes or chain[-1] == "__class__"):
            return True
        names = {keyword.arg for keyword in call.keywords}
        replaces = self._symbols.path_of(module, call.func) in REPLACES
        return replaces and (None in names or names <= self.fields)

    def _passed_as_settings(self, module: Module, call: ast.Call) -> list[ast.expr]:
        """Return what a call passes for a parameter named `settings`, as far as that is known."""
        passed = [keyword.value for keyword in call.keywords if keyword.arg == "settings"]
        if found := self._symbols.definition(module, call.func):
            for function in found[0].definitions[found[1]]:
                if isinstance(function, ast.FunctionDef):
                    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
                    place = names.index("settings") if "settings" in names else sys.maxsize
                    return [*passed, *call.args[place : place + 1]]
        return passed


def _same(target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
    """Yield the targets of an assignment that are set to settings."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _same(one, other)
    elif is_settings(value):
        yield target


# Conditions on settings, decided for one job

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, others: value in others,
    ast.NotIn: lambda value, others: value not in others,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
CONTAINERS = {ast.Tuple: tuple, ast.List: list, ast.Set: frozenset}


class Undecided(Exception):
    """A condition depends on more than the values of settings."""


class Conditions:
    """The conditions of one job; `asked` collects the settings that they asked for."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self.asked: dict[str, Any] = {}

    def truth(self, test: ast.expr) -> bool | None:
        """Return the value of a condition; None if it depends on more than settings."""
        try:
            return bool(self._value(test))
        except (Undecided, TypeError):
            return None

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Attribute() if name := setting(node):
                # Undecided: a property, or a setting that is not part of the identity
                value = self.asked[name] = self._settings.get(name, Undecided)
                if value is None or isinstance(value, str | int | float):
                    return value
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand)
            case ast.BoolOp(op=kind, values=values):
                parts = map(self._value, values)  # up to the one that decides
                return any(parts) if isinstance(kind, ast.Or) else all(parts)
            case ast.Tuple(elts=values) | ast.List(elts=values) | ast.Set(elts=values):
                return CONTAINERS[type(node)](map(self._value, values))
            case ast.Compare(left=left, ops=[kind], comparators=[right]):
                value, other = self._value(left), self._value(right)
                if not isinstance(kind, ast.Is | ast.IsNot) or other is None:
                    return COMPARISONS[type(kind)](value, other)
        raise Undecided


# The values that a key can have


class Key(NamedTuple):
    """What code may use of a registry: the entry under a "constant" or the value of a "setting";
    those under any of the job's "words" (its settings, and the constants in the code that it
    reaches); "all" entries; or only the "names" of all entries."""

    kind: str
    value: str = ""


ALL, WORDS, NAMES = Key("all"), Key("words"), Key("names")

Keys = frozenset[Key] | None
"""None: nobody knows."""

CALLS_DEEP = 5
"""The number of calls through which a parameter is traced back."""

TRANSPARENT = {"cache", "lru_cache", "no_grad", "inference_mode", "staticmethod", "classmethod"}
"""Decorators that pass arguments on as they are."""


SCOPES = (*get_args(Function), ast.ClassDef, *get_args(Comprehension))


class Call(NamedTuple):
    """A call, and the functions and classes that contain it, outermost first."""

    node: ast.Call
    around: tuple[ast.AST, ...]
    module: Module

    @property
    def scope(self) -> Scope | None:
        """The scope that the call stands in."""
        scope: Scope | None = None
        for node in self.around:
            scope = Scope(node, scope)
        return scope


class KeyFinder:
    """Finds what the value of an expression anywhere in the project's code can be.

    That is known for settings, constants, and variables and parameters that never have another
    value.
    """

    def __init__(self, modules: list[Module], use: SettingsUse, symbols: Symbols) -> None:
        self._modules, self._use, self._symbols = modules, use, symbols

    def of(self, node: ast.expr, scope: Scope | None, module: Module, depth: int = 0) -> Keys:
        """Return what the value of an expression can be."""
        match node:
            case ast.Constant(value=value):
                return frozenset([Key("constant", str(value))])
            case ast.Attribute() if (name := setting(node)) in self._use.fields:
                if self._use.own:
                    return frozenset([Key("setting", name)])
                return frozenset([WORDS]) if self._use.known else None
            case ast.IfExp(body=one, orelse=other):
                return _united(self.of(part, scope, module, depth) for part in (one, other))
            case ast.BoolOp(values=values):
                return _united(self.of(part, scope, module, depth) for part in values)
            case ast.Name(id=name):
                if owner := scope.owner(name) if scope else None:
                    return self._variable(name, owner, module, depth)
                match module.definitions.get(name):
                    case [ast.Assign(targets=[ast.Name()], value=ast.Constant(value=value))]:
                        if name not in self._names[2]:
                            return frozenset([Key("constant", str(value))])
        return None

    def _variable(self, name: str, owner: Scope, module: Module, depth: int) -> Keys:
        """Return what a local variable or a parameter can be."""
        given = [values for node in owner.nodes for values in _values(name, node)]
        bound = owner.bound[name]
        is_parameter = any(isinstance(node, ast.arg) for node in bound)
        if len(given) != len(bound) - is_parameter or depth > CALLS_DEEP:
            return None
        found = [self.of(value, owner, module, depth + 1) for values in given for value in values]
        if is_parameter:
            found.append(self._parameter(name, owner, module, depth + 1))
        return _united(found)

    def _parameter(self, name: str, owner: Scope, module: Module, depth: int) -> Keys:
        """Return what all callers of a function pass."""
        function = owner.node
        if not isinstance(function, ast.FunctionDef) or not self._is_only_called(function):
            return None
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        if name not in names:
            return None
        place = names.index(name)
        first = len(names) - len(arguments.defaults)  # that has a default
        defaults = arguments.defaults[place - first : place - first + 1] if place >= first else []
        found = [self.of(default, owner.parent, module, depth) for default in defaults]
        place -= names[0] in ("self", "cls")
        for call in self._calls_of(function, owner, module):
            args, keywords = call.node.args, call.node.keywords
            if any(isinstance(a, ast.Starred) for a in args) or not all(k.arg for k in keywords):
                return None
            passed = [k.value for k in keywords if k.arg == name] or args[place : place + 1]
            if passed:
                found.append(self.of(passed[0], call.scope, call.module, depth))
            elif not defaults:
                return None
        return _united(found)

    def _is_only_called(self, function: ast.FunctionDef) -> bool:
        """Return whether a function is only ever called, and by its own name."""
        decorators = {tail(getattr(d, "func", d)) for d in function.decorator_list}
        _, used, changed = self._names
        is_plain = not function.name.startswith("__") and decorators <= TRANSPARENT
        return is_plain and function.name not in used | changed

    def _calls_of(self, function: ast.FunctionDef, owner: Scope, module: Module) -> Iterator[Call]:
        """Yield the calls of a function; of one inside another or a class, those of its name."""
        exact = ("definition", module.name, function.name)
        for call in self._names[0].get(function.name, []):
            chain = [] if owner.parent else chain_of(call.node.func)
            target = self._symbols.within(call.module, call.scope, chain)
            if owner.parent or (target and target[:3] == exact):
                yield call

    @cached_property
    def _names(self) -> tuple[dict[str, list[Call]], set[str], set[str]]:
        """All calls, by the last name of what is called; names that are used other than to call
        them; and those that are declared global, set as attributes or imported as others."""
        calls: dict[str, list[Call]] = {}
        used, changed, called = set[str](), set[str](), set[int]()
        waiting: list[tuple[ast.AST, Module, tuple[ast.AST, ...]]]
        waiting = [(node, module, ()) for module in self._modules for node in module.statements]
        while waiting:
            node, module, around = waiting.pop()
            match node:
                case ast.Call(func=function):
                    calls.setdefault(tail(function), []).append(Call(node, around, module))
                    called.add(id(function))
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                    used |= {name} if id(node) not in called else set()
                case ast.Global(names=names):
                    changed.update(names)
                case ast.Attribute(attr=name) | ast.alias(name=name, asname=str()):
                    changed.add(name)
            if isinstance(node, SCOPES):
                around = (*around, node)
            waiting.extend((child, module, around) for child in children(node))
        return calls, used, changed


def _united(parts: Iterable[Keys]) -> Keys:
    found: set[Key] = set()
    for part in parts:
        if part is None:
            return None
        found |= part
    return frozenset(found)


def _values(name: str, node: ast.AST) -> Iterator[list[ast.expr]]:
    """Yield the values that a statement assigns to a name, if they can be known; a loop assigns
    several."""
    match node:
        case ast.Assign(targets=[target], value=value) | ast.NamedExpr(target=target, value=value):
            yield from _matched(name, target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _matched(name, target, value)
        case ast.For(target=ast.Name(id=target_name), iter=ast.Tuple() | ast.List() as values):
            if target_name == name:
                yield values.elts


def _matched(name: str, target: ast.expr, value: ast.expr) -> Iterator[list[ast.expr]]:
    if isinstance(target, ast.Name) and target.id == name:
        yield [value]
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for part, of_it in zip(target.elts, value.elts, strict=False):
            yield from _matched(name, part, of_it)
