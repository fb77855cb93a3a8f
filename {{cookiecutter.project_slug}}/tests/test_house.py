"""The order of the house: floors, who may import what, and what no file may hold."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import engine

PROJECT = Path(engine.__file__).resolve().parent.parent
FILES = {path.stem: path for path in (PROJECT / "engine").glob("*.py") if path.stem != "__init__"}
CODE = [
    path
    for folder in (".", "engine", "tests")
    for pattern in ("*.py", "*.sh")
    for path in (PROJECT / folder).glob(pattern)
]
ALONE = {
    "mlflow": {"store", "reading", "stored_jobs"},
    "sqlalchemy": {"database"},
    "matplotlib": {"figures", "plots", "print_check", "figure_files"},
    "scipy": {"statistics"},
    "tqdm": {"progress"},
    "pynvml": {"counters"},
}
"""Libraries that only these rooms import."""


def floors():
    """The rooms of each floor, from the table in engine/__init__.py."""
    rows = re.findall(r"^(\d)  .+?  +(.+(?:\n {10,}.+)*)", engine.__doc__, re.MULTILINE)
    return {int(floor): re.findall(r"\w+", re.sub(r"\([^)]*\)", "", text)) for floor, text in rows}


FLOOR = {room: floor for floor, rooms in floors().items() for room in rooms}


def imported(room):
    """The rooms and the libraries that a room imports, anywhere in its code."""
    names = []
    for node in ast.walk(ast.parse(FILES[room].read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "engine":
            names += [f"engine.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module)
    rooms = {name.split(".")[1] for name in names if name.startswith("engine.")}
    return rooms, {name.split(".")[0] for name in names} - {"engine"}


def test_every_room_is_on_one_floor():
    named = [room for rooms in floors().values() for room in rooms]
    assert sorted(named) == sorted(FILES)


@pytest.mark.parametrize("room", FILES)
def test_room_imports_only_what_it_may(room):
    rooms, libraries = imported(room)
    assert [other for other in rooms if FLOOR[other] > FLOOR[room]] == []
    for library, may in ALONE.items():
        assert library not in libraries or room in may
    assert FLOOR[room] >= 2 or not libraries & {"torch", "torchvision"}
    assert FLOOR[room] > 0 or libraries <= sys.stdlib_module_names


def test_no_rooms_import_each_other_in_a_circle():
    graph = TopologicalSorter({room: imported(room)[0] for room in FILES})
    assert len(list(graph.static_order())) == len(FILES)  # a circle raises CycleError


def test_launch_imports_nothing_that_is_slow():
    slow = ("torch", "mlflow", "pandas", "matplotlib", "numpy", "sklearn")
    code = f"import sys, engine.launch; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_code_holds_no_template_expression():
    for path in CODE:
        assert not re.search(r"[{]{2}.?cookiecutter|[{]%", path.read_text()), path


def test_rooms_are_read_in_one_sitting():
    for path in CODE:
        if path.parent.name == "engine":
            assert len(path.read_text().splitlines()) <= 280, path
