"""Canonical text of code that uses registries, and which of their entries count."""

import ast
from collections.abc import Sequence

from labjobs.evidence import harmless
from labjobs.evidence.names import NameWriter
from labjobs.evidence.resolution import Target
from labjobs.evidence.settings_use import MODULE as SETTINGS
from labjobs.evidence.uses import TOKEN, Use


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
        if path in harmless.METRIC:
            self._metric(node)
        elif path in harmless.IMPORTS and node.args and isinstance(node.args[0], ast.Constant):
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
            elif target and path in harmless.TAKES_NAMES:
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
