"""`stale`: the jobs that the present code no longer fits, by what has changed; `why`: how a job's
code reaches a definition; `accept`: changes that change no results.
"""

import difflib
import getpass
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labjobs import exit_status, layout
from labjobs.commands.inventory import Job, Project
from labjobs.commands.replay import Recorded, curve_difference, curve_points, run
from labjobs.errors import JobError, SettingsError, few
from labjobs.files import CODE
from labjobs.job import code_evidence, data_evidence, provenance
from labjobs.job.code_evidence import Accepted
from labjobs.job.folder import JobFolder
from labjobs.job.identity import inputs
from labjobs.job.terminal import counted, leave
from labjobs.privacy import scrub
from labjobs.tracking.mlflow_client import last_line

NAMED = 4
"""The largest number of jobs that a line names."""


@dataclass
class Change:
    """What makes jobs stale. `name` is the name of a definition, as in Python, or empty if no
    definition can be named; then `what` says why."""

    name: str
    what: str
    """changed, new or gone, if it is a definition."""

    jobs: list[str] = field(default_factory=list)
    diffs: list[str] = field(default_factory=list)
    """One diff for each version of the definition with which one of these jobs ran."""


def print_stale(project: Project, diff: bool, as_json: bool) -> int:
    """Print what makes jobs stale, the changes that concern most of them first; returns 0."""
    jobs = project.all()
    found = changes(project, jobs)
    if as_json:
        rows = [
            {"definition": each.name or None, "change": each.what, "jobs": each.jobs}
            | ({"diffs": each.diffs} if diff else {})
            for each in found
        ]
        print(json.dumps(rows, indent=2))
        return exit_status.DONE
    if not found:
        print(f"none of {len(jobs)} jobs is stale" if jobs else "there are no jobs yet")
    for each in found:
        of = f"{len(each.jobs)} of {counted(len(jobs), 'job')}"
        print(f"{each.name} {each.what}: {of} ({few(each.jobs, NAMED)})".lstrip())
        if diff:
            print("".join(f"\n{text}\n" for text in each.diffs), end="")
    return exit_status.DONE


def changes(project: Project, jobs: list[Job]) -> list[Change]:
    """Return what makes jobs stale, by the number of jobs, the most first."""
    found: dict[str, Change] = {}
    known: dict[tuple[str, ...], list[Change]] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        state = job.state(project.view)
        if state.word != "stale":
            continue
        # Thousands of jobs have the same code, then and now, and so the same changes.
        then = job.latest.name if job.latest else ""
        now = job.folder.code.digest if job.folder else ""
        of_codes = then, now, state.about
        if of_codes not in known:
            known[of_codes] = list(_changes(job, state.about))
        for each in known[of_codes]:
            change = found.setdefault(each.name or each.what, Change(each.name, each.what))
            change.jobs.append(job.id)
            change.diffs += [text for text in each.diffs if text not in change.diffs]
    return sorted(found.values(), key=lambda change: (-len(change.jobs), change.name))


def _changes(job: Job, about: str) -> Iterator[Change]:
    """What makes one job stale: `about`, if it is none of its definitions."""
    attempt = job.latest
    names = code_evidence.changed(attempt, job.folder.code) if job.folder and attempt else []
    if not (job.folder and attempt and names):
        yield Change("", about)
        return
    kept = code_evidence.parts(attempt)
    now = code_evidence.present_as_in(attempt, job.folder.code)
    labels = {part["label"]: part for part in kept.values()}
    for part in names:
        before = kept.get(part) or labels.get(now.labels.get(part, part))
        what = "new" if before is None else "changed" if part in now.parts else "gone"
        name, diffs = code_evidence.in_python(part), []
        if not part.startswith("file:"):  # files are not stored
            old = before["source"] if before else ""
            new = scrub(now.source(part), code=True) if part in now.parts else ""
            titles = f"{name} of job {job.id}", f"{name} now"
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), *titles, lineterm="")
            diffs.append("\n".join(lines))
        yield Change(name, what, diffs=diffs)


# `python jobs.py why JOB DEFINITION`: how a job's code reaches a definition.


def print_why(job: Job, definition: str, as_json: bool) -> int:
    """Print the chain from a definition to where the job begins; returns the exit status: 1 if the
    job's results do not depend on it. Something inside a definition, such as a method, belongs to
    that definition; a name without its module is allowed."""
    if job.folder is None:
        raise SettingsError(f"job {job.id}: {job.problem}")
    code = job.folder.code
    if job.latest:
        code = code_evidence.present_as_in(job.latest, code)
    named = {code_evidence.in_python(part): part for part in code.parts}
    alike = [each for each in named if each.endswith(f".{definition}")]
    found = alike[0] if len(alike) == 1 else definition
    while found and found not in named:
        found = found.rpartition(".")[0]
    parts = code.why(named[found]).split(" <- ") if found else []
    chain = [code_evidence.in_python(part) for part in parts]
    if as_json:
        print(json.dumps({"job": job.id, "definition": definition, "chain": chain}, indent=2))
    elif chain:
        print(" <- ".join(chain))
    if chain:
        return exit_status.DONE
    near = alike or difflib.get_close_matches(definition, named)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return leave(exit_status.FAILED, f"job {job.id} does not depend on {definition}{hint}")


# `accept`: makes stale jobs count again if the present code would give the same results.


def accept(project: Project, because: str, verify: bool) -> int:
    """Accept that the changes in the code of stale jobs do not change results; return the exit
    status. With `verify`, one job for each set of changes is replayed first. Changes that give
    different bits are not accepted, and the status is 1. Raises SettingsError without a reason.
    """
    if not because.strip():
        raise SettingsError("--because: say why results do not change")
    stale = [job for job in project.all() if job.state(project.view).word == "stale"]
    own = {job.id: _own_changes(job.folder) for job in stale}
    # What is stale by its inputs alone, without changes of its own, counts again when they do.
    known = [job.folder for job in stale if job.folder and own[job.id]]
    unknown = [*own.values()].count(None)
    if not known and not unknown:
        print("no job is stale")
    if unknown:
        why = "the data has changed, or it is not known what has"
        leave(exit_status.FAILED, f"{counted(unknown, 'job')} left out: {why}")
    alike: dict[str, list[JobFolder[Any]]] = {}
    for job in known:
        alike.setdefault(repr(own[job.id]), []).append(job)
    fine = [job for jobs in alike.values() if not verify or _is_verified(jobs) for job in jobs]
    accepted = [job for job in _inputs_first(fine) if _accept(job, because, verify)]
    if accepted:
        how = "replayed with the same bits" if verify else "not verified"
        count_of = Counter(name for job in accepted for name in own[job.id] or {})
        for name, n in sorted(count_of.items()):
            print(f"accepted: {code_evidence.in_python(name)}, of {counted(n, 'job')} ({how})")
        count = counted(len(accepted), "job")
        print(f"no longer stale: {count}; commit {layout.ACCEPTED} with the change")
    return exit_status.DONE if len(accepted) == len(known) + unknown else exit_status.FAILED


def _own_changes(job: JobFolder[Any] | None) -> dict[str, list[str]] | None:
    """The changes in a job's code without those of its inputs; None if they are not known, or if
    the job is stale by its data."""
    if not (job and job.latest) or data_evidence.difference(job.latest, job.places):
        return None
    found = code_evidence.changes(job.latest, job.code)
    return {n: found[n] for n in sorted(found) if not _is_input(n)} if found else None


def _is_input(part: str) -> bool:
    return part.startswith(f"{code_evidence.INPUT}:")


def _inputs_first(jobs: Sequence[JobFolder[Any]]) -> list[JobFolder[Any]]:
    """The jobs, inputs before those derived from them: accepting an input changes the code that the
    derived jobs are compared with."""
    by_id = {job.id: job for job in jobs}

    def depth(job: JobFolder[Any]) -> int:
        return max((1 + depth(by_id[i]) for i in inputs(job.settings) if i in by_id), default=0)

    return sorted(jobs, key=depth)


def _accept(job: JobFolder[Any], because: str, verified: bool) -> bool:
    """Accept the changes in a job's code, unless an input of it is stale still."""
    assert job.latest
    vars(job).pop("code", None)  # its inputs may have been accepted since
    found = code_evidence.changes(job.latest, job.code)
    if still := [*filter(_is_input, found)]:
        names = ", ".join(map(code_evidence.in_python, still))
        leave(exit_status.FAILED, f"{job.label} left out: {names} is stale")
        return False
    old = code_evidence.digest(job.latest)
    new = code_evidence.present_as_in(job.latest, job.code).digest
    if old not in code_evidence.same(new):
        named = {code_evidence.in_python(part): hashes for part, hashes in found.items()}
        today = datetime.now(UTC).date().isoformat()
        change = Accepted(old, new, named, because, _user(), today, verified)
        code_evidence.accept([change])
    return True


@cache
def _user() -> str:
    """The person who accepts: git's user, or else the system's."""
    return provenance.git("config", "user.name").decode().strip() or getpass.getuser()


# `accept --verify` replays the first steps and the first evaluation of a job with the present code:
# are they the same, bit for bit?

FIRST = 100
"""The number of steps to replay, unless the job is evaluated earlier."""


def _is_verified(alike: Sequence[JobFolder[Any]]) -> bool:
    """Whether the present code gives the same bits, judging by one of the jobs whose code has
    changed in the same way."""
    replayed = next((job for job in alike if not inputs(job.settings)), alike[0])
    print(f"replaying the first steps of job {replayed.id}: {replayed.name}", flush=True)
    try:
        problem = _first_difference(replayed)
    except (JobError, OSError) as error:
        problem = f"cannot be replayed: {error}"
    if problem:
        line = f"not accepted for {counted(len(alike), 'job')}: job {replayed.id}: {problem}"
        leave(exit_status.FAILED, line)
    return not problem


def _first_difference(job: JobFolder[Any]) -> str:
    """How the present code's first steps differ from those that a job's journal has, in a few
    words; empty if all bits are the same. Raises JobError if they cannot be compared."""
    assert job.latest
    if inputs(job.settings):
        raise JobError("it is derived from another job, whose results a replay does not have")
    before = Recorded(job.latest)
    evaluated = (
        line["step"] for line in before.lines if "elapsed_seconds" in line.get("metrics", {})
    )
    until = next(evaluated, FIRST)
    points = {
        (step, name): value
        for (step, name), value in curve_points(before).items()
        if step <= until and name.startswith(("train_", "val_", "lr"))
    }
    if not points:
        raise JobError("its journal has nothing to compare with")
    with TemporaryDirectory() as folder:
        words = [sys.executable, str(CODE / f"{job.script}.py"), *before.flags(job)]
        words += [f"--pause-after={until}", "--quiet", f"--runs-root={folder}"]
        env = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
        status, said = run(words, CODE, env)
        if status:
            raise JobError(last_line(said))
        (journal,) = Path(folder).glob(f"*/*/{layout.JOURNAL}")
        again = Recorded(journal.parent)
        after = curve_points(again)
        was, now = (each.tag("device") for each in (before, again))
        if was != now:
            raise JobError(f"it ran on {was}, and this is {now}")
    # What else the present code logs does not count.
    both = {point: after[point] for point in points if point in after}
    return str(curve_difference(points, both) or "")
