"""What the tests with GPUs that are not there have in common; see gpu_stand_in/stand_in."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import Project

STAND_IN = Path(__file__).with_name("gpu_stand_in")

needs_stand_in = pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available(),
    reason="the stand-in needs a torch built for CUDA, on a machine without a GPU",
)


class Machine:
    """A machine with GPUs that are not there, and what jobs did on it."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self._starts = folder / "starts"
        self._env = {
            "PYTHONPATH": str(STAND_IN),
            "STAND_IN_GPUS": str(gpus),
            "STAND_IN_STARTS": str(self._starts),
        }

    def host(self, project: Project) -> Project:
        project.env |= self._env
        return project

    def starts(self) -> list[dict[str, Any]]:
        """The processes in which CUDA started: their `words`, and the `order` of the GPUs."""
        return [json.loads(line) for line in self._starts.read_text().splitlines()]
