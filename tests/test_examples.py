"""The examples: up to date with the template, small, and projects like any other."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from faults import Project, one_line, succeeded
from repository import REPOSITORY
from test_project import check

INNER = "{{cookiecutter.project_slug}}"
MOST_LINES = {
    "plain": 60,
    "regression": 45,
    "gan": 90,
    "segmentation": 270,
    "language": 300,
    "graphs": 280,
    "reinforcement": 330,
    "finetuning": 280,
    "contrastive": 240,
    "similarity": 370,
    "stitching": 420,
    "kernels": 300,
}


CLASSIFIERS = ("plain", "finetuning", "similarity", "stitching", "kernels")
"""Examples that measure accuracy."""

TRAIN_AS_THE_TEMPLATE_DOES = {"similarity", "stitching", "kernels"}


class Example(NamedTuple):
    """What is special about an example."""

    short: tuple[str, ...]  # flags of a job that takes seconds
    jobs: tuple[str, ...]  # a grid
    metric: str  # falls as a job learns, if it does not rise
    caption: str  # what figures call the metric that jobs are chosen by
    rises: bool = False


EXAMPLES = {
    "plain": Example(
        ("--epochs", "8"),
        ("--epochs 2 --lr 1e-2", "--epochs 2 --lr 1e-4"),
        "loss",
        "Validation cross-entropy",
    ),
    "regression": Example(
        ("--epochs", "60", "--patience", "0"),
        ("--model linear --lr 1e-1", "--model linear --lr 1e-4"),
        "mae",
        "Validation mean absolute error",
    ),
    "gan": Example(
        ("--epochs", "30", "--model", "mlp"),
        ("--model mlp --epochs 10 --lr 2e-3", "--model mlp --epochs 10 --lr 1e-5"),
        "distance",
        "Validation energy distance",
    ),
    "segmentation": Example(
        ("--epochs", "8"),
        ("--epochs 2 --lr 1e-2", "--epochs 2 --lr 1e-4"),
        "loss",
        "Validation mean IoU",
    ),
    "language": Example(
        (
            *("--model", "gpt-tiny", "--context", "32", "--batch-size", "16", "--lr", "5e-3"),
            *("--steps", "200", "--eval-every", "10"),
        ),
        (
            "--model gpt-tiny --steps 100 --eval-every 25 --lr 1e-2",
            "--model gpt-tiny --steps 100 --eval-every 25 --lr 1e-4",
        ),
        "loss",
        "Validation bits per byte",
    ),
    "graphs": Example(
        ("--steps", "120", "--eval-every", "20", "--layers", "3"),
        ("--layers 2 --steps 60 --eval-every 30", "--layers 1 --steps 60 --eval-every 30"),
        "mae",
        "Validation mean absolute error",
    ),
    "reinforcement": Example(
        ("--environment", "balance", "--steps", "600", "--eval-every", "100"),
        tuple(
            f"--environment balance --steps 40 --eval-every 20 --lr {lr}" for lr in ("1e-3", "1e-5")
        ),
        "return",
        "Validation return",
        rises=True,
    ),
    "finetuning": Example(
        ("--epochs", "8"),
        ("--epochs 2 --lr 3e-3", "--epochs 2 --lr 1e-5"),
        "macro_f1",
        "Validation macro F1",
        rises=True,
    ),
    "contrastive": Example(
        ("--probe-labels", "1", "--steps", "150", "--eval-every", "5", "--warmup", "0"),
        ("--steps 40 --eval-every 20 --lr 3e-3", "--steps 40 --eval-every 20 --lr 1e-5"),
        "matched",
        "Validation probe accuracy",
        rises=True,
    ),
    "similarity": Example(
        ("--epochs", "8"),
        ("--epochs 2 --lr 1e-2", "--epochs 2 --lr 1e-4"),
        "loss",
        "Validation cross-entropy",
    ),
    "stitching": Example(
        ("--epochs", "8"),
        ("--epochs 2 --lr 1e-2", "--epochs 2 --lr 1e-4"),
        "loss",
        "Validation cross-entropy",
    ),
    "kernels": Example(
        ("--epochs", "8"),
        ("--epochs 2 --lr 1e-2", "--epochs 2 --lr 1e-4"),
        "loss",
        "Validation cross-entropy",
    ),
}


# How examples are kept


def script(root: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one of the scripts that maintain the examples."""
    command = [sys.executable, str(root / "scripts" / name), *words]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def copy(template, tmp_path):
    """A copy of the template to change."""
    return shutil.copytree(template, tmp_path / "template", symlinks=True)


def edit(file: Path, old: str, new: str) -> None:
    """Replace a text that a file has once."""
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_examples_are_merged_with_today_s_template(template):
    succeeded(script(template, "merge.py", "--check"))


def test_a_change_of_the_template_is_merged_into_the_examples(copy):
    edit(copy / INNER / "run.py", "says that it has finished", "says that it is finished")
    changed = sorted(file.parent.name for file in (copy / "examples").glob("*/run.py"))
    assert {*EXAMPLES} - {*changed} == TRAIN_AS_THE_TEMPLATE_DOES
    found = script(copy, "merge.py", "--check")
    assert found.returncode == 1
    assert found.stderr.splitlines() == [
        f"examples/{name}/run.py: the template's file has changed; type python scripts/merge.py"
        for name in changed
    ]
    assert script(copy, "merge.py").returncode == 0
    for name in changed:
        text = (copy / "examples" / name / "run.py").read_text()
        assert "says that it is finished" in text
    assert "r2" in (copy / "examples" / "regression" / "run.py").read_text()
    assert script(copy, "merge.py", "--check").returncode == 0


def test_a_conflict_with_the_template_is_refused_until_it_is_resolved(copy):
    """Where the template and the example have changed the same line."""
    edit(copy / INNER / "settings.py", "patience: int = setting(0, ", "patience: int = setting(5, ")
    mine = copy / "examples" / "regression" / "settings.py"
    for words in ((), ("--check",)):
        done = one_line(script(copy, "merge.py", *words), 1)
        assert done.startswith("examples/regression/settings.py: conflicts with the template")
    resolved = re.sub(
        r"<<<<<<< .*\n(.*\n)\|{7}(?s:.*?)>>>>>>> .*\n", lambda found: found[1], mine.read_text()
    )
    mine.write_text(resolved)
    assert script(copy, "merge.py", "--check").returncode == 0
    assert "patience: int = setting(10, " in resolved


def test_the_examples_are_as_small_as_the_docs_say(template):
    counted = succeeded(script(template, "count.py"))
    assert counted.stdout in (REPOSITORY / "docs" / "compared.md").read_text()
    head, _, *_, total = counted.stdout.split("\n\n")[1].splitlines()
    names, lines = ([cell.strip() for cell in row.split("|")[2:-1]] for row in (head, total))
    assert {*names} == {*EXAMPLES}
    for name, count in zip(names, map(int, lines), strict=True):
        assert 0 < count <= MOST_LINES[name]


# Projects made from them


FIRST = ("plain", "regression", "language", "reinforcement")
"""Examples that `bash test.sh` trains; .ci/run trains all."""

DRAWN = ("regression", "graphs", "contrastive")
"""Examples whose figures .ci/run draws."""


@pytest.fixture(
    scope="module",
    params=[
        each if each in FIRST else pytest.param(each, marks=pytest.mark.full) for each in EXAMPLES
    ],
)
def name(request):
    return str(request.param)


@pytest.fixture(scope="module")
def project(make, name):
    return Project(make(example=name))


def test_a_project_has_the_example_s_files(project, name, template):
    assert not (project.root / ".examples").exists()
    folder = template / "examples" / name
    without = folder / ".without"
    files = [path for path in folder.rglob("*.*") if path not in (folder / "README.md", without)]
    assert files
    for lacking in without.read_text().split() if without.exists() else ():
        assert not (project.root / lacking).exists()
    for file in files:
        relative = file.relative_to(folder)
        if file.suffix in (".py", ".sh"):
            assert (project.root / relative).read_bytes() == file.read_bytes()
        assert (project.root / relative).exists()
    about = (folder / "README.md").read_bytes()
    assert (project.root / "docs" / "example.md").read_bytes() == about
    assert (project.root / "README.md").read_bytes() != about


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check"])
def test_checks(project, command):
    check(command, project.root)


@pytest.fixture(scope="session")
def one_folder(tmp_path_factory):
    """A folder for each example in turn: mypy knows the engine from the one before."""
    return tmp_path_factory.mktemp("types") / "project"


@pytest.mark.full
def test_types(project, one_folder):
    shutil.rmtree(one_folder, ignore_errors=True)
    check("mypy", Path(shutil.copytree(project.root, one_folder)))


@pytest.fixture(scope="module")
def job(project, name):
    """The id of a short job that nobody disturbed."""
    return project.finish(*EXAMPLES[name].short)


def test_a_job_learns(project, job, name):
    curves, metric = project.stored(job), EXAMPLES[name].metric
    assert ("val_accuracy" in curves) == (name in CLASSIFIERS)
    (_, first), *_, (_, last) = curves[f"val_{metric}"]
    ((_, tested),) = curves[f"test_{metric}"]
    if EXAMPLES[name].rises:
        first, last, tested = 1 / first, 1 / last, 1 / tested
    assert last < 0.7 * first
    assert tested < 0.9 * first


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [each if each in DRAWN else pytest.param(each, marks=pytest.mark.alike) for each in EXAMPLES],
    indirect=True,
)
def test_a_sweep_is_drawn_the_right_way_up(project, name, tmp_path):
    fresh, example = project.copy(tmp_path / "copy"), EXAMPLES[name]
    grid = "".join(f"  job {job}\n" for job in example.jobs)
    text = (fresh.root / "run.sh").read_text()
    (fresh.root / "run.sh").write_text(
        re.sub(r"(?s)\ngrid\(\) \{\n.*?\n\}\n", f"\ngrid() {{\n{grid}}}\n", text)
    )
    succeeded(fresh.do("bash", "run.sh"))
    succeeded(fresh.do("python", "plot.py"))
    captions = {path.stem: path.read_text() for path in (fresh.root / "figures").glob("*.tex")}
    assert {"learning-curves", "metric-vs-setting", "ranking"} <= {*captions}
    for figure in ("learning-curves", "metric-vs-setting", "ranking"):
        assert example.caption in captions[figure]
