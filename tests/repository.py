"""Where the template is; a module of its own, since several folders of tests have a conftest."""

import importlib
import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

# For tests/engine, which call the engine in this process, the project is the inner folder: the
# engine looks for it in the current folder.
started = os.getcwd()
os.chdir(REPOSITORY / "{{cookiecutter.project_slug}}")
importlib.import_module("labjobs.files")
os.chdir(started)
