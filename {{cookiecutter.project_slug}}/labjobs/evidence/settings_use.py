"""What the project's code does with the settings of its job.

A condition such as `if settings.ema:` can be evaluated for a job if `settings` is always the job's
own settings. If code replaces settings or makes new ones, no condition is evaluated.
"""

import ast
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, get_args

from labjobs.evidence.modules import Module, Resolver, Target, chain_of
from labjobs.evidence.syntax import Comprehension, Function, Scope, children

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


# Conditions on settings, decided for one job.

Plain = str | int | float | None

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


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
                return self._setting(name)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand)
            case ast.BoolOp(op=kind, values=values):
                return self._either(isinstance(kind, ast.Or), values)
            case ast.Compare(left=left, ops=[kind], comparators=[right]):
                return self._compared(left, kind, right)
        raise Undecided

    def _setting(self, name: str) -> Plain:
        if name not in self._settings:  # a property, or a setting that does not count
            self.asked[name] = Undecided
            raise Undecided
        value = self.asked[name] = self._settings[name]
        if not isinstance(value, Plain):
            raise Undecided
        return value

    def _either(self, stops_at: bool, values: list[ast.expr]) -> bool:
        """`or` and `and`: what comes after a part that decides is not evaluated."""
        for value in values:
            if bool(self._value(value)) == stops_at:
                return stops_at
        return not stops_at

    def _compared(self, left: ast.expr, kind: ast.cmpop, right: ast.expr) -> bool:
        value = self._value(left)
        if isinstance(kind, ast.In | ast.NotIn):
            if not isinstance(right, ast.Tuple | ast.List | ast.Set):
                raise Undecided
            return (value in [self._value(part) for part in right.elts]) == isinstance(kind, ast.In)
        other = self._value(right)
        if isinstance(kind, ast.Is | ast.IsNot):
            if other is not None:
                raise Undecided
            return (value is None) == isinstance(kind, ast.Is)
        return COMPARISONS[type(kind)](value, other)


# The keys with which a registry can be used, as in `MODELS[settings.model]`. They are known if the
# key is a setting or a constant, or a variable or parameter that never has another value. Only then
# are the registry's other entries left out.


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


# What a definition uses, and its text.

TOKEN = "\x01{}:{}\x02"
"""Placeholder in a text for a definition of the project, until its name in the digest is known."""


class Use(NamedTuple):
    """Something that a definition uses.

    how         what is used
    definition  `name` in `module`; of a registry, all entries
    key         the entry of a registry under `key`
    words       the entries of a registry whose keys are constants in reached code, or settings
    names       the keys of a registry
    whole       all that a module defines; `why` is said to the user
    everything  all modules
    import      what importing a module does
    engine      a name of the engine
    subclasses  the subclasses of a class
    """

    how: str
    module: str = ""
    name: str = ""
    key: Key | None = None
    why: str = ""


class Written(NamedTuple):
    """A definition's text, what it uses, its constants, and the settings that decided branches."""

    text: str
    uses: Sequence[Use]
    words: frozenset[str]
    asked: Mapping[str, Any]
