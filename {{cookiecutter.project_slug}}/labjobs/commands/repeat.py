"""Runs an attempt again, and compares the results."""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Self

from labjobs import layout
from labjobs.cli.flags import as_text, option
from labjobs.errors import JobError
from labjobs.files import PROJECT
from labjobs.job import attempts, code_evidence, data_evidence, journal, runtime
from labjobs.job.provenance import CODE_COPY, ENGINE_COPY, INSTALLED
from labjobs.job.reads import of_text
from labjobs.job.runtime import MATTER
from labjobs.privacy import scrub
from labjobs.tracking import costs, mlflow_store

# An attempt at a job as it was recorded, with everything that is needed to run it again.


@dataclass(frozen=True)
class Recorded:
    """A finished attempt, in its folder `path`."""

    path: Path

    @property
    def job(self) -> str:
        """The id of the job."""
        return self.path.parent.name

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """What settings.json holds."""
        return journal.record_of(self.path, layout.SETTINGS)

    @cached_property
    def journal(self) -> "Journal":
        """The journal. Raises JobError if it is damaged, OSError if it cannot be read."""
        return read(self.path)

    @property
    def inputs(self) -> dict[str, str]:
        """The attempts that it is derived from, by job."""
        return dict(self.about.get("inputs", {}))

    def copy(self, name: str) -> Path:
        """Return where the copy of its code (`code_copy`) or the list of its packages (`installed`)
        lies. Raises JobError if there is none."""
        kept = self.about.get(name)
        file = self.path.parent.parent / str(kept)
        if not kept or not file.is_file():
            what = "code" if name == "code_copy" else "list of packages"
            raise JobError(f"its {what} is not in {self.path.parent.parent.name}/")
        return file

    def check(self) -> None:
        """Raise JobError if it cannot be repeated."""
        settings = self.about.get("settings")
        if not settings:
            raise JobError("its settings.json is damaged or missing")
        if code_evidence.digest(self.path) == code_evidence.MIXED:
            raise JobError(
                "it was continued with changed code, so it belongs to no version of the code"
            )
        if settings.get("minutes"):
            raise JobError("its length is in minutes, so its number of steps varies")
        if (count := self.journal.tag("processes")) not in ("", "1"):
            raise JobError(f"it ran in {count} processes, and repeat starts only one")
        places = data_evidence.last_places(self.path)
        if change := data_evidence.difference(self.path, places):
            raise JobError(f"its data has changed ({change})")
        if why := data_evidence.unchecked(self.path, places):
            raise JobError(f"its data cannot be checked: {why}")

    def flags(self) -> list[str]:
        """Return its settings and those flags that can change bits, as on the command line."""
        runtime = self.about.get("runtime", {})
        words = {**self.about["settings"], **{k: v for k, v in runtime.items() if k in MATTER}}
        words["threads"] = self.journal.tag("threads") or "auto"
        words["log_every"] = self.journal.start["log_every"]
        words["data_root"] = data_evidence.last_places(self.path).data_root
        if self.journal.tag("device") == "cpu":
            words["device"] = "cpu"
        return [f"{option(name)}={as_text(value)}" for name, value in words.items()]


@dataclass(frozen=True)
class Journal:
    """What an attempt has logged: the first line of its journal, and the others."""

    start: Mapping[str, Any]
    said: list[dict[str, Any]]

    def tag(self, name: str) -> str:
        """Return a tag as it was last logged; empty if it was not."""
        found = (line["tags"][name] for line in self.said[::-1] if name in line.get("tags", {}))
        return str(next(found, ""))


def read(attempt: Path) -> Journal:
    """Return the journal of an attempt. Raises JobError if it is damaged, OSError."""
    with (attempt / layout.JOURNAL).open("rb") as file:
        reader = journal.Reader(file)
        said = reader.read()
        if "log_every" not in reader.start:
            raise JobError(f"{attempt / layout.JOURNAL}: the beginning is damaged")
        return Journal(reader.start, said)


# Where two journals first differ.

OTHER_EACH_TIME = (
    "elapsed_seconds",
    "data_wait_fraction",
    "mfu",
    "find_",
    "system/",
    *costs.NAMES,
)
"""Beginnings of the names of metrics that measure time or the machine."""

SPEED = "_per_second"
"""Endings of the names of speeds."""

Point = tuple[int, str]
"""A step and the name of a metric."""


class Difference(NamedTuple):
    """The first value that differs: its name, and its step if it has one."""

    what: str
    step: int | None
    recorded: str
    repeated: str
    more: str = ""

    def __str__(self) -> str:
        at = "" if self.step is None else f" at step {self.step}"
        more = f" ({self.more})" if self.more else ""
        return f"{self.what}{at} was {self.recorded} and is now {self.repeated}{more}"


def curve_points(journal: Journal) -> dict[Point, str]:
    """Return the points of all metrics that are the same each time, in the order in which they were
    logged; each value is a text that is different for different floats."""
    return {
        (line["step"], name): repr(value)
        for line in journal.said
        for name, value in line.get("metrics", {}).items()
        if not (name.startswith(OTHER_EACH_TIME) or name.endswith(SPEED))
    }


def curve_difference(before: dict[Point, str], after: dict[Point, str]) -> Difference | None:
    """Return the first difference between points, by step; None if all are the same."""
    for step, name in sorted({**before, **after}, key=lambda point: point[0]):
        values = [each.get((step, name), "missing") for each in (before, after)]
        if values[0] != values[1]:
            return Difference(name, step, values[0], values[1])
    return None


# Runs commands that end, with everything that they have started, when this process is interrupted.


def run(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Run a command in a folder; return its exit status and what it said on stderr, scrubbed.

    Raises OSError if there is no such command.
    """
    with TemporaryFile() as said:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            status = process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # nothing that it has done is needed
            process.wait()
            raise
        said.seek(0)
        return status, scrub(said.read().decode(errors="replace"))


# Python with the packages that an attempt ran with, installed by uv in a temporary folder, from the
# index that uv is configured for; or the Python that runs this code.

PYTHON = "# Python "
"""Beginning of the first line of a list of packages."""

LONGEST = 300
"""Characters of uv's reason."""

NOT_INSTALLED_WITH = ("PYTHONPATH", "PYTHONHOME")
"""Variables that would make Python find another environment's packages."""


class Environment(NamedTuple):
    """An interpreter, and the environment variables to start it with."""

    python: Path
    env: Mapping[str, str]


def present_environment() -> Environment:
    """Return the interpreter that runs this code, with its packages."""
    return Environment(Path(sys.executable), dict(os.environ))


def recorded_environment(installed: Path, code: Path, folder: Path) -> Environment:
    """Install what a list of packages names into a new folder, and return its interpreter; of the
    project in the folder `code` itself nothing is installed. Raises JobError if that fails."""
    uv = shutil.which("uv")
    if not uv:
        raise JobError("uv is not installed; install it, or use --versions present")
    packages = installed.read_text().splitlines()
    version = packages[0].removeprefix(PYTHON)
    own = {_name(_project_name(code)), "labjobs"}  # these are in the folder
    wanted = [line for line in packages if _name(line.partition("==")[0]) not in own]
    env = {name: value for name, value in os.environ.items() if name not in NOT_INSTALLED_WITH}
    python = sys.executable if version == platform.python_version() else version
    folder.mkdir()
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(wanted) + "\n")
    made = Environment(folder / "venv" / "bin" / "python", env | {"PYTHONNOUSERSITE": "1"})
    install = ["--no-deps", "--python", str(made.python), "--requirements", str(requirements)]
    for words in (
        [uv, "venv", "--quiet", "--python", python, str(folder / "venv")],
        [uv, "pip", "install", "--quiet", *install],
    ):
        status, said = run(words, PROJECT, env)
        if status:
            raise JobError(f"uv cannot install its versions: {_reason(said)}")
    return made


def _project_name(code: Path) -> str:
    """The name of the project, under which `pip install .` has recorded it too."""
    try:
        found = tomllib.loads((code / "pyproject.toml").read_text("utf-8"))
        return str(found["project"]["name"])
    except (OSError, ValueError, KeyError):
        return ""


def _name(package: str) -> str:
    """A package's name in the one form by which packages are told apart (PEP 503)."""
    return re.sub("[-_.]+", "-", package).lower()


def _reason(said: str) -> str:
    """uv's reason in one line, without what draws it as a tree."""
    words = " ".join(re.sub("[×╰─▶├│]", " ", said).split())
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} …"


# The temporary folder in which attempts run again.
#
# code/<digest>/           copies of the code, unpacked
# environments/<digest>/   Python with the recorded packages
# temporary/               the temporary files of the jobs themselves
# runs/                    the attempts that run again, and copies of those that they depend on
# mlflow-<digest>.db       a tracking store for each environment, which may have another MLflow

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
        """Return a folder with the code of an attempt and its engine. Raises JobError if a copy is
        missing, or is not what was stored."""
        archives = [attempt.copy(name) for name in (CODE_COPY, ENGINE_COPY)]
        digests = [file.name.removesuffix(".tar.gz").split("-")[-1] for file in archives]
        folder = self.folder / "code" / "-".join(digests)
        if not folder.exists():
            files: dict[str, str] = {}
            for archive, digest in zip(archives, digests, strict=True):
                copied = _read(archive)
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

    def environment(self, attempt: Recorded, code: Path) -> Environment:
        """Return what to run an attempt with. Raises JobError if it cannot be made."""
        if not self._recorded:
            return self._inside(present_environment(), "present")
        installed = attempt.copy(INSTALLED)
        if of_text(installed.read_text()) != installed.stem:
            raise JobError("the list of its packages was changed after it was stored")
        if installed.stem not in self._environments:
            try:
                folder = self.folder / "environments" / installed.stem
                made: Environment | JobError = recorded_environment(installed, code, folder)
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
                    (self.runs / layout.DATA_LISTS).mkdir()
                for file in source.parent.parent.glob(f"{layout.DATA_LISTS}/*.jsonl"):
                    shutil.copy2(file, self.runs / layout.DATA_LISTS)
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


FINE = (0, 3)
"""Exit statuses of a job that has finished, even if its store does not have everything."""

NOT_PASSED_ON = (mlflow_store.VARIABLE, runtime.VARIABLE)
"""Variables that would make the job write elsewhere, or log something else."""

NAMED = 5
"""The largest number of packages with different versions that are named."""


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


def repeat(attempt: Recorded, workplace: Workplace) -> Repeated:
    """Run an attempt again and compare. Raises JobError if that cannot be done, OSError."""
    attempt.check()
    code = workplace.code(attempt)
    environment = workplace.environment(attempt, code)
    workplace.forget(attempt.job)
    workplace.copy_inputs(attempt)
    script = code / f"{attempt.about['script']}.py"
    words = [str(environment.python), str(script), *attempt.flags()]
    env = {k: v for k, v in environment.env.items() if k not in NOT_PASSED_ON}
    env |= {"PROJECT_FOLDER": str(PROJECT)}
    status, said = run([*words, f"--runs-root={workplace.runs}", "--quiet"], PROJECT, env)
    if status not in FINE:
        raise JobError(f"it ended with status {status}: {said.strip().rpartition(chr(10))[2]}")
    found = [path.parent for path in (workplace.runs / attempt.job).glob(f"*/{layout.JOURNAL}")]
    if len(found) != 1:
        raise JobError("with its stored code, it is another job")
    return _compared(attempt, Recorded(found[0]))


def _compared(before: Recorded, after: Recorded) -> Repeated:
    from labjobs.commands import differences  # with torch, which is slow to import

    points = [curve_points(each.journal) for each in (before, after)]
    difference = curve_difference(*points)
    compared = {"points of the curves": len(points[0])}
    if not difference:
        counts, difference = differences.compare(before.path, after.path)
        compared |= counts
    status = "different" if difference else "same"
    conditions = dict(_conditions(before, after))
    return Repeated(status, difference=difference, compared=compared, conditions=conditions)


def _conditions(before: Recorded, after: Recorded) -> Iterator[tuple[str, str]]:
    """The differences, in a few words."""
    for name in ("device", "gpu", "threads", "precision"):
        was, now = (each.journal.tag(name) for each in (before, after))
        if was != now:
            yield name, f"{was or 'unknown'}, now {now or 'unknown'}"
    try:
        lists = [each.copy(INSTALLED).read_text().splitlines() for each in (before, after)]
    except JobError:
        yield "versions", "not recorded"
        return
    if changes := [*_changes(*map(_versions, lists))]:
        more = len(changes) - NAMED
        yield "versions", "; ".join(changes[:NAMED]) + (f"; {more} more" if more > 0 else "")


def _versions(lines: Sequence[str]) -> dict[str, str]:
    packages = (line.removeprefix("# ").replace("==", " ").rpartition(" ") for line in lines)
    return {name: version for name, _, version in packages}


def _changes(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}, key=str.lower):
        was, now = (versions.get(name, "none") for versions in (before, after))
        if was != now:
            yield f"{name} {was}, now {now}"
