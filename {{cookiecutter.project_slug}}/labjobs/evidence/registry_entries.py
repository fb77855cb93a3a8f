"""Registries: dicts whose entries count by their keys.

MODELS = {"mlp": MLP, **OTHERS}
MODELS["vit"] = ViT                       # anywhere at a module's top level
MODELS |= {"vit": ViT}                    # or MODELS.update({"vit": ViT})

@register("vit")                          # or @register(MODELS, "vit"), @MODELS.register("vit")
class ViT: ...
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from labjobs.evidence import syntax
from labjobs.evidence.modules import Definition, Module, Resolver, Target, chain_of


class Entry(NamedTuple):
    """The value of a key, and the module in which it is written."""

    key: str
    module: Module
    node: ast.AST


class Registries:
    """The registries of all modules of a job."""

    def __init__(self, modules: list[Module], resolver: Resolver) -> None:
        self._resolver = resolver
        self._entries: dict[tuple[str, str], list[Entry]] = {}
        self.included: dict[tuple[str, str], list[Target]] = {}
        """The registries that a registry includes by `**`."""
        self.later: set[ast.stmt] = set()
        """Statements, and decorated definitions, that do nothing but add entries."""
        for module in modules:
            self._read(module)

    def __contains__(self, name: tuple[str, str]) -> bool:
        """Whether a name in a module refers to a registry."""
        return name in self._entries

    def of(self, name: tuple[str, str]) -> list[Entry]:
        """Return the entries of a registry, in the order of the source."""
        return self._entries.get(name, [])

    def has_code(self, name: tuple[str, str]) -> bool:
        """Return whether a registry is more than a dict, such as an instance of a class."""
        module = self._resolver.modules.get(name[0])
        first = module.definitions[name[1]][0] if module else None
        return not isinstance(getattr(first, "value", None), ast.Dict)

    def keys(self) -> set[str]:
        """Return the keys of all registries."""
        return {entry.key for entries in self._entries.values() for entry in entries}

    def _read(self, module: Module) -> None:
        for statement in module.statements:
            if name := self._literal(module, statement):
                self._include(module, name, statement.value)  # type: ignore[attr-defined]
        for statement in module.statements:
            for decorator in getattr(statement, "decorator_list", []):
                added = self._registered(module, decorator)
                if added and isinstance(statement, Definition):
                    self._add(added[0], Entry(added[1], module, statement), statement)
            for target, pairs in self._written_later(module, statement):
                for key, value in pairs:
                    self._add((target.module, target.name), Entry(key, module, value), statement)

    def _add(self, name: tuple[str, str], entry: Entry, statement: ast.stmt) -> None:
        self._entries.setdefault(name, []).append(entry)
        self.later.add(statement)

    def _literal(self, module: Module, statement: ast.stmt) -> str:
        """Return the name of a dict that is written out, with keys of text and code in it."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict() as value):
                pass
            case _:
                return ""
        others = [s for s in module.definitions[name] if s is not statement]
        if not all(isinstance(s, ast.AugAssign) for s in others) or not is_registry(value):
            return ""
        return name

    def _include(self, module: Module, name: str, value: ast.Dict) -> None:
        found = self._entries.setdefault((module.name, name), [])
        for key, part in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant):
                found.append(Entry(str(key.value), module, part))
            elif chain := chain_of(part):
                target = self._resolver.resolve(module, chain)
                self.included.setdefault((module.name, name), []).append(target)

    def _written_later(
        self, module: Module, statement: ast.stmt
    ) -> Iterator[tuple[Target, list[tuple[str, ast.AST]]]]:
        """Yield the registry that a statement adds to, with keys and values."""
        match statement:
            case ast.Assign(
                targets=[ast.Subscript(value=owner, slice=ast.Constant(value=str(key)))],
                value=value,
            ):
                pairs: list[tuple[str, ast.AST]] = [(key, value)]
            case ast.AugAssign(target=ast.Name() as owner, op=ast.BitOr(), value=ast.Dict() as new):
                pairs = _pairs(new)
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=owner, attr="update"), args=[ast.Dict() as new]
                )
            ):
                pairs = _pairs(new)
            case _:
                return
        chain = chain_of(owner)
        target = self._resolver.resolve(module, chain) if chain else None
        if target and target.used == len(chain) and self._is_dict(target) and pairs:
            yield target, pairs

    def _is_dict(self, target: Target) -> bool:
        """Whether a name refers to a dict that is a registry, or empty at first."""
        if (target.module, target.name) in self._entries:
            return True
        module = self._resolver.modules.get(target.module)
        if target.kind != "definition" or not module:
            return False
        first, *others = module.definitions[target.name]
        value = getattr(first, "value", None)
        if not all(isinstance(other, ast.AugAssign) for other in others):
            return False
        return isinstance(value, ast.Dict) and (not value.keys or is_registry(value))

    def _registered(
        self, module: Module, decorator: ast.expr
    ) -> tuple[tuple[str, str], str] | None:
        """Return the registry and the key that a decorator adds what it decorates under."""
        match decorator:
            case ast.Call(func=ast.Attribute(value=owner, attr="register"), args=[key]):
                pass
            case ast.Call(func=ast.Name(), args=[owner, key]):
                pass
            case ast.Call(func=(ast.Name() | ast.Attribute()) as function, args=[key]):
                return self._by_function(module, function, key)
            case _:
                return None
        chain = chain_of(owner)
        target = self._resolver.resolve(module, chain) if chain else None
        if target and target.kind == "definition" and target.used == len(chain):
            return _keyed((target.module, target.name), key)
        if isinstance(decorator.func, ast.Attribute) and isinstance(key, ast.Constant):
            return self._by_function(module, decorator.func, key)
        return None

    def _by_function(
        self, module: Module, function: ast.expr, key: ast.expr
    ) -> tuple[tuple[str, str], str] | None:
        """Return the registry of a function such as `register`, by what it does."""
        target = self._resolver.resolve(module, chain_of(function) or ["?"])
        home = self._resolver.modules.get(target.module)
        if target.kind != "definition" or not home:
            return None
        body = home.definitions[target.name]
        stored = [name for s in body for name in _stored_under_parameters(s)]
        if len(body) == 1 and len(stored) == 1 and only_stores(body[0]):
            found = self._resolver.resolve(home, [stored[0]])
            if found.kind == "definition":
                return _keyed((found.module, found.name), key)
        return None


def is_registry(value: ast.Dict) -> bool:
    """Return whether a dict has text keys or `**OTHER`, and code as values."""
    names = (ast.Lambda, ast.Name, ast.Attribute)
    return all(
        isinstance(key, ast.Constant) and isinstance(key.value, str) if key else chain_of(part)
        for key, part in zip(value.keys, value.values, strict=True)
    ) and any(isinstance(node, names) for part in value.values for node in ast.walk(part))


def only_stores(function: ast.stmt) -> bool:
    """Return whether a function calls nothing, but to raise an error, and has nothing besides
    definitions, assignments, tests and returns."""
    raised = {id(n) for r in ast.walk(function) if isinstance(r, ast.Raise) for n in ast.walk(r)}
    if any(isinstance(n, ast.Call) and id(n) not in raised for n in ast.walk(function)):
        return False
    plain = (ast.FunctionDef, ast.Assign, ast.Return, ast.If, ast.Raise, ast.Assert, ast.Expr)
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
    return all(
        isinstance(s, plain) and (type(s) is not ast.Expr or isinstance(s.value, ast.Constant))
        for s in statements
    )


def _stored_under_parameters(function: ast.stmt) -> Iterator[str]:
    """Yield X of each `X[key] = …` in a function, `key` being its parameter."""
    if isinstance(function, ast.FunctionDef):
        parameters = {argument.arg for argument in function.args.args}
        for node in ast.walk(function):
            match node:
                case ast.Subscript(
                    value=ast.Name(id=name), slice=ast.Name(id=key), ctx=ast.Store()
                ) if key in parameters and name not in syntax.Scope(function, None).bound:
                    yield name


def _keyed(name: tuple[str, str], key: ast.expr) -> tuple[tuple[str, str], str] | None:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return name, key.value
    return None


def _pairs(new: ast.Dict) -> list[tuple[str, ast.AST]]:
    if not all(isinstance(k, ast.Constant) and isinstance(k.value, str) for k in new.keys):
        return []
    return [(k.value, v) for k, v in zip(new.keys, new.values, strict=True)]  # type: ignore
