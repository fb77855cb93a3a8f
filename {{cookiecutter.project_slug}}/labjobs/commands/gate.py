"""`try`: is what is tried here, changed code, other settings or both, better than finished jobs?

Repeats run one after another, each with the seed and the fold of one of these jobs, until a test
can tell. The test may look after every repeat: of tries that change nothing, it calls at most 5%
better or worse, whenever one stops. What results are measured with must be the same: the data, the
validation examples, and all code but train(), the network and what only these use.
"""

import json
import math
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any
from zipfile import ZipFile

from labjobs import exit_status, layout
from labjobs.cli.flags import option
from labjobs.commands import find, inventory
from labjobs.commands.inventory import Job, Project
from labjobs.commands.replay import Recorded
from labjobs.errors import JobError, SettingsError, few, require
from labjobs.files import CODE, PROJECT, json_of, write_text
from labjobs.job import attempts, code_evidence, data_evidence, identity, journal
from labjobs.job.folder import JobFolder
from labjobs.job.terminal import Interruption, counted
from labjobs.results.style import number
from labjobs.settings import roles

NEEDED = 20.0  # the evidence at which a try is decided: 1 / 0.05

MOST = 3  # the largest number of definitions or jobs that a line names


@dataclass
class Try:
    """A line of `tries.jsonl`: what was tried, against which code, and the answer."""

    jobs: list[str]  # those that it was compared with
    against: str  # the digest of their code
    code: str
    flags: list[str]
    metric: str
    answer: str = "undecided"
    evidence: float = 1.0
    differences: Sequence[float] = ()
    """What each repeat has, minus what the job with the same seed has."""

    why: str = ""
    conditions: Sequence[str] = ()
    """What else differs and can change bits: the device, the number format."""

    on: str = ""
    schema: int = 1


SAME = attrgetter("against", "code", "flags", "metric")
"""What makes a try the same one, perhaps with other repeats."""


def judge(project: Project, given: Namespace) -> int:
    """Run the repeats, print the answer, and note it in `tries.jsonl`; return 0 if it is `better`.
    Raises SettingsError for jobs, flags or a metric with which nothing can be compared, JobError
    if a repeat does not finish."""
    require(given.at_most is None or given.at_most > 0, "--at-most", given.at_most, "at least 1")
    group, begins = _group(project, given.against)
    tried = {job.id: _tried(job, given.words) for job in group}
    known = _known()
    base = _base(group, tried, begins, known)
    first, attempt = base[0]
    key, sign = _metric(given.metric, first, attempt)
    if undefined := [job.id for job, path in base if math.isnan(_results(path).get(key, math.nan))]:
        line = f"{key} is NaN in {few(undefined, MOST)}, so nothing can be compared with it"
        raise SettingsError(f"--metric {given.metric}: {line}")
    code = tried[first.id].code.digest
    found = Try([job.id for job, _ in base], code_evidence.digest(attempt), code, given.words, key)
    if not given.json:
        of = counted(len(base), "job")
        print(f"against {of} ({few(found.jobs, MOST)}) of code {attempts.name(found.against)}")
    if changed := _changed_measure(first, attempt, tried[first.id]):
        found.answer = "the measure changed"
        found.why = f"{few(changed, MOST)}; what is tried belongs in train() or models.make()"
    else:
        _run(found, base, tried, sign, given)
    before = [each for each in known if SAME(each) == SAME(found)]
    known = [each for each in known if each not in before]
    longest = max([found, *before], key=lambda each: len(each.differences))
    _note([*known, longest if found.differences else found])
    _print(found, len(known) + 1, given.json)
    return exit_status.DONE if found.answer == "better" else exit_status.FAILED


def _run(
    found: Try,
    base: Sequence[tuple[Job, Path]],
    tried: Mapping[str, JobFolder[Any]],
    sign: int,
    given: Namespace,
) -> None:
    """Run repeats until the evidence is enough."""
    Interruption().listen()
    for job, before in base[: given.at_most]:
        after = _finished(tried[job.id])
        if not after:  # how often that would happen, one seed cannot tell
            found.why = f"job {tried[job.id].id} diverged, but {job.id}, with its seed, did not"
            return
        if _validation(before) != _validation(after):
            found.answer, found.why = "the measure changed", "other validation examples"
            return
        was, now = (_results(path).get(found.metric, math.nan) for path in (before, after))
        if math.isnan(now):
            found.why = f"{found.metric} is NaN in job {tried[job.id].id}, and not in {job.id}"
            return
        rounding = math.isclose(now, was, rel_tol=1e-12)
        found.differences = [*found.differences, 0.0 if rounding else now - was]
        found.conditions = sorted({*found.conditions, *_conditions(before, after)})
        found.evidence = evidence(found.differences)
        if not given.json:
            line = f"{job.id}: {number(was, 4)} | {tried[job.id].id}: {number(now, 4)}"
            print(line, flush=True)
        if found.evidence >= NEEDED:
            found.answer = "better" if sign * sum(found.differences) > 0 else "worse"
            return


def evidence(differences: Sequence[float]) -> float:
    """Return the evidence that the mean of these differences is not 0: by how much a bet on that
    would have multiplied its stake. If the mean is 0 and the differences are normal, it reaches 20
    in at most one series of 20, however long they go on.

    The likelihood of the t statistic if the mean, in standard deviations, is normal with variance
    1, as a ratio to that if it is 0 (Pérez-Ortiz, Lardy, de Heide, Grünwald: E-statistics, group
    invariance and anytime-valid testing, Annals of Statistics 52, 2024).
    """
    count = len(differences)
    squares = sum(each**2 for each in differences)
    explained = sum(differences) ** 2 / (count + 1) / squares if squares else 0.0
    return float((1 + count) ** -0.5 * (1 - explained) ** (-count / 2))


# What is compared.


def _group(project: Project, given: str) -> tuple[list[Job], str]:
    """The jobs that are meant, which differ in nothing but repeats, and how the name of their
    attempts begins. Raises SettingsError."""
    prefix, _, begins = given.partition("/")
    jobs = [job for job in project.all() if job.folder]
    if re.search("[=<>]", given):
        chosen, begins = inventory.fulfilling(given, jobs), ""
    else:
        named = project.one(prefix)
        if not named.folder:
            raise SettingsError(f"--against {given}: {named.problem}")
        chosen = [job for job in jobs if _method(job) == _method(named)]
    chosen = [job for job in chosen if not inventory.confirms(job.plain)] or chosen
    if not chosen:
        raise SettingsError(f"--against {given}: no job here has such settings")
    first, *others = map(_method, chosen)
    if differ := [option(k) for k, v in first.items() if any(each.get(k) != v for each in others)]:
        line = f"these jobs differ in {', '.join(differ)}; name jobs that differ in repeats alone"
        raise SettingsError(f"--against {given}: {line}")
    repeats = [name for name in chosen[0].plain if name not in first]
    return sorted(chosen, key=lambda job: repr([job.plain[name] for name in repeats])), begins


def _method(job: Job) -> dict[str, Any]:
    """What all repeats of a job have: its script, and its settings but the seed and the like."""
    return {"script": job.script, **inventory.without_repeats(job.script, job.plain)}


CHOOSING = ("eval_every", "monitor")
"""Settings that decide which evaluation is a job's result: of more of them, the best is better."""


def _tried(job: Job, words: list[str]) -> JobFolder[Any]:
    """The repeat that is compared with a job: its settings, with flags on top. Raises
    SettingsError."""
    assert job.folder
    script = identity.read(job.script)
    like = [f"--like={job.id}", f"--runs-root={job.folder.runs_root}"]
    settings, runtime = attempts.read(script.settings, script.name, [*like, *words])
    kinds, now = roles(script.settings), identity.identity(settings)
    for name, value in job.plain.items():
        fixed = kinds.get(name, "method") != "method" or name in CHOOSING
        if fixed and now[name] != value:
            line = "is that of the jobs of --against, so that results can be compared"
            raise SettingsError(f"{option(name)}: {line}")
    return JobFolder(settings, runtime, script.metrics, job.script)


def _base(
    jobs: list[Job], tried: Mapping[str, JobFolder[Any]], begins: str, known: Sequence[Try]
) -> list[tuple[Job, Path]]:
    """The jobs to compare with, and their attempts: finished, with the present code if flags are
    tried, or else with the code that ran last, but for code that was tried and was not better.
    Raises SettingsError if there are none."""
    rejected = {t.code for t in known if t.answer in ("worse", "undecided") and not t.flags}
    found: dict[str, dict[str, tuple[Job, Path]]] = {}  # of each code, by job
    itself = False
    for job in jobs:
        for path in job.attempts:
            digest = code_evidence.digest(path)
            if attempts.status_of(path) != "finished" or not path.name.startswith(begins):
                continue
            repeat = tried[job.id]
            if repeat.id == job.id and code_evidence.fits(digest, repeat.code):
                itself = True
            elif begins or digest not in rejected:
                found.setdefault(code_evidence.oldest(digest), {})[job.id] = job, path
    if not found and itself:
        raise SettingsError("nothing is tried: code and settings are those of these jobs")
    if not found:
        raise SettingsError("none of these jobs has finished; run them first")

    def rank(digest: str) -> tuple[bool, int]:
        """Whether a code is the present one, and when it last ran."""
        each = [*found[digest].values()]
        folder = each[0][0].folder
        is_present = folder is not None and code_evidence.fits(digest, folder.code)
        return is_present, max(journal.last_time(path) for _, path in each)

    return [*found[max(found, key=rank)].values()]


def _metric(given: str, job: Job, attempt: Path) -> tuple[str, int]:
    """The validation result that is meant, and 1 if higher is better, else -1. Raises
    SettingsError."""
    declared = identity.read(job.script).metrics
    key = inventory.named_result(f"--metric {given}", given, _results(attempt))
    if (name := key.removeprefix("best_val_")) not in declared:
        raise SettingsError(f"--metric {given}: METRICS does not say whether lower is better")
    return key, 1 if declared[name].better == "higher" else -1


def _results(attempt: Path) -> dict[str, float]:
    return dict(inventory.on_disk(attempt, None)["metrics"])


def _changed_measure(job: Job, before: Path, tried: JobFolder[Any]) -> list[str]:
    """The definitions and files that results are measured with and that are not as they were."""
    then = code_evidence.parts(before)
    if not then:
        return ["the code of the other jobs was not recorded"]
    what_is_tried = [f"{job.script}:train", "models:make"]
    now = code_evidence.present(tried.settings, job.script, {}, what_is_tried).parts
    changed = [part for part, digest in now.items() if then.get(part, {}).get("hash") != digest]
    data, _ = data_evidence.compare(before, tried.places)
    return [*map(code_evidence.in_python, changed), *([data] if data else [])]


def _finished(job: JobFolder[Any]) -> Path | None:
    """Run a repeat, and return its attempt; None if it has diverged. Raises JobError if it has not
    finished."""
    over = ["--force"] if job.latest and not job.begun else []  # other code has results, too
    command = [sys.executable, *find.words_of(job), *over, "--quiet"]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=sys.stderr)
    try:
        status = process.wait()
    except BaseException:  # interrupted
        process.terminate()
        process.wait()
        raise
    if path := attempts.finished_at(job.id, job.runs_root):
        return path
    if attempts.status_of(job.path) == "diverged":
        return None
    raise JobError(f"job {job.id} did not finish (exit status {status}); nothing can be said yet")


def _conditions(before: Path, after: Path) -> list[str]:
    was, now = (Recorded(path).conditions for path in (before, after))
    return [f"{name} {was[name]} | {now[name]}" for name in was if was[name] != now[name]]


def _validation(attempt: Path) -> bytes:
    """Which examples an attempt was validated on, as bytes."""
    kept = journal.record_of(attempt, layout.SETTINGS).get("split")
    if not kept:
        return b""
    with ZipFile(attempt.parent.parent / kept) as arrays:
        return arrays.read("val.npy") if "val.npy" in arrays.namelist() else b""


# The tries of the project, in a file to be committed.


def _known() -> list[Try]:
    file = CODE / layout.TRIES
    try:
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        return [Try(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(
            f"{layout.TRIES}: cannot be read; restore it from version control"
        ) from error


def _note(tries: Sequence[Try]) -> None:
    tries[-1].on = datetime.now(UTC).date().isoformat()
    write_text(CODE / layout.TRIES, "".join(f"{json.dumps(asdict(each))}\n" for each in tries))


def _print(found: Try, which: int, as_json: bool) -> None:
    if as_json:
        print(json_of(asdict(found) | {"needed": NEEDED, "try": which}))
        return
    said = found.why
    if found.differences and not said:
        mean, repeats = fmean(found.differences), counted(len(found.differences), "repeat")
        said = f"{found.metric} differs by {number(mean)}, the mean of {repeats}; "
        said += f"evidence {number(found.evidence)} ({NEEDED:g} needed)"
    print("; ".join([f"{found.answer}: {said}", *found.conditions]))
    mistakes = f"at most 1 in {NEEDED:g} that change nothing are called better or worse"
    print(f"try {which} of this project; {mistakes}")
