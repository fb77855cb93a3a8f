"""Job scripts, such as run.py: which settings and metrics their jobs have.

That stands in their source, and is read from there, since to run a script means to import torch:

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

from engine.cli import Metric
from engine.cli.registries import parsed
from engine.errors import SettingsError, did_you_mean
from engine.paths import CODE

DEFAULT = "run"
"""The script of jobs whose script is not named."""


@dataclass(frozen=True)
class Script:
    """A job script; `name` is without `.py`."""

    name: str
    settings: type[Any]
    """The class of its jobs' settings."""

    metrics: Mapping[str, Metric]
    check: str
    """The function that says whether a job could run."""

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}.py"


@cache
def read(name: str) -> Script:
    """Return the script of a name such as `run`.

    Raises SettingsError if the project has no such script, or it does not say what its jobs are.
    """
    file = CODE / f"{name}.py"
    if not file.is_file():
        known = did_you_mean(file.name, sorted(path.name for path in CODE.glob("*.py")))
        raise SettingsError(f"{file.name}: there is no such script; {known}")
    tree = parsed(file)
    imported = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
    declared = [imported.get(given) for given in _given(tree, "begin")]
    check = _given(tree, "run")[1:]
    if len(declared) != 2 or None in declared or not check:
        wanted = "launch.begin(Settings, METRICS), imported from settings.py, and run(main, check)"
        raise SettingsError(f"{file.name}: is not a job script, which calls {wanted}")
    settings, metrics = (getattr(import_module(each[0]), each[1]) for each in declared if each)
    return Script(name, settings, metrics, *check)


def _given(tree: ast.Module, function: str) -> list[str]:
    """The names that a function or method is called with; none if it is not called with two."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[ast.Name(id=one), ast.Name(id=other)],
            ) if called == function:
                return [one, other]
    return []
