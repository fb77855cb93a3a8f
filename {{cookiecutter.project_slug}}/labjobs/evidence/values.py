"""What is known of values before a job runs: its own settings, conditions on them, and keys.

`if settings.ema:` can be evaluated for a job, and the key in `MODELS[settings.model]` is known, if
`settings` is certainly the job's own: what the engine passes to functions such as `main(job:
Job[Settings])`, or a variable or a parameter that never has another value.
"""

import ast
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple, get_args

from labjobs.evidence.symbols import (
    Alias,
    Comprehension,
    Function,
    Module,
    Scope,
    Symbols,
    chain_of,
    children,
    everywhere,
    parameters,
    tail,
)

MODULE = "settings"

PLAIN = {"bool", "int", "float", "str", "None", "Literal", "JobId", "Weights"}
"""Types of settings that a condition sees as they are in the job's identity."""

CHANGES_ANYTHING = {
    *("setattr", "delattr", "__setattr__", "__delattr__", "__getattr__", "__getattribute__"),
    *("__dict__", "vars"),
}
"""Where these names stand, outside of settings.py, objects may not be what they seem to be."""

TRANSPARENT = {"functools.cache", "functools.lru_cache", "torch.no_grad", "torch.inference_mode"}
"""Decorators that pass arguments on as they are."""

CALLED_BY_ENGINE = {"prepare", "run", "check_schedule"}
"""Methods to which a function is passed that the engine calls with the job and its settings."""

JOBS = {"labjobs.training.loop.Job", "labjobs.training.init_from.Timing"}
"""Classes of the engine, one of which a job has; `job.settings` are its settings."""

ASK_CLASS = {"__init_subclass__", "__class_getitem__", "__new__", "__set_name__"}
"""Methods that are given a class."""

PASS_ON = {"print", "isinstance", "dataclasses.replace", "copy.copy", "object.__setattr__"}
"""Functions that do not tell code what all of the job's settings are."""

GENERIC = {"Job", "Callable", "dict", "list", "tuple", "type", "Optional", "Union", "Mapping"}

SCOPES = (*get_args(Function), ast.ClassDef, *get_args(Comprehension))


class Place(NamedTuple):
    """An expression, and where it stands."""

    node: Any
    scope: Scope | None
    module: Module


class Key(NamedTuple):
    """What the value of an expression is: a "constant", a "setting", the "job", or its "settings".
    Of a registry, code may use the entry under a constant or a setting, those that the "engine"
    uses, or "all" of them."""

    kind: str
    value: str = ""


ALL, ENGINES = Key("all"), Key("engine")

Keys = frozenset[Key] | None
"""What a value can be; None: nobody knows."""

Rules = Mapping[str | None, ast.expr]
"""The arguments by name with which a setting is declared."""

JOB, SETTINGS = frozenset([Key("job")]), frozenset([Key("settings")])


class Values:
    """What the values of expressions in a project's code can be.

    `settings` are the names of the class of the job's settings and of its bases, `types` those of
    their fields, with their neutral values; `conditions` are the settings that conditions ask for.
    """

    def __init__(self, modules: list[Module], symbols: Symbols) -> None:
        self._symbols = symbols
        self._calls: dict[str, list[Place]] = {}  # by the last name of what is called
        # Other uses of names, each with the call that it is an argument of.
        self._uses: dict[str, list[tuple[Place, Place | None]]] = {}
        self._mentioned, self._stored, self._shared = set[str](), set[str](), set[str]()
        self._renamed: dict[str, set[str]] = {}  # by imports, such as `import load as read`
        self._prepared: set[str] = set()  # names of what job.prepare() returns
        self._functions = set[str]()  # names of functions and classes
        self._typed = defaultdict[str, set[str]](set)  # parameters, by the names of their types
        self._around: dict[int, ast.AST] = {}  # what stands around each node
        self._rebound = set[tuple[str, str]]()  # names in modules that code may bind again, or ""
        self._is_sure = True  # that nothing replaces the job's settings
        for module in modules:
            for statement in module.statements:
                self._index(statement, module)
        declaring = symbols.get(MODULE)
        bound = declaring.definitions.items() if declaring else ()
        self._classes = {n: s for n, ss in bound for s in ss if isinstance(s, ast.ClassDef)}
        """The classes of settings.py by their names."""
        self.settings = self._with_bases(self._named(symbols.get(symbols.entry)))
        self.looks_at_fields = "fields" in self._mentioned
        declared = [*self._declared()]
        self._fields = {name: is_plain for name, _, _, is_plain in declared}
        self.types = {name: _types(field, rules) for name, field, rules, _ in declared}
        replaced = {getattr(rules.get("replaces"), "value", "") for _, _, rules, _ in declared}
        self.nested = {
            name: _default(field, rules)
            for name, field, rules, _ in declared
            if "when" in rules or name in replaced
        }
        tests = (n.test for m in modules for n in m.nodes if isinstance(n, ast.If | ast.IfExp))
        asked = {tail(node) for test in tests for node in everywhere(test)}
        self.conditions = sorted(asked & self._fields.keys())
        self._shows_locals = any(tail(node) == "locals" for m in modules for node in m.nodes)
        self._is_sure &= self._mentioned.isdisjoint(CHANGES_ANYTHING)
        self._is_sure &= not self.has_other_settings or self._stored.isdisjoint(self._fields)
        self._given = cache(self._find_given)
        self._tracing = set[tuple[ast.AST, str]]()
        self.shows_settings = self._are_shown()

    def _index(self, statement: ast.stmt, module: Module) -> None:
        """Note the calls, and the names that are used in other ways."""
        waiting: list[tuple[ast.AST, Scope | None]] = [(statement, None)]
        called, arguments, inner_names = set[int](), dict[int, Place](), set[int]()
        declaring = everywhere(statement) if module.name == MODULE else ()
        start = [node for node in declaring if getattr(node, "name", "") == "__post_init__"]
        at_start = {id(inner) for node in start for inner in everywhere(node)}
        while waiting:
            node, scope = waiting.pop()
            place = Place(node, scope, module)
            if isinstance(node, ast.Name | ast.Attribute):
                inner_names.add(id(getattr(node, "value", None)))
                call = arguments.get(id(node))
                if id(node) not in inner_names and not (call and tail(call.node.func) == "getattr"):
                    self._index_module(place)
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self._functions.add(node.name)
            match node:
                case ast.Call(func=function):
                    self._calls.setdefault(tail(function), []).append(place)
                    called.add(id(function))
                    arguments |= {id(argument): place for argument in node.args}
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    if not isinstance(node.ctx, ast.Load):
                        self._stored |= {name} if isinstance(node, ast.Attribute) else set()
                        if name == "settings" and tail(getattr(node, "value", node)) == "job":
                            self._is_sure = False
                    elif id(node) not in called:
                        self._uses.setdefault(name, []).append((place, arguments.get(id(node))))
                    self._mentioned |= {name} if id(node) not in at_start else set()
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)):
                    self._prepared |= {name} if tail(function) == "prepare" else set()
                case ast.arg(arg=name, annotation=kind) if kind:
                    self._prepared |= {name} if tail(kind) == "Forward" else set()
                    self._typed[tail(kind)].add(name)
                case ast.Global(names=names) | ast.Nonlocal(names=names):
                    self._shared.update(names)
                    self._rebound |= {(module.name, scope.mangled(n)) for n in names if scope}
                case ast.alias(name=name, asname=str(other)):
                    self._renamed.setdefault(name, {name}).add(other)
                case ast.Subscript(value=kind, slice=inside) if tail(kind) in GENERIC:
                    called |= {id(inner) for inner in ast.walk(inside)}  # types, not values
            types = [getattr(node, name, None) for name in ("annotation", "returns")]
            inner = self._symbols.scope(node, scope) if isinstance(node, SCOPES) else scope
            body = getattr(node, "body", None)
            for child in (child for child in children(node) if child not in types):
                self._around[id(child)] = node
                is_inside = child is body or (isinstance(body, list) and child in body)
                is_inside |= isinstance(node, Comprehension)
                waiting.append((child, inner if is_inside else scope))

    def _index_module(self, place: Place) -> None:
        """Note a name `a.b.c` by which a module, or what it has, may change."""
        chain = chain_of(place.node)
        target = self._symbols.within(place.module, place.scope, chain)
        if target and target.kind == "module":  # passed on, or given another name
            self._rebound.add((target.module, ""))
        elif target and not isinstance(place.node.ctx, ast.Load):
            if target.used == len(chain) > 1:
                self._rebound.add((target.module, target.name))
            self._is_sure &= target.module != MODULE or len(chain) == 1

    def rebound(self, module: Module, statement: ast.AST) -> str:
        """Return a name of the project that an import statement binds for good, although its own
        module, or other code, may bind it again later; empty if there is none."""
        names = [alias for alias in module.imported(statement).values() if alias.name]
        if isinstance(statement, ast.ImportFrom) and not names:  # of *
            star = self._symbols.get(next(module.modules_of(statement)))
            names = [Alias(star.name, name) for name in star.bound] if star else []
        for alias in names:
            _, home, name, _ = self._symbols.of_import(*alias, [""])
            found = self._symbols.get(home) if name else None
            in_circle = found and any(each in self._symbols for each, _ in found.imports)
            is_early = found and in_circle and len(found.bound.get(name, ())) > 1
            if is_early or ((found or not home) and self.may_change(home, name)):
                return f"{home}.{name}".lstrip(".")
        return ""

    def may_change(self, home: str, name: str) -> bool:
        """Return whether code may bind a name in a module again, or a path outside the project."""
        return not self._rebound.isdisjoint({(home, name), (home, "")})

    def may_be_renamed(self, name: str, bound: Iterable[ast.AST]) -> bool:
        """Return whether a local variable, which nodes bind, may have another name: not if code may
        look at names, or an inner function sets the variable."""
        is_assigned = all(isinstance(node, ast.Name) for node in bound)
        return is_assigned and name not in self._shared and not self._shows_locals

    # The job's own settings

    def _named(self, entry: Module | None) -> str:
        """Return the name in settings.py of the class that the entry begins with."""
        for call in self._calls.get("begin", []):
            first = call.node.args[:1] if call.module is entry else []
            if first and (found := self._symbols.definition(call.module, first[0])):
                return found[1]
        return "Settings"

    def _with_bases(self, name: str, derived: tuple[str, ...] = ()) -> list[str]:
        """Return the names of a class of settings.py and of its bases, these first."""
        node, names = self._classes.get(name), (*derived, name)
        bases = [tail(base) for base in node.bases] if node else []
        return [*(n for b in bases if b not in names for n in self._with_bases(b, names)), name]

    def _declared(self) -> Iterator[tuple[str, ast.AnnAssign, Rules, bool]]:
        """Yield the settings: their names, the statements that declare them, the arguments there,
        and whether a condition can be evaluated on their values."""
        known = [self._classes[name] for name in self.settings if name in self._classes]
        are_plain = len(known) == len(self.settings) and all(map(self._is_plain, known))
        for field in (field for node in known for field in node.body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                words = {tail(inner) for inner in ast.walk(field.annotation)} - {""}
                rules = {each.arg: each.value for each in getattr(field.value, "keywords", [])}
                yield field.target.id, field, rules, are_plain and words <= PLAIN

    def _is_plain(self, settings: ast.ClassDef) -> bool:
        """Whether settings are as they were made: frozen, without ways around that."""
        options = [k for d in settings.decorator_list for k in getattr(d, "keywords", [])]
        is_frozen = any(k.arg == "frozen" and getattr(k.value, "value", 0) is True for k in options)
        hooks = {"__getattr__", "__getattribute__", "__setattr__"}
        named = {getattr(inner, "name", "") for inner in settings.body}
        return is_frozen and not settings.keywords and hooks.isdisjoint(named)

    @cached_property
    def has_other_settings(self) -> bool:
        """Whether code may make settings of the job's class, whose defaults then count, or of one
        that is derived from it."""
        own = {*self.settings}
        related = {n for n in self._classes if not own.isdisjoint(self._with_bases(n))}
        names = {other for name in related for other in self._renamed.get(name, {name})}
        uses = [use for name in names for use in self._uses.get(name, [])]
        asked = [(each.module.name, each.node.args[:1]) for each in self._calls.get("type", [])]
        return (
            not names.isdisjoint(self._calls)
            or not all(self._only_names(*use) for use in uses)
            or any(tail(n) != "self" or home == MODULE for home, first in asked for n in first)
            or not self._mentioned.isdisjoint({"fields", "__class__"})
            or any(_asks_class(self._classes[name]) for name in related)
        )

    def _only_names(self, place: Place, call: Place | None) -> bool:
        """Whether a use of a class of settings makes none: by `begin`, or as the base of another
        class of settings.py."""
        if call:
            return tail(call.node.func) in ("begin", "isinstance")
        return self._around.get(id(place.node)) in self._classes.values()

    def _are_shown(self) -> bool:
        """Whether code may look at all of the job's settings at once, such as at their text."""
        names = {"settings", *(name for kind in self.settings for name in self._typed[kind])}

        def may_be_settings(place: Place) -> bool:
            is_own = place.module.name == MODULE and tail(place.node) == "self"
            is_named = is_own or tail(place.node) in names
            return is_named or (isinstance(place.node, ast.Name) and self.keys(place) == SETTINGS)

        places = [place for uses in self._uses.values() for place, _ in uses]
        for place in places:
            around = self._around[id(place.node)]
            if isinstance(around, ast.Call) and tail(around.func) in ("replace", "copy"):
                around = self._around[id(around)]
            if isinstance(around, ast.Assign) and may_be_settings(place):
                names |= {tail(target) for target in around.targets}
        return any(map(may_be_settings, filter(self._is_look, places)))

    def _is_look(self, place: Place) -> bool:
        """Whether what an expression stands for may be looked at as a whole there."""
        around = self._around[id(place.node)]
        if isinstance(around, ast.keyword):
            around = self._around[id(around)]
        match around:
            case ast.Attribute(attr=name):
                return name.startswith("__")
            case ast.Call(func=function, keywords=keywords):
                if path := self._symbols.path_of(place.module, function, place.scope):
                    is_kept = any(k.arg == "file" for k in keywords)
                    is_kept |= "redirect_stdout" in self._mentioned
                    is_shown = path == "print" and is_kept
                    return is_shown or not (path in PASS_ON or path.startswith("labjobs."))
                return isinstance(function, ast.Attribute) and tail(function) not in self._functions
            case ast.Tuple():
                around = self._around[id(around)]
            case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                return False
        return not isinstance(around, ast.Assign | ast.AnnAssign | ast.Expr)

    def setting(self, place: Place) -> str:
        """Return the name of the job's setting that an expression is, if a condition sees it as it
        is in the job's identity; empty for anything else."""
        name = tail(place.node)
        is_one = isinstance(place.node, ast.Attribute) and self._fields.get(name)
        return name if is_one and self.keys(place) == frozenset([Key("setting", name)]) else ""

    def keys(self, place: Place) -> Keys:
        """Return what the value of an expression can be, if it is a constant, the job, its settings
        or one of these, or a variable or parameter that never has another value."""
        node, scope, module = place
        match node:
            case ast.Constant(value=value):
                return frozenset([Key("constant", str(value))])
            case ast.Attribute(value=whole, attr=name):
                found = self.keys(Place(whole, scope, module))
                if found == JOB and name == "settings":
                    return SETTINGS
                if found == SETTINGS and name in self._fields:
                    return frozenset([Key("setting", name)])
                if found == frozenset():
                    return found
            case ast.Name(id=name) if scope and name not in self._shared:  # no other code sets it
                owner = scope.owner(name)
                return self._traced(name, owner, module) if owner else None
        return None

    def _traced(self, name: str, owner: Scope, module: Module) -> Keys:
        """Return what a variable or a parameter can be."""
        this = owner.node, name
        if this in self._tracing:  # a function that calls itself passes on what others pass
            return frozenset()
        if len(bound := owner.bound[name]) != 1:
            return None
        self._tracing.add(this)
        try:
            if values := list(_values(name, owner.nodes)):
                return self.keys(Place(values[0], owner, module))
            given = self._given(owner.node, name, module) if isinstance(bound[0], ast.arg) else None
            if not given:
                return None
            passed, by_engine = given
            found = [self.keys(each) for each in passed]
            found += [self._passed_by_engine(bound[0], module)] if by_engine else []
        finally:
            self._tracing.remove(this)
        if None in found:
            return None
        # Of several callers, one that nobody calls adds nothing, such as another script's main().
        is_one_of_several = bool(self._tracing)
        known = frozenset[Key]().union(*filter(None, found))
        return known if known or is_one_of_several else None

    def _passed_by_engine(self, parameter: Any, module: Module) -> Keys:
        """Return what the engine passes for a parameter, by its type: the job, or its settings."""
        kind = getattr(parameter.annotation, "value", parameter.annotation)  # Job[Settings]
        if not kind or not self._is_sure:
            return None
        if self._symbols.path_of(module, kind) in JOBS:
            return JOB
        found = self._symbols.definition(module, kind)
        is_settings = found and found[0].name == MODULE and found[1] in self.settings
        return SETTINGS if is_settings else None

    # Parameters: what all callers pass

    def _find_given(
        self, function: ast.AST, name: str, module: Module
    ) -> tuple[list[Place], bool] | None:
        """Return what is passed for a parameter by all callers in the project, or is its default,
        and whether the engine calls the function, too; None if nobody knows."""
        if not isinstance(function, ast.FunctionDef) or function.args.vararg or function.args.kwarg:
            return None
        decorators = [getattr(each, "func", each) for each in function.decorator_list]
        paths = {self._symbols.path_of(module, decorator) for decorator in decorators}
        exact = ("definition", module.name, function.name)
        names = self._renamed.get(function.name, {function.name})
        named = [use for name in names for use in self._uses.get(name, [])]
        uses = [call for use, call in named if self._refers(use, use.node, exact)]
        if (
            module.definitions.get(function.name) != [function]
            or function.name in self._stored | self._shared
            or not paths <= TRANSPARENT
            or not all(use and self._is_engines(use) for use in uses)
        ):
            return None
        calls = [call for name in names for call in self._calls.get(name, [])]
        if any(tail(use.node.func) == "prepare" for use in uses if use):  # called by other names
            calls = [call for same in self._calls.values() for call in same]
            if any(self._is_given_away(call, self._prepared | names) for call in calls):
                return None
        found = []
        for call in calls:
            if not self._refers(call, call.node.func, exact):
                is_named = self._symbols.within(call.module, call.scope, chain_of(call.node.func))
                if not uses or is_named or not self._may_be(call, function):
                    continue
            if (passed := self._argument(call, function, name)) is None:
                return None
            found.append(passed)
        return found, bool(uses)

    def _refers(self, at: Place, node: ast.AST, exact: tuple[str, str, str]) -> bool:
        chain, scope = chain_of(node), at.scope
        owner = scope.owner(chain[0]) if chain and scope else None
        if owner and isinstance(owner.node, ast.ClassDef):  # `f = f` takes the module's f
            scope = None
        target = self._symbols.within(at.module, scope, chain)
        return bool(target and target[:3] == exact)

    def _is_engines(self, use: Place) -> bool:
        """Whether a function is passed to the engine, which calls it with this job."""
        function = use.node.func
        if not isinstance(function, ast.Attribute) or function.attr not in CALLED_BY_ENGINE:
            return False
        if self.keys(Place(function.value, use.scope, use.module)) == JOB:
            return True
        chain = chain_of(function.value)  # `command`, of `command = launch.begin(…)`
        begun = [v for name in chain[:1] for v in _values(name, use.module.nodes)]
        made = [value.func for value in begun if isinstance(value, ast.Call)]
        paths = [self._symbols.path_of(use.module, called) for called in made]
        return len(chain) == len(begun) == 1 and paths == ["labjobs.launch.begin"]

    def _is_given_away(self, call: Place, names: set[str]) -> bool:
        """Whether a library is given one of some functions, and may call it with anything."""
        path = self._symbols.path_of(call.module, call.node.func, call.scope)
        given = [*call.node.args, *(keyword.value for keyword in call.node.keywords)]
        is_library = bool(path) and not path.startswith("labjobs.")
        return is_library and any(isinstance(each, ast.Name) and each.id in names for each in given)

    def _may_be(self, call: Place, function: ast.FunctionDef) -> bool:
        """Whether a call of something without a known name may be one of a function that
        job.prepare() has returned: not if the numbers of arguments differ."""
        called, arguments = call.node.func, function.args
        if isinstance(called, ast.Attribute) and called.attr not in self._stored:
            return False  # a method
        given = [*call.node.args, *call.node.keywords]
        if any(isinstance(each, ast.Starred) or getattr(each, "arg", "") is None for each in given):
            return True
        most = len(parameters(function))
        return most - len(arguments.defaults) - len(arguments.kwonlyargs) <= len(given) <= most

    def _argument(self, call: Place, function: ast.FunctionDef, name: str) -> Place | None:
        """Return what a call passes for a parameter, or its default; None if nobody knows."""
        node, arguments = call.node, function.args
        if any(isinstance(each, ast.Starred) for each in node.args):
            return None
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        defaults = dict(zip(reversed(names), reversed(arguments.defaults), strict=False))
        passed: dict[str | None, ast.expr] = dict(zip(names, node.args, strict=False))
        passed |= {keyword.arg: keyword.value for keyword in node.keywords}
        if None in passed:
            return None
        if name in passed:
            return Place(passed[name], call.scope, call.module)
        return Place(defaults[name], None, call.module) if name in defaults else None


def _values(name: str, nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Yield the values that statements assign to a name."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[target], value=value):
                yield from _matched(name, target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _matched(name, target, value)


def _matched(name: str, target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
    match target, value:
        case ast.Name(id=found), _ if found == name:
            yield value
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for part, of_it in zip(targets, values, strict=True):
                yield from _matched(name, part, of_it)


def is_dataclass(node: ast.ClassDef) -> bool:
    """Return whether a class is decorated so that what it declares are fields."""
    return any(tail(getattr(each, "func", each)) == "dataclass" for each in node.decorator_list)


def _asks_class(node: ast.ClassDef) -> bool:
    """Whether a class of settings, or what decorates or makes it, may read the defaults of fields
    from a class."""
    if node.keywords or len(node.decorator_list) > is_dataclass(node):
        return True
    allowed = set[int]()
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name, decorator_list=decorators):
                if name in ASK_CLASS or {"classmethod"} & {*map(tail, decorators)}:
                    return True
            case ast.Attribute(value=ast.Call(func=function), attr="__post_init__"):
                allowed.add(id(function))
            case ast.Name(id="super") if id(inner) not in allowed:
                return True
    return False


def _types(field: ast.AnnAssign, rules: Rules) -> str:
    """What kinds of values a setting can have: `str` for Literal["a", "b"] too; and its neutral
    value, if it was added later. That it can be None as well changes no other value."""
    nodes = ast.walk(field.annotation)
    parts = [node for node in nodes if tail(node) or isinstance(node, ast.Constant)]
    found = {tail(node) or type(getattr(node, "value", None)).__name__ for node in parts}
    types = " ".join(sorted(found - {"Literal", "None", "NoneType", "Optional", "Union"}))
    return f"{types} {ast.unparse(rules['neutral'])}" if "neutral" in rules else types


def _default(field: ast.AnnAssign, rules: Rules) -> str:
    """The default of a setting, as it is written."""
    given = field.value.args[:1] if isinstance(field.value, ast.Call) else [field.value]
    default = given[0] if given else rules.get("default")
    return ast.unparse(default) if default else ""


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

COLLECTIONS = {ast.Tuple: tuple, ast.List: list, ast.Set: set}


class Undecided(Exception):
    """A condition depends on more than the values of settings."""


class Conditions:
    """The conditions of one job; `asked` collects the settings that they asked for."""

    def __init__(self, settings: Mapping[str, Any], named: Callable[[ast.AST], str]) -> None:
        self._settings, self._named = settings, named
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
            case ast.Attribute() if name := self._named(node):
                # Undecided: a setting that is not part of the identity
                value = self.asked[name] = self._settings.get(name, Undecided)
                if value is None or isinstance(value, str | int | float):
                    return value
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand)
            case ast.BoolOp(op=kind, values=values):
                for part in values:  # up to the one that decides
                    value = self._value(part)
                    if bool(value) is isinstance(kind, ast.Or):
                        break
                return value
            case ast.Tuple(elts=values) | ast.List(elts=values) | ast.Set(elts=values):
                return COLLECTIONS[type(node)](map(self._value, values))
            case ast.Compare(left=left, ops=[kind], comparators=[right]):
                value, other = self._value(left), self._value(right)
                if isinstance(kind, ast.In | ast.NotIn) and isinstance(other, str):
                    raise Undecided  # `in` a text is another question
                if not isinstance(kind, ast.Is | ast.IsNot) or other is None:
                    return COMPARISONS[type(kind)](value, other)
        raise Undecided
