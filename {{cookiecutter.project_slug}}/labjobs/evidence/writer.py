"""The canonical text of a definition in a job, and what the definition uses.

Left out are branches that the job's settings do not take, annotations that nothing reads, calls
that only print, and the text of errors that nothing reads.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from labjobs.evidence import harmless
from labjobs.evidence.canonical import does_nothing
from labjobs.evidence.conditions import Conditions
from labjobs.evidence.modules import Module, is_guard
from labjobs.evidence.project_code import ProjectCode
from labjobs.evidence.registry_writer import RegistryWriter
from labjobs.evidence.uses import Written


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
        return harmless.only_prints(statement, self._path)

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
                not self.code.reads_errors and all(map(harmless.is_pure, [*args, *keywords]))
            ):
                self.plain(ast.Raise(kind, node.cause))
            case _:
                self.plain(node)

    def _Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._words.add(node.value)
        super()._Constant(node)
