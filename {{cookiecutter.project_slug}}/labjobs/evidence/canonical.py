"""The canonical text of code: equal for equal programs, on each version of Python.

`ast.dump` will not do: Python 3.12 and 3.13 changed it. Positions, comments, formatting and
docstrings are not in the text, nor are fields that are empty. For a job, names are replaced by what
they refer to, and branches that its settings switch off are left out.
"""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

from labjobs.evidence.symbols import (
    Comprehension,
    Function,
    Import,
    Module,
    Scope,
    Symbols,
    Target,
    chain_of,
    does_nothing,
    outside,
    tail,
)
from labjobs.evidence.top_level import Effects, Registries
from labjobs.evidence.understood import is_special, reaches_anything, reads_unseen, special_word
from labjobs.evidence.values import (
    ALL,
    ENGINES,
    Conditions,
    Key,
    Place,
    Undecided,
    Values,
    is_dataclass,
)
from labjobs.evidence.values import MODULE as SETTINGS

SCHEME = 8
"""Number of the scheme; raise it if the same code would get a different text."""

IGNORED_FIELDS = {"ctx", "kind", "type_comment"}


def _constant(value: object) -> str:
    """Return a constant with its type: 1, 1.0 and True differ."""
    if type(value) is int:
        return f"int:{value:x}"  # decimals of huge numbers are refused
    return f"{type(value).__name__}:{value!a}"


def short(data: bytes) -> str:
    """Return 16 hex digits of a SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


# What code uses


class Use(NamedTuple):
    """Something that a definition uses.

    how         what is used
    definition  `name` in `module`; of a registry, `key`
    whole       a whole module, because of `why`
    everything  all modules, because of `why`
    import      what importing a module does
    engine      a name of the engine
    unseen      `name`, of a library, reads files that Python does not open; `why` says where
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
        self.values = Values(modules, symbols)
        self.effects = cache(partial(Effects, symbols, self.registries, self.values))
        self.looks_at_types = any(LOOK_AT_TYPES.search(module.source) for module in modules)
        """Whether what parameters are said to be may decide what happens."""
        named = (name for module in modules for n in module.nodes for name in module.modules_of(n))
        self.has_tables = any(name.partition(".")[0] in TABLES for name in named)
        """Whether there may be tables that look names up in the code that calls them."""

    def is_field(self, module: Module, node: ast.ClassDef, statement: ast.stmt) -> bool:
        """Return whether a statement of a class belongs to the identity of jobs: the fields of
        their settings, and FORMER."""
        is_own = module.name == SETTINGS and node.name in self.values.settings
        if not (is_own and is_dataclass(node) and isinstance(statement, ast.AnnAssign)):
            return False
        named = (self.symbols.path_of(module, each) for each in ast.walk(statement.annotation))
        words = " ".join([ast.unparse(statement.annotation), *named])
        is_variable = re.search("ClassVar|InitVar", words) and tail(statement.target) != "FORMER"
        return not (is_variable or self.values.has_other_settings or self.values.shows_settings)


LOOK_AT_TYPES = re.compile(
    "singledispatch|custom_op|infer_schema|json_schema|torch_geometric|triton"
)
"""What looks at the types of functions, besides what may reach any code."""

TABLES = {"pandas", "numexpr", "polars"}
READS_CALLER = {"query", "eval", "sql", "SQLContext"}
"""Their methods and functions that do so."""
GETS = {"getattr", "operator.attrgetter", "operator.methodcaller"}

FIND = "importlib.util.find_spec"
TO_READ = {"filename", "stream", "handlers"}
LOADS = {"torch.load", "numpy.load", FIND}
SAFE = {"weights_only": True, "allow_pickle": False}
"""Without these values, what they load may be of any class that the file names."""

KEEP_LINES = {"warnings.catch_warnings": "record", "traceback.print_exc": "file"}
"""With these arguments, code may depend on the lines on which it stands."""

LOOKS_AT_NAMES = {"labjobs.vision.torchvision_classifier"}
"""Functions of the engine that use the names in a registry and not its entries."""


class Writer:
    """Writes statements and expressions of one module to `out`, for one job, and notes what they
    use."""

    def __init__(self, code: Code, module: Module, settings: Mapping[str, Any]) -> None:
        self.out: list[str] = []
        self._code, self._module = code, module
        self._settings, self._conditions = settings, Conditions(settings, self._setting)
        self._scope: Scope | None = None
        self._uses: dict[Use, None] = {}
        self._words: set[str] = set()
        self._asked: dict[int, tuple[Key, ...]] = {}
        self._numbers: dict[tuple[Scope, str], int] = {}  # of local variables
        self._safe: set[int] = set()  # calls that load nothing but data, formats that are shown
        self._imported: set[ast.AST] = set()
        self._root: ast.AST | None = None  # the statement or expression that is written
        self._called: set[int] = set()  # what is called is no setting: `job.steps(batches)`

    def written(self, node: ast.AST) -> Written:
        """Return the text of a statement or expression, and what it uses."""
        self._root = node
        self.write(node)
        text = "".join([*self.out, "\n"])
        return Written(text, list(self._uses), self._words, self._conditions.asked)

    def write(self, node: ast.AST) -> None:
        """Write a node; a method such as `_Name` writes that kind of node."""
        getattr(self, f"_{type(node).__name__}", self._plain)(node)

    def _plain(self, node: ast.AST) -> None:
        """Write a node field by field."""
        self.out.append(f"{type(node).__name__}(")
        for name, value in ast.iter_fields(node):
            if name not in IGNORED_FIELDS and value is not None and value != []:
                self._field(name, value)
        self.out.append(")")

    def _field(self, name: str, value: object) -> None:
        self.out.append(f"{name}=")
        if name in ("body", "orelse", "finalbody") and isinstance(value, list):
            self.out.append("[")
            self.statements(value)
            self.out.append("]")
        else:
            self._value(value)
        self.out.append(";")

    def _value(self, value: object) -> None:
        """Write the content of a field: a node, a list or a plain value."""
        if isinstance(value, ast.AST):
            self.write(value)
        elif isinstance(value, list):
            self.out.append("[")
            for part in value:  # a default that is missing is not one that is None
                self._value(part) if part is not None else self.out.append("-")
                self.out.append(",")
            self.out.append("]")
        else:
            self.out.append(_constant(value))

    def _use(self, how: str, *what: Any) -> None:
        self._uses[Use(how, *what)] = None

    def _doubt(self, node: ast.AST, why: str, module: str = "") -> None:
        """Note a construct because of which a whole module counts, or all of them."""
        why = f"{self._module.path}:{getattr(node, 'lineno', 1)} {why}"
        self._uses[Use("whole" if module else "everything", module, why=why)] = None

    def _target(self, node: ast.AST) -> Target | None:
        """Return what `a.b.c` refers to; None for local names and for other expressions."""
        return self._code.symbols.within(self._module, self._scope, chain_of(node))

    def _setting(self, node: ast.AST) -> str:
        return self._code.values.setting(Place(node, self._scope, self._module))

    # Statements

    def statements(self, statements: Iterable[ast.stmt]) -> None:
        """Write statements, except those that do nothing and branches that are not taken."""
        for statement in statements:
            if isinstance(statement, ast.If) and (
                (truth := self._conditions.truth(statement.test)) is not None
            ):
                self.statements(statement.body if truth else statement.orelse)
            elif not does_nothing(statement):
                self.write(statement)
                self.out.append(",")

    def _IfExp(self, node: ast.IfExp) -> None:
        if (truth := self._conditions.truth(node.test)) is None:
            self._plain(node)
        else:
            self.write(node.body if truth else node.orelse)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        """Write `x: int = 1` in a function as `x = 1`: nothing keeps the types of variables."""
        if not self._scope or isinstance(self._scope.node, ast.ClassDef):
            self._plain(node)
        elif node.value:
            self._plain(ast.Assign([node.target], node.value))

    def _Constant(self, node: ast.Constant) -> None:
        text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        if isinstance(text, str):
            self._words.add(text)
            if id(node) not in self._safe:
                self._look_into(text, node)
        self.out.append(_constant(node.value))
        self._type(str(text))

    def _type(self, name: str) -> None:
        """Write the type of a setting, by which --lr 1 is 1 or 1.0, where its name stands; and what
        is not in the ids of jobs: its neutral value, and its default in jobs to which it does not
        apply."""
        if types := self._code.values.types.get(name):
            self.out.append(f":{types}")
        if default := self._code.values.nested.get(name):
            self._conditions.asked[name] = known = self._settings.get(name, Undecided)
            self.out.append(f"={default}" if known is Undecided else "")

    def _look_into(self, text: str, node: ast.AST) -> None:
        if word := special_word(text):  # by which `format` or `getattr` may reach other code
            self._doubt(node, f"names {word}")
        module, _, name = text.partition(":")  # as gymnasium imports it
        if name.isidentifier() and module in self._code.symbols:
            self._doubt(node, f"names {text}", module)

    def _JoinedStr(self, node: ast.JoinedStr) -> None:
        """An f-string; versions of Python differ in how they cut the text between its values."""
        parts = (str(p.value) if isinstance(p, ast.Constant) else "x" for p in node.values)
        self._look_into("".join(parts), node)
        self.out.append("f(")
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                self._words.add(str(part.value))
                text += str(part.value)
            else:
                self.out.append(_constant(text))
                self.write(part)
                text = ""
        self.out.append(f"{_constant(text)})")

    # Names

    def _Name(self, node: ast.Name) -> None:
        target = self._target(node)
        if not self._scope and isinstance(node.ctx, ast.Store):  # the definition of the name
            self.out.append(f"<{self._module.name}:{node.id}>")
        elif target:
            self._refer(target, node)
        else:
            owner = self._scope.owner(node.id) if self._scope else None
            self.out.append(f"local:{self._numbered(node.id, owner)}")
            if owner and isinstance(owner.node, ast.ClassDef):  # before the class binds it
                around = self._code.symbols.resolve(self._module, [node.id])
                if around.kind == "definition":
                    self._use("definition", around.module, around.name)
                elif around.kind == "module":
                    self._doubt(node, f"uses {node.id} as a value", around.module)

    def _numbered(self, name: str, owner: Scope | None) -> str | int:
        """The number of a local variable that may be renamed, since nothing but assignments bind
        it; or else its name."""
        if not owner or isinstance(owner.node, ast.ClassDef):  # attributes of the class
            return name
        if not self._code.values.may_be_renamed(name, owner.bound[name]):
            return name
        return self._numbers.setdefault((owner, name), len(self._numbers))

    def _Attribute(self, node: ast.Attribute) -> None:
        if is_special(node.attr):
            self._doubt(node, f"uses {node.attr}")
        if target := self._target(node):
            self._refer(target, node)
        else:
            self._plain(node)
        if id(node) not in self._called:
            self._type(node.attr)

    def _MatchClass(self, node: ast.MatchClass) -> None:
        for name in filter(is_special, node.kwd_attrs):
            self._doubt(node, f"uses {name}")
        self._plain(node)

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
            self.out.append(f"<{target.module}:{target.name}>")
        elif target.kind == "module":
            self._doubt(node, f"uses {shown} as a value", target.module)
            self.out.append(f"module:{target.module}")
        elif target.kind == "unclear":
            self.out.append(f"?{target.name}")
            self._doubt(node, f"uses {shown}, a module and something else in {target.module}")
        elif target.kind == "nothing":
            self.out.append(f"?{target.name}")
            if target.module != self._module.name:
                self._doubt(node, f"uses {shown}, which is not written there", target.module)
        else:
            self.out.append(f"<{path}>")
            head, _, last = path.rpartition(".")
            is_seen = id(node) in self._called and last == tail(node)  # in the call
            if head in TABLES and last in READS_CALLER and not is_seen:
                self._doubt(node, f"uses {path}, which looks names up", self._module.name)
            if path.startswith("labjobs."):
                self._use("engine", path)
            elif path == "globals" or (path == "locals" and not self._scope):
                self._doubt(node, f"uses {path}", self._module.name)
            elif reaches_anything(path) or (path in LOADS and id(node) not in self._safe):
                self._doubt(node, f"uses {path}")
            if reads_unseen(path):
                self._use("unseen", "", path, ALL, f"{self._module.path}:{node.lineno}")
        self.out.extend(f".{name}" for name in chain[target.used :])
        for each in filter(is_special, chain):
            is_own = each in ("__doc__", "__file__") and each == chain[0]
            self._doubt(node, f"uses {each}", self._module.name if is_own else "")

    def _import(self, node: Import) -> None:
        """Write an import of the project's modules, and one by which a name has two meanings."""
        self._imported.add(node)
        if name := self._code.values.rebound(self._module, node):
            self._doubt(node, f"imports {name}, which may change later", self._module.name)
        for name in self._module.modules_of(node):
            self._use("import", name)
            if name == "__future__":
                self.out.append("types are texts;")
            if name in self._code.symbols:
                self.out.append(f"import:{name};")
                self.out.append("hidden;" if self._code.symbols.is_hidden(name) else "")
            elif self._code.symbols.is_unknown(name):
                self._doubt(node, f"imports {name}, which is not known")
        for local, alias in self._module.imported(node).items():
            owner = self._scope.owner(local) if self._scope else None
            bound = owner.bound if owner else self._module.bound
            # Others see what is imported by `global` and `nonlocal`; instances, what their class
            # imports; and locals() has everything.
            is_class = owner and isinstance(owner.node, ast.ClassDef)
            has_locals = owner and "locals" in map(tail, owner.nodes)
            is_shown = is_class or has_locals or owner is not self._scope
            if is_shown or not self._module.alias(local, bound.get(local, [])):
                self.out.append(f"{local}=")
                target = self._code.symbols.of_import(*alias, [local])
                self._refer(target, ast.copy_location(ast.Name(local, ast.Load()), node))

    _Import = _ImportFrom = _import

    # Functions, classes and comprehensions

    @contextmanager
    def _inside(self, node: ast.AST) -> Iterator[Scope]:
        around = self._scope
        self._scope = scope = self._code.symbols.scope(node, around)
        yield scope
        self._scope = around

    def _function(self, node: Function) -> None:
        self.out.append(f"{type(node).__name__}:{getattr(node, 'name', '')}(")
        for name in ("decorator_list", "args", "type_params", *["returns"] * self._types_count()):
            if value := getattr(node, name, None):
                self._field(name, value)
        with self._inside(node) as scope:
            if any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in scope.nodes):
                self.out.append("generator;")  # even if the branch with `yield` is not taken
            self._field("body", node.body)
            for name in sorted(scope.bound.keys() & self._module.bound.keys()):
                imports = {each for each in scope.bound[name] if isinstance(each, Import)}
                if imports - self._imported:
                    self.out.append(f"own {name};")  # even if the branch is not taken
        self.out.append(")")

    _FunctionDef = _AsyncFunctionDef = _Lambda = _function

    def _types_count(self) -> bool:
        """Whether the types of a function that stands here can matter: evaluating them may do
        something, or something may look at them."""
        scope, effects = self._scope, self._code.effects(self._module)
        while scope and isinstance(scope.node, ast.ClassDef):
            scope = scope.parent
        acts = scope is not None or self._root in effects.statements
        return acts or self._code.looks_at_types

    def _arg(self, node: ast.arg) -> None:
        self._plain(node if self._types_count() else ast.arg(node.arg))

    def _ClassDef(self, node: ast.ClassDef) -> None:
        self.out.append(f"class:{node.name}(")
        self._value(outside(node))
        self._value(getattr(node, "type_params", []))
        with self._inside(node):
            kept = [s for s in node.body if not self._code.is_field(self._module, node, s)]
            self._field("body", kept)
        self.out.append(")")

    def _comprehension_of(self, node: Comprehension) -> None:
        self.out.append(f"{type(node).__name__}(")
        self.write(node.generators[0].iter)  # which does not see the names of the comprehension
        with self._inside(node):
            for name, value in ast.iter_fields(node):
                self._field(name, value)
        self.out.append(")")

    _ListComp = _SetComp = _DictComp = _GeneratorExp = _comprehension_of

    # Registries: using one with a key that is known counts as using one entry

    def _ask(self, node: ast.AST, *keys: Key) -> None:
        """Note what is used of a registry, for when its name is written."""
        target = self._target(node)
        is_whole = target and target.used == len(chain_of(node))
        if target and is_whole and target[1:3] in self._code.registries.entries:
            self._asked[id(node)] = keys

    def _ask_for(self, node: ast.AST, key: ast.expr) -> None:
        keys = self._code.values.keys(Place(key, self._scope, self._module))
        is_known = all(each.kind in ("constant", "setting") for each in keys or ())
        self._ask(node, *(sorted(keys) if keys and is_known else [ALL]))

    def _Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load):
            self._ask_for(node.value, node.slice)
        else:  # `MODELS[name] = …` looks at no entry
            self._ask(node.value)
        self._plain(node)

    def _Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
            self._ask_for(node.comparators[0], node.left)
        self._plain(node)

    def _Call(self, node: ast.Call) -> None:
        self._called.add(id(node.func))
        target = self._target(node.func)
        path = target.path if target else ""
        of_torch = path.startswith("torch.")
        asks = [getattr(each, "value", "") in READS_CALLER for each in node.args if path in GETS]
        if self._code.has_tables and any(asks):
            self._doubt(node, "has a table look names up")
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            self._ask_for(node.func.value, node.args[0])
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        for argument in arguments:
            if path in LOOKS_AT_NAMES:
                self._ask(argument)
            elif path.startswith("labjobs."):
                found = self._target(argument)
                is_metrics = found and found.module == SETTINGS and found.name.endswith("METRICS")
                self._ask(argument, ENGINES if is_metrics else ALL)
        names = {keyword.arg: keyword.value for keyword in node.keywords}
        if path == "logging.basicConfig" and names.keys().isdisjoint(TO_READ):
            self._safe.add(id(names.get("format")))  # lines that are only shown
        if "trust_remote_code" in names:  # perhaps of a folder in the project
            self._doubt(node, "uses trust_remote_code")
        if path in KEEP_LINES and KEEP_LINES[path] in names:
            self._doubt(node, f"uses {KEEP_LINES[path]} of {path}")
        if path == FIND and [type(getattr(a, "value", None)) for a in node.args] == [str]:
            self._safe.add(id(node.func))
            name = str(getattr(node.args[0], "value", ""))
            self._use("import", name)
            self.out.append(f"import:{name};" if name in self._code.symbols else "")
        elif path in LOADS:
            given = {name: getattr(value, "value", None) for name, value in names.items()}
            is_safe = all(given.get(name, safe) is safe for name, safe in SAFE.items())
            if is_safe and None not in given and len(node.args) <= 2:
                self._safe.add(id(node.func))
        if tail(node.func) in READS_CALLER and arguments and not of_torch:
            text = getattr(arguments[0], "value", "")
            if self._code.has_tables or (isinstance(text, str) and "@" in text):
                self._doubt(node, f"has {tail(node.func)}() look names up", self._module.name)
        self._plain(node)
