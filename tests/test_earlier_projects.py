"""Projects of earlier versions, with a student's edits, are updated to today's template."""

import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from faults import Project, succeeded
from labjobs.files import read_record
from repository import PROJECT, REPOSITORY, commit
from test_generation import cruft

pytestmark = pytest.mark.full

INNER = PROJECT.name
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


def edit(project: Path) -> None:
    """Edit each file that is the student's."""
    for name, text in EDITS.items():
        (project / name).write_text((project / name).read_text() + text)


def keep_own_files(project: Path, template: Path) -> None:
    """Tell cruft which files are the student's, in a project from before pyproject.toml did."""
    if "[tool.cruft]" not in (project / "pyproject.toml").read_text():
        today = (template / INNER / "pyproject.toml").read_text()
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
    of_template = request.param.with_name(request.param.name.replace("project", "template"))
    shutil.unpack_archive(of_template, source, filter="data")
    commit(source)
    cruft("create", source, "--no-input", "--output-dir", folder)
    commit(made)
    shutil.unpack_archive(request.param, folder, filter="data")  # with edits, and jobs
    edit(made)
    keep_own_files(made, template)
    commit(made)
    before = theirs(made)

    for name in ("hooks", INNER):
        shutil.rmtree(source / name)
    shutil.copytree(template, source, dirs_exist_ok=True)
    commit(source)
    cruft("update", "--project-dir", made, "--skip-apply-ask")
    assert theirs(made) == before
    move = REPOSITORY / "scripts" / "move_project.py"
    subprocess.run([sys.executable, move, made], check=True, stdout=subprocess.DEVNULL)
    updated = Project(made)
    updated.env["PYTHONPATH"] = str(template / INNER)  # where a user has installed the wheel
    return updated


def test_nothing_is_left_to_merge(project):
    for path in project.root.rglob("*"):
        assert path.suffix not in (".rej", ".orig"), path
        if path.suffix in (".py", ".sh", ".toml", ".md", ".yml"):
            assert "<<<<<<<" not in path.read_text(), path
    for name in SHARED:
        assert (project.root / name).read_text().endswith(EDITS[name])


def test_the_engine_is_todays(project, template):
    assert not (project.root / "engine").exists()
    (wheel,) = project.root.glob("vendor/*.whl")
    with zipfile.ZipFile(wheel) as packed:
        for path in (template / INNER / "labjobs").rglob("*.py"):
            name = path.relative_to(template / INNER).as_posix()
            assert packed.read(name) == path.read_bytes()
        commit = packed.read("labjobs/commit.txt").decode()
    command = ["git", "-C", str(project.root.parent / "template"), "rev-parse", "HEAD"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == commit


def test_its_jobs_are_listed_and_drawn_and_a_new_one_runs(project):
    """They are stale: before this version is released, results of older code need not count."""
    before = json.loads((project.root / "states.json").read_text())
    done = project.do("python", "jobs.py", "list", "--json", "--test")
    assert done.stdout, done.stderr
    listed = json.loads(done.stdout)
    assert [job["id"] for job in listed] == [job["id"] for job in before]
    assert [job["result"] for job in listed] == [job["result"] for job in before]
    abouts = [read_record(path) for path in project.root.glob("runs/*/*/settings.json")]
    assert all(about["spec"]["classes"] and about["examples"]["train"] for about in abouts)
    assert {job["state"] for job in listed} <= {"stale", "pending"}
    finished = next(job for job in before if job["state"] == "finished")
    succeeded(project.run("--epochs=1"))
    succeeded(project.do("python", "plot.py", "--any-code"))
    assert list(project.root.glob("figures/*.pdf"))
    read = f"import jobs; print(len(jobs.load('{finished['id']}').metrics))"
    assert project.printed(read) != ["0"]
