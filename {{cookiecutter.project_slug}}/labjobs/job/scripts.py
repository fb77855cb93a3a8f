"""Job scripts, such as run.py: which settings and metrics their jobs have.

Both are read from the script's source, because running a script would import torch:

    from settings import METRICS, Settings
    command = launch.begin(Settings, METRICS)
    sys.exit(command.run(main, check))
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from labjobs.cli import Metric
from labjobs.cli.registries import parsed
from labjobs.errors import SettingsError, did_you_mean
from labjobs.paths import CODE

DEFAULT = "run"
"""The default script."""


@dataclass(frozen=True)
class Script:
    """A job script; `name` is without `.py`."""

    name: str
    settings: type[Any]
    """The class of its jobs' settings."""

    metrics: Mapping[str, Metric]
    check: str
    """The function that says whether a job could run."""


@cache
def read(name: str) -> Script:
    """Return the script of a name such as `run`.

    Raises SettingsError if the project has no such script, or it does not say what its jobs are.
    """
    file = CODE / f"{name}.py"
    if "/" in name or not file.is_file():  # it must be beside run.py
        known = did_you_mean(file.name, sorted(path.name for path in CODE.glob("*.py")))
        raise SettingsError(f"{file.name}: there is no such script; {known}")
    tree = parsed(file)
    imported = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
    found = _declared(tree)
    if not found or not {*found[:2]} <= imported.keys():
        wanted = "launch.begin(Settings, METRICS), imported from settings.py, and run(main, check)"
        raise SettingsError(f"{file.name}: is not a job script, which calls {wanted}")
    settings, metrics = (imported[each] for each in found[:2])
    return Script(name, _value(*settings), _value(*metrics), check=found[2])


def _declared(tree: ast.Module) -> tuple[str, str, str] | None:
    """The names that a script uses for its class of settings, its metrics and its check."""
    begun: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=command)],
                value=ast.Call(
                    func=ast.Name(id="begin") | ast.Attribute(attr="begin"),
                    args=[ast.Name(id=settings), ast.Name(id=metrics)],
                ),
            ):
                begun[command] = settings, metrics
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=command), attr="run"),
                args=[_, ast.Name(id=check)],
            ) if command in begun:
                return *begun[command], check
    return None


def _value(module: str, name: str) -> Any:
    return getattr(import_module(module), name)
