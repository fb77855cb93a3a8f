"""`stale`: the jobs that the present code no longer fits, by what has changed; `why`: how a job's
code reaches a definition; `accept`: changes that change no results.
"""

import difflib
import getpass
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labjobs import exit_status, layout
from labjobs.cli import flags
from labjobs.cli.flags import as_text, option
from labjobs.commands.inventory import Job, Project
from labjobs.commands.replay import Recorded, curve_difference, curve_points, run
from labjobs.errors import JobError, SettingsError
from labjobs.evidence.fingerprint import Fingerprint
from labjobs.files import CODE
from labjobs.job import code_evidence
from labjobs.job.code_evidence import Change as Accepted
from labjobs.job.code_evidence import Hashes
from labjobs.job.folder import JobFolder
from labjobs.job.identity import identity, inputs
from labjobs.job.runtime import LENGTHS
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
        named, more = ", ".join(each.jobs[:NAMED]), len(each.jobs) - NAMED
        named += f" and {more} more" if more > 0 else ""
        of = f"{len(each.jobs)} of {counted(len(jobs), 'job')}"
        print(f"{each.name} {each.what}: {of} ({named})".lstrip())
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
        name, diffs = code_evidence.in_python(part), []
        old = "" if before is None else before.get("source")
        if old is not None and not part.startswith("file:"):  # files are not stored
            new = scrub(now.source(part), code=True) if part in now.parts else ""
            titles = f"{name} of job {job.id}", f"{name} now"
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), *titles, lineterm="")
            diffs.append("\n".join(lines))
        yield Change(name, what, diffs=diffs)


# `python jobs.py why JOB DEFINITION`: how a job's code reaches a definition.

NEAR = 3
"""The largest number of names that are suggested."""


def print_why(job: Job, definition: str, as_json: bool) -> int:
    """Print the chain from a definition to where the job begins; returns the exit status: 1 if the
    job's results do not depend on it."""
    if job.folder is None:
        raise SettingsError(f"job {job.id}: {job.problem}")
    found = job.folder.code
    if job.latest:
        found = code_evidence.present_as_in(job.latest, found)
    named = {code_evidence.in_python(part): part for part in found.parts}
    chain = [code_evidence.in_python(part) for part in _chain(found, named, definition)]
    if as_json:
        print(json.dumps({"job": job.id, "definition": definition, "chain": chain}, indent=2))
    elif chain:
        print(" <- ".join(chain))
        print("".join(f"{line}\n" for line in found.advice if line.startswith(chain[0])), end="")
    if chain:
        return exit_status.DONE
    close = difflib.get_close_matches(definition, named, n=NEAR)
    near = _called(definition, named)[:NEAR] or close
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return leave(exit_status.FAILED, f"job {job.id} does not depend on {definition}{hint}")


def _chain(found: Fingerprint, named: Mapping[str, str], definition: str) -> list[str]:
    """The parts from a definition to the entry; none if the job does not reach it. Something inside
    a definition, such as a method, belongs to that definition; a name without its module is
    allowed."""
    if len(same := _called(definition, named)) == 1:
        (definition,) = same
    while definition and definition not in named:
        definition = definition.rpartition(".")[0]
        if f"{definition}.py" in named:  # which counts as a whole
            definition += ".py"
    return found.why(named[definition]).split(" <- ") if definition else []


def _called(name: str, names: Iterable[str]) -> list[str]:
    """The definitions that have this name in their modules."""
    return [each for each in names if each.rpartition(".")[2] == name]


# `accept`: makes stale jobs count again if the present code would give the same results.


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
        how = "replayed with the same bits" if verify else "not verified"
        for name, n in sorted(names.items()):
            print(f"accepted: {name}, of {counted(n, 'job')} ({how})")
        count = counted(len(accepted), "job")
        print(f"no longer stale: {count}; commit {layout.ACCEPTED} with the change")
    return exit_status.DONE if len(accepted) == len(stale) else exit_status.FAILED


def _is_by_inputs(job: Job) -> bool:
    """Whether a job is stale only because its inputs are, so that it counts again when they do."""
    if not (job.folder and job.latest):
        return False
    names = code_evidence.changed(job.latest, job.folder.code)
    return bool(names) and all(map(_is_input, names))


def _is_input(part: str) -> bool:
    return part.startswith(f"{code_evidence.INPUT}:")


def _names(job: JobFolder[Any]) -> list[str]:
    """The names of the definitions that have changed."""
    assert job.latest
    return [code_evidence.in_python(name) for name in code_evidence.changed(job.latest, job.code)]


def _hashes(job: JobFolder[Any]) -> list[tuple[Hashes, Hashes]]:
    """The changes of a job's definitions, before and after, without those that only its inputs
    have."""
    assert job.latest
    present = code_evidence.present_as_in(job.latest, job.code)
    parts = code_evidence.parts(job.latest)
    before = {part["label"]: part["hash"] for name, part in parts.items() if not _is_input(name)}
    after = {
        present.labels[name]: found for name, found in present.parts.items() if not _is_input(name)
    }
    return list(code_evidence.between(before, after))


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
    today = datetime.now(UTC).date().isoformat()
    changes: list[Accepted] = []
    codes: set[tuple[str, str]] = set()
    for job in accepted:
        assert job.latest
        present = code_evidence.present_as_in(job.latest, job.code)
        codes.add((code_evidence.digest(job.latest), present.digest))
        for before, after in _hashes(job):
            change = Accepted(before, after, because, _user(), today, verified)
            if change not in changes:
                changes.append(change)
    code_evidence.accept(changes, codes, CODE)


def _user() -> str:
    """The person who accepts: git's user, or else the system's."""
    words = ["git", "config", "user.name"]
    try:
        named = subprocess.run(words, cwd=CODE, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        named = ""
    return named or getpass.getuser()


# `accept --verify` replays the first steps and the first evaluation of a job with the present code:
# are they the same, bit for bit?

FIRST = 100
"""The number of steps to replay, unless the job is evaluated earlier."""


def _verified(stale: Sequence[JobFolder[Any]]) -> list[JobFolder[Any]]:
    """The jobs whose changes give the same bits, judging by one job for each set of changes."""
    alike: dict[str, list[JobFolder[Any]]] = {}
    for job in stale:
        alike.setdefault(repr(_hashes(job)), []).append(job)
    verified = []
    for jobs in alike.values():
        replayed = next((job for job in jobs if not inputs(job.settings)), jobs[0])
        print(f"replaying the first steps of job {replayed.id}: {replayed.name}", flush=True)
        try:
            problem = _first_difference(replayed)
        except (JobError, OSError) as error:
            problem = f"cannot be replayed: {error}"
        if problem:
            line = f"not accepted for {counted(len(jobs), 'job')}: job {replayed.id}: {problem}"
            leave(exit_status.FAILED, line)
        else:
            verified += jobs
    return verified


def _first_difference(job: JobFolder[Any]) -> str:
    """How the present code's first steps differ from those that a job's journal has, in a few
    words; empty if all bits are the same. Raises JobError if they cannot be compared."""
    assert job.latest
    if not {*LENGTHS} & flags.of(type(job.settings)).keys():
        raise JobError("it does not train, so it has no first steps")
    if inputs(job.settings):
        raise JobError("it is derived from another job, whose results a replay does not have")
    before = Recorded(job.latest)
    evaluated = (
        line["step"] for line in before.lines if "elapsed_seconds" in line.get("metrics", {})
    )
    until = next(evaluated, FIRST)
    declared = before.about.get("metrics", {})
    names = {f"{part}_{name}" for part in ("train", "val") for name in declared} | {"lr"}
    points = {
        point: value
        for point, value in curve_points(before).items()
        if point[0] <= until and point[1] in names
    }
    if not points:
        raise JobError("its journal has nothing to compare with")
    words = [f"{option(name)}={as_text(value)}" for name, value in identity(job.settings).items()]
    words += [f"--pause-after={until}", f"--log-every={before.log_every}", "--quiet"]
    threads = _first_tag(before, "threads") or "auto"
    words += [f"--threads={threads}", f"--data-root={job.places.data_root}"]
    with TemporaryDirectory() as folder:
        script = [sys.executable, str(CODE / f"{job.script}.py")]
        env = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
        status, said = run([*script, *words, f"--runs-root={folder}"], CODE, env)
        if status:
            raise JobError(last_line(said))
        (journal,) = Path(folder).glob(f"*/*/{layout.JOURNAL}")
        again = Recorded(journal.parent)
        after = curve_points(again)
        was, now = (_first_tag(each, "device") for each in (before, again))
        if was != now:
            raise JobError(f"it ran on {was}, and this is {now}")
    # What else the present code logs does not count.
    both = {point: after[point] for point in points if point in after}
    return str(curve_difference(points, both) or "")


def _first_tag(attempt: Recorded, name: str) -> str:
    """A tag as it was first logged: a job may have gone on elsewhere."""
    return next((each["tags"][name] for each in attempt.lines if name in each.get("tags", {})), "")
