"""The keys with which a registry can be used, as in `MODELS[settings.model]`. They are known if the
key is a setting or a constant, or a variable or parameter that never has another value. Only then
are the registry's other entries left out.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple, get_args

from labjobs.evidence.modules import Module
from labjobs.evidence.resolution import Resolver, Target, chain_of
from labjobs.evidence.scopes import Comprehension, Function, Scope, children
from labjobs.evidence.settings_use import SettingsUse, setting


class Key(NamedTuple):
    """A possible key: a "constant", the value of a "setting", or any of the job's "words" (its
    settings and the constants in the code that it reaches)."""

    kind: str
    value: str


Keys = frozenset[Key] | None
"""None: nobody knows."""

NO_KEY: frozenset[Key] = frozenset()

DEPTH = 5
"""The number of calls through which a parameter is traced back."""

SCOPES = (*get_args(Function), ast.ClassDef, *get_args(Comprehension))

TRANSPARENT = {"cache", "lru_cache", "no_grad", "inference_mode", "staticmethod", "classmethod"}
"""Decorators that pass arguments on as they are."""


class Call(NamedTuple):
    """A call in the project's code, and the functions and classes that contain it, outermost
    first."""

    node: ast.Call
    around: tuple[ast.AST, ...]
    module: Module

    def scope(self) -> Scope | None:
        """Return the scope that the call stands in."""
        scope: Scope | None = None
        for node in self.around:
            scope = Scope(node, scope)
        return scope


class KeyFinder:
    """Answers for expressions anywhere in the project's code."""

    def __init__(self, modules: list[Module], use: SettingsUse, resolver: Resolver) -> None:
        self._modules, self._use, self._resolver = modules, use, resolver

    def of(self, node: ast.expr, scope: Scope | None, module: Module, depth: int = 0) -> Keys:
        """Return what the value of an expression can be."""
        match node:
            case ast.Constant(value=value):
                return frozenset([Key("constant", str(value))])
            case ast.Attribute() if (name := setting(node)) in self._use.fields:
                return self._setting(name)
            case ast.IfExp(body=one, orelse=other):
                return _united(self.of(part, scope, module, depth) for part in (one, other))
            case ast.BoolOp(values=values):
                return _united(self.of(part, scope, module, depth) for part in values)
            case ast.Name(id=name):
                owner = scope.owner(name) if scope else None
                if owner:
                    return self._variable(name, owner, module, depth)
                return self._constant(name, module)
        return None

    def _setting(self, name: str) -> Keys:
        if self._use.own:
            return frozenset([Key("setting", name)])
        return frozenset([Key("words", "")]) if self._use.known else None

    def _variable(self, name: str, owner: Scope, module: Module, depth: int) -> Keys:
        """Return what a local variable or a parameter can be."""
        given = [values for node in owner.nodes for values in _values(name, node)]
        bound = owner.bound[name]
        is_parameter = any(isinstance(node, ast.arg) for node in bound)
        if len(given) != len(bound) - is_parameter or depth > DEPTH:
            return None
        found = [self.of(value, owner, module, depth + 1) for values in given for value in values]
        if is_parameter:
            found.append(self._parameter(name, owner, module, depth + 1))
        return _united(found)

    def _parameter(self, name: str, owner: Scope, module: Module, depth: int) -> Keys:
        """Return what all callers of a function pass."""
        function = owner.node
        if not isinstance(function, ast.FunctionDef):
            return None
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        if name not in names or depth > DEPTH or not self._is_only_called(function):
            return None
        place = names.index(name)
        default = len(arguments.defaults) - (len(names) - place)
        place -= names[0] in ("self", "cls")
        calls = self._all(owner, module)
        found = [self._passed(call, place, name, default >= 0, depth) for call in calls]
        if default >= 0:
            found.append(self.of(arguments.defaults[default], owner.parent, module, depth))
        return _united(found)

    def _passed(self, call: Call, place: int, name: str, has_default: bool, depth: int) -> Keys:
        """Return what a call passes for a parameter."""
        args, keywords = call.node.args, call.node.keywords
        if any(isinstance(a, ast.Starred) for a in args) or not all(k.arg for k in keywords):
            return None
        passed = [k.value for k in keywords if k.arg == name] or args[place : place + 1]
        if not passed:
            return NO_KEY if has_default else None
        return self.of(passed[0], call.scope(), call.module, depth)

    def _constant(self, name: str, module: Module) -> Keys:
        """Return the constant that a name at a module's top level refers to."""
        match module.definitions.get(name):
            case [ast.Assign(targets=[ast.Name()], value=ast.Constant(value=value))]:
                if name not in self._set_or_renamed:
                    return frozenset([Key("constant", str(value))])
        return None

    def _is_only_called(self, function: ast.FunctionDef) -> bool:
        """Return whether a function is only ever called, and by its own name."""
        decorators = {_tail(getattr(d, "func", d)) for d in function.decorator_list}
        name = function.name
        if name.startswith("__") or not decorators <= TRANSPARENT:
            return False
        return name not in self._values_used and name not in self._set_or_renamed

    def _all(self, owner: Scope, module: Module) -> list[Call]:
        """Return the calls of a function; of one inside another or a class, those of its name."""
        name = getattr(owner.node, "name", "")
        by_name = self._calls.get(name, [])
        if owner.parent:
            return by_name
        exact = ("definition", module.name, name)
        return [call for call in by_name if (self._callee(call) or ())[:3] == exact]

    def _callee(self, call: Call) -> Target | None:
        chain = chain_of(call.node.func)
        return self._resolver.within(call.module, call.scope(), chain) if chain else None

    @cached_property
    def _calls(self) -> dict[str, list[Call]]:
        """All calls, by the last name of what is called."""
        found: dict[str, list[Call]] = {}
        for module in self._modules:
            for statement in module.statements:
                for call in _calls_in(statement, module):
                    found.setdefault(_tail(call.node.func), []).append(call)
        return found

    @cached_property
    def _values_used(self) -> set[str]:
        """Names that are used other than to call them."""
        nodes = [node for module in self._modules for node in module.nodes]
        called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        return {_tail(node) for node in nodes if id(node) not in called} - {""}

    @cached_property
    def _set_or_renamed(self) -> set[str]:
        """Names that are declared global, set as attributes or imported under other names."""
        found: set[str] = set()
        for node in (node for module in self._modules for node in module.nodes):
            match node:
                case ast.Global(names=names):
                    found.update(names)
                case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
                    found.add(name)
                case ast.alias(name=name, asname=str()):
                    found.add(name)
        return found


def _united(parts: Iterable[Keys]) -> Keys:
    found = list(parts)
    if any(part is None for part in found):
        return None
    return frozenset(key for part in found if part for key in part)


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


def _calls_in(statement: ast.stmt, module: Module) -> Iterator[Call]:
    waiting: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(statement, ())]
    while waiting:
        node, around = waiting.pop()
        if isinstance(node, ast.Call):
            yield Call(node, around, module)
        if isinstance(node, SCOPES):
            around = (*around, node)
        waiting.extend((child, around) for child in children(node))


def _tail(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
            return name
    return ""
