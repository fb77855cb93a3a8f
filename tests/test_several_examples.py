"""Examples in several processes: what they measure and keep is what one process does."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from faults import Curves, Project, ended, job_of
from test_several import together

STILL = ("--lr", "1e-9")
"""A learning rate at which dropout, which differs between processes, changes no weight."""


@pytest.mark.parametrize(
    ("example", "flags"),
    [
        ("regression", ("--epochs", "2")),
        pytest.param("segmentation", ("--epochs", "1"), marks=pytest.mark.full),
        pytest.param(
            *("finetuning", ("--steps", "4", *STILL)),
            marks=[pytest.mark.full, pytest.mark.alike],
        ),
        pytest.param(
            *("language", ("--model", "gpt-tiny", "--steps", "2")),
            marks=[pytest.mark.full, pytest.mark.alike],
        ),
    ],
)
def test_metrics_are_those_of_one_process(
    make: Callable[..., Path], tmp_path: Path, example: str, flags: tuple[str, ...]
) -> None:
    alone = Project(make(example=example))
    if example == "segmentation":  # batch norm would differ, as docs/several-gpus.md says
        alone.edit("models.py", "nn.BatchNorm2d(outputs)", "nn.GroupNorm(1, outputs)")
    several = alone.copy(tmp_path / "several")
    flags = (*flags, "--device", "cpu")
    done, together_done = alone.run(*flags), ended(together(several, 2, *flags))
    assert (done.returncode, together_done.returncode) == (0, 0), (done, together_done)
    job = job_of(done)
    expected, found = evaluated(alone, job), evaluated(several, job)
    assert expected.keys() == found.keys() and any(name.startswith("test_") for name in found)
    for name, points in expected.items():
        assert found[name] == [(step, pytest.approx(value, 1e-4)) for step, value in points]
    kept, outputs = alone.outputs(job), several.outputs(job)
    assert kept.keys() == outputs.keys()
    for name, values in kept.items():
        assert values.shape == outputs[name].shape
        assert np.mean(np.isclose(values, outputs[name], rtol=1e-4)) > 0.999


def evaluated(project: Project, job: str) -> Curves:
    """What a job has measured in its evaluations."""
    curves = project.journalled(job)
    return {k: points for k, points in curves.items() if k.startswith(("val_", "test_"))}
