"""`accept`: makes stale jobs count again if the present code would give the same results."""

import getpass
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labjobs import exit_status, layout
from labjobs.cli import flags
from labjobs.cli.flags import as_text, option
from labjobs.commands.inventory import Job, Project
from labjobs.errors import JobError, SettingsError
from labjobs.evidence.fingerprint import Fingerprint
from labjobs.files import CODE
from labjobs.job import code_evidence
from labjobs.job import journal as lines
from labjobs.job.code_evidence import Change, Hashes
from labjobs.job.folder import JobFolder
from labjobs.job.identity import identity, inputs
from labjobs.job.runtime import LENGTHS
from labjobs.job.terminal import counted, leave
from labjobs.tracking.mlflow_client import last_line

# Repeats the first steps and the first evaluation of a job: are they the same, bit for bit?

Points = dict[tuple[str, int], float]
"""Values by the name of a metric and the step."""

FIRST = 100
"""The number of steps to replay, unless the job is evaluated earlier."""


def difference(job: JobFolder[Any]) -> str:
    """Return how the present code's first steps differ from those that a job's journal has, in a
    few words; empty if all bits are the same. Raises JobError if they cannot be compared."""
    assert job.latest
    if not {*LENGTHS} & flags.of(type(job.settings)).keys():
        raise JobError("it does not train, so it has no first steps")
    if inputs(job.settings):
        raise JobError("it is derived from another job, whose results a replay does not have")
    start, said = _journal(job.latest)
    declared = lines.record_of(job.latest, layout.SETTINGS).get("metrics", {})
    names = {f"{part}_{name}" for part in ("train", "val") for name in declared} | {"lr"}
    evaluated = (line["step"] for line in said if "elapsed_seconds" in line.get("metrics", {}))
    until = next(evaluated, FIRST)
    before = _points(said, names, until)
    if not before:
        raise JobError("its journal has nothing to compare with")
    with TemporaryDirectory() as folder:
        again = _again(job, until, start["log_every"], _tag(said, "threads"), Path(folder))
    if _tag(again, "device") != _tag(said, "device"):
        raise JobError(f"it ran on {_tag(said, 'device')}, and this is {_tag(again, 'device')}")
    after = _points(again, names, until)
    for (name, step), value in before.items():
        found = after.get((name, step))
        if repr(found) != repr(value):  # NaN is NaN
            now = "missing" if found is None else found
            return f"{name} at step {step} was {value} and is now {now}"
    return ""


def _journal(attempt: Path) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    with (attempt / layout.JOURNAL).open("rb") as file:
        reader = lines.Reader(file)
        said = reader.read()
        return reader.start, said


def _points(said: list[dict[str, Any]], names: Collection[str], until: int) -> Points:
    """What was measured of some metrics, up to a step."""
    return {
        (name, line["step"]): value
        for line in said
        if line.get("step", until + 1) <= until
        for name, value in line.get("metrics", {}).items()
        if name in names
    }


def _tag(said: list[dict[str, Any]], name: str) -> str:
    """A tag, as first logged."""
    return next((line["tags"][name] for line in said if name in line.get("tags", {})), "auto")


def _again(
    job: JobFolder[Any], until: int, log_every: int | str, threads: str, folder: Path
) -> list[dict[str, Any]]:
    """The journal of a job that runs up to a step, in a folder and a store of its own."""
    words = [f"{option(name)}={as_text(value)}" for name, value in identity(job.settings).items()]
    words += [f"--pause-after={until}", f"--log-every={log_every}", f"--runs-root={folder}"]
    words += [f"--threads={threads}"]
    words += [f"--data-root={job.places.data_root}", "--quiet"]
    done = subprocess.run(
        [sys.executable, str(CODE / f"{job.script}.py"), *words],
        env=os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise JobError(last_line(done.stderr))
    (journal,) = folder.glob(f"*/*/{layout.JOURNAL}")
    return _journal(journal.parent)[1]


Changes = tuple[tuple[Hashes, Hashes], ...]


def accept(project: Project, because: str, verify: bool) -> int:
    """Accept that the changes in the code of stale jobs do not change results; return the exit
    status. With `verify`, one job for each set of changes is replayed first. Changes that give
    different bits are not accepted, and the status is 1. Raises SettingsError without a reason.
    """
    if not because.strip():
        raise SettingsError("--because: say why results do not change")
    stale = [job for job in project.all() if job.state(project.view).word == "stale"]
    stale = [job for job in stale if not _is_by_inputs(job)]
    known = [
        job.folder for job in stale if job.folder and job.latest and code_evidence.parts(job.latest)
    ]
    if not stale:
        print("no job is stale")
    if len(known) < len(stale):
        left_out = counted(len(stale) - len(known), "job")
        leave(exit_status.FAILED, f"{left_out} left out: the engine does not know what has changed")
    accepted = _verified(known) if verify else known
    if accepted:
        names = Counter(name for job in accepted for name in _names(job))
        for alike in _by_depth(accepted):
            _write(alike, because, verify)
        _say(names, len(accepted), verify)
    return 0 if len(accepted) == len(stale) else 1


def _is_by_inputs(job: Job) -> bool:
    """Whether a job is stale only because its inputs are, so that it counts again when they do."""
    if not (job.folder and job.latest):
        return False
    names = code_evidence.changed(job.latest, job.folder.code)
    return bool(names) and all(map(_is_input, names))


def _verified(stale: Sequence[JobFolder[Any]]) -> list[JobFolder[Any]]:
    """The jobs whose changes give the same bits, judging by one job of each kind."""
    alike: dict[str, list[JobFolder[Any]]] = {}
    for job in stale:
        alike.setdefault(repr(_changes(job)), []).append(job)
    verified = []
    for jobs in alike.values():
        replayed = next((job for job in jobs if not inputs(job.settings)), jobs[0])
        if problem := _problem(replayed):
            leave(
                exit_status.FAILED,
                f"not accepted for {counted(len(jobs), 'job')}: job {replayed.id}: {problem}",
            )
        else:
            verified += jobs
    return verified


def _by_depth(jobs: Sequence[JobFolder[Any]]) -> Iterator[list[JobFolder[Any]]]:
    """Yield groups of jobs, inputs before the jobs derived from them: accepting an input changes
    the code that the derived jobs are compared with."""
    left = list(jobs)
    while left:
        ids = {job.id for job in left}
        ready = [job for job in left if not ids & inputs(job.settings).keys()]
        for job in ready:
            vars(job).pop("code", None)  # the state before the last changes were accepted
        yield ready
        left = [job for job in left if job not in ready]


def _write(accepted: Sequence[JobFolder[Any]], because: str, verified: bool) -> None:
    """Write down the changes."""
    changes = {repr(change): change for job in accepted for change in _changes(job)}
    today = datetime.now(UTC).date().isoformat()
    code_evidence.accept(
        [Change(*change, because, _user(), today, verified) for change in changes.values()],
        {
            (code_evidence.digest(job.latest), _present(job).digest)
            for job in accepted
            if job.latest
        },
        CODE,
    )


def _say(names: Counter[str], count: int, verified: bool) -> None:
    """Print the accepted definitions, each with its number of jobs."""
    how = "replayed with the same bits" if verified else "not verified"
    for name, n in sorted(names.items()):
        print(f"accepted: {name}, of {counted(n, 'job')} ({how})")
    print(f"no longer stale: {counted(count, 'job')}; commit {layout.ACCEPTED} with the change")


def _changes(job: JobFolder[Any]) -> Changes:
    """The definitions of a job's code before and after, without those that only its inputs have."""
    assert job.latest
    parts, present = code_evidence.parts(job.latest), _present(job)
    before = {part["label"]: part["hash"] for name, part in parts.items() if not _is_input(name)}
    after = {
        present.labels[name]: found for name, found in present.parts.items() if not _is_input(name)
    }
    return tuple(code_evidence.between(before, after))


def _is_input(part: str) -> bool:
    return part.startswith(f"{code_evidence.INPUT}:")


def _present(job: JobFolder[Any]) -> Fingerprint:
    """The present code of a job, widened like the code of its latest attempt."""
    assert job.latest
    return code_evidence.present_as_in(job.latest, job.code)


def _problem(job: JobFolder[Any]) -> str:
    print(f"replaying the first steps of job {job.id}: {job.name}", flush=True)
    try:
        return difference(job)
    except (JobError, OSError) as error:
        return f"cannot be replayed: {error}"


def _names(job: JobFolder[Any]) -> list[str]:
    """The names of the definitions that have changed."""
    return (
        [code_evidence.in_python(name) for name in code_evidence.changed(job.latest, job.code)]
        if job.latest
        else []
    )


def _user() -> str:
    """The person who accepts: git's user, or else the system's."""
    words = ["git", "config", "user.name"]
    try:
        named = subprocess.run(words, cwd=CODE, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        named = ""
    return named or getpass.getuser() or str(os.getuid())
