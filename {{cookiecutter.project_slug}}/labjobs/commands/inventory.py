"""The project's jobs, found on this disk and in the tracking store: `list` prints a line for each,
`show` all there is to know of one.

A job is on this disk if an attempt at it has begun there. Jobs in the store count if they finished
or diverged.
"""

import json
import math
import os
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from labjobs import exit_status, layout, locks
from labjobs.cli import flags
from labjobs.cli.flags import as_plain, as_text
from labjobs.errors import JobError, SettingsError, cause, did_you_mean, require_known
from labjobs.files import PROJECT, json_of, read_record, shown
from labjobs.job import attempts, code_evidence, identity, journal
from labjobs.job.attempts import Evidence
from labjobs.job.folder import JobFolder
from labjobs.job.identity import as_command, restore
from labjobs.job.runtime import Runtime
from labjobs.job.terminal import as_line, counted, leave, parts_of
from labjobs.settings import CONFIRMING, Metric, Span, Weights, roles
from labjobs.sweeps.states import STATES, State, View
from labjobs.tracking import costs, courier, stored_jobs
from labjobs.tracking.mlflow_store import experiment_name, fingerprint
from labjobs.tracking.stored_jobs import Known, StoredJob

# What is known of one attempt at a job: its code, when and where it ran, and its results.

RESULTS = ("test_", "best_")  # how the metrics begin that a job logs at its end

ENDS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "paused or interrupted"}
"""How an attempt whose outcome.json is lost ended, by the last line of its journal."""

Attempt = dict[str, Any]
"""An attempt at a job, as `show --json` prints it. Unknown values are empty; `ended`, when it last
logged something, is in seconds since 1970; `change` and `unchecked` are as in Evidence; with
`accepted`, its code is another one, which was accepted as equal. `job` is the job with today's
settings, if there can be one."""


def on_disk(path: Path, job: JobFolder[Any] | None) -> Attempt:
    """Return the attempt in a folder."""
    about = journal.record_of(path, layout.SETTINGS)
    outcome = journal.record_of(path, layout.OUTCOME)
    sent, found = read_record(path / layout.SENT), job.compare(path) if job else Evidence()
    tags, metrics, problem, ended = dict[str, str](), dict[str, float](), "", "interrupted"
    try:
        for line in journal.lines_of(path):
            ended = ENDS.get(line.get("end", ""), "interrupted")
            tags |= line.get("tags", {})
            metrics |= _results(line.get("metrics", {}), about.get("metrics", {}))
    except (OSError, JobError) as error:
        problem = cause(error)
    if ended == "failed" and tags.get("diverged") == "true":
        ended = "diverged"
    running, code = locks.held(path / layout.LOCK), code_evidence.digest(path)
    same = job is None or found.change or code == code_evidence.present_as_in(path, job.code).digest
    return {
        "state": "running" if running else outcome.get("status", ended),
        "change": found.change,
        "unchecked": found.unchecked,
        "accepted": not same,
        "ended": journal.last_time(path) / 1000,
        "code": code,
        "said": "" if running else str(outcome.get("said", "")),  # which is of its last process
        "tags": tags,
        "metrics": metrics,
        "cost": costs.totals(path),
        "data_root": str(outcome.get("data_root", "")),
        "folder": str(path),
        "run_id": str(sent.get("run", "")) if sent.get("store") == fingerprint() else "",
        "audit": journal.record_of(path, layout.AUDIT),
        "problem": problem,
    }


def in_store(stored: StoredJob, job: JobFolder[Any] | None) -> Attempt:
    """Return an attempt that is only in the store."""
    found = stored_jobs.evidence(job, stored) if job else Evidence("in another folder")
    return dict.fromkeys(("said", "data_root", "problem"), "") | {
        "accepted": False,
        "state": stored["state"],
        "change": found.change,
        "unchecked": found.unchecked,
        "ended": stored["ended"] / 1000,
        "code": stored["tags"].get("code", ""),
        "tags": stored["tags"],
        "metrics": results(stored),
        "cost": {key: stored["metrics"][key] for key in costs.NAMES if key in stored["metrics"]},
        "folder": None,
        "run_id": stored["run_id"],
        "audit": {},
    }


def results(stored: StoredJob) -> dict[str, float]:
    """Return what a stored job logged at its end."""
    return _results(stored["metrics"], json.loads(stored["tags"].get("metrics", "{}")))


def _results(metrics: dict[str, float], declared: Collection[str]) -> dict[str, float]:
    return {k: v for k, v in metrics.items() if k.startswith(RESULTS) or k in declared}


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    """A row or an attempt whose `ended` is a time as in ISO 8601, in UTC; None for 0."""
    ended = datetime.fromtimestamp(row["ended"], UTC).isoformat(timespec="seconds")
    return row | {"ended": ended if row["ended"] else None}


def _local(seconds: float) -> str:
    """A time in local form: `2026-11-22 20:14`; a dash for 0."""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}" if seconds else "-"


JOB_ID = re.compile("[0-9a-f]{12}")


@dataclass
class Job:
    """What is known about a job."""

    id: str
    script: str = identity.DEFAULT
    settings: dict[str, Any] = field(default_factory=dict)
    """The recorded settings; empty if they cannot be read."""

    attempts: list[Path] = field(default_factory=list)
    """The folders of its attempts on this disk, the latest last."""

    stored: list[StoredJob] = field(default_factory=list)
    """Its attempts in the store that finished or diverged."""

    folder: JobFolder[Any] | None = None
    """Its folder according to today's settings; None if they cannot express the job."""

    problem: str = ""  # why there is no such folder

    @property
    def words(self) -> str:
        """The settings that differ from their defaults, in one line."""
        if self.folder:
            return self.folder.name
        script = [] if self.script == identity.DEFAULT else [self.script]
        return " ".join([*script, *(f"{k}={as_text(v)}" for k, v in self.settings.items())])

    @property
    def plain(self) -> dict[str, Any]:
        """Its settings as JSON can hold them."""
        return identity.identity(self.folder.settings) if self.folder else self.settings

    @property
    def command(self) -> str:
        """The command line that runs it; empty if today's settings cannot express it."""
        return as_command(self.folder.settings, self.script) if self.folder else ""

    @property
    def latest(self) -> Path | None:
        """The folder of the attempt that counts: with the present code, or else the latest."""
        if self.folder:
            return self.folder.latest
        return self.attempts[-1] if self.attempts else None

    def state(self, view: View) -> State:
        """Return its state; `unreadable` if its settings are not known."""
        try:
            if self.folder:
                return view.state(self.folder)
        except OSError as error:
            return State("unreadable", cause(error))
        if any(locks.held(attempt / layout.LOCK) for attempt in self.attempts):
            return State("running")
        return State("stale" if self.settings else "unreadable", self.problem)


class Project:
    """All jobs of the project. Raises SettingsError if there is no such folder of runs."""

    def __init__(self, runs_root: Path | None) -> None:
        if runs_root and not runs_root.expanduser().is_dir():
            raise SettingsError(f"--runs-root: there is no folder {runs_root}")
        self.runs_root = (runs_root or Runtime().runs_root).expanduser()

    @cached_property
    def view(self) -> View:
        """What the store and Slurm know of them."""
        return View()

    @property
    def problems(self) -> list[str]:
        """Problems in asking the store or Slurm."""
        return self.view.problems if "view" in vars(self) else []

    def all(self) -> list[Job]:
        """Return all jobs."""
        return self._named("")

    def one(self, prefix: str) -> Job:
        """Return the job whose id begins with these digits. Raises SettingsError if there is none,
        or several."""
        if not prefix:  # as of a variable that is not set: `rm "$id"`
            raise SettingsError("'' is not the id of a job")
        found = self._named(prefix)
        if len(found) > 1:
            raise SettingsError(
                f"{prefix} is the beginning of {len(found)} job ids; give more digits"
            )
        if not found:
            raise SettingsError(f"there is no job {prefix}; `python jobs.py list` shows all")
        return found[0]

    def finished_in_store(self, job: Job) -> StoredJob | None:
        """Return a job's finished attempt in the store whose results count: the last one with the
        present code and data, or else the last one; None if it has none."""
        found = [each for each in job.stored if not each["diverged"]]
        fits = [s for s in found if job.folder and not stored_jobs.evidence(job.folder, s).change]
        return next(reversed(fits or found), None)

    @cached_property
    def _stored(self) -> dict[str, list[StoredJob]]:
        """Attempts in the store that finished or diverged, by job."""
        with suppress(ConnectionError):  # `view` reports it
            return Known(stored_jobs.jobs(experiment_name())).runs
        return {}

    @cached_property
    def _ids(self) -> set[str]:
        """The ids of jobs in the store, and the names of jobs' folders on this disk."""
        try:
            here = self.runs_root.iterdir() if self.runs_root.exists() else ()
            return {*self._stored, *(f.name for f in here if JOB_ID.fullmatch(f.name))}
        except OSError as error:
            raise SettingsError(f"--runs-root: {cause(error)}") from error

    def _named(self, prefix: str) -> list[Job]:
        """The jobs whose ids begin with these digits, on this disk and in the store."""
        ids = {prefix} & self._ids or {each for each in self._ids if each.startswith(prefix)}
        found = list[Job]()
        for each in sorted(ids):
            folder = self.runs_root / each
            job = Job(each, attempts=attempts.all_of(folder), stored=self._stored.get(each, []))
            closed = folder.exists() and not os.access(folder, os.R_OK | os.X_OK)
            if job.attempts or job.stored or closed:
                found.append(self._restored(job))
        return found

    def _restored(self, job: Job) -> Job:
        """Return the job with its settings and its folder, if they are known."""
        try:
            self._read_settings(job)
            settings: Any = restore(identity.read(job.script).settings, job.settings)
            folder = JobFolder(settings, self._runtime(job), {}, job.script)
            if folder.id != job.id:
                raise SettingsError(f"with today's settings.py, it is another job, {folder.id}")
            job.folder = folder
        except SettingsError as error:
            job.problem = str(error)
        return job

    def _read_settings(self, job: Job) -> None:
        for attempt in reversed(job.attempts):
            if about := journal.record_of(attempt, layout.SETTINGS):
                job.script, job.settings = about["script"], about["settings"]
                return
        for stored in job.stored:
            job.script = stored_jobs.script_of(stored)
            job.settings = stored_jobs.plain_settings(stored, identity.kind_of(job.script))
        if not job.settings:
            why = "its settings.json is damaged or missing" if job.attempts else "no permission"
            raise SettingsError(f"cannot be read: {why}")

    def _runtime(self, job: Job) -> Runtime:
        """Those flags of the job's last run on which its state depends."""
        stored = (stored_jobs.folder_of(s["tags"].get("job_folder", "")) for s in job.stored)
        last = [*stored, *job.attempts][-1:]
        outcome = journal.record_of(last[0], layout.OUTCOME) if last else {}
        pause = outcome.get("pause_after") if outcome.get("status") == "paused" else None
        return Runtime(
            data_root=PROJECT / outcome.get("data_root", Runtime.data_root),
            runs_root=self.runs_root,
            pause_after=Span(pause) if pause else None,
        )


# `python jobs.py list`: a line for each job of the project.


def print_list(project: Project, given: Namespace) -> None:
    """Print the jobs that fulfil `where`, with their validation or `test` results: the newest last,
    or the best `by` a metric first; or the means of `groups` that differ in repeats alone. Raises
    SettingsError."""
    jobs, as_json = {job.id: job for job in project.all()}, given.json
    full = as_json or given.groups or bool(given.by)
    rows = [_row(project, job, full, given.test) for job in jobs.values()]
    rows.sort(key=lambda row: (row["ended"], row["id"]))
    for condition in given.where:
        rows = selected(condition, rows, "--where ")
    if given.groups:
        rows = grouped(rows)
    if given.by and rows:
        rows.sort(key=_rank(given.by, rows))
    if as_json:
        print(json_of(rows if given.groups else [*map(_dated, rows)]), flush=True)
        for row in rows:
            if row.get("problem"):
                leave(exit_status.FAILED, f"jobs.py: job {row['id']}: {row['problem']}")
        return
    if given.groups:
        _print_groups(rows)
        return
    width = max((len(row["result"]) for row in rows), default=0)
    for row in rows:
        line = f"{row['id']}  {row['state']:11}  {_local(row['ended']):16}  "
        line = f"{line}{row['result']:{width}}  {jobs[row['id']].words}".rstrip()
        print(line + (row["about"] and f"  [{row['about']}]"))
    count = Counter(row["state"] for row in rows)
    said = ", ".join(f"{n} {state}" for state, n in sorted(count.items()))
    total = f"{counted(len(rows), 'job')}: {said}".removesuffix(": ")
    print(total if jobs else "there are no jobs yet")


CONDITION = re.compile(r"\s*([\w-]+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")
"""A setting or one of OWN, a sign and a value: `lr>1e-3`."""

OWN = ("script", "state")  # what a job has beside its settings

SIGNS = {"=": eq, "!=": ne, "<": lt, ">": gt, "<=": le, ">=": ge}


def selected(condition: str, rows: list[dict[str, Any]], flag: str = "") -> list[dict[str, Any]]:
    """Return the rows whose `settings`, `script` or `state` fulfil a condition, which a flag has
    given; numbers are compared as such. Raises SettingsError."""
    found = CONDITION.fullmatch(condition)
    if not found:
        raise SettingsError(f"{flag}{condition}: must look like 'lr>1e-3' or state=finished")
    name, holds, wanted = found[1].replace("-", "_"), SIGNS[found[2]], found[3]
    known = sorted({*OWN, *(name for row in rows for name in row["settings"])})
    if rows:
        require_known([name], known, f"{flag}{condition}: no such setting")
    if name == "state":
        require_known([wanted], STATES, f"{flag}{condition}: no such state")
    if name == "script" and rows:
        scripts = sorted({row["script"] for row in rows})
        require_known([wanted], scripts, f"{flag}{condition}: none of these jobs has it")
    types = {type(row["settings"].get(name)) for row in rows}
    if types - {type(None)} == {bool} and wanted not in ("on", "off"):
        raise SettingsError(f"{flag}{condition}: {name} is on or off")

    def fulfils(row: dict[str, Any]) -> bool:
        """Compare what a row has with what is wanted, as numbers if both are."""
        value = row[name] if name in OWN else row["settings"].get(name)
        own = as_text(value)
        with suppress(ValueError):
            if own.endswith("e") == wanted.endswith("e"):  # both are epochs, or neither is
                return bool(holds(*(float(text.removesuffix("e")) for text in (own, wanted))))
        if holds in (eq, ne):
            return bool(holds(own, wanted))
        if value is not None:
            line = f"{name} is {own} in some jobs, which cannot be compared with {wanted}"
            raise SettingsError(f"{flag}{condition}: {line}")
        return False

    return [*filter(fulfils, rows)]


def fulfilling(given: str, jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs that fulfil conditions with commas between them: `lr=1e-3,model=mlp`, where
    `state` is how the attempt that counts has ended. Raises as `selected` does."""
    rows: list[dict[str, Any]] = [
        {"job": job, "script": job.script, "settings": job.plain}
        | {"state": job.latest and attempts.status_of(job.latest)}
        for job in jobs
    ]
    for condition in re.split(r",(?=[\w-]+\s*[!<>=])", given):
        rows = selected(condition, rows)
    return [row["job"] for row in rows]


def grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for the jobs that differ in repeats alone, such as the seed: their `jobs`, how
    many are in each of the `states`, the `metrics` in the mean of those that finished with the
    present code, and over how many of them (`n`, and `of` for each metric); those that confirm what
    others have chosen count only where there are no others."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        row["confirms"] = confirms(row["settings"])
        row["settings"] = without_repeats(row["script"], row["settings"])
        alike.setdefault(str((row["script"], row["settings"])), []).append(row)
    return [_means(own) for own in alike.values()]


def confirms(settings: Mapping[str, Any]) -> bool:
    """Return whether a job with these settings confirms what others have chosen."""
    seed = settings.get("seed")
    return isinstance(seed, int) and seed >= CONFIRMING


def without_repeats(script: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a script's job but those that are repeats, such as the seed."""
    of = roles(identity.kind_of(script))
    return {name: value for name, value in settings.items() if of.get(name) != "repeat"}


def _means(alike: list[dict[str, Any]]) -> dict[str, Any]:
    """The row of jobs that differ in repeats alone."""
    values: dict[str, list[float]] = {}
    counting = [row for row in alike if row["state"] in ("finished", "unsent")]
    choosing = [row for row in counting if not row["confirms"]]
    for name, value in (item for row in choosing or counting for item in row["metrics"].items()):
        values.setdefault(name, []).append(value)
    metrics = _declared(alike[0]["script"]).items()
    logarithmic = {name for name, metric in metrics if metric.scale == "log"}

    def mean(name: str, each: list[float]) -> float:
        """The mean as figures have it, which is geometric for a logarithmic metric."""
        known = {name, name.removeprefix("best_").partition("_")[2]}
        is_log = known & logarithmic and min(each) > 0
        return geometric_mean(each) if is_log else fmean(each)

    return {
        "jobs": [row["id"] for row in alike],
        "states": Counter(row["state"] for row in alike),
        "metrics": {name: mean(name, each) for name, each in values.items()},
        "n": max(map(len, values.values()), default=0),
        "of": {name: len(each) for name, each in values.items()},
        "script": alike[0]["script"],
        "settings": alike[0]["settings"],
    }


def _print_groups(groups: list[dict[str, Any]]) -> None:
    """Print groups of jobs by the settings in which they differ."""
    names = {name for group in groups for name in group["settings"]}
    texts = {name: {as_text(each["settings"].get(name, "")) for each in groups} for name in names}
    for group in groups:
        states = ", ".join(f"{n} {state}" for state, n in sorted(group["states"].items()))
        own = group["settings"].items()
        words = " ".join(f"{n}={as_text(v)}" for n, v in own if len(texts[n]) > 1) or "all jobs"
        best = _results(group["metrics"], _declared(group["script"]))
        few = {k: f" (n = {n})" for k, n in group["of"].items() if n < group["n"]}
        each = ", ".join(f"{k} {v:.4g}{few.get(k, '')}" for k, v in best.items())
        means = f"  mean of {group['n']}: {each}" if best else ""
        print(f"{states}{means}  {words}")
    print(counted(len(groups), "group"))


def _declared(script: str) -> Mapping[str, Metric]:
    """The metrics that a script declares; none if it is gone."""
    return identity.read(script).metrics if identity.kind_of(script) else {}


def _rank(by: str, rows: list[dict[str, Any]]) -> Callable[[dict[str, Any]], float]:
    """What rows are sorted by, the best validation result first. Raises SettingsError for a metric
    that no job has, and for test results, by which nothing is chosen."""
    key = named_result(f"--by {by}", by, {key for row in rows for key in row["metrics"]})
    scripts = sorted({row["script"] for row in rows if key in row["metrics"]})
    declared = {name: metric for script in scripts for name, metric in _declared(script).items()}
    metric = declared.get(key.removeprefix("best_val_"))
    gone = [script for script in scripts if not identity.kind_of(script)]
    if gone == scripts and not metric and key not in costs.NAMES:
        raise SettingsError(f"--by {by}: {gone[0]}.py, which said what is better, is gone")
    sign = -1 if metric and metric.better == "higher" else 1

    def rank(row: dict[str, Any]) -> float:
        value = sign * float(row["metrics"].get(key, math.nan))
        return math.inf if math.isnan(value) else value

    return rank


def named_result(given: str, name: str, results: Iterable[str]) -> str:
    """Return which of some results, such as best_val_loss, a name means: `loss`, `val_loss`.
    Raises SettingsError, which names what was `given`, if it is none, or a test result."""
    every = {*results}
    known = sorted(key for key in every if not key.startswith("test_"))
    for key in (name, f"best_{name}", f"best_val_{name}"):
        if key in known:
            return key
    hint = did_you_mean(name, [key.removeprefix("best_val_") for key in known])
    is_test = name in every or name.startswith("test_")
    why = "test results choose nothing" if is_test else "no job has this result"
    raise SettingsError(f"{given}: {why}; {hint}")


def _row(project: Project, job: Job, full: bool, test: bool) -> dict[str, Any]:
    """What is listed of a job, with `ended` in seconds since 1970; the metrics of the attempt that
    counts only if it is to be `full`, since reading journals takes long."""
    state, about = job.state(project.view)
    latest = job.latest
    if state == "paused" and latest:  # perhaps for good, by `find lr`
        about = journal.tag_of(latest, identity.TAG).partition(";")[0] or about
    outcome = journal.record_of(latest, layout.OUTCOME) if latest else {}
    finished = outcome.get("status") == "finished"
    found: dict[str, Any] = {"ended": 0.0, "result": "", "metrics": {}, "problem": "", "audit": {}}
    here = latest and (state != "finished" or (finished and (not job.folder or job.folder.begun)))
    if here and latest:
        found |= on_disk(latest, None) if full else {"ended": journal.last_time(latest) / 1000}
        found["result"] = str(outcome.get("said", "")) if finished else ""
    elif stored := project.finished_in_store(job):
        found |= {"ended": stored["ended"] / 1000, "metrics": results(stored)}
        found["result"] = as_line(found["metrics"])
    metrics = found["metrics"].items()
    return {
        "id": job.id,
        "state": state,
        "about": about,
        "ended": found["ended"],
        "result": parts_of(found["result"], test),
        "metrics": {k: v for k, v in metrics if test or not k.startswith("test_")},
        "problem": found["problem"],
        "audit": found["audit"],
        "script": job.script,
        "settings": job.plain,
        "folder": str(latest) if here else None,
    }


# `python jobs.py show JOB`: all there is to know of one job.


def print_details(project: Project, given: Namespace) -> None:
    """Print a job's settings, its attempts, and the command that runs it."""
    job = project.one(given.job)
    state, about = job.state(project.view)
    found = [on_disk(path, job.folder) for path in job.attempts]
    here = {attempt["code"] for attempt in found}
    found += [
        in_store(stored, job.folder)
        for stored in job.stored
        if stored["tags"].get("code", "") not in here
    ]
    found.sort(key=lambda attempt: attempt["ended"])
    if not job.folder:  # today's settings cannot express it, so it has other code
        found = [attempt | {"change": job.problem} for attempt in found]
    if given.json:
        content = {
            "id": job.id,
            "state": state,
            "about": about,
            "script": job.script,
            "settings": job.plain,
            "command": job.command,
            "ancestors": _ancestors(project, job),
            "problem": job.problem,
            "attempts": [*map(_dated, found)],
        }
        print(json_of(content))
        return
    print(f"job {job.id}: {state}" + (about and f" ({about})"))
    print(f"command: {job.command or f'none ({job.problem})'}")
    if ancestors := _ancestors(project, job):
        print(f"ancestors: {', '.join(ancestors)}")
    print()
    if job.settings:
        _print_settings(job)
    for attempt in found:
        _print_attempt(attempt)


def _ancestors(project: Project, job: Job) -> list[str]:
    """The values of --init-from that led to a job, its own first."""
    found = list[str]()
    with suppress(SettingsError):  # one that was removed
        while re.fullmatch(Weights.PATTERN, given := str(job.plain.get("init_from"))):
            found.append(given)
            job = project.one(Weights(given).job)
    return found


def _print_settings(job: Job) -> None:
    """A line for each setting, with its default if the value differs from it."""
    known = flags.of(type(job.folder.settings)) if job.folder else {}
    print("settings")
    width = max(map(len, job.plain), default=0)
    for name, value in job.plain.items():
        has_default = name in known and not known[name].required
        default = as_plain(known[name].default) if has_default else value
        usual = f"  (default: {as_text(default) or 'empty'})" if value != default else ""
        text = identity.CONTROL.sub("?", as_text(value))
        print(f"  {name:{width}}  {text}{usual}".rstrip())


def _print_attempt(attempt: Attempt) -> None:
    folder, tags, audit = attempt["folder"], attempt["tags"], attempt["audit"]
    name = Path(folder).name if folder else attempts.name(attempt["code"])
    found = Evidence(attempt["change"], unchecked=attempt["unchecked"])
    fits = "with code that was accepted as equal to the present one"
    fits = found.remark or (fits if attempt["accepted"] else "with the present code and data")
    print(f"\nattempt {name or 'without code'}: {attempt['state']}, {fits}")
    commit = tags.get("commit", "")
    if commit not in ("", "none") and tags.get("dirty") == "true":
        commit += ", with changes"
    lines = {
        "until" if attempt["state"] == "running" else "ended": _local(attempt["ended"]),
        "said": "" if attempt["state"] == "finished" else attempt["said"],
        "results": as_line(attempt["metrics"]),
        "cost": as_line(attempt["cost"]),
        **{key: tags.get(key, "") for key in ("inputs", "host", "device", "processes")},
        "commit": commit,
        "folder": shown(Path(folder)) if folder else "",
        "data root": attempt["data_root"],
        "MLflow run": attempt["run_id"],
        "audit": audit and f"{audit['status']} on {audit['on'][:10]}: {audit['said']}",
        "problem": attempt["problem"],
    }
    for what, text in lines.items():
        if text:
            print(f"  {what:10}  {text}")


def sync(project: Project, given: Namespace) -> int:
    """Send the results of the jobs on this disk that the store lacks; return the exit status."""
    return courier.sync(project.runs_root, stored_jobs.known(experiment_name()), given.json)
