"""A small project of today's version with its jobs, kept as test data for the versions to come.

    python tests/earlier/make.py 1     # writes tests/earlier/1-project.tar.xz and 1-template.tar.xz

The project has what belongs to the student, their jobs and their store, and no engine.
`states.json` says how its jobs stand, as `jobs.py list --json` does. The template is what makes
such a project, without images; tests update the one by the other to today's version.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from cookiecutter.main import cookiecutter

REPOSITORY = Path(__file__).resolve().parents[2]

ENGINE = {"labjobs", "tests", "docs", "paper"}
LARGE = {"mlruns", "figures", ".code", ".installed", "__pycache__"}
OF_THIS_MACHINE = {"log.txt", "output.txt"}
MAKES_PROJECTS = ("cookiecutter.json", "hooks", "{{cookiecutter.project_slug}}")


def main() -> None:
    """Make the project, run its jobs and pack it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version")
    version = parser.parse_args().version
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "template"
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
        made = cookiecutter(str(clone), no_input=True, default_config=True, output_dir=folder)
        run_jobs(Path(made))
        pack(Path(made), Path(__file__).with_name(f"{version}-project.tar.xz"))
        pack_template(clone, Path(__file__).with_name(f"{version}-template.tar.xz"))


def run_jobs(project: Path) -> None:
    """A student's network, and jobs that finished, were paused, failed, and ran with older code."""
    edit(project / "models.py", "256", "12")
    run(project, "--epochs", "2", "--seed", "7")
    edit(project / "models.py", "12, classes)", "12, classes, bias=False)")
    for seed in "01":
        run(project, "--epochs", "2", "--seed", seed)
    run(project, "--epochs", "3", "--pause-after", "1e")
    run(project, "--epochs", "3", "--lr", "1e30", "--optimizer", "sgd")
    states = subprocess.run(
        [sys.executable, "jobs.py", "list", "--json"], cwd=project, stdout=subprocess.PIPE
    )
    (project / "states.json").write_bytes(states.stdout)


def edit(file: Path, old: str, new: str) -> None:
    """Change the network."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def run(project: Path, *flags: str) -> None:
    """Run a job, whatever becomes of it."""
    subprocess.run([sys.executable, "run.py", "--quiet", "--log-every", "5", *flags], cwd=project)


def pack(project: Path, target: Path) -> None:
    """Write what is kept into an archive."""
    with tarfile.open(target, "w:xz") as archive:
        for path in sorted(project.iterdir()):
            archive.add(path, f"my_project/{path.name}", filter=kept)


def pack_template(clone: Path, target: Path) -> None:
    """Write what makes projects into an archive."""
    with tarfile.open(target, "w:xz") as archive:
        for name in MAKES_PROJECTS:
            archive.add(clone / name, name, filter=without_images)


def without_images(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out images, which are large, and who made it."""
    return None if entry.name.endswith(".png") else anonymous(entry)


def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what is not the student's, and who made it."""
    names = set(entry.name.split("/")[1:])
    return None if names & (ENGINE | LARGE | OF_THIS_MACHINE) else anonymous(entry)


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made a file."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()
