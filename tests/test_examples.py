"""The examples: up to date with the template, small, and projects like any other."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from faults import Project, chosen, one_line, some, succeeded
from repository import REPOSITORY
from test_project import check

INNER = "{{cookiecutter.project_slug}}"
CLASSIFIERS = ("plain", "finetuning", "kernels")
"""Examples that measure accuracy."""

TRAIN_AS_THE_TEMPLATE_DOES = {"similarity", "stitching", "kernels"}
HAVE_NO_NETWORK = {"similarity", "stitching"}
"""Examples that train those of the template; tests of their own do."""


class Example(NamedTuple):
    """What is special about an example."""

    most_lines: int
    short: str = "--epochs 8"  # flags of a job that takes seconds
    metric: str = "loss"  # falls as a job learns, if it does not rise
    rises: bool = False


TINY = "--model gpt-tiny --steps 200 --eval-every 10 --context 32 --batch-size 16 --lr 5e-3"
BALANCE = "--environment balance --steps 600 --eval-every 100"
VIEWS = "--probe-labels 1 --steps 150 --eval-every 5 --warmup 0"
EXAMPLES = {
    "plain": Example(60),
    "regression": Example(45, "--epochs 60 --patience 0", "mae"),
    "gan": Example(90, "--epochs 30 --model mlp", "distance"),
    "segmentation": Example(270),
    "language": Example(325, TINY),
    "graphs": Example(280, "--steps 120 --eval-every 20 --layers 3", "mae"),
    "reinforcement": Example(330, BALANCE, "return", rises=True),
    "finetuning": Example(280, metric="macro_f1", rises=True),
    "contrastive": Example(240, VIEWS, "matched", rises=True),
    "similarity": Example(390),
    "stitching": Example(420),
    "kernels": Example(300),
}


# How examples are kept


def script(root: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one of the scripts that maintain the examples."""
    command = [sys.executable, str(root / "scripts" / name), *words]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def copy(template, tmp_path):
    return shutil.copytree(template, tmp_path / "template", symlinks=True)


def test_examples_are_merged_with_today_s_template(template):
    succeeded(script(template, "merge.py", "--check"))


def test_a_change_of_the_template_is_merged_into_the_examples(copy):
    Project(copy / INNER).edit("run.py", "says that it has finished", "says that it is finished")
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
        assert "it is finished" in (copy / "examples" / name / "run.py").read_text()
    assert "r2" in (copy / "examples" / "regression" / "run.py").read_text()
    assert script(copy, "merge.py", "--check").returncode == 0


def test_a_conflict_with_the_template_is_refused_until_it_is_resolved(copy):
    """Where the template and the example have changed the same line."""
    patience = "patience: int = setting({}, "
    Project(copy / INNER).edit("settings.py", patience.format(0), patience.format(5))
    mine = copy / "examples" / "regression" / "settings.py"
    for words in ((), ("--check",)):
        done = one_line(script(copy, "merge.py", *words), 1)
        assert done.startswith("examples/regression/settings.py: conflicts with the template")
    resolved = re.sub(
        r"<<<<<<< .*\n(.*\n)\|{7}(?s:.*?)>>>>>>> .*\n", lambda found: found[1], mine.read_text()
    )
    mine.write_text(resolved)
    assert script(copy, "merge.py", "--check").returncode == 0
    assert patience.format(10) in resolved


def test_the_examples_are_as_small_as_the_docs_say(template):
    counted = succeeded(script(template, "count.py"))
    assert counted.stdout in (REPOSITORY / "docs" / "compared.md").read_text()
    head, _, *_, total = counted.stdout.split("\n\n")[1].splitlines()
    names, lines = ([cell.strip() for cell in row.split("|")[2:-1]] for row in (head, total))
    assert {*names} == {*EXAMPLES}
    for name, count in zip(names, map(int, lines), strict=True):
        assert 0 < count <= EXAMPLES[name].most_lines


# Projects made from them


FIRST = ("plain", "regression")
"""Examples that `bash test.sh` trains; .ci/run trains all others."""
TRAINED = [name for name in EXAMPLES if name not in HAVE_NO_NETWORK]


@pytest.fixture(scope="module", params=some(EXAMPLES, *FIRST))
def name(request):
    return str(request.param)


@pytest.fixture(scope="module")
def project(of_example, name, tmp_path_factory):
    return of_example(name).copy(tmp_path_factory.mktemp("project") / "my_project")


def test_a_project_has_the_example_s_files(project, name, template):
    assert not (project.root / ".examples").exists()
    folder = template / "examples" / name
    about, without = folder / "README.md", folder / ".without"
    files = [path for path in folder.rglob("*.*") if path not in (about, without)]
    assert files
    for lacking in without.read_text().split() if without.exists() else ():
        assert not (project.root / lacking).exists()
    for file in files:
        made = project.root / file.relative_to(folder)
        assert made.exists()
        assert file.suffix not in (".py", ".sh") or made.read_bytes() == file.read_bytes()
    assert (project.root / "docs" / "example.md").read_bytes() == about.read_bytes()
    assert (project.root / "README.md").read_bytes() != about.read_bytes()
    every = (path.relative_to(project.root) for path in project.root.rglob("*") if path.is_file())
    others = {"labjobs", ".project-id", "__pycache__"}  # the last two from jobs of other tests
    own = [path for path in every if not others.intersection(path.parts)]
    assert len(own) + 1 <= 30  # with the wheel


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check"])
def test_checks(project, command):
    check(command, project.root)


@pytest.fixture(scope="session")
def one_folder(tmp_path_factory):
    """A folder for each example in turn: mypy knows the engine from the one before."""
    return tmp_path_factory.mktemp("types") / "project"


@pytest.mark.full
@pytest.mark.parametrize("example", chosen(EXAMPLES, "language"))
def test_types(of_example, example, one_folder):
    shutil.rmtree(one_folder, ignore_errors=True)
    check("mypy", Path(shutil.copytree(of_example(example).root, one_folder)))


@pytest.mark.parametrize("name", some(TRAINED, *FIRST), indirect=True)
def test_a_job_learns(project, name):
    job, metric = project.finish(*EXAMPLES[name].short.split()), EXAMPLES[name].metric
    curves = project.stored(job)
    assert ("val_accuracy" in curves) == (name in CLASSIFIERS)
    (_, first), *_, (_, last) = curves[f"val_{metric}"]
    ((_, tested),) = curves[f"test_{metric}"]
    if EXAMPLES[name].rises:
        first, last, tested = 1 / first, 1 / last, 1 / tested
    assert last < 0.7 * first and tested < 0.9 * first
