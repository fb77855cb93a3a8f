"""`python jobs.py stale`: the jobs that the present code no longer fits, by what has changed.

Each line names a changed definition and the number of jobs that it affects; with --diff, the change
too.
"""

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from labjobs.evidence import Fingerprint
from labjobs.job import code
from labjobs.job.terminal import counted
from labjobs.jobs.project import Job, Project
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
    kept = code.parts(job.latest) if job.latest and job.folder else {}
    if not (job.latest and job.folder and kept):
        yield Change("", about)
        return
    names = code.changed(job.latest, job.folder.code)
    if not names:  # but the data has changed
        yield Change("", about)
    now = code.present_as_in(job.latest, job.folder.code)
    labels = {part.get("label"): part for part in kept.values()}
    for part in names:
        before = kept.get(part) or labels.get(now.labels.get(part, part))
        what = "new" if before is None else "changed" if part in now.parts else "gone"
        name = code.in_python(part)
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
