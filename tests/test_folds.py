"""A project with patients: split by them, cross-validated, and its test examples looked at."""

import json
import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from faults import Project, ended, one_line, succeeded
from sweeps import start, write_grid

pytestmark = pytest.mark.full

QUICK = "--epochs 1 --batch-size 256"
COUNT = 3

EDITS = {
    "settings.py": [("FOLDS = 5", f"FOLDS = {COUNT}")],
    "data.py": [
        ("    class_counts,\n", "    check_groups,\n    class_counts,\n"),
        (
            "    val: Examples | None = None\n\n\n",
            "    val: Examples | None = None\n    patients: Sequence[int] = ()\n\n\n",
        ),
        (
            "[str(digit) for digit in range(10)])",
            "[str(digit) for digit in range(10)],\n"
            "        patients=[row // 7 for row in range(1797)])",
        ),
        (
            "TEST_FRACTION, settings.split_seed)",
            "TEST_FRACTION, settings.split_seed, groups=source.patients)",
        ),
        (
            "settings.fold, FOLDS, settings.split_seed)",
            "settings.fold, FOLDS, settings.split_seed, groups=source.patients)",
        ),
        (
            "    shape = tuple(",
            "    check_groups(source.patients, train=train, val=val, test=test)\n"
            "    shape = tuple(",
        ),
    ],
    "run.py": [
        (
            "keep_outputs(label=batch[1], predicted=predicted)",
            'keep_outputs(label=batch[1], predicted=predicted, loss=measured["loss"])',
        )
    ],
}

WORST = """
import json, sys
import data
from pathlib import Path
from labjobs.results import tables
from labjobs.tracking.mlflow_client import experiment_name

jobs = tables.jobs(experiment_name())
kept = tables.outputs(jobs, settings=["lr", "fold", "test_loss"])
worst = kept.nlargest(10, "loss")
labels = data.read("digits", Path("data"), "auto").train.tensors[1]
assert worst["label"].tolist() == labels[worst["index"].tolist()].tolist()
means = kept.groupby("job_id")[["loss", "test_loss"]].mean()
assert (means["loss"] / means["test_loss"]).sub(1).abs().max() < 1e-5
first, second = (kept[kept["job_id"] == job].set_index("index") for job in jobs["job_id"][:2])
differ = first[first["predicted"] != second["predicted"]]
print(json.dumps([len(kept), worst["loss"].tolist(), sorted({*kept["fold"]}), len(differ)]))
"""


@pytest.fixture(scope="module")
def project(make):
    """A project in which a cross-validation of two learning rates has run."""
    project = Project(make())
    for name, changes in EDITS.items():
        for old, new in changes:
            project.edit(name, old, new)
    jobs = [f"{QUICK} --lr {lr} --fold {fold}" for lr in (1e-3, 1e-2) for fold in (1, 2, 3)]
    write_grid(project.root, *jobs)
    succeeded(ended(start(project.root, project.env)))
    return project


def parts_of(project: Project, attempt: Path) -> dict[str, list[int]]:
    """The examples of each part, by their places in the dataset."""
    split = json.loads((attempt / "split.json").read_text())["split"]
    with np.load(project.root / "runs" / split) as kept:
        return {name: kept[name].tolist() for name in kept}


def test_each_training_example_validates_once_and_no_patient_is_on_two_sides(project):
    of_rate: dict[float, list[dict[str, list[int]]]] = {}
    for attempt in project.root.glob("runs/*/*/"):
        lr = json.loads((attempt / "settings.json").read_text())["settings"]["lr"]
        of_rate.setdefault(lr, []).append(parts_of(project, attempt))
    for folds in of_rate.values():
        assert len(folds) == COUNT
        (test,) = {tuple(parts["test"]) for parts in folds}
        validated = list(chain(*(parts["val"] for parts in folds)))
        assert sorted([*validated, *test]) == list(range(1797))
        for parts in folds:
            assert sorted(chain(*parts.values())) == list(range(1797))
            patients = [{row // 7 for row in part} for part in parts.values()]
            assert sum(map(len, patients)) == len(set.union(*patients)) == 257


def test_outputs_are_a_table_from_the_folder_and_from_the_store(project):
    here = succeeded(project.do("python", "-c", WORST))
    rows, worst, folds, differ = json.loads(here.stdout)
    with np.load(next(project.root.glob("runs/*/*/predictions.npz"))) as kept:
        tested = len(kept["label"])
    assert (rows, folds) == (2 * COUNT * tested, [1, 2, 3])
    assert worst == sorted(worst, reverse=True) and 0 < differ < tested
    shutil.move(project.root / "runs", project.root / "elsewhere")
    stored = project.do("python", "-c", WORST)
    shutil.move(project.root / "elsewhere", project.root / "runs")
    assert stored.stdout == here.stdout, stored.stderr


def test_what_cannot_be_cross_validated_is_refused_in_one_line(project, tmp_path):
    line = one_line(project.run("--fold", "4"), 2)
    assert line == "run.py: --fold 4: must be at least 0 and at most 3"
    copy = project.copy(tmp_path / "leak")
    copy.edit("data.py", "settings.split_seed, groups=source.patients", "0")
    line = one_line(copy.run(*QUICK.split()), 2)
    assert line.startswith("run.py: --dataset: a group is in two parts: ")
    few = project.copy(tmp_path / "few")
    few.edit("data.py", "row // 7", "row // 600")
    line = one_line(few.run(*QUICK.split(), "--fold", "1"), 2)
    assert line == "run.py: --dataset: 2 groups are too few for 3 folds"
