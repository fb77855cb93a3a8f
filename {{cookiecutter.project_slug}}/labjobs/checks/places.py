"""Where in the student's own code something happens or is created."""

import ast
import linecache
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

from labjobs.files import CODE
from labjobs.sources import Place, is_engines, is_students, place


def running() -> list[FrameType]:
    """Return the frames of the student's code that are running, the innermost first."""
    return [frame for frame in _outwards() if is_students(frame.f_code.co_filename)]


def here() -> Place | None:
    """Return the innermost line of the student's code that is running; None if none is."""
    frames = running()
    return of(frames[0]) if frames else None


def asking(frame: FrameType | None) -> Place | None:
    """Return the line of the student's code that a frame is called from, directly or through
    libraries; None if the engine is in between."""
    while frame and not is_engines(frame.f_code.co_filename):
        if is_students(frame.f_code.co_filename):
            return of(frame)
        frame = frame.f_back
    return None


def of(frame: FrameType) -> Place:
    """Return the line that a frame is at."""
    return at(frame, frame.f_lineno)


def at(frame: FrameType, line: int) -> Place:
    """Return a line of the file that a frame is in."""
    return place(frame.f_code.co_filename, line)


def text_at(place: Place) -> str:
    """Return the text of a line."""
    return linecache.getline(str(CODE / place.file), place.line)


def of_local(frame: FrameType, name: str) -> Place:
    """Return where a function first assigns a name; its own first line for an argument."""
    code = frame.f_code
    lines = [line for _, _, line in code.co_lines() if line]
    inside = range(code.co_firstlineno, max(lines) + 1)
    stored = (node.lineno for node in _stored(code.co_filename, name) if node.lineno in inside)
    return place(code.co_filename, min(stored, default=code.co_firstlineno))


def of_global(file: str, name: str) -> Place:
    """Return where a module first assigns a name."""
    stored = (node.lineno for node in _stored(file, name) if node.col_offset == 0)
    return place(file, min(stored, default=1))


def of_attribute(kind: type, name: str) -> Place | None:
    """Return where a class of the student's first assigns `self.<name>`, or else begins; None for a
    class of a library or of the engine."""
    for base in kind.__mro__:
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        if not file or not is_students(file):
            continue
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                return place(file, min(_assigned(node, name), default=node.lineno))
    return None


def of_method(kind: type, name: str) -> Place | None:
    """Return where a class of the student's defines a method; None if it does not."""
    code = getattr(getattr(kind, name, None), "__code__", None)
    if code is None or not is_students(code.co_filename):
        return None
    return place(code.co_filename, code.co_firstlineno)


def _outwards() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame:
        yield frame
        frame = frame.f_back


def _stored(file: str, name: str) -> Iterator[ast.Name]:
    for node in ast.walk(_tree(file)):
        match node:
            case ast.Name(id=stored, ctx=ast.Store()) if stored == name:
                yield node


def _assigned(kind: ast.ClassDef, name: str) -> Iterator[int]:
    for node in ast.walk(kind):
        match node:
            case ast.Attribute(attr=attribute, ctx=ast.Store()) if attribute == name:
                yield node.lineno


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse(Path(file).read_bytes())
