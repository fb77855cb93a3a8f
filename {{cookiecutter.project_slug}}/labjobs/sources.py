"""The student's source: its lines, what pyproject.toml says of it, and that it is what runs."""

import ast
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import NamedTuple, NoReturn

from labjobs.errors import JobError, SettingsError, cause
from labjobs.files import CODE, ENGINE

TRACED = re.compile(r'^ *File "(.+)", line (\d+)', re.M)  # a line of a trace, as text


class Place(NamedTuple):
    """A line of the student's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def place(file: str, line: int) -> Place:
    """Return the place of a line in one of the student's files."""
    return Place(str(resolved(file).relative_to(CODE)), line)


@cache
def is_students(file: str) -> bool:
    """Return whether a file is the student's: in the project, not the engine's, not installed."""
    path = resolved(file)
    return path.is_file() and _is_own(path)


def _is_own(path: Path) -> bool:
    inside = path.is_relative_to(CODE) and not path.is_relative_to(ENGINE)
    return inside and "site-packages" not in path.parts


@cache
def resolved(file: str) -> Path:
    """Return a file's path without links, as CODE is."""
    return Path(file).resolve()


# The project's modules are compiled each time. Python takes a module's bytecode for current if the
# file's size and the second of its time are the same (docs.python.org, cached bytecode), as they
# are of a file that `cp -p` or rsync has replaced: then other code would run than is recorded.


class _Compiled(SourceFileLoader):
    """Loads a module from its source: neither reads nor writes bytecode."""

    def path_stats(self, path: str) -> NoReturn:
        """Say that nothing is known with which bytecode could be compared."""
        raise OSError


def _finder(folder: str) -> FileFinder:
    """What finds modules in a folder of the project. Raises ImportError for all other paths."""
    if not (os.path.isdir(folder) and _is_own(Path(folder))):
        raise ImportError
    kinds = (ExtensionFileLoader, EXTENSION_SUFFIXES), (_Compiled, SOURCE_SUFFIXES)
    return FileFinder(folder, *kinds, (SourcelessFileLoader, BYTECODE_SUFFIXES))


sys.path_hooks.insert(0, _finder)
sys.path_importer_cache.pop(str(CODE), None)


def reached(error: BaseException) -> Place | None:
    """Return the innermost line of the student's code that an error went through, if any."""
    passed = traceback.walk_tb(error.__traceback__)
    lines = [(frame.f_code.co_filename, line) for frame, line in passed]
    if str(error).startswith("Caught "):  # in a loader's process: its trace is in the text
        lines += [(file, int(line)) for file, line in TRACED.findall(str(error))]
    own = [place(file, line) for file, line in lines if is_students(file)]
    return own[-1] if own else None


def fault(error: BaseException) -> Place | None:
    """Return the line of the student's code that caused an error; None if the error's text already
    says what to do, or if there is no such line."""
    return None if isinstance(error, SettingsError | JobError) else reached(error)


def described(error: Exception) -> str:
    """Return an error in one line, with the line of the student's code that it comes from."""
    at = fault(error)
    return f"{cause(error)} ({at})" if at else cause(error)


def words_of(file: Path) -> Iterator[str]:
    """Yield the names of attributes that a file's code reads, of functions that it calls with
    settings, and its texts; not those of a `__post_init__`, which only checks."""
    left: list[ast.AST] = []
    with suppress(SyntaxError, ValueError):  # it is not Python
        left.append(ast.parse(file.read_bytes()))
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
            continue
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Call) and "settings" in "".join(map(ast.unparse, node.args)):
            yield ast.unparse(node.func)
        left += ast.iter_child_nodes(node)


@cache
def declared(folder: Path, option: str) -> tuple[str, ...]:
    """Return the names that `option = ["name"]` in `[tool.labjobs]` of a folder's pyproject.toml
    has. Raises SettingsError if it is no list of names."""
    try:
        about = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
        names = about.get("tool", {}).get("labjobs", {}).get(option, [])
    except (OSError, ValueError):  # others say what is wrong with it
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        line = f'a list of names, such as {option} = ["name"]'
        raise SettingsError(f"pyproject.toml: tool.labjobs.{option}: {line}")
    return tuple(names)


OF_ENGINE = {
    *("epochs", "steps", "minutes", "eval_every", "accumulate", "seed", "fold", "split_seed"),
    *("val_fraction", "dataset", "monitor", "schedule", "init_from", "note"),
}
"""Settings that the engine reads; and the note, which only tells jobs apart."""

WHOLE = {"asdict", "astuple", "fields", "vars", "__dict__"}  # by which code reads all settings


def unread(settings: object, files: Iterable[Path]) -> tuple[list[str], str]:
    """Return the settings that no code in the files reads; or none, and the word by which the code
    may read all of them."""
    read = {word for file in files for word in words_of(file)}
    names = [name for name in vars(settings) if name not in read | OF_ENGINE]
    whole = min(read & WHOLE, default="")
    return [] if whole else names, whole
