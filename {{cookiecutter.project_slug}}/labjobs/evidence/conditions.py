"""Conditions on settings, decided for one job."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from labjobs.evidence.settings_use import setting

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
