"""What the tests with GPUs that are not there have in common; see gpu_stand_in/stand_in."""

import ast
import json
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from faults import Project

STAND_IN = Path(__file__).with_name("gpu_stand_in")

needs_stand_in = pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available(),
    reason="the stand-in needs a torch made for CUDA, on a machine without a GPU",
)


class Machine:
    """A machine with GPUs that are not there, and what jobs did on it."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self._lines, self._starts = folder / "lines", folder / "starts"
        self._env = {
            "PYTHONPATH": str(STAND_IN),
            "STAND_IN_GPUS": str(gpus),
            "STAND_IN_LINES": str(self._lines),
            "STAND_IN_STARTS": str(self._starts),
        }

    def host(self, project: Project) -> Project:
        """Have a project's commands run here."""
        project.env |= self._env | {"STAND_IN_CODE": f"{project.root}/"}
        return project

    def starts(self) -> list[dict[str, Any]]:
        """The processes in which CUDA started: their `words`, and the `order` of the GPUs."""
        return [json.loads(line) for line in self._starts.read_text().splitlines()]

    def reached(self, file: str) -> set[int]:
        """The lines of a project's file that have run in some process."""
        found = (line.rsplit(":", 1) for line in self._lines.read_text().splitlines())
        return {int(number) for name, number in found if name == file}


def statements(file: Path) -> set[int]:
    """The lines of a Python file that can run."""
    codes, lines = [compile(file.read_text(), file, "exec")], set()
    while codes:
        code = codes.pop()
        lines |= {number for _, _, number in code.co_lines() if number}
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return lines


def branches_for(word: str, file: Path) -> set[int]:
    """The first lines of what a file does if something is equal to a word, by `if`."""
    return {
        node.body[0].lineno
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.If) and f"== {word!r}" in ast.unparse(node.test)
    }
