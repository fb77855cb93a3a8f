"""`python run.py --check` finds mistakes that were planted, and nothing where there are none."""

import re

import pytest
from faults import chosen, one_line, silent, some, succeeded
from planted import MISTAKES

LIKE_OTHERS = ("mask", "NumPy in forward", "evaluation draws random numbers after its loop")
"""Mistakes that are like others, but found in a way of their own."""


@pytest.mark.parametrize(
    "name",
    [*some([name for name in MISTAKES if name not in LIKE_OTHERS], "item"), *chosen(LIKE_OTHERS)],
)
def test_a_mistake_is_found_with_its_line(of_example, tmp_path, name):
    mistake = MISTAKES[name]
    project = of_example(mistake.example).copy(tmp_path / "project")
    mistake.make(project)
    done = project.run("--check", *mistake.flags)
    assert done.returncode == 1, done
    place = f"{mistake.guarantee}: {mistake.file}:{mistake.line(project.root)}: "
    found = [line for line in done.stdout.splitlines() if line.startswith(place)]
    assert any(mistake.cure in line for line in found), (place, done.stdout)


KEPT = {"__pycache__", ".cache"}
"""Folders that may grow: compiled code and data that was read, for the jobs to come."""

ALL_ON = "--model convnet --augment crop-flip --accumulate 2 --clip-norm 1 --ema 0.9 --warmup 2e"
NO_VALIDATION = "--val-fraction 0 --monitor none --steps 500 --loader workers"


@pytest.mark.parametrize(
    ("example", "flags"),
    [
        ("classification", ""),
        pytest.param("classification", ALL_ON, marks=pytest.mark.full),
        pytest.param("classification", NO_VALIDATION, marks=pytest.mark.full),
        *(
            pytest.param(example, "", marks=pytest.mark.long)
            for example in ("gan", "language", "reinforcement")
        ),
    ],
)
def test_nothing_is_found_where_nothing_is_wrong(of_example, example, flags):
    project = of_example(example)
    before = {*project.root.rglob("*")}
    done = silent(project.run("--check", *flags.split()))
    *answers, last = done.stdout.splitlines()
    assert last == "check finished: nothing found"
    usual = re.compile(r".*: fine|1 of 5 runs took \d+ s; .* to go.*")  # which slow runs say
    unknown = [line for line in answers if not usual.fullmatch(line)]
    assert all(line.startswith("loss at the start: unknown") for line in unknown), unknown
    kept = {path for path in project.root.rglob("*") if not KEPT & {*path.parts}}
    assert kept <= before


@pytest.mark.full
def test_a_wait_may_be_declared(of_example, tmp_path):
    project = of_example("classification").copy(tmp_path / "project")
    MISTAKES["item"].make(project)
    run = project.root / "run.py"
    run.write_text(run.read_text().replace("loss.item()", "loss.item()  # waits"))
    succeeded(project.run("--check"))


def test_wrong_settings_are_one_line_as_ever(of_example):
    done = of_example("classification").run("--check", "--val-fraction", "0")
    line = one_line(done, 2)
    assert line.startswith("run.py: --val-fraction 0: ") and not done.stdout
