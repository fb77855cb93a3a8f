"""Tests of the engine by itself, in one warm process: no project is made, none of its code runs."""

import os
from pathlib import Path

import pytest
import torch
from attempts import Toy

torch.set_num_threads(1)  # tests run side by side


@pytest.fixture(autouse=True, scope="session")
def image_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Decoded images are not kept beside the engine."""
    os.environ["IMAGE_CACHE"] = str(tmp_path_factory.mktemp("image-cache"))


@pytest.fixture
def toy(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Jobs of the tests' own, in this process. No power is cut here: nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)

    def said() -> str:
        out, err = capfd.readouterr()
        return out + err

    return Toy(tmp_path, said)
