"""`python jobs.py stale`: the jobs that the present code no longer fits, by what has changed.

Each line names a changed definition and the number of jobs that it affects; with --diff, the change
too.
"""

import difflib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from labjobs import exit_status
from labjobs.commands.inventory import Job, Project
from labjobs.errors import SettingsError
from labjobs.evidence.fingerprint import Fingerprint
from labjobs.job import code_evidence
from labjobs.job.terminal import counted, leave
from labjobs.privacy import scrub

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

    def line(self, total: int) -> str:
        """Return the change in one line; `total` is the number of all jobs."""
        named, more = ", ".join(self.jobs[:NAMED]), len(self.jobs) - NAMED
        named += f" and {more} more" if more > 0 else ""
        jobs = f"{len(self.jobs)} of {counted(total, 'job')}"
        return f"{self.name} {self.what}: {jobs} ({named})".lstrip()


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
    elif not found:
        print(f"none of {len(jobs)} jobs is stale" if jobs else "there are no jobs yet")
    else:
        for each in found:
            print(each.line(len(jobs)))
            if diff:
                print("".join(f"\n{text}\n" for text in each.diffs), end="")
    return 0


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
    """What makes one job stale."""
    kept = code_evidence.parts(job.latest) if job.latest and job.folder else {}
    if not (job.latest and job.folder and kept):
        yield Change("", about)
        return
    names = code_evidence.changed(job.latest, job.folder.code)
    if not names:  # but the data has changed
        yield Change("", about)
    now = code_evidence.present_as_in(job.latest, job.folder.code)
    labels = {part.get("label"): part for part in kept.values()}
    for part in names:
        before = kept.get(part) or labels.get(now.labels.get(part, part))
        what = "new" if before is None else "changed" if part in now.parts else "gone"
        name = code_evidence.in_python(part)
        yield Change(name, what, diffs=_diffs(name, job.id, before, _source(now, part)))


def _diffs(name: str, job_id: str, before: dict[str, str] | None, new: str | None) -> list[str]:
    """What was changed in a definition, if both sources are known."""
    old = "" if before is None else before.get("source")
    if old is None or new is None:
        return []
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"{name} of job {job_id}", f"{name} now", lineterm=""
    )
    return ["\n".join(lines)]


def _source(now: Fingerprint, part: str) -> str | None:
    """The present source of a part, as it would be stored; None for files, which are not stored."""
    if part.startswith("file:"):
        return None
    return scrub(now.source(part), code=True) if part in now.parts else ""


# `python jobs.py why JOB DEFINITION`: how a job's code reaches a definition.

NEAR = 3
"""The largest number of names that are suggested."""


def print_why(job: Job, definition: str, as_json: bool) -> int:
    """Print the chain from a definition to where the job begins; returns the exit status: 1 if the
    job's results do not depend on it."""
    if job.folder is None:
        raise SettingsError(f"job {job.id}: {job.problem}")
    found = (
        code_evidence.present_as_in(job.latest, job.folder.code) if job.latest else job.folder.code
    )
    chain = [code_evidence.in_python(part) for part in _chain(found, definition)]
    if as_json:
        print(json.dumps({"job": job.id, "definition": definition, "chain": chain}, indent=2))
    elif chain:
        print(" <- ".join(chain))
    if chain:
        return 0
    near = _near(found, definition)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return leave(exit_status.FAILED, f"job {job.id} does not depend on {definition}{hint}")


def _chain(found: Fingerprint, definition: str) -> list[str]:
    """The parts from a definition to the entry; none if the job does not reach it. Something inside
    a definition, such as a method, belongs to that definition; a name without its module is
    allowed."""
    named = {code_evidence.in_python(part): part for part in found.parts}
    if len(same := _called(definition, named)) == 1:
        (definition,) = same
    while definition and definition not in named:
        definition = definition.rpartition(".")[0]
    return found.why(named[definition]).split(" <- ") if definition else []


def _near(found: Fingerprint, definition: str) -> list[str]:
    """Names of the job's definitions that may be meant."""
    names = [code_evidence.in_python(part) for part in found.parts]
    return _called(definition, names)[:NEAR] or difflib.get_close_matches(definition, names, n=NEAR)


def _called(name: str, names: Iterable[str]) -> list[str]:
    """The definitions that have this name in their modules."""
    return [each for each in names if each.rpartition(".")[2] == name]
