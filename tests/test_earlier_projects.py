"""Projects of earlier versions, with a student's edits, are updated to today's template."""

import json
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
from faults import Project, succeeded
from repository import REPOSITORY
from test_generation import commit, cruft

pytestmark = pytest.mark.full

EARLIER = sorted((REPOSITORY / "tests" / "earlier").glob("*-project.tar.xz"))

EDITS = {
    **dict.fromkeys(
        ("settings.py", "data.py", "models.py", "optimizers.py", "run.py", "plot.py", "jobs.py"),
        "\n\n# a student's remark\n",
    ),
    "run.sh": "\n# a student's remark\n",
    "README.md": "\n## What we found\nNothing yet.\n",
    "CITATION.cff": "# cite the paper\n",
    "LICENSE": "\nFor other terms, ask us.\n",
    ".gitignore": "\n/scans/\n",
    "paper/paper.tex": "% a draft\n",
}
"""What a student adds at the end of each file of theirs."""

SHARED = (".gitignore",)
"""Those of them that updates change too."""

DEPENDENCY = '  "einops",  # layers of ours\n'
HERE = "updates of the template leave these lines alone.\n"
"""The end of the line in pyproject.toml below which dependencies are added."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a folder, over what is there."""
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")


def edit(project: Path) -> None:
    """Edit each file that is the student's, and add a dependency."""
    for name, text in EDITS.items():
        (project / name).write_text((project / name).read_text() + text)
    file = project / "pyproject.toml"
    text = file.read_text()
    place = text.find(HERE) + len(HERE) if HERE in text else text.index("]\n\n[dependency-groups]")
    file.write_text(text[:place] + DEPENDENCY + text[place:])


def keep_own_files(project: Path, template: Path) -> None:
    """Tell cruft which files are the student's, in a project from before pyproject.toml did."""
    if "[tool.cruft]" not in (project / "pyproject.toml").read_text():
        today = (template / "{{cookiecutter.project_slug}}" / "pyproject.toml").read_text()
        table = "[tool.cruft]" + today.partition("[tool.cruft]")[2].partition("\n\n")[0]
        state = json.loads((project / ".cruft.json").read_text())
        state["skip"] = tomllib.loads(table)["tool"]["cruft"]["skip"]
        (project / ".cruft.json").write_text(json.dumps(state, indent=2))


def theirs(project: Path) -> dict[str, bytes]:
    """What is in the student's files."""
    names = {*EDITS, ".project-id", ".python-version"} - {*SHARED}
    return {name: (project / name).read_bytes() for name in names}


@pytest.fixture(scope="module", params=EARLIER, ids=lambda archive: archive.name.split("-")[0])
def project(request, template, tmp_path_factory):
    """A project that was made by an earlier version, edited, and updated to today's."""
    folder = tmp_path_factory.mktemp("earlier")
    source, made = folder / "template", folder / "my_project"
    unpack(request.param.with_name(request.param.name.replace("project", "template")), source)
    commit(source)
    cruft("create", source, "--no-input", "--output-dir", folder)
    commit(made)
    unpack(request.param, folder)  # with edits of its own, and jobs
    edit(made)
    keep_own_files(made, template)
    commit(made)
    before = theirs(made)

    for name in ("hooks", "{{cookiecutter.project_slug}}"):
        shutil.rmtree(source / name)
    shutil.copytree(template, source, dirs_exist_ok=True)
    commit(source)
    cruft("update", "--project-dir", made, "--skip-apply-ask")
    assert theirs(made) == before
    return Project(made)


def test_nothing_is_left_to_merge(project):
    rejected = [*project.root.rglob("*.rej"), *project.root.rglob("*.orig")]
    conflicts = [
        path
        for path in project.root.rglob("*")
        if path.suffix in (".py", ".sh", ".toml", ".md", ".yml") and "<<<<<<<" in path.read_text()
    ]
    assert not rejected and not conflicts
    assert DEPENDENCY in (project.root / "pyproject.toml").read_text()
    for name in SHARED:
        assert (project.root / name).read_text().endswith(EDITS[name])


def test_the_engine_is_todays(project, template):
    engine = template / "{{cookiecutter.project_slug}}" / "labjobs"
    for path in engine.rglob("*.py"):
        now = project.root / "labjobs" / path.relative_to(engine)
        assert now.read_bytes() == path.read_bytes()
    command = ["git", "-C", str(project.root.parent / "template"), "rev-parse", "HEAD"]
    head = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert (project.root / "labjobs" / "commit.txt").read_text() == head
    said = project.do("python", "jobs.py", "--version").stdout
    assert said.endswith(f"({head[:12]})\n")


@pytest.mark.alike  # test_project.py runs those of a new project
def test_its_tests_pass(project):
    succeeded(project.do("python", "-m", "pytest", "-q", "-n", "0"))


ADDED = ("folder", "metrics", "problem")
"""Where a job is, and what `jobs.py list` tells of it by now."""


def listed(project: Project) -> list[dict[str, str]]:
    """The jobs, as `jobs.py list` has told of them before."""
    jobs = json.loads(project.do("python", "jobs.py", "list", "--json").stdout)
    return [{k: v for k, v in job.items() if k not in ADDED} for job in jobs]


def test_its_jobs_count_continue_and_are_drawn(project):
    before = json.loads((project.root / "states.json").read_text())
    for job in before:
        del job["folder"]
    assert listed(project) == before
    paused, finished = (
        next(job for job in before if job["state"] == state) for state in ("paused", "finished")
    )

    done = project.run(f"--epochs={finished['settings']['epochs']}")
    assert (done.returncode, "already finished" in done.stdout) == (0, True)
    succeeded(project.run(f"--epochs={paused['settings']['epochs']}"))
    points = project.journalled(paused["id"])
    assert [step for step, _ in points["val_loss"]] == [21, 42, 63]
    assert project.stored(paused["id"]) == points

    succeeded(project.do("python", "plot.py", "--any-code"))
    assert list(project.root.glob("figures/*.pdf"))
    read = f"import jobs; print(len(jobs.load('{finished['id']}').metrics))"
    assert project.do("python", "-c", read).stdout.strip() != "0"
