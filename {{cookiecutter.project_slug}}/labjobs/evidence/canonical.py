"""The canonical text of code: equal for equal programs, on each version of Python.

`ast.dump` will not do: Python 3.12 and 3.13 changed it. Positions, comments, formatting and
docstrings are not in the text, nor are fields that are empty. For a job, names are replaced by what
they refer to, local variables are numbered, and what changes no result is left out.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from labjobs.evidence.settings_use import (
    ALL,
    NAMES,
    WORDS,
    Conditions,
    Key,
    KeyFinder,
    SettingsUse,
)
from labjobs.evidence.settings_use import MODULE as SETTINGS
from labjobs.evidence.symbols import (
    Comprehension,
    Function,
    Module,
    Scope,
    Symbols,
    Target,
    chain_of,
    is_dataclass,
    is_guard,
    outside,
    parameters,
    parents,
    tail,
)
from labjobs.evidence.top_level import BUILT_IN, Registries, acts_on_subclasses

SCHEME = 2
"""Number of the scheme; raise it if the same code would get a different text."""

IGNORED_FIELDS = {"ctx", "kind", "type_comment", "type_ignores", "type_params"}

TOKEN = "\x01{}:{}\x02"
"""Placeholder in a text for a definition of the project, until its name in the digest is known."""


class Canonical:
    """A writer of canonical text, with every name as it is written in the code."""

    def __init__(self) -> None:
        self.out: list[str] = []

    def text(self) -> str:
        """Return what has been written."""
        return "".join(self.out)

    def write(self, node: ast.AST) -> None:
        """Write a node; a method such as `_Name` writes that kind of node."""
        getattr(self, f"_{type(node).__name__}", self.plain)(node)

    def plain(self, node: ast.AST) -> None:
        """Write a node field by field."""
        self.out.append(f"{type(node).__name__}(")
        for name, value in ast.iter_fields(node):
            if name not in IGNORED_FIELDS and value is not None and value != []:
                self.field(name, value)
        self.out.append(")")

    def field(self, name: str, value: object) -> None:
        """Write a field of a node."""
        self.out.append(f"{name}=")
        if name in ("body", "orelse", "finalbody") and isinstance(value, list):
            self.out.append("[")
            self.statements(value)
            self.out.append("]")
        else:
            self.value(value)
        self.out.append(";")

    def value(self, value: object) -> None:
        """Write the content of a field: a node, a list or a plain value."""
        if isinstance(value, ast.AST):
            self.write(value)
        elif isinstance(value, list):
            self.out.append("[")
            for part in value:
                self.value(part)
                self.out.append(",")
            self.out.append("]")
        else:
            self.out.append(constant(value))

    def statements(self, statements: Iterable[ast.stmt]) -> None:
        """Write statements, except those that do nothing."""
        for statement in statements:
            if not does_nothing(statement):
                self.write(statement)
                self.out.append(",")

    def _Constant(self, node: ast.Constant) -> None:
        self.out.append(constant(node.value))

    def _JoinedStr(self, node: ast.JoinedStr) -> None:
        """An f-string; versions of Python differ in how they cut the text between its values."""
        text = ""
        self.out.append("f(")
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            self.out.append(constant(text))
            text = ""
            self.write(part)
        self.out.append(f"{constant(text)})")


def does_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement is `pass`, a docstring or another constant."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def constant(value: object) -> str:
    """Return a constant with its type: 1, 1.0 and True differ."""
    if type(value) is int:
        return f"int:{value:x}"  # decimals of huge numbers are refused
    return f"{type(value).__name__}:{value!a}"


def whole(tree: ast.Module) -> str:
    """Return the canonical text of a module, with every name as it is written there."""
    writer = Canonical()
    writer.statements(tree.body)
    return f"[{writer.text()}]"


def short(data: bytes) -> str:
    """Return 16 hex digits of a SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


# What code uses


class Use(NamedTuple):
    """Something that a definition uses.

    how         what is used
    definition  `name` in `module`; of a registry, `key`
    whole       all that a module defines; `why` is said to the user
    everything  all modules
    import      what importing a module does
    engine      a name of the engine
    subclasses  the subclasses of a class
    """

    how: str
    module: str = ""
    name: str = ""
    key: Key = ALL
    why: str = ""


class Written(NamedTuple):
    """A definition's text, what it uses, its constants, and the settings that decided branches."""

    text: str
    uses: Sequence[Use]
    words: set[str]
    asked: Mapping[str, Any]


class Code:
    """What is known about a project's code as a whole, independent of the job."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols, modules = symbols, symbols.imported
        self.registries = Registries(modules, symbols)
        self.use = SettingsUse(modules, symbols)
        self.keys = KeyFinder(modules, self.use, symbols)
        self._mentioned = {name for module in modules for name in module.mentioned}

    def mentions(self, names: set[str]) -> bool:
        """Return whether some of these names stand anywhere in the code."""
        return not names.isdisjoint(self._mentioned)


# What a job's results do not depend on, unless code looks at it

READS_ANNOTATIONS = {
    *("get_type_hints", ".get_type_hints", ".__annotations__", ".get_annotations"),
    *("get_annotations", "signature", ".signature", "inspect", ".getfullargspec", "fields"),
    ".fields",
}
READS_LOCALS = {"locals", "vars", "eval", "exec", "dir"}
READS_ERRORS = {"except as", ".exc_info", ".format_exc", ".last_value"}
READS_DOCSTRINGS = {"__doc__", ".__doc__"}

IGNORE_ANNOTATIONS = {
    *("cache", "lru_cache", "wraps", "contextmanager", "no_grad", "inference_mode", "property"),
    *("staticmethod", "classmethod", "abstractmethod", "cached_property", "override", "overload"),
    *("final", "compile", "total_ordering", "setter", "enable_grad", "dataclass"),
}
"""Decorators, from outside of the project, that do not look at annotations."""

LOGS = ("debug", "info", "warning", "error", "exception", "critical", "log")

READS = {
    *("item", "mean", "std", "sum", "min", "max", "size", "numel", "dim", "tolist", "cpu"),
    *("detach", "format", "join", "strip", "upper", "lower", "keys", "values", "items", "ljust"),
    *("rjust", "norm", "memory_allocated", "max_memory_allocated", "float", "removeprefix"),
}
"""Methods that only read, of tensors, texts and dicts."""

READ_BUILT_IN = BUILT_IN - {"print", "map", "filter", "super", "object"}

METRIC = "labjobs.settings.Metric"

TAKES_NAMES = {"sorted", "list", "tuple", "set", "frozenset", "len", "iter", "enumerate", "bool"}
"""These use only the names in a registry, not its values."""

ENGINES = Key("engine's")
"""What the engine uses of a registry that it is given: the entries of METRICS that the job has."""

# Names that may reach anything

IMPORTS = ("importlib.import_module", "__import__")

REFLECTIVE = {
    *("eval", "exec", "importlib.reload", "importlib.util.spec_from_file_location"),
    *("runpy.run_path", "runpy.run_module", "sys.modules", "sys._getframe", "gc.get_objects"),
    *("inspect.currentframe", "inspect.stack", "pkgutil.iter_modules", "pkgutil.walk_packages"),
    *("sys.path", "site.addsitedir", *IMPORTS),
}
REACH_ANYTHING = ("__subclasses__", "__globals__", "f_globals")


class Writer(Canonical):
    """Writes statements and expressions of one module, for one job, and notes what they use."""

    def __init__(self, code: Code, module: Module, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._code, self._module = code, module
        self._conditions = Conditions(settings)
        self._scope: Scope | None = None
        self._uses: dict[Use, None] = {}
        self._words: set[str] = set()
        self._scopes: list[Scope] = []  # kept, so that each id() stays its own
        self._numbers: dict[tuple[int, str], int] = {}
        self._asked: dict[int, tuple[Key, ...]] = {}

    def written(self, node: ast.AST) -> Written:
        """Return the text of a statement or expression, and what it uses."""
        self.write(node)
        self.out.append("\n")
        return Written(self.text(), list(self._uses), self._words, self._conditions.asked)

    def _use(self, how: str, *what: Any, why: str = "") -> None:
        use = Use(how, *what)
        self._uses[use._replace(why=f"{self._module.name}.py {why}") if why else use] = None

    def _target(self, node: ast.AST) -> Target | None:
        """Return what `a.b.c` refers to; None for local names and for other expressions."""
        return self._code.symbols.within(self._module, self._scope, chain_of(node))

    # Statements

    def statements(self, statements: Iterable[ast.stmt]) -> None:
        """Write statements, except those that do nothing and branches that are not taken."""
        for statement in statements:
            if isinstance(statement, ast.If) and (truth := self._truth(statement)) is not None:
                self.statements(statement.body if truth else statement.orelse)
            elif not self._is_left_out(statement):
                self.write(statement)
                self.out.append(",")

    def _truth(self, node: ast.If | ast.IfExp) -> bool | None:
        return self._conditions.truth(node.test) if self._code.use.own else None

    def _is_left_out(self, statement: ast.stmt) -> bool:
        if does_nothing(statement):
            return isinstance(statement, ast.Pass) or not self._code.mentions(READS_DOCSTRINGS)
        match statement:
            case ast.Expr(value=ast.Call(func=function, args=args, keywords=keywords)):
                path = self._path(function)
                if path == "print":
                    prints = not any(keyword.arg == "file" for keyword in keywords)
                else:
                    prints = path.startswith("logging.") and path.split(".")[-1] in LOGS
                return prints and all(map(is_pure, [*args, *keywords]))
        return False

    def _path(self, node: ast.expr) -> str:
        """Return the dotted path of what a name refers to outside the project; "logging.info" of
        `log.info`, after `log = logging.getLogger(…)`."""
        symbols, target = self._code.symbols, self._target(node)
        module = symbols.get(target.module) if target else None
        match module.definitions.get(target.name) if module and target else None:
            case [ast.Assign(value=ast.Call(func=function))] if module and target:
                if symbols.path_of(module, function) == "logging.getLogger":
                    return ".".join(["logging", *chain_of(node)[target.used :]])
        return target.path if target else ""

    def _If(self, node: ast.If) -> None:
        if is_guard(node):
            node = ast.If(node.test, list(map(without_check, node.body)), node.orelse)
        self.plain(node)

    def _IfExp(self, node: ast.IfExp) -> None:
        if (truth := self._truth(node)) is None:
            self.plain(node)
        else:
            self.write(node.body if truth else node.orelse)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        """Write `x: int = 1` as `x = 1`; in a class it is a field, whose type may matter."""
        around = self._scope.node if self._scope else None
        if isinstance(around, ast.ClassDef):
            self.out.append("field:")
            self.write(node.target)
            bases = [self._code.symbols.path_of(self._module, base) for base in around.bases]
            is_plain = is_dataclass(around) or "typing.NamedTuple" in bases
            if not is_plain or self._code.mentions(READS_ANNOTATIONS):
                self.write(node.annotation)
            else:  # all that dataclasses look for
                words = ast.unparse(node.annotation)
                special = [word for word in ("ClassVar", "InitVar", "KW_ONLY") if word in words]
                self.out.append(f":{','.join(special)}:")
            if node.value:
                self.write(node.value)
        elif node.value:
            self.plain(ast.Assign([node.target], node.value))

    def _Raise(self, node: ast.Raise) -> None:
        """Write an exception, without its text unless some code looks at exceptions."""
        match node.exc:
            case ast.Call(func=kind, args=args, keywords=keywords):
                if all(map(is_pure, [*args, *keywords])) and not self._code.mentions(READS_ERRORS):
                    node = ast.Raise(kind, node.cause)
        self.plain(node)

    def _Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._words.add(node.value)
        super()._Constant(node)

    # Names

    def _Name(self, node: ast.Name) -> None:
        target = self._target(node)
        if not self._scope and isinstance(node.ctx, ast.Store):  # the definition of the name
            self.out.append(TOKEN.format(self._module.name, node.id))
        elif target:
            self._refer(target, node)
        elif self._scope and (owner := self._scope.owner(node.id)):
            self._local(owner, node.id)

    def _local(self, owner: Scope, name: str) -> None:
        in_class = isinstance(owner.node, ast.ClassDef)
        is_variable = all(isinstance(node, ast.Name) for node in owner.bound[name])
        if is_variable and not in_class and not self._code.mentions(READS_LOCALS):
            number = self._numbers.setdefault((id(owner), name), len(self._numbers))
            self.out.append(f"v{number}")
            return
        self.out.append(f"local:{name}")
        if in_class and name in self._module.definitions:
            self._use("definition", self._module.name, name)  # before the class binds it

    def _Attribute(self, node: ast.Attribute) -> None:
        if target := self._target(node):
            self._refer(target, node)
        else:
            self.plain(node)
        if node.attr in REACH_ANYTHING:
            self._use("everything", why=f"uses {node.attr}")

    def _refer(self, target: Target, node: ast.expr) -> None:
        """Write what `a.b.c` refers to, and note that it is used."""
        chain, path = chain_of(node), target.path
        shown = ".".join(chain)
        if target.kind == "definition":
            name: ast.AST = node
            for _ in chain[target.used :]:
                name = name.value  # type: ignore[attr-defined]
            for key in self._asked.get(id(name), (ALL,)):
                self._use("definition", target.module, target.name, key)
            self.out.append(TOKEN.format(target.module, target.name))
        elif target.kind == "module":
            self._use("whole", target.module, why=f"uses {shown} as a value")
            self.out.append(f"module:{target.module}")
        elif target.kind == "nothing":
            self.out.append(f"?{target.name}")
            if target.module != self._module.name:
                self._use("whole", target.module, why=f"uses {shown}, which is not written there")
        else:
            self.out.append(f"<{path}>")
            if path.startswith("labjobs."):
                self._use("engine", path)
            elif path == "globals" or (path == "vars" and not self._scope):
                self._use("whole", self._module.name, why=f"uses {path}")
            elif REFLECTIVE.intersection(parents(path)):
                self._use("everything", why=f"uses {path}")
        self.out.extend(f".{name}" for name in chain[target.used :])

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Write an import, unless its names refer to the same thing everywhere."""
        for name in self._module.modules_of(node):
            self._use("import", name)
        for local, alias in self._module.imported(node).items():
            owner = self._scope.owner(local) if self._scope else None
            if owner:
                has_one_meaning = self._module.alias(local, owner.bound[local]) is not None
            else:
                has_one_meaning = local in self._module.aliases
            if not has_one_meaning:
                self.out.append(f"{local}=")
                target = self._code.symbols.of_import(*alias, [local])
                self._refer(target, ast.Name(local, ast.Load()))

    _Import = _ImportFrom = _import

    # Functions, classes and comprehensions

    @contextmanager
    def _inside(self, node: ast.AST) -> Iterator[Scope]:
        around, scope = self._scope, Scope(node, self._scope)
        self._scope = scope
        self._scopes.append(scope)
        yield scope
        self._scope = around

    def _function(self, node: Function) -> None:
        self.out.append(f"{type(node).__name__}:{getattr(node, 'name', '')}(")
        self.value(getattr(node, "decorator_list", []))
        self.value(node.args)
        if self._reads_annotations(node):
            self.value([argument.annotation for argument in parameters(node)])
            self.value(getattr(node, "returns", None))
        with self._inside(node) as scope:
            if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in scope.nodes):
                self.out.append("generator;")  # even if the branch with `yield` is not taken
            self.field("body", node.body)
        self.out.append(")")

    _FunctionDef = _AsyncFunctionDef = _Lambda = _function

    def _arg(self, node: ast.arg) -> None:
        self.out.append(node.arg)

    def _reads_annotations(self, function: ast.AST) -> bool:
        """Whether anything may look at a function's annotations."""
        decorators = [getattr(d, "func", d) for d in getattr(function, "decorator_list", [])]
        return self._code.mentions(READS_ANNOTATIONS) or not all(
            tail(decorator) in IGNORE_ANNOTATIONS
            or self._code.symbols.definition(self._module, decorator)
            for decorator in decorators
        )

    def _ClassDef(self, node: ast.ClassDef) -> None:
        self.out.append(f"class:{node.name}(")
        self.value(outside(node))
        with self._inside(node):
            self.out.append("[")
            is_settings = self._module.name == SETTINGS and is_dataclass(node)
            self.statements(s for s in node.body if not (is_settings and is_field(s)))
            self.out.append("]")
        self.out.append(")")
        if acts_on_subclasses(node):
            self._use("subclasses", self._module.name, node.name)

    def _comprehension_of(self, node: Comprehension) -> None:
        self.out.append(f"{type(node).__name__}(")
        self.write(node.generators[0].iter)  # which does not see the names of the comprehension
        with self._inside(node):
            for name in ("elt", "key", "value", "generators"):
                if hasattr(node, name):
                    self.field(name, getattr(node, name))
        self.out.append(")")

    _ListComp = _SetComp = _DictComp = _GeneratorExp = _comprehension_of

    # Registries: using one with a key that is known counts as using one entry

    def _ask(self, node: ast.AST, *keys: Key) -> None:
        """Note what is used of a registry, for when its name is written."""
        target = self._target(node)
        name = (target.module, target.name) if target else None
        is_whole = target and target.used == len(chain_of(node))
        if target and is_whole and name in self._code.registries.entries:
            if keys == (ENGINES,):
                keys = (WORDS,) if target.module == SETTINGS else ()
            self._asked[id(node)] = keys

    def _ask_for(self, node: ast.AST, key: ast.expr, unknown: Key) -> None:
        keys = self._code.keys.of(key, self._scope, self._module)
        self._ask(node, *([unknown] if keys is None else sorted(keys)))

    def _Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load):
            self._ask_for(node.value, node.slice, ALL)
        else:  # `MODELS[name] = …` looks at no entry
            self._ask(node.value)
        self.plain(node)

    def _Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
            self._ask_for(node.comparators[0], node.left, NAMES)
        self.plain(node)

    def _Call(self, node: ast.Call) -> None:
        path = self._path(node.func)
        match node:
            case ast.Call(args=[*first], keywords=keywords) if path == METRIC:
                # its direction decides which weights are kept; the rest is for people
                better = [keyword.value for keyword in keywords if keyword.arg == "better"]
                self.out.append("Metric:")
                self.value([*first[:1], *better])
                return
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if path in IMPORTS:
                self.out.append(f"import:{name}")
                if name in self._code.symbols:
                    self._use("whole", name, why="imports it by its name")
                return
            case ast.Call(
                ast.Attribute(owner, "get" | "pop" | "setdefault" | "register"), [key, *_]
            ):
                self._ask_for(owner, key, ALL)
            case ast.Call(ast.Attribute(owner, "keys")):
                self._ask(owner, NAMES)
            case _ if path.startswith("labjobs.") or path in TAKES_NAMES:
                for argument in [*node.args, *node.keywords]:
                    passed = getattr(argument, "value", argument)
                    self._ask(passed, NAMES if path in TAKES_NAMES else ENGINES)
        self.plain(node)


def is_pure(node: ast.AST) -> bool:
    """Return whether an expression visibly changes nothing."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(inner, ast.Call):
            reads = READS if isinstance(inner.func, ast.Attribute) else READ_BUILT_IN
            if tail(inner.func) not in reads:
                return False
    return True


def is_field(statement: ast.stmt) -> bool:
    """Return whether a statement is a field of a settings class, which belongs to the identity; so
    does FORMER."""
    if not isinstance(statement, ast.AnnAssign):
        return False
    return "ClassVar" not in ast.unparse(statement.annotation) or tail(statement.target) == "FORMER"


def without_check(statement: ast.stmt) -> ast.stmt:
    """Return `run(main)` for `run(main, check)`: the check decides whether a job starts, not what
    its results are."""
    match statement:
        case ast.Expr(
            value=ast.Call(args=[ast.Call(func=ast.Attribute(attr="run"), args=[main, _]) as run])
        ):
            return ast.Expr(ast.Call(run.func, [main], []))
    return statement
