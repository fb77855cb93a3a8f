"""The engine as a wheel: what the hook packs, and what a project does with what is installed."""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
from faults import Project, one_line, succeeded
from repository import REPOSITORY
from sweeps import write_grid
from test_project import check

ENGINE = REPOSITORY / "{{cookiecutter.project_slug}}" / "labjobs"
SHORT = ("--epochs", "1", "--quiet")


def wheel_of(root: Path) -> Path:
    (wheel,) = root.glob("vendor/*.whl")
    return wheel


@pytest.fixture(scope="module")
def packed(make):
    """A project with a wheel, which nobody changes."""
    return make(engine="package")


@pytest.fixture(scope="module")
def installed(make, tmp_path_factory):
    """A project whose engine is installed in a folder of its own, from its wheel."""
    project = Project(make(engine="package"))
    site = tmp_path_factory.mktemp("site")
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--offline", "--target", site]
    subprocess.run([*command, wheel_of(project.root)], check=True)
    project.env["PYTHONPATH"] = str(site)
    succeeded(project.run(*SHORT))
    return project


def test_other_programs_of_a_job_start_in_any_environment(packed, tmp_path):
    """The path file that adds the packages comes after the package's own, or there is none."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    (site,) = tmp_path.glob("env/lib/python*/site-packages")
    with zipfile.ZipFile(wheel_of(packed)) as wheel:
        wheel.extractall(site)
    notes = tmp_path / "data.jsonl"
    notes.touch()
    places = json.dumps([str(notes), str(tmp_path), str(tmp_path / "runs")])
    word = tmp_path / "word.txt"
    word.write_text("2.0")
    command = [tmp_path / "env" / "bin" / "python", "-c", f"print(open({str(word)!r}).read())"]
    for path_file in ("none", str(Path(numpy.__file__).parents[1])):
        (site / "zz.pth").write_text(f"{path_file}\n")
        done = subprocess.run(
            command, env={"LABJOBS_READS": places}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "2.0\n", "")
        assert "word.txt" in notes.read_text()
        notes.write_text("")


@pytest.fixture
def copy(installed, tmp_path):
    """A copy of it, which a test may change, with an environment of its own."""
    project = installed.clone(tmp_path / "project")
    site = shutil.copytree(installed.env["PYTHONPATH"], tmp_path / "site")
    project.env["PYTHONPATH"] = str(site)
    return project


def test_the_same_wheel_is_packed_each_time_with_all_that_belongs_to_it(make, packed):
    assert wheel_of(packed).read_bytes() == wheel_of(make(engine="package")).read_bytes()
    with zipfile.ZipFile(wheel_of(packed)) as wheel:
        names = set(wheel.namelist())
        (about,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        for line in wheel.read(f"{about}/RECORD").decode().splitlines()[:-1]:
            name, digest, _ = line.split(",")
            found = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest())
            assert digest == f"sha256={found.decode().rstrip('=')}"
        metadata = wheel.read(f"{about}/METADATA").decode()
        for line in (ENGINE / "requirements.txt").read_text().splitlines():
            assert f"Requires-Dist: {line}\n" in metadata
    own = {path for path in ENGINE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    packed = {f"labjobs/{path.relative_to(ENGINE).as_posix()}" for path in own}
    assert {name for name in names if name.startswith("labjobs/")} == packed | {
        "labjobs/commit.txt"
    }
    assert {"labjobs/LICENSE", "labjobs/py.typed", "labjobs/sweeps/sweep.sh"} <= names


def test_what_its_workflow_checks_of_the_style_passes(packed):
    check("ruff check", packed)


def test_a_project_asks_for_what_its_engine_needs(make, packed):
    source = (make(engine="source") / "pyproject.toml").read_text()
    for line in (ENGINE / "requirements.txt").read_text().splitlines():
        assert f'"{line}",' in source
    assert wheel_of(packed).name in (packed / "pyproject.toml").read_text()


@pytest.mark.full
def test_a_sweep_a_figure_and_a_repeated_job_with_an_installed_engine(installed):
    write_grid(installed.root, *(" ".join((*SHORT, f"--seed={seed}")) for seed in range(2)))
    succeeded(installed.do("bash", "run.sh"))
    assert "2 of 2 jobs finished" in installed.do("bash", "run.sh").stdout
    assert "already finished" in installed.run(*SHORT).stdout
    succeeded(installed.do("python", "plot.py"))
    ids = [job.name for job in installed.root.glob("runs/[0-9a-f]*")]
    done = installed.do("python", "jobs.py", "repeat", ids[0])
    assert "1 same" in done.stdout, done
    copies = [path.name for path in installed.root.glob("runs/.code/*")]
    assert len([name for name in copies if name.startswith("labjobs-")]) == 1


@pytest.mark.full
def test_an_upgrade_changes_no_job_that_waits(copy):
    """The installed engine is removed while the first job of a sweep trains."""
    hook = "    for _ in job.epochs():"
    copy.edit("run.py", hook, f'    open("started", "a").close()\n{hook}')
    write_grid(copy.root, *(" ".join((*SHORT, f"--seed={seed}")) for seed in (7, 8)))
    sweep = copy.command("bash", "run.sh", "--per-gpu", "1")
    while sweep.poll() is None and not (copy.root / "started").exists():
        """Until the code has been copied."""
    shutil.rmtree(Path(copy.env["PYTHONPATH"], "labjobs"))
    out, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 0 and "2 of 2 jobs finished" in out, (out, err)


def other_version(project):
    file = Path(project.env["PYTHONPATH"], "labjobs", "__init__.py")
    file.write_text(file.read_text().replace('__version__ = "', '__version__ = "0.'))


def two_wheels(project):
    wheel = wheel_of(project.root)
    shutil.copy(wheel, wheel.with_name("labjobs-0.9.0-py3-none-any.whl"))


def folder_too(project):
    ejected = succeeded(project.do("python", "jobs.py", "eject", "--json")).stdout
    assert json.loads(ejected) == {"folder": str(project.root / "labjobs")}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_version, "is used, which is not vendor/labjobs-"),
        (two_wheels, "restore the one that pyproject.toml names"),
        (folder_too, "labjobs/ in the project is used, not vendor/labjobs-"),
    ],
)
def test_what_is_not_as_it_should_be_is_said_in_one_line(copy, change, said):
    version, *rest = copy.do("python", "jobs.py", "--version").stdout.splitlines()
    assert version.startswith("labjobs ") and not rest
    change(copy)
    _, line = copy.do("python", "jobs.py", "--version").stdout.splitlines()
    assert said in line
    if change is other_version:
        done = copy.run("--epochs", "1", "--seed", "5")
        assert done.returncode == 0 and line in done.stdout + done.stderr, done


def test_an_ejected_engine_that_was_edited_counts_as_the_students_code(copy):
    folder_too(copy)
    assert "already finished" in copy.run(*SHORT).stdout
    copy.edit("labjobs/training/loop.py", "class Job(", "EDITED = 1\n\n\nclass Job(")
    line = one_line(copy.run(*SHORT), 5)
    assert "was finished with other code (labjobs.training.loop changed)" in line
    again = one_line(copy.do("python", "jobs.py", "eject"), 2)
    assert again == "jobs.py: labjobs already exists, and is what runs"


def test_pages_are_shown_and_searched(installed):
    listed = installed.do("python", "jobs.py", "docs").stdout
    assert {"recipes", "evidence", "updates"} <= {line.split()[0] for line in listed.splitlines()}
    page = installed.do("python", "jobs.py", "docs", "evidence").stdout
    assert page.startswith("# ") and "![" not in page
    found = installed.do("python", "jobs.py", "docs", "TORCHRUN").stdout.splitlines()
    assert found and all("torchrun" in line.lower() for line in found)
    wrong = one_line(installed.do("python", "jobs.py", "docs", "recipe5"), 2)
    assert wrong.startswith("jobs.py: docs recipe5: no page has this word; did you mean recipes?")
