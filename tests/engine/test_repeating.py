"""Repeated jobs: where results first differ, and with which flags a job runs again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from labjobs import files
from labjobs.commands.replay import Recorded, compare_outputs, curve_points, first_difference
from labjobs.errors import JobError
from labjobs.job.journal import Journal
from labjobs.training import checkpoints

NAN = float("nan")


def attempt(folder: Path, *points: tuple[int, dict[str, float]]) -> Path:
    """An attempt's folder with a journal."""
    folder.mkdir(parents=True)
    journal = Journal(folder, 10)
    journal.tags({"threads": "3", "device": "cpu"})
    for step, values in points:
        journal.metrics(step, values)
    journal.close("FINISHED")
    return folder


def first(folder: Path, before: Any, after: Any) -> str:
    """Where the curves of two attempts with these points first differ."""
    made = [attempt(folder / name, *points) for name, points in (("a", before), ("b", after))]
    found = first_difference(*(curve_points(Recorded(path).lines) for path in made))
    return "{1} at step {0} was {2} and is now {3}".format(*found) if found else ""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([(1, {"loss": 0.1})], [(1, {"loss": 0.1})], ""),
        ([(1, {"loss": NAN})], [(1, {"loss": NAN})], ""),
        (
            [(1, {"loss": 0.1}), (2, {"loss": 0.3, "lr": 1.0})],
            [(1, {"loss": 0.1}), (2, {"loss": 0.30000000000000004, "lr": 2.0})],
            "loss at step 2 was 0.3 and is now 0.30000000000000004",
        ),
        ([(1, {"a": 1.0}), (2, {"a": 1.0})], [(1, {"a": 1.0})], "a at step 2 was 1.0 and"),
        ([(1, {"a": 1.0})], [(1, {"b": 1.0})], "a at step 1 was 1.0 and is now missing"),
        ([(1, {"a": 0.0})], [(1, {"a": -0.0})], "a at step 1 was 0.0 and is now -0.0"),
        (
            [(3, {"elapsed_seconds": 1.0, "cpu_hours": 1.0, "tokens_per_second": 5.0})],
            [(3, {"elapsed_seconds": 2.0, "cpu_hours": 2.0, "tokens_per_second": 6.0})],
            "",
        ),
    ],
)
def test_the_first_point_that_differs(tmp_path, before, after, said):
    found = first(tmp_path, before, after)
    assert found.startswith(said) and bool(found) == bool(said)


def best(folder: Path, **weights: torch.Tensor) -> Path:
    """A folder with weights."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints.save(folder / "best.pt", {"models": {"model": weights}, "step": 1})
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_the_first_weight_that_differs(tmp_path, dtype):
    weight = torch.ones(2, 3, dtype=dtype)
    one = best(tmp_path / "one", bias=torch.zeros(2), weight=weight)
    assert compare_outputs(one, one) == ({"arrays in best.pt": 2}, "")
    weight[1, 2] = 2
    counts, difference = compare_outputs(
        one, best(tmp_path / "two", bias=torch.zeros(2), weight=weight)
    )
    assert (counts, difference) == ({}, "best.pt: model.weight is not the same")


def recorded(folder: Path, **about: Any) -> Recorded:
    """An attempt with settings.json."""
    path = attempt(folder / "0123456789ab" / "attempt")
    files.write_record(path / "settings.json", {"id": path.parent.name, **about})
    return Recorded(path)


def test_flags_are_the_settings_and_what_can_change_bits(tmp_path):
    runtime = {"deterministic": True, "compile": "on", "quiet": True}
    found = recorded(tmp_path, settings={"lr": 0.1, "layers": [1, 2]}, runtime=runtime).flags()
    assert found[:2] == ["--lr=0.1", "--layers=1,2"]
    assert {*found[2:]} >= {
        *("--deterministic=on", "--compile=on", "--threads=3", "--log-every=10", "--device=cpu")
    }
    assert not any("quiet" in flag for flag in found)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({}, "its settings.json is damaged or missing"),
        ({"settings": {"minutes": 2.0}}, "its length is in minutes"),
        ({"settings": {"lr": 1.0}, "code": "mixed"}, "it was continued with changed code"),
    ],
)
def test_what_cannot_be_repeated(tmp_path, about, said):
    with pytest.raises(JobError, match=said):
        recorded(tmp_path, **about).check()


def test_a_job_of_several_processes_is_not_repeated_by_one(tmp_path):
    folder = attempt(tmp_path / "job" / "a")
    journal = Journal(folder, 10)
    journal.tags({"processes": "4"})
    journal.close("FINISHED")
    files.write_record(folder / "settings.json", {"id": "job", "settings": {"lr": 0.1}})
    with pytest.raises(JobError, match="it ran in 4 processes"):
        Recorded(folder).check()
