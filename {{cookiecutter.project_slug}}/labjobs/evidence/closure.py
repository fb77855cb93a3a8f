"""Everything in the project's code that a job's results can depend on, starting from the entry."""

import ast
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labjobs.evidence import syntax
from labjobs.evidence.modules import Files, Module, Target, chain_of, extent, is_guard, parents
from labjobs.evidence.names import NameWriter, ProjectCode
from labjobs.evidence.registry_entries import Entry, Registries
from labjobs.evidence.settings_use import MODULE as SETTINGS
from labjobs.evidence.settings_use import TOKEN, Conditions, Key, Undecided, Use, Written
from labjobs.evidence.syntax import does_nothing

# Which entries of registries a job uses.

Name = tuple[str, str]


@dataclass
class Taken:
    """What is known about the keys with which a job uses a registry."""

    by: str
    """The part that used the registry first."""

    everything: bool = False
    words: bool = False
    keys: set[str] = field(default_factory=set)


class Wanted:
    """The registries that a job uses, and the keys with which it uses them."""

    def __init__(self, registries: Registries, settings: Mapping[str, Any]) -> None:
        self._registries, self._settings = registries, settings
        self._taken: dict[Name, Taken] = {}

    def add(self, use: Use, by: str) -> None:
        """Note that a registry is used, and with it the registries that it includes by `**`."""
        name = (use.module, use.name)
        taken = self._taken.setdefault(name, Taken(by))
        before = (taken.everything, taken.words, len(taken.keys))
        if use.how == "definition":
            taken.everything = True
        elif use.how == "words":
            taken.words = True
        elif use.key:
            self._ask(taken, use.key)
        if before != (taken.everything, taken.words, len(taken.keys)):
            for other in self._registries.included.get(name, []):
                self.add(use._replace(module=other.module, name=other.name), by)

    def _ask(self, taken: Taken, key: Key) -> None:
        if key.kind == "constant":
            taken.keys.add(key.value)
        elif key.kind == "words":
            taken.words = True
        elif key.value in self._settings:
            taken.keys.add(str(self._settings[key.value]))
        else:  # a setting that is not part of the identity
            taken.everything = True

    def entries(self, words: set[str]) -> dict[str, tuple[list[Entry], str]]:
        """Return the entries that are used, by the names of their parts, and the parts from which
        they are reached."""
        found: dict[str, tuple[list[Entry], str]] = {}
        for (module, name), taken in self._taken.items():
            keys = taken.keys | (words if taken.words else set())
            for entry in self._registries.of((module, name)):
                if taken.everything or entry.key in keys:
                    part = f"{module}:{name}[{entry.key}]"
                    found.setdefault(part, ([], taken.by))[0].append(entry)
        return found


# Canonical text of code that uses registries, and which of their entries count.


class RegistryWriter(NameWriter):
    """Writes code; using a registry with a key that is known counts as using one entry."""

    def _registry(self, node: ast.AST) -> Target | None:
        """Return the registry that an expression names."""
        target = self.target(node)
        return target if target and self.code.is_registry(target, node) else None

    def _by_key(self, target: Target, key: ast.expr) -> bool:
        """Write the use of a registry with a key; returns whether the key is known."""
        keys = self.code.keys.of(key, self.scope, self.module)
        if keys is None:
            return False
        self.out.append(TOKEN.format(target.module, target.name))
        for each in sorted(keys):
            self.use(Use("key", target.module, target.name, each))
        return True

    def _names(self, target: Target, how: str) -> None:
        """Write the use of only the names in a registry."""
        self.out.append(TOKEN.format(target.module, target.name))
        if how:
            self.use(Use(how, target.module, target.name))

    def _Subscript(self, node: ast.Subscript) -> None:
        """`MODELS[name]`, or `MODELS[name] = …`, which looks at no entry."""
        target = self._registry(node.value)
        if target and not isinstance(node.ctx, ast.Load):
            self._names(target, "")
            self.out.append("=")
            self.write(node.slice)
        elif target and self._by_key(target, node.slice):
            self.out.append("[")
            self.write(node.slice)
            self.out.append("]")
        else:
            self.plain(node)

    def _Compare(self, node: ast.Compare) -> None:
        """`name in MODELS`: whether it is there is whether its entry counts."""
        target = self._registry(node.comparators[0]) if len(node.ops) == 1 else None
        if target and isinstance(node.ops[0], ast.In | ast.NotIn):
            self.out.append(type(node.ops[0]).__name__)
            if not self._by_key(target, node.left):
                self._names(target, "names")
            self.write(node.left)
        else:
            self.plain(node)

    def _Call(self, node: ast.Call) -> None:
        called = self.target(node.func)
        path = called.path if called else ""
        method = node.func if isinstance(node.func, ast.Attribute) else None
        owner = self._registry(method.value) if method else None
        if path in syntax.METRIC:
            self._metric(node)
        elif path in syntax.IMPORTS and node.args and isinstance(node.args[0], ast.Constant):
            self._import_by_name(str(node.args[0].value))
        elif not (method and owner and self._asks(owner, method.attr, node)):
            self.out.append("Call(")
            self.write(node.func)
            self._passed([*node.args, *node.keywords], path)
            self.out.append(")")

    def _passed(self, arguments: Sequence[ast.expr | ast.keyword], path: str) -> None:
        """Write arguments; some functions use only the names in a registry."""
        for argument in arguments:
            target = self._registry(getattr(argument, "value", argument))
            if target and path.startswith("labjobs."):
                self._names(target, "words" if target.module == SETTINGS else "")
            elif target and path in syntax.TAKES_NAMES:
                self._names(target, "names")
            else:
                self.write(argument)
            self.out.append(",")

    def _asks(self, target: Target, method: str, node: ast.Call) -> bool:
        """Write `MODELS.get(key)` and the like; returns whether it was one."""
        if method in ("get", "pop", "setdefault", "register") and node.args:
            if not self._by_key(target, node.args[0]):
                return False
        elif method == "keys":
            self._names(target, "names")
        else:
            return False
        self.out.append(f".{method}(")
        self._passed([*node.args, *node.keywords], "")
        self.out.append(")")
        return True

    def _import_by_name(self, name: str) -> None:
        self.out.append(f"import:{name}")
        if name in self.code.modules:
            why = f"{self.module.name}.py imports it by its name"
            self.use(Use("whole", name, why=why))

    def _metric(self, node: ast.Call) -> None:
        """Write the declaration of a metric: its direction decides which weights are kept."""
        self.out.append("Metric(")
        for better in [*node.args[:1], *(k.value for k in node.keywords if k.arg == "better")]:
            self.write(better)
        self.out.append(")")


# The canonical text of a definition in a job, and what the definition uses.
#
# Left out are branches that the job's settings do not take, annotations that nothing reads, calls
# that only print, and the text of errors that nothing reads.


class Writer(RegistryWriter):
    """Writes statements and expressions of one module, for one job."""

    def __init__(self, code: ProjectCode, module: Module, settings: Mapping[str, Any]) -> None:
        super().__init__(code, module)
        self._conditions = Conditions(settings)
        self._words: set[str] = set()

    def written(self, nodes: Sequence[ast.AST]) -> Written:
        """Return the text of some statements or expressions, and what they use."""
        for node in nodes:
            self.write(node)
            self.out.append("\n")
        asked = dict(self._conditions.asked)
        return Written(self.text(), list(self.uses), frozenset(self._words), asked)

    def block(self, statements: Iterable[ast.stmt]) -> None:
        """Write statements, except those that do nothing and branches that are not taken."""
        self.out.append("[")
        self._statements(statements)
        self.out.append("]")

    def _statements(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.If) and (truth := self._truth(statement)) is not None:
                self._statements(statement.body if truth else statement.orelse)
            elif not self._is_left_out(statement):
                self.write(statement)
                self.out.append(",")

    def _is_left_out(self, statement: ast.stmt) -> bool:
        if does_nothing(statement):
            return not (self.code.reads_docstrings and isinstance(statement, ast.Expr))
        return syntax.only_prints(statement, self._path)

    def _truth(self, node: ast.If | ast.IfExp) -> bool | None:
        return self._conditions.truth(node.test) if self.code.use.own else None

    def _path(self, node: ast.expr) -> str:
        """Return the dotted path of what a name refers to outside the project."""
        target = self.target(node)
        return self.code.logger(target, node) or target.path if target else ""

    def _If(self, node: ast.If) -> None:
        self.plain(self.code.without_check(node) if is_guard(node) else node)

    def _IfExp(self, node: ast.IfExp) -> None:
        truth = self._truth(node)
        if truth is None:
            self.plain(node)
        else:
            self.write(node.body if truth else node.orelse)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        """Write `x: int = 1` as `x = 1`; in a class it is a field, whose type may matter."""
        around = self.scope.node if self.scope else None
        if isinstance(around, ast.ClassDef):
            self.out.append("field:")
            self.write(node.target)
            self._type_of_field(around, node.annotation)
            if node.value:
                self.write(node.value)
        elif node.value:
            self.plain(ast.Assign([node.target], node.value))

    def _type_of_field(self, around: ast.ClassDef, annotation: ast.expr) -> None:
        if self.code.keeps_annotations(self.module, around):
            self.write(annotation)
        else:  # all that dataclasses look for
            words = ast.unparse(annotation)
            special = [word for word in ("ClassVar", "InitVar", "KW_ONLY") if word in words]
            self.out.append(f":{','.join(special)}:")

    def _Raise(self, node: ast.Raise) -> None:
        """Write an exception, without its text unless some code looks at exceptions."""
        match node.exc:
            case ast.Call(func=kind, args=args, keywords=keywords) if (
                not self.code.reads_errors and all(map(syntax.is_pure, [*args, *keywords]))
            ):
                self.plain(ast.Raise(kind, node.cause))
            case _:
                self.plain(node)

    def _Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._words.add(node.value)
        super()._Constant(node)


Cache = dict[ast.AST, list[Written]]
"""The texts written for a statement or expression for other jobs."""

Place = tuple[Module, ast.AST]

WHOLE = "<file>"
"""Stands for all of a module, instead of one definition."""

EVERY_LINE = range(sys.maxsize)


class Closure:
    """The parts of the code that one job reaches.

    `texts` has the canonical text of each part, or a hash if it has no text; `sources` has the
    source code for people to read; `reached_from` has the part through which each part was reached
    first; `lines` has the lines of each module that are in a part, counted from 0.
    """

    def __init__(
        self, code: ProjectCode, files: Files, settings: Mapping[str, Any], cache: Cache
    ) -> None:
        self._code, self._files, self._cache = code, files, cache
        self._decided = {k: v for k, v in settings.items() if k not in code.use.undecided}
        self._words = {word for value in settings.values() for word in words_in(value)}
        self._wanted = Wanted(code.registries, settings)
        self._entered: set[str] = set()
        self._engine: dict[str, str] = {}
        self._bases: dict[str, str] = {}
        self._waiting: deque[tuple[Use, str]] = deque()
        self.texts: dict[str, str] = {}
        self.sources: dict[str, Callable[[], str]] = {}
        self.reached_from: dict[str, str] = {}
        self.advice: dict[str, str] = {}
        self.lines: dict[str, list[range]] = {}

    def find(self, entry: str, also: Sequence[str]) -> None:
        """Reach everything, beginning with what importing the entry does, and `also` these."""
        self._enter(entry, "")
        for part in also:
            module, _, name = part.partition(":")
            self._add(module, name)
        more = (self._take_entries, self._take_subclasses, self._take_programs)
        while self._waiting or any(take() for take in more):
            if self._waiting:
                self._follow(*self._waiting.popleft())
        self._take_engine()

    def take_input(self, job: str, code: str) -> None:
        """Take the code of an input, a job that this one is derived from, as its digest."""
        self._put(f"input:{job}", code, lambda: f"code {code}", "")

    def _add(self, name: str, definition: str) -> None:
        """Take a definition that has run, if it still exists."""
        module = self._code.modules.get(name)
        if definition == WHOLE:
            self._take_whole(name, "", "code has run there that no definition has")
        elif module and definition in module.definitions:
            self._reach(Use("definition", name, definition), "")

    def _follow(self, use: Use, by: str) -> None:
        match use.how:
            case "definition" | "key" | "words" | "names":
                self._reach(use, by)
            case "import":
                self._import(use.module, by)
            case "whole":
                self._take_whole(use.module, by, use.why)
            case "everything":
                for module in self._code.modules.everything():
                    self._take_whole(module, by, use.why)
            case "engine":
                self._engine.setdefault(use.module, by)
            case "subclasses":
                self._bases.setdefault(use.name, by)

    # Modules

    def _import(self, name: str, by: str) -> None:
        for package in parents(name):
            self._enter(package, by)

    def _enter(self, name: str, by: str) -> None:
        """Take what importing a module does, and the modules that it imports."""
        if name in self._entered or name not in self._code.modules:
            return
        self._entered.add(name)
        module = self._code.modules.get(name)
        if module is None:
            self._take_unreadable(name, by)
            return
        for imported in module.imports:
            self._import(imported, by)
        part = f"{name}:<module>"
        self._take_dependencies(module, module.lines_outside, part)
        if effects := self._code.effects.of(module):
            self._take(part, [(module, statement) for statement in effects], by)
            before = sum(other.endswith(":<module>") for other in self.texts)
            self.texts[part] += f"\n{before}"  # their order matters

    def _take_unreadable(self, name: str, by: str) -> None:
        path = self._code.modules.path(name)
        self.advice[name] = f"{path} cannot be read as Python: any change of the file counts"
        self._put(f"{name}:<file>", self._files.hash(path), lambda: self._files.text(path), by)
        self.lines[name] = [EVERY_LINE]

    def _take_whole(self, name: str, by: str, why: str) -> None:
        """Take everything that a module defines, if it cannot be known what is used."""
        self._import(name, by)
        module = self._code.modules.get(name)
        self.lines.setdefault(name, []).append(EVERY_LINE)
        if module and name not in self.advice:
            path = self._code.modules.path(name)
            self.advice[name] = f"{path} counts as a whole: {why}"
            for definition in module.definitions:
                self._reach(Use("definition", name, definition), by)
            for target in self._code.resolver.imported_by(module):
                self._reach(Use("definition", target.module, target.name), by)

    # Definitions

    def _reach(self, use: Use, by: str) -> None:
        """Take a definition; of a registry, note which entries are asked for."""
        self._import(use.module, by)
        module = self._code.modules.get(use.module)
        if module and (use.module, use.name) not in self._code.registries:
            part = f"{use.module}:{use.name}"
            self._take(part, [(module, node) for node in module.definitions[use.name]], by)
        elif module:
            self._wanted.add(use, by)
            self._take_registry(module, use, by)

    def _take_registry(self, module: Module, use: Use, by: str) -> None:
        """Take everything about a registry except its entries."""
        registries, name = self._code.registries, (use.module, use.name)
        if registries.has_code(name):
            self._take(f"{use.module}:{use.name}", [(module, module.definitions[use.name][0])], by)
        for other in registries.included.get(name, []):
            if other.kind == "definition" and (other.module, other.name) not in registries:
                self._reach(Use("definition", other.module, other.name), by)
        if use.how in ("names", "definition"):
            keys = "\n".join(entry.key for entry in registries.of(name))
            self._put(f"{use.module}:{use.name}[*]", keys, lambda: keys, by)

    def _take(self, part: str, places: Sequence[Place], by: str) -> None:
        """Take a part, and note what it uses."""
        if part in self.texts:
            return
        written = [self._written(module, node) for module, node in places]
        text = "\n".join(each.text for each in written)
        self._put(part, text, lambda: "\n".join(m.segment(node) for m, node in places), by)
        for each, (module, node) in zip(written, places, strict=True):
            self._words |= each.words
            self._waiting.extend((use, part) for use in each.uses)
            self.lines.setdefault(module.name, []).append(range(*extent(node)))
            self._take_dependencies(module, range(*extent(node)), part)

    def _put(self, part: str, text: str, source: Callable[[], str], by: str) -> None:
        if part not in self.texts:
            self.texts[part], self.sources[part], self.reached_from[part] = text, source, by

    def _written(self, module: Module, node: ast.AST) -> Written:
        """Return the text of a node, reused from another job if its settings lead to the same
        text."""
        known = self._cache.setdefault(node, [])
        for written in known:
            if all(self._has(name, value) for name, value in written.asked.items()):
                return written
        try:
            written = Writer(self._code, module, self._decided).written([node])
        except RecursionError:
            why = f"{module.name}.py is nested too deeply"
            written = Written(module.source, [Use("everything", why=why)], frozenset(), {})
        known.append(written)
        return written

    def _has(self, setting: str, value: object) -> bool:
        return repr(self._decided.get(setting, Undecided)) == repr(value)

    # Registries and subclasses

    def _take_entries(self) -> bool:
        """Take the entries that have been asked for so far; returns whether any was new."""
        before = len(self.texts)
        words = {word.removeprefix("val_") for word in self._words}  # val_loss is the metric loss
        for part, (entries, by) in self._wanted.entries(self._words | words).items():
            self._take(part, [(entry.module, entry.node) for entry in entries], by)
        return len(self.texts) > before

    def _take_subclasses(self) -> bool:
        """Take the subclasses of classes that may use them; returns whether any was new."""
        before = len(self.texts)
        for name in sorted(self._entered) if self._bases else []:
            module = self._code.modules.get(name)
            for node in module.statements if module else []:
                bases = [(chain_of(base) or [""])[-1] for base in getattr(node, "bases", [])]
                for base in bases:
                    if module and isinstance(node, ast.ClassDef) and base in self._bases:
                        self._bases.setdefault(node.name, self._bases[base])
                        self._take(f"{name}:{node.name}", [(module, node)], self._bases[base])
        return len(self.texts) > before

    # Files and the engine

    def _take_programs(self) -> bool:
        """Take the programs that constants and settings name; returns whether any was new."""
        before = len(self.texts)
        for word in sorted(self._words):
            if name := self._files.named(word):
                self._take_file(name, "")
        return len(self.texts) > before

    def _take_dependencies(self, module: Module, lines: Sequence[int], by: str) -> None:
        """Take the files that `# depends:` names in some lines."""
        for line, pattern in module.dependencies:
            if line in lines:
                found = self._files.matching(pattern)
                for name in found:
                    self._take_file(name, by)
                if not found:
                    self._put(f"file:{pattern}", "", str, by)
                    said = f"# depends: {pattern} in {module.name}.py matches no file"
                    self.advice[pattern] = said

    def _take_file(self, name: str, by: str) -> None:
        self._put(f"file:{name}", self._files.hash(name), lambda: self._files.text(name), by)
        if name.endswith(".py"):  # perhaps run in a separate process
            self._take_whole(".".join(name[:-3].split("/")), by, f"{name} is named in the code")

    def _take_engine(self) -> None:
        for module, evidence in self._code.engine.reached(set(self._engine)).items():
            users = [by for path, by in self._engine.items() if path.startswith(f"{module}.")]
            self._put(module, evidence, self._source_of_engine(module), (users or [""])[0])

    def _source_of_engine(self, module: str) -> Callable[[], str]:
        return lambda: self._code.engine.source(module)


def words_in(value: object) -> list[str]:
    """Return the texts in the value of a setting."""
    if isinstance(value, list | tuple):
        return [text for part in value for text in words_in(part)]
    return [value] if isinstance(value, str) else []
