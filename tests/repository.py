"""Where the template is; a module of its own, since several folders of tests have a conftest."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = REPOSITORY / "{{cookiecutter.project_slug}}"

# For tests/engine, which call the engine in this process, the project is the inner folder: the
# engine looks for it in the current folder.
started = os.getcwd()
os.chdir(PROJECT)
importlib.import_module("labjobs.files")
os.chdir(started)


def imported(example: str, name: str) -> ModuleType:
    """A module of an example, as a project that is made from it imports it."""
    beside = ("settings", "models", "jobs", "data", "optimizers", "run", "texts")
    kept = {module: sys.modules.pop(module) for module in beside if module in sys.modules}
    sys.path[:0] = [str(REPOSITORY / "examples" / example), str(PROJECT)]
    try:
        return importlib.import_module(name)
    finally:
        del sys.path[:2]
        for module in beside:
            sys.modules.pop(module, None)
        sys.modules.update(kept)


def commit(folder: Path) -> str:
    """Commit all that is in a folder, which becomes a repository; returns the commit."""
    git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "All"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
