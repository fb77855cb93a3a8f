"""The temporary folder in which attempts run again.

code/<digest>/           copies of the code, unpacked
environments/<digest>/   Python with the recorded packages
temporary/               the temporary files of the jobs themselves
runs/                    the attempts that run again, and copies of those that they depend on
mlflow-<digest>.db       a tracking store for each environment, which may have another MLflow
"""

import shutil
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from labjobs.errors import JobError
from labjobs.job import attempts, data
from labjobs.job.contents import of_text
from labjobs.job.copies import CODE_COPY, INSTALLED
from labjobs.repeating import environments
from labjobs.repeating.environments import Environment
from labjobs.repeating.recorded import Recorded

PATIENCE = 10.0
"""Seconds in which a courier of an interrupted job notices that there is nothing left to send."""


class Workplace:
    """A temporary folder, removed at the end; what several attempts need is made once."""

    def __init__(self, versions_recorded: bool) -> None:
        self._recorded = versions_recorded
        self._environments: dict[str, Environment | JobError] = {}

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="repeat-"))
        self.runs = self.folder / "runs"
        for name in ("runs", "code", "environments", "temporary"):
            (self.folder / name).mkdir()
        return self

    def __exit__(self, *error: object) -> None:
        until = time.monotonic() + PATIENCE
        while self.folder.exists() and time.monotonic() < until:
            shutil.rmtree(self.folder, ignore_errors=True)  # a courier may still be writing
            time.sleep(0 if not self.folder.exists() else 0.05)

    def code(self, attempt: Recorded) -> Path:
        """Return a folder with the code of an attempt. Raises JobError if its copy is missing, or
        is not what was stored."""
        archive = attempt.copy(CODE_COPY)
        digest = archive.name.removesuffix(".tar.gz")
        folder = self.folder / "code" / digest
        if not folder.exists():
            files = _read(archive)
            if of_text(repr(files)) != digest:
                raise JobError("the copy of its code was changed after it was stored")
            for name, text in files.items():
                path = folder / name
                if not path.resolve().is_relative_to(folder.resolve()):
                    raise JobError("the copy of its code has files outside the project")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8", newline="")
        return folder

    def environment(self, attempt: Recorded, code: Path) -> Environment:
        """Return what to run an attempt with. Raises JobError if it cannot be made."""
        if not self._recorded:
            return self._inside(environments.present(), "present")
        installed = attempt.copy(INSTALLED)
        if of_text(installed.read_text()) != installed.stem:
            raise JobError("the list of its packages was changed after it was stored")
        if installed.stem not in self._environments:
            try:
                folder = self.folder / "environments" / installed.stem
                made: Environment | JobError = environments.recorded(installed, code, folder)
            except JobError as error:
                made = error
            self._environments[installed.stem] = made
        found = self._environments[installed.stem]
        if isinstance(found, JobError):
            raise found
        return self._inside(found, installed.stem)

    def _inside(self, made: Environment, name: str) -> Environment:
        """The environment, with variables that have jobs write here alone."""
        store = f"sqlite:///{self.folder}/mlflow-{name}.db"
        own = {"MLFLOW_TRACKING_URI": store, "TMPDIR": str(self.folder / "temporary")}
        return Environment(made.python, {**made.env, **own})

    def copy_inputs(self, attempt: Recorded) -> None:
        """Copy the attempts that an attempt is derived from, and those that they are derived from,
        with the lists of what they have read. Raises JobError if one is missing."""
        for job, name in attempt.inputs.items():
            source, target = attempt.path.parent.parent / job / name, self.runs / job / name
            if not attempts.begun(source):
                raise JobError(f"its input, the attempt {job}/{name}, is missing")
            if not target.exists():
                shutil.copytree(source, target)
                with suppress(FileExistsError):
                    (self.runs / data.LISTS).mkdir()
                for file in source.parent.parent.glob(f"{data.LISTS}/*.jsonl"):
                    shutil.copy2(file, self.runs / data.LISTS)
            self.copy_inputs(Recorded(source))

    def forget(self, job: str) -> None:
        """Remove a job's folder, which another job may need with other attempts."""
        shutil.rmtree(self.runs / job, ignore_errors=True)


def _read(archive: Path) -> dict[str, str]:
    """The files of a copy of the code, by name. Raises JobError if it is damaged."""
    try:
        with tarfile.open(archive) as packed:
            members = [member for member in packed if member.isfile()]
            opened = ((member.name, packed.extractfile(member)) for member in members)
            return {name: file.read().decode() for name, file in opened if file}
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise JobError("the copy of its code is damaged") from error
