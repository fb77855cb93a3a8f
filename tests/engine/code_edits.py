"""Edits of the template's own files, from code_edits/*.txt, and the jobs that they make stale.

=== name of the edit
stale: M                  the jobs whose results it can change (see JOBS)
needlessly: C             jobs that are flagged as well, though nothing changes for them
missed: G                 jobs that should be flagged and are not
settings: {"mixup": 0}    what the settings of all jobs have besides
job W: {"model": "wide"}  a job besides those of JOBS
--- before models.py      a change that was made before the jobs ran
text, once in the file
+++
text in its place
--- edit nets.py          the edit itself; without the first text, it is appended to the file
+++
more text
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repository import REPOSITORY

INNER = REPOSITORY / "{{cookiecutter.project_slug}}"
FOLDER = Path(__file__).with_name("code_edits")

JOBS: dict[str, dict[str, Any]] = {
    "M": {"model": "mlp", "dataset": "digits"},
    "C": {"model": "convnet", "dataset": "digits"},
    "G": {"model": "gpt", "dataset": "random-tokens"},
    "R": {"model": "resnet18", "dataset": "cifar10"},
}

FILES = ("settings.py", "data.py", "models.py", "optimizers.py", "run.py", "plot.py", "jobs.py")

Files = Mapping[str, str]
"""Texts, by the names of files."""


@dataclass(frozen=True)
class Change:
    """A change of one file."""

    file: str
    old: str
    new: str

    def make(self, files: Files) -> dict[str, str]:
        text = files.get(self.file, "")
        if not self.old:
            return {**files, self.file: f"{text}\n\n{self.new}\n".lstrip("\n")}
        assert text.count(self.old) == 1, f"{text.count(self.old)} times: {self.old}"
        return {**files, self.file: text.replace(self.old, self.new)}


@dataclass
class Edit:
    """An edit, and what becomes of jobs that ran before."""

    name: str
    stale: set[str] = field(default_factory=set)
    needlessly: set[str] = field(default_factory=set)
    missed: set[str] = field(default_factory=set)
    jobs: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(JOBS))
    settings: dict[str, Any] = field(default_factory=dict)
    before: list[Change] = field(default_factory=list)
    edit: list[Change] = field(default_factory=list)

    def found(self) -> set[str]:
        """Return the jobs that are stale, as things are."""
        return (self.stale | self.needlessly) - self.missed


def student_files() -> Files:
    """Return the files of a project: the template's, with what project.txt adds."""
    (added,) = read((FOLDER / "project.txt").read_text())
    return changed({name: (INNER / name).read_text() for name in FILES}, added.before)


def changed(files: Files, changes: list[Change]) -> Files:
    for change in changes:
        files = change.make(files)
    return files


def write(folder: Path, files: Files) -> Path:
    """Write files to a new folder; returns it."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def read(text: str) -> Iterator[Edit]:
    """Yield the edits in a text."""
    for block in re.split(r"^=== ", text, flags=re.M)[1:]:
        head, *changes = re.split(r"^--- ", block.rstrip(), flags=re.M)
        name, *lines = head.splitlines()
        edit = Edit(name)
        for line in lines:
            word, _, value = line.partition(":")
            if word == "settings":
                edit.settings = json.loads(value)
            elif word.startswith("job "):
                edit.jobs[word.removeprefix("job ")] = json.loads(value)
            else:
                setattr(edit, word, set(value.strip()))
        for change in changes:
            where, _, body = change.partition("\n")
            when, file = where.split()
            old, new = re.split(r"^\+\+\+$", body, maxsplit=1, flags=re.M)
            getattr(edit, when).append(Change(file, old.strip("\n"), new.strip("\n")))
        yield edit


EDITS = [
    edit
    for file in sorted(FOLDER.glob("*.txt"))
    if file.name != "project.txt"
    for edit in read(file.read_text())
]
