"""`repeat`: does the stored code of jobs still give the same results, bit for bit? `audit`: and
the present code, up to the first evaluation?

Both run jobs again in a temporary folder, with the packages that are installed now.
"""

import argparse
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from labjobs import exit_status, layout
from labjobs.commands.inventory import Job, Project
from labjobs.commands.replay import Recorded, Repeated, repeated
from labjobs.errors import JobError, SettingsError, cause
from labjobs.files import json_of, record, write_shared
from labjobs.job import attempts
from labjobs.job.terminal import Interruption, counted
from labjobs.results import figure_files


def repeat_jobs(project: Project, given: argparse.Namespace) -> int:
    """Repeat jobs and print the outcome of each; return the exit status, 0 if all are the same.

    Raises SettingsError if a job or a figure does not exist.
    """
    every = named(project, given.what)
    return _all(every, lambda job, folder: repeated(finished(job), folder), given)


def finished(job: Job) -> Recorded:
    """Return the finished attempt that counts: the one with the present code, or else the latest.
    Raises JobError if there is none."""
    ended = [path for path in job.attempts if attempts.status_of(path) == "finished"]
    if not ended:
        raise JobError("it has not finished")
    present = [path for path in ended if job.folder and path == job.folder.path]
    return Recorded([*ended, *present][-1])


COUNT = re.compile("[0-9]{1,3}")
"""A number of jobs; the beginning of an id that is a number needs more digits."""


def audit_jobs(project: Project, given: argparse.Namespace) -> int:
    """Audit jobs that are named, or drawn at random, note what was found with each, and print it;
    return the exit status, 0 if all are the same.

    Raises SettingsError if a job or a figure does not exist, JobError if none can be drawn.
    """
    if len(given.what) > 1 or not COUNT.fullmatch(given.what[0]):
        return _all(named(project, given.what), _audit, given)
    every: dict[str, Job | None] = {
        job.id: job
        for job in project.all()
        if job.folder and attempts.status_of(job.folder.path) == "finished"
    }
    if not every:
        raise JobError("no job here has finished with the present code and data")
    seed = random.randrange(10_000) if given.seed is None else given.seed
    drawn = random.Random(seed).sample(sorted(every), min(int(given.what[0]), len(every)))
    if not given.json:
        print(f"{len(drawn)} of {counted(len(every), 'finished job')}, drawn by --seed {seed}")
    return _all({job: every[job] for job in drawn}, _audit, given, of=len(every), seed=seed)


def _audit(job: Job, folder: Path) -> Repeated:
    """Run the attempt that counts again, from the present code, and note what was found."""
    if not job.folder:
        raise JobError(job.problem)
    if change := job.folder.evidence.change:
        raise JobError(f"from other code or data ({change}); repeat runs its stored code")
    before = Recorded(job.folder.path)
    if attempts.status_of(before.path) != "finished":
        raise JobError("it has not finished")
    found = repeated(before, folder, job.folder, whole=len(before.evaluated) < 2)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    note = record({"schema": 1, "id": job.id, **found._asdict(), "on": now})
    try:
        write_shared(before.path / layout.AUDIT, lambda file: file.write(note))
    except OSError as error:  # the folder of another user
        unnoted = f"not noted with the attempt: {cause(error)}"
        found = found._replace(conditions=(*found.conditions, unnoted))
    return found


def _all(
    jobs: Mapping[str, Job | None],
    run: Callable[[Job, Path], Repeated],
    given: argparse.Namespace,
    **drawn: int,
) -> int:
    """Run jobs again in a temporary folder, and print what came of each; return the exit status."""
    found: dict[str, Repeated] = {}
    Interruption().listen()
    with TemporaryDirectory(prefix="repeat-", ignore_cleanup_errors=True) as folder:
        for job_id, job in jobs.items():
            if not given.json:
                print(f"{given.command}ing job {job_id}: {job.words if job else ''}", flush=True)
            try:
                if not job or not job.attempts:
                    raise JobError("it has not run in this folder of runs")
                found[job_id] = run(job, Path(folder))
            except (JobError, OSError) as error:
                found[job_id] = Repeated("not repeated", cause(error))
            status, said, conditions, until = found[job_id]
            if not given.json:
                how = "" if until is None else f" {found[job_id].how}"
                print("\n  ".join([f"job {job_id}: {status}{how}: {said}", *conditions]))
    if given.json:
        plain = [{"job": job_id, **each._asdict()} for job_id, each in found.items()]
        print(json_of({**drawn, "jobs": plain} if drawn else plain))
    else:
        count = Counter(each.status for each in found.values())
        said = ", ".join(f"{count[word]} {word}" for word in ("same", "different", "not repeated"))
        print(f"{counted(len(found), 'job')}: {said}")
    same = all(each.status == "same" for each in found.values())
    return exit_status.DONE if same else exit_status.FAILED


def named(project: Project, words: Iterable[str]) -> dict[str, Job | None]:
    """Return the jobs that are named, or whose results a figure shows, by id; None for a job of a
    figure that is not here. Raises SettingsError if a job or a figure does not exist."""
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
