"""`repeat`: does the stored code of jobs still give the same results, bit for bit?

Each attempt runs again in a temporary folder, from its stored code, with the packages that are
installed now. Then the curves, the weights and the outputs for each test example are compared.
"""

import argparse
import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from labjobs import exit_status, layout
from labjobs.commands.inventory import Job, Project
from labjobs.commands.replay import Recorded, compare_outputs, curve_difference, curve_points, run
from labjobs.errors import JobError, SettingsError, cause
from labjobs.files import PROJECT
from labjobs.job import attempts, runtime
from labjobs.job.data_evidence import of_text
from labjobs.job.provenance import CODE_COPY, ENGINE_COPY, INSTALLED
from labjobs.job.terminal import Interruption, counted
from labjobs.results import figure_files


class Repeated(NamedTuple):
    """The outcome of repeating an attempt: `same`, `different` or `not repeated`; in words, what is
    the same, what differs first, or why it was not repeated; and what else differs from the record:
    devices and versions of packages."""

    status: str
    said: str
    conditions: tuple[str, ...] = ()


def repeat_jobs(project: Project, given: argparse.Namespace) -> int:
    """Repeat jobs and print the outcome of each; return the exit status, 0 if all are the same.

    Raises SettingsError if a job or a figure does not exist.
    """
    jobs = _named(project, given.what)
    found: dict[str, Repeated] = {}
    Interruption().listen()
    with _workplace() as folder:
        for job_id, job in jobs.items():
            if not given.json:
                print(f"repeating job {job_id}: {job.words if job else ''}", flush=True)
            try:
                found[job_id] = _repeat(_attempt(job), folder)
            except (JobError, OSError) as error:
                found[job_id] = Repeated("not repeated", cause(error))
            status, said, conditions = found[job_id]
            if not given.json:
                print("\n  ".join([f"job {job_id}: {status}: {said}", *conditions]))
    if given.json:
        plain = [{"job": job_id, **each._asdict()} for job_id, each in found.items()]
        print(json.dumps(plain, indent=2))
    else:
        count = Counter(each.status for each in found.values())
        said = ", ".join(f"{count[word]} {word}" for word in ("same", "different", "not repeated"))
        print(f"{counted(len(found), 'job')}: {said}")
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


def _repeat(attempt: Recorded, folder: Path) -> Repeated:
    """Run an attempt again in a temporary folder, and compare. Raises JobError if that cannot be
    done, OSError."""
    attempt.check()
    code, runs = _code(attempt, folder / "code"), folder / "runs"
    # Another job may have needed this one, with another attempt.
    shutil.rmtree(runs / attempt.job, ignore_errors=True)
    _copy_inputs(attempt, runs)
    words = [sys.executable, str(code / f"{attempt.about['script']}.py"), *attempt.flags()]
    words += [f"--runs-root={runs}", "--quiet"]
    # Without the variable that would make it log something else.
    env = {name: value for name, value in os.environ.items() if name != runtime.VARIABLE}
    env |= {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "PROJECT_FOLDER": str(PROJECT),
        "TMPDIR": str(folder / "temporary"),
    }
    status, said = run(words, PROJECT, env)
    if status not in (exit_status.DONE, exit_status.NOT_UPLOADED):
        raise JobError(f"it ended with status {status}: {said.strip().rpartition(chr(10))[2]}")
    found = [path.parent for path in (runs / attempt.job).glob(f"*/{layout.JOURNAL}")]
    if len(found) != 1:
        raise JobError("with its stored code, it is another job")
    again = Recorded(found[0])
    conditions = _conditions(attempt, again)
    before, after = curve_points(attempt), curve_points(again)
    arrays: dict[str, int] = {}
    difference = curve_difference(before, after)
    if not difference:
        arrays, difference = compare_outputs(attempt.path, again.path)
    if difference:
        return Repeated("different", str(difference), conditions)
    same = {"points of the curves": len(before), **arrays}
    return Repeated("same", ", ".join(f"{n} {what}" for what, n in same.items()), conditions)


def _conditions(before: Recorded, after: Recorded) -> tuple[str, ...]:
    """What differed between two attempts: devices, threads, number formats, versions."""
    was, now = (
        {name: attempt.tag(name) for name in ("device", "gpu", "threads", "precision")}
        | _versions(attempt)
        for attempt in (before, after)
    )
    return tuple(
        f"{name} {was.get(name) or 'unknown'}, now {now.get(name) or 'unknown'}"
        for name in sorted({*was, *now}, key=str.lower)
        if was.get(name) != now.get(name)
    )


def _versions(attempt: Recorded) -> dict[str, str]:
    """The recorded versions of packages, by name, and Python's; empty if the list is missing."""
    lines: list[str] = []
    with suppress(JobError):
        lines = attempt.copy(INSTALLED).read_text("utf-8").splitlines()
    packages = (line.removeprefix("# ").replace("==", " ").rpartition(" ") for line in lines)
    return {name: version for name, _, version in packages}


# The temporary folder in which attempts run again.
#
# code/<digest>/   copies of the code, unpacked
# temporary/       the temporary files of the jobs themselves
# runs/            the attempts that run again, and copies of those that they depend on
# mlflow.db        their tracking store

PATIENCE = 10.0
"""Seconds in which a courier of an interrupted job notices that there is nothing left to send."""


@contextmanager
def _workplace() -> Iterator[Path]:
    """The folder, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="repeat-"))
    try:
        for name in ("runs", "code", "temporary"):
            (folder / name).mkdir()
        yield folder
    finally:
        until = time.monotonic() + PATIENCE
        while folder.exists() and time.monotonic() < until:
            shutil.rmtree(folder, ignore_errors=True)  # a courier may still be writing
            time.sleep(0.05 if folder.exists() else 0)


def _code(attempt: Recorded, codes: Path) -> Path:
    """A folder with the code of an attempt and its engine. Raises JobError if a copy is missing, or
    is not what was stored."""
    archives = [attempt.copy(name) for name in (CODE_COPY, ENGINE_COPY)]
    digests = [file.name.removesuffix(".tar.gz").split("-")[-1] for file in archives]
    folder = codes / "-".join(digests)
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
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", newline="")
    return folder


def _unpacked(archive: Path) -> dict[str, str]:
    """The files of a copy of the code, by name. Raises JobError if it is damaged."""
    try:
        with tarfile.open(archive) as packed:
            members = [member for member in packed if member.isfile()]
            opened = ((member.name, packed.extractfile(member)) for member in members)
            return {name: file.read().decode() for name, file in opened if file}
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise JobError("the copy of its code is damaged") from error


def _copy_inputs(attempt: Recorded, target: Path) -> None:
    """Copy the attempts that an attempt is derived from, and those that they are derived from, with
    the lists of what they have read. Raises JobError if one is missing."""
    runs = attempt.path.parent.parent
    for job, name in attempt.about.get("inputs", {}).items():
        source = runs / job / name
        if not attempts.begun(source):
            raise JobError(f"its input, the attempt {job}/{name}, is missing")
        shutil.copytree(source, target / job / name, dirs_exist_ok=True)
        if (runs / layout.DATA_LISTS).is_dir():
            shutil.copytree(
                runs / layout.DATA_LISTS, target / layout.DATA_LISTS, dirs_exist_ok=True
            )
        _copy_inputs(Recorded(source), target)
