"""Everything in the project's code that a job's results can depend on, starting from the entry."""

import ast
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labjobs.evidence.conditions import Undecided
from labjobs.evidence.evidence_files import Files
from labjobs.evidence.modules import Module, extent
from labjobs.evidence.project_code import ProjectCode
from labjobs.evidence.project_files import parents
from labjobs.evidence.resolution import chain_of
from labjobs.evidence.uses import Use, Written
from labjobs.evidence.wanted import Wanted
from labjobs.evidence.writer import Writer

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
