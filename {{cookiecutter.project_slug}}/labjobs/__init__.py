"""The engine of a project's jobs: everything around the training loop.

    settings, launch, attempt    what settings.py says; a job from its command to its exit status
    away          a job on another machine, in the process that stands for it here
    cli           a dataclass of settings as a command line
    evidence      the code that a job's results depend on
    job           a job's identity, folder, journal, evidence and terminal
    distributed   the processes of one job
    tracking      MLflow: what is uploaded, and what is read back
    devices       CPUs and GPUs, number formats, seeds
    data          datasets, splits, batches; vision: what is special to images
    training      what a training loop is made of
    sweeps        many jobs: the grid, the queue, the GPUs, clusters, hosts
    results       tables, statistics and figures of finished jobs
    checks        what `--check` does: it tests the guarantees on the project's own code
    commands      what `python jobs.py` does

`errors`, `exit_status`, `files`, `fork_server`, `layout`, `locks`, `machine`,
`privacy` and `sources` are small modules that all of them share. Each package says in its docstring
what it may import; the template's pyproject.toml holds the rules (import-linter).

A project's files use the names in `__init__.pyi`: `from labjobs import Job`.
"""

import os
import sys

# Python looks in a script's folder first: a module there hides the library of its name from all
# code, also from what is imported below.
if os.path.exists(os.path.join(sys.path[0], "pyproject.toml")):  # it is a project's
    _libraries = {*sys.stdlib_module_names, *("matplotlib", "mlflow", "numpy", "pandas", "PIL")}
    _libraries |= {"requests", "scipy", "sklearn", "torch", "torchvision", "tqdm", "yaml"}
    for _file in os.listdir(sys.path[0] or os.curdir):
        _name = _file.removesuffix(".py")
        _is_package = os.path.exists(os.path.join(sys.path[0], _name, "__init__.py"))
        if _name in _libraries and (_is_package or _file != _name):
            sys.exit(f"{_file} hides the library {_name} from all code that needs it; rename it")
        if _is_package and _file != _name:
            sys.exit(f"the folder {_name}, with an __init__.py, hides {_file}; rename one of them")

import ast
import builtins
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__version__ = "1.0.0"

if sys.platform == "win32":
    sys.exit("This project needs Unix's file locks and signals; on Windows, use it within WSL 2")
_wanted = ("mlflow", "numpy", "torch", "tqdm")
_missing = [name for name in _wanted if name not in sys.modules and not find_spec(name)]
_is_starting = "site" in sys.modules and not hasattr(builtins, "quit")
if _missing and not _is_starting:  # Python calls labjobs_reads.pth before it knows where all are
    _needed = ", ".join(_missing)
    sys.exit(f"{sys.executable}: missing packages ({_needed}); README.md says how to install them")


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """The module of each name in `__init__.pyi`, and what it is called there."""
    listed = ast.parse(Path(__file__).with_suffix(".pyi").read_bytes()).body
    imports = [line for line in listed if isinstance(line, ast.ImportFrom)]
    return {n.asname or n.name: (str(line.module), n.name) for line in imports for n in line.names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: finished jobs are answered for without torch."""
    module, original = _homes().get(name, ("", ""))
    if module in ("", __name__):  # a module of its own: Python imports it
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), original)
    return value
