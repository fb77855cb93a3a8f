"""`repeat`: does the stored code of jobs still give the same results, bit for bit?

Each attempt runs again in a temporary folder, from its stored code and with the versions of Python
and of all packages that it ran with (or those that are installed here). Then the curves, the
weights and the outputs for each test example are compared.
"""

import argparse
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from labjobs import exit_status, layout
from labjobs.commands.inventory import Job, Project
from labjobs.commands.replay import (
    Difference,
    Recorded,
    compare_outputs,
    curve_difference,
    curve_points,
    run,
)
from labjobs.errors import JobError, SettingsError, cause
from labjobs.files import PROJECT
from labjobs.job import attempts, runtime
from labjobs.job.data_evidence import of_text
from labjobs.job.provenance import CODE_COPY, ENGINE_COPY, INSTALLED
from labjobs.job.terminal import Interrupted, Interruption, counted, leave
from labjobs.results import figure_files
from labjobs.tracking import parquet

VERSIONS = ("recorded", "present")
"""The versions of Python and of packages to use, the default first."""


@dataclass
class Repeated:
    """The outcome of repeating an attempt: `same`, `different` or `not repeated`."""

    status: str
    reason: str = ""
    """Why it was not repeated."""

    difference: Difference | None = None
    compared: dict[str, int] = field(default_factory=dict)
    """Numbers of values that are the same, by what they are."""

    conditions: dict[str, str] = field(default_factory=dict)
    """What differed from the record: versions, device, threads."""

    @property
    def said(self) -> str:
        """The outcome, with a line for each condition that differed."""
        line = f"could not be repeated: {self.reason}"
        if self.status == "same":
            line = (
                f"the same bits ({', '.join(f'{n} {what}' for what, n in self.compared.items())})"
            )
        if self.difference:
            line = f"different: {self.difference}"
        return "\n  ".join([line, *(f"{name}: {text}" for name, text in self.conditions.items())])

    def as_plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        difference = self.difference._asdict() if self.difference else None
        return asdict(self) | {"difference": difference}


def repeat_jobs(project: Project, given: argparse.Namespace) -> int:
    """Repeat jobs and print the outcome of each; return the exit status, 0 if all are the same.

    Raises SettingsError if a job or a figure does not exist.
    """
    jobs = _named(project, given.what)
    found: dict[str, Repeated] = {}
    try:
        Interruption().listen()
        with Workplace(given.versions == VERSIONS[0]) as workplace:
            for job_id, job in jobs.items():
                if not given.json:
                    print(f"repeating job {job_id}: {job.words if job else ''}", flush=True)
                try:
                    found[job_id] = repeat(_attempt(job), workplace)
                except (JobError, OSError) as error:
                    found[job_id] = Repeated("not repeated", cause(error))
                if not given.json:
                    print(f"job {job_id}: {found[job_id].said}")
    except Interrupted as stop:
        line = f"jobs.py: repeat was interrupted {stop}; nothing is left"
        return leave(exit_status.SIGNALLED + stop.number, line)
    if given.json:
        plain = [{"job": job_id, **each.as_plain()} for job_id, each in found.items()]
        print(json.dumps({"versions": given.versions, "jobs": plain}, indent=2))
    else:
        count = Counter(each.status for each in found.values())
        said = ", ".join(f"{count[word]} {word}" for word in ("same", "different", "not repeated"))
        print(f"{counted(len(found), 'job')} with the {given.versions} versions: {said}")
    same = all(each.status == "same" for each in found.values())
    return exit_status.DONE if same else exit_status.FAILED


def _named(project: Project, words: Iterable[str]) -> dict[str, Job | None]:
    """The jobs that are named, or whose results a figure shows, by id; None for a job of a figure
    that is not here."""
    found: dict[str, Job | None] = {}
    for word in words:
        figure = Path(word)
        if not figure.suffix and not figure.is_file():
            job = project.one(word)
            found[job.id] = job
            continue
        if not figure.is_file():
            raise SettingsError(f"{figure}: there is no such figure")
        shown: list[str] = []
        with suppress(OSError, SettingsError):
            shown = figure_files.read(figure).get("jobs", [])
        if not shown:
            raise SettingsError(f"{figure} does not say which jobs it shows; draw it with plot.py")
        for job_id in shown:
            found[job_id] = None
            with suppress(SettingsError):
                found[job_id] = project.one(job_id)
    return found


def _attempt(job: Job | None) -> Recorded:
    """The finished attempt that counts: the one with the present code, or else the latest."""
    if not job or not job.attempts:
        raise JobError("it has not run in this folder of runs")
    finished = [path for path in job.attempts if attempts.status_of(path) == "finished"]
    if not finished:
        raise JobError("it has not finished")
    present = [path for path in finished if job.folder and path == job.folder.path]
    return Recorded([*finished, *present][-1])


def repeat(attempt: Recorded, workplace: "Workplace") -> Repeated:
    """Run an attempt again and compare. Raises JobError if that cannot be done, OSError."""
    attempt.check()
    code = workplace.code(attempt)
    words = [str(workplace.python(attempt, code)), str(code / f"{attempt.about['script']}.py")]
    # Another job may have needed this one, with another attempt.
    shutil.rmtree(workplace.runs / attempt.job, ignore_errors=True)
    workplace.copy_inputs(attempt)
    words += [*attempt.flags(), f"--runs-root={workplace.runs}", "--quiet"]
    status, said = run(words, PROJECT, workplace.env(attempt))
    if status not in (exit_status.DONE, exit_status.NOT_UPLOADED):
        raise JobError(f"it ended with status {status}: {said.strip().rpartition(chr(10))[2]}")
    found = [path.parent for path in (workplace.runs / attempt.job).glob(f"*/{layout.JOURNAL}")]
    if len(found) != 1:
        raise JobError("with its stored code, it is another job")
    again = Recorded(found[0])
    before, after = curve_points(attempt), curve_points(again)
    compared = {"points of the curves": len(before)}
    difference = curve_difference(before, after)
    if not difference:
        arrays, difference = compare_outputs(attempt.path, again.path)
        compared |= arrays
    outcome = "different" if difference else "same"
    return Repeated(outcome, "", difference, compared, dict(_conditions(attempt, again)))


NAMED = 5
"""The largest number of packages with different versions that are named."""


def _conditions(before: Recorded, after: Recorded) -> Iterator[tuple[str, str]]:
    """What differed between two attempts, in a few words."""
    for name in ("device", "gpu", "threads", "precision"):
        was, now = before.tag(name), after.tag(name)
        if was != now:
            yield name, f"{was or 'unknown'}, now {now or 'unknown'}"
    try:
        old, new = (_versions(each.copy(INSTALLED)) for each in (before, after))
    except JobError:
        yield "versions", "not recorded"
        return
    changes = [
        f"{name} {old.get(name, 'none')}, now {new.get(name, 'none')}"
        for name in sorted({*old, *new}, key=str.lower)
        if old.get(name) != new.get(name)
    ]
    if changes:
        more = len(changes) - NAMED
        yield "versions", "; ".join(changes[:NAMED]) + (f"; {more} more" if more > 0 else "")


def _versions(installed: Path) -> dict[str, str]:
    """The versions in a list of packages, by name; Python's too."""
    lines = installed.read_text().splitlines()
    packages = (line.removeprefix("# ").replace("==", " ").rpartition(" ") for line in lines)
    return {name: version for name, _, version in packages}


# The temporary folder in which attempts run again.
#
# code/<digest>/           copies of the code, unpacked
# environments/            Python with the recorded packages, for each list of them
# temporary/               the temporary files of the jobs themselves
# runs/                    the attempts that run again, and copies of those that they depend on
# mlflow-<digest>.db       a tracking store for each list of packages, as MLflow's version varies

NOT_PASSED_ON = (parquet.VARIABLE, runtime.VARIABLE)
"""Variables that would make a job write elsewhere, or log something else."""

OF_PRESENT = ("PYTHONPATH", "PYTHONHOME")
"""Variables that would make Python find another environment's packages."""

PATIENCE = 10.0
"""Seconds in which a courier of an interrupted job notices that there is nothing left to send."""


class Workplace:
    """A temporary folder, removed at the end; what several attempts need is made once."""

    def __init__(self, versions_recorded: bool) -> None:
        self._recorded = versions_recorded
        self._pythons: dict[str, Path] = {}

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
        """Return a folder with the code of an attempt and its engine. Raises JobError if a copy is
        missing, or is not what was stored."""
        archives = [attempt.copy(name) for name in (CODE_COPY, ENGINE_COPY)]
        digests = [file.name.removesuffix(".tar.gz").split("-")[-1] for file in archives]
        folder = self.folder / "code" / "-".join(digests)
        if folder.exists():
            return folder
        files: dict[str, str] = {}
        for archive, digest in zip(archives, digests, strict=True):
            copied = _unpacked(archive)
            if of_text(repr(copied)) != digest:
                raise JobError("the copy of its code was changed after it was stored")
            files |= copied
        for name, text in files.items():
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise JobError("the copy of its code has files outside the project")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8", newline="")
        return folder

    def env(self, attempt: Recorded) -> dict[str, str]:
        """Return variables with which an attempt finds its packages and writes here alone."""
        env = {name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON}
        if self._recorded:
            env = {name: value for name, value in env.items() if name not in OF_PRESENT}
            env["PYTHONNOUSERSITE"] = "1"
        versions = Path(str(attempt.about.get(INSTALLED))).stem
        env["MLFLOW_TRACKING_URI"] = f"sqlite:///{self.folder}/mlflow-{versions}.db"
        env["TMPDIR"] = str(self.folder / "temporary")
        return env | {"PROJECT_FOLDER": str(PROJECT)}

    def python(self, attempt: Recorded, code: Path) -> Path:
        """Return the interpreter for an attempt, whose code is in a folder. Raises JobError if its
        packages cannot be installed."""
        if not self._recorded:
            return Path(sys.executable)
        installed = attempt.copy(INSTALLED)
        if of_text(installed.read_text()) != installed.stem:
            raise JobError("the list of its packages was changed after it was stored")
        if installed.stem not in self._pythons:
            place = Path(tempfile.mkdtemp(dir=self.folder / "environments"))
            python = install(installed, code, place, self.env(attempt))
            self._pythons[installed.stem] = python
        return self._pythons[installed.stem]

    def copy_inputs(self, attempt: Recorded) -> None:
        """Copy the attempts that an attempt is derived from, and those that they are derived from,
        with the lists of what they have read. Raises JobError if one is missing."""
        runs = attempt.path.parent.parent
        for job, name in attempt.about.get("inputs", {}).items():
            source, target = runs / job / name, self.runs / job / name
            if not attempts.begun(source):
                raise JobError(f"its input, the attempt {job}/{name}, is missing")
            if not target.exists():
                shutil.copytree(source, target)
                lists = runs / layout.DATA_LISTS
                if lists.is_dir():
                    shutil.copytree(lists, self.runs / lists.name, dirs_exist_ok=True)
            self.copy_inputs(Recorded(source))


def _unpacked(archive: Path) -> dict[str, str]:
    """The files of a copy of the code, by name. Raises JobError if it is damaged."""
    try:
        with tarfile.open(archive) as packed:
            members = [member for member in packed if member.isfile()]
            opened = ((member.name, packed.extractfile(member)) for member in members)
            return {name: file.read().decode() for name, file in opened if file}
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise JobError("the copy of its code is damaged") from error


PYTHON = "# Python "
"""Beginning of the first line of a list of packages."""

LONGEST = 300
"""Characters of uv's reason."""


def install(installed: Path, code: Path, folder: Path, env: Mapping[str, str]) -> Path:
    """Have uv install what a list of packages names into a folder, and return the interpreter; of
    the project in the folder `code` itself nothing is installed. Raises JobError if that fails."""
    uv = shutil.which("uv")
    if not uv:
        raise JobError("uv is not installed; install it, or use --versions present")
    packages = installed.read_text().splitlines()
    version = packages[0].removeprefix(PYTHON)
    own = {"labjobs"}  # it is in the folder; so is the project, if `pip install .` recorded it too
    with suppress(OSError, ValueError, KeyError):
        project = tomllib.loads((code / "pyproject.toml").read_text("utf-8"))["project"]
        own.add(_name(str(project["name"])))
    wanted = [line for line in packages if _name(line.partition("==")[0]) not in own]
    requirements, venv = folder / "requirements.txt", folder / "venv"
    requirements.write_text("\n".join(wanted) + "\n")
    python = venv / "bin" / "python"
    base = sys.executable if version == platform.python_version() else version
    options = ["--quiet", "--no-deps", "--python", str(python), "--requirements"]
    for words in (
        [uv, "venv", "--quiet", "--python", base, str(venv)],
        [uv, "pip", "install", *options, str(requirements)],
    ):
        status, said = run(words, PROJECT, env)
        if status:
            # uv's reason in one line, without what draws it as a tree.
            reason = " ".join(re.sub("[×╰─▶├│]", " ", said).split())
            short = reason if len(reason) <= LONGEST else f"{reason[:LONGEST]} …"
            raise JobError(f"uv cannot install its versions: {short}")
    return python


def _name(package: str) -> str:
    """A package's name in the one form by which packages are told apart (PEP 503)."""
    return re.sub("[-_.]+", "-", package).lower()
