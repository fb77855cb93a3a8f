"""What a name refers to, wherever it was imported from. `data.load`, `load` after `from data import
load` and `load` within data.py are the same.
"""

import ast
import builtins
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from labjobs.evidence.modules import Alias, Module
from labjobs.evidence.project_files import ENGINE, Modules, parents
from labjobs.evidence.scopes import Scope

DEPTH = 20
"""The number of imports through which a name is followed."""


class Target(NamedTuple):
    """What a name stands for.

    kind is "definition" (of the student's), "module" (the student's), "outside" (of the project,
    `name` being its dotted path) or "nothing" (a name that its module does not have).
    """

    kind: str
    module: str
    name: str
    used: int
    """How many of the names `a.b.c` were needed."""

    @property
    def path(self) -> str:
        """Its dotted path, if it is outside the project; otherwise empty."""
        return self.name if self.kind == "outside" else ""


def chain_of(node: ast.AST) -> list[str]:
    """Return ["a", "b", "c"] for `a.b.c`; empty if the expression does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def imported_as(module: Module, owner: Scope, name: str) -> Alias | None:
    """Return what a local name refers to, if it is only bound by an import."""
    found = {module.imported(node).get(name) for node in owner.bound[name]}
    return found.pop() if len(found) == 1 else None


class Resolver:
    """Follows names through the project's modules."""

    def __init__(self, modules: Modules, facades: dict[str, str]) -> None:
        """`facades`: where names that the engine passes on come from, by their dotted paths."""
        self.modules, self._facades = modules, facades

    def resolve(self, module: Module, chain: Sequence[str], depth: int = 0) -> Target:
        """Return what a chain of names refers to at the top level of a module."""
        first = chain[0]
        if depth > DEPTH:
            return Target("nothing", module.name, first, 1)
        if first in module.definitions:
            return Target("definition", module.name, first, 1)
        if first in module.aliases:
            base, name = module.aliases[first]
            return self.imported(base, name, chain, depth)
        for star in module.stars():
            found = self._of_star(star, first, depth)
            if found and (found.kind != "outside" or not hasattr(builtins, first)):
                return found
        if hasattr(builtins, first):
            return self._outside(first, chain[1:])
        return Target("nothing", module.name, first, 1)

    def imported_by(self, module: Module) -> list[Target]:
        """Return the definitions that a module has from others, by name or by a star."""
        names = sorted({*module.aliases, *self._by_stars(module, 0)})
        found = (self.resolve(module, [name]) for name in names)
        return [target for target in found if target.kind == "definition"]

    def _by_stars(self, module: Module, depth: int) -> Iterator[str]:
        for star in module.stars() if depth < DEPTH else []:
            if other := self.modules.get(star):
                every = {*other.definitions, *other.aliases, *self._by_stars(other, depth + 1)}
                yield from filter(other.exports, every)

    def within(self, module: Module, scope: Scope | None, chain: Sequence[str]) -> Target | None:
        """Return what a chain of names refers to in a function or class; None if it begins with a
        local variable."""
        owner = scope.owner(chain[0]) if scope else None
        if owner is None:
            return self.resolve(module, chain)
        alias = imported_as(module, owner, chain[0])
        return self.imported(*alias, chain) if alias else None

    def imported(self, base: str, name: str | None, chain: Sequence[str], depth: int = 0) -> Target:
        """Return what a chain refers to whose first name is a module, or `name` in that module."""
        rest = list(chain[1:])
        if base not in self.modules:
            return self._outside(f"{base}.{name}" if name else base, rest)
        if name:
            rest.insert(0, name)
        while rest:
            module, step = self.modules.get(base), rest[0]
            if module and (step in module.definitions or step in module.aliases):
                found = self.resolve(module, rest, depth + 1)
                return found._replace(used=len(chain) - len(rest) + found.used)
            if f"{base}.{step}" in self.modules:
                base = f"{base}.{rest.pop(0)}"
                continue
            return self._unknown(base, module, chain, rest, depth)
        return Target("module", base, "", len(chain))

    def _unknown(
        self, base: str, module: Module | None, chain: Sequence[str], rest: list[str], depth: int
    ) -> Target:
        """Return what a name refers to that its module imports by a star, or does not have."""
        used = max(len(chain) - len(rest), 0)
        if module and any(self._of_star(star, rest[0], depth) for star in module.stars()):
            found = self.resolve(module, rest, depth + 1)
            return found._replace(used=used + found.used)
        return Target("nothing", base, rest[0], used + 1)

    def _of_star(self, star: str, name: str, depth: int) -> Target | None:
        """Return what a name from `from star import *` refers to, if it may come from there."""
        if star not in self.modules:
            return Target("outside", "", f"{star}.{name}", 1)
        module = self.modules.get(star)
        if not module or not module.exports(name):
            return None
        found = self.resolve(module, [name], depth + 1)
        return found if found.kind in ("definition", "module") else None

    def _outside(self, path: str, rest: Sequence[str]) -> Target:
        used, full = 1 + len(rest), ".".join([path, *rest])
        if full.split(".")[0] == ENGINE:
            for prefix in parents(full):
                if prefix in self._facades:
                    full = self._facades[prefix] + full[len(prefix) :]
                    break
        return Target("outside", "", full, used)

    def path(self, module: Module, node: ast.AST) -> str:
        """Return the dotted path of what a node names outside of the project, else nothing."""
        chain = chain_of(node)
        return self.resolve(module, chain).path if chain else ""
