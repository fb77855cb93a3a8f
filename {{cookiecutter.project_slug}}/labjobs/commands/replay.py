"""Attempts that run again in a temporary folder, and whether the results are the same, bit for bit.
`repeat`: from their stored code; `audit`: from the present code, up to the first evaluation;
`accept --verify` (staleness.py): from the present code, as accepted. The packages are those that
are installed now.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, NamedTuple
from zipfile import BadZipFile

from labjobs import exit_status, layout
from labjobs.cli.flags import as_text, option
from labjobs.commands.inventory import Job, Project
from labjobs.errors import JobError, SettingsError, cause, require
from labjobs.files import CODE, PROJECT, json_of, record, write_shared
from labjobs.job import attempts, code_evidence, data_evidence, identity, journal, runtime
from labjobs.job.data_evidence import of_text
from labjobs.job.folder import JobFolder
from labjobs.job.identity import PURPOSE
from labjobs.job.provenance import CODE_COPY, ENGINE_COPY, INSTALLED
from labjobs.job.terminal import Interruption, counted
from labjobs.privacy import scrub
from labjobs.results import figure_files
from labjobs.sweeps import containers
from labjobs.tracking import copies, costs

ELAPSED = "elapsed_seconds"  # the metric that each evaluation has: the seconds since the job began


@dataclass(frozen=True)
class Recorded:
    """An attempt at a job, in its folder `path`, with all that is needed to run it again."""

    path: Path

    @property
    def job(self) -> str:
        """The id of the job."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return f"{self.job}/{self.path.name}"

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """What settings.json holds."""
        return journal.record_of(self.path, layout.SETTINGS)

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of its journal. Raises JobError if it is damaged, OSError."""
        if lines := journal.lines_of(self.path):
            return lines
        raise JobError(f"{self.path / layout.JOURNAL} is empty")

    def tag(self, name: str) -> str:
        """Return a tag as it was first logged, since a job may have gone on elsewhere; empty if it
        was not."""
        found = (line["tags"][name] for line in self.lines if name in line.get("tags", {}))
        return str(next(found, ""))

    @property
    def conditions(self) -> dict[str, str]:
        """Where it ran, as far as that can change bits."""
        names = ("container", "device", "gpu", "threads", "precision")
        return {name: self.tag(name) for name in names}

    @property
    def versions(self) -> dict[str, str]:
        """The versions of packages, by name, and Python's; empty if the list is missing."""
        lines: list[str] = []
        with suppress(JobError):
            lines = self.copy(INSTALLED).read_text("utf-8").splitlines()
        packages = (line.removeprefix("# ").replace("==", " ").rpartition(" ") for line in lines)
        return {name: version for name, _, version in packages}

    def copy(self, name: str) -> Path:
        """Return where a copy lies that settings.json names: of its code, of the engine, or the
        list of its packages. Raises JobError if there is none."""
        kept = self.about.get(name)
        file = self.path.parent.parent / str(kept)
        if not kept or not file.is_file():
            what = "list of packages" if name == INSTALLED else "code"
            raise JobError(f"its {what} is not in {self.path.parent.parent.name}/")
        return file

    @cached_property
    def evaluated(self) -> dict[int, float]:
        """Which of these lines are evaluations, with the seconds that had passed until then."""
        logged = enumerate(line.get("metrics", {}) for line in self.lines)
        return {number: metrics[ELAPSED] for number, metrics in logged if ELAPSED in metrics}

    def check(self, job: JobFolder[Any] | None = None) -> None:
        """Raise JobError if it cannot be repeated, by today's folder of the job if it is given."""
        settings = self.about.get("settings")
        if not settings:
            raise JobError("its settings.json is damaged or missing")
        if code_evidence.digest(self.path) == code_evidence.MIXED:
            raise JobError(
                "it was continued with changed code, so it belongs to no version of the code"
            )
        if settings.get("minutes"):
            raise JobError("its length is in minutes, so its number of steps varies")
        of_lines = (line.get("tags", {}).get("threads") for line in self.lines)
        threads = [*dict.fromkeys(filter(None, of_lines))]
        if self.tag("device") == "cpu" and len(threads) > 1:
            raise JobError(f"it ran with {' and then '.join(threads)} threads; bits depend on that")
        if (count := self.tag("processes")) not in ("", "1"):
            raise JobError(f"it ran in {count} processes, and only one would be started")
        places = job.places if job else data_evidence.last_places(self.path)
        change, why = data_evidence.compare(self.path, places)
        if change:
            raise JobError(f"its data has changed ({change})")
        if why:
            raise JobError(f"its data cannot be checked: {why}")

    def flags(self, job: JobFolder[Any] | None = None, until: int | None = None) -> list[str]:
        """Return its settings and those flags that can change bits, as on the command line; it is
        to pause at a step, if it trains. With today's folder of the job, its settings have today's
        names, and its data lies where it does now."""
        recorded = self.about.get("runtime", {})
        words = {**(identity.identity(job.settings) if job else self.about["settings"])}
        words |= {name: value for name, value in recorded.items() if name in runtime.MATTER}
        words["threads"] = self.tag("threads") or "auto"
        if (every := self.lines[0]["start"]["log_every"]) != "auto":  # jobs without steps lack it
            words["log_every"] = every
        words["data_root"] = (job.places if job else data_evidence.last_places(self.path)).data_root
        if self.tag("device") == "cpu":
            words["device"] = "cpu"
        if until and words.keys() & {*runtime.LENGTHS}:
            words["pause_after"] = until
        return [f"{option(name)}={as_text(value)}" for name, value in words.items()]


class Repeated(NamedTuple):
    """The outcome of repeating an attempt: `same`, `different` or `not repeated`; in words, what is
    the same, what differs first, or why it was not repeated; what else differs from the record,
    such as devices and versions of packages; and the last step, unless it ran to its end."""

    status: str
    said: str
    conditions: tuple[str, ...] = ()
    until: int | None = None

    @property
    def how(self) -> str:
        """How far it was repeated."""
        return "to its end" if self.until is None else f"up to step {self.until}"


def repeated(
    before: Recorded, folder: Path, job: JobFolder[Any] | None = None, whole: bool = True
) -> Repeated:
    """Run an attempt again in a temporary folder, where others may have run, and compare.

    It runs from its stored code or, with today's folder of the job, from the present code, which
    may log more than it did; to its end, or only as far as its first evaluation. Raises JobError if
    that cannot be done, OSError.
    """
    before.check(job)
    # An evaluation in the background is logged some steps later.
    ends = len(before.lines) if whole else next(iter(before.evaluated), len(before.lines)) + 1
    lines = before.lines[:ends]
    until = None if whole else max((line.get("step", 0) for line in lines), default=0)
    if not (was := curve_points(lines)):
        raise JobError("its journal has nothing to compare with")
    code = CODE if job else write_code(before, folder / "code" / before.job)
    # Another job may have needed this one, with another attempt.
    shutil.rmtree(folder / "runs" / before.job, ignore_errors=True)
    copy_inputs(before, folder / "runs")
    after = run_again(before, code, before.flags(job, until), folder)
    now = curve_points(after.lines)
    if job:
        now = {point: now[point] for point in was if point in now}
    difference, arrays = "", dict[str, int]()
    if found := first_difference(was, now):
        difference = "{1} at step {0} was {2} and is now {3}".format(*found)
    elif whole:
        arrays, difference = compare_outputs(before.path, after.path)
    same = {"points of the curves": len(was), **arrays}
    said = difference or ", ".join(f"{n} {what}" for what, n in same.items())
    status = "different" if difference else "same"
    kept = (layout.BEST, layout.PREDICTIONS) if whole else ()
    lost = [n for n in kept if (after.path / n).exists() and not (before.path / n).exists()]
    lacks = tuple(f"{name} is not there, so it was not compared" for name in lost)
    return Repeated(status, said, lacks + _conditions(before, after), until)


def write_code(attempt: Recorded, folder: Path) -> Path:
    """Write the code of an attempt and its engine into a folder, and return it. Raises JobError if
    a copy is missing, or is not what was stored."""
    for archive in (attempt.copy(CODE_COPY), attempt.copy(ENGINE_COPY)):
        try:
            with tarfile.open(archive) as packed:
                inside = (tarfile.data_filter(member, str(folder)) for member in packed)
                members = [member for member in inside if member.isfile()]
                opened = ((member.name, packed.extractfile(member)) for member in members)
                copied = {name: file.read().decode() for name, file in opened if file}
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            raise JobError("the copy of its code is damaged") from error
        if of_text(repr(copied)) != archive.name.removesuffix(".tar.gz").split("-")[-1]:
            raise JobError("the copy of its code was changed after it was stored")
        for name, text in copied.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8", newline="")
    return folder


def copy_inputs(attempt: Recorded, runs: Path) -> None:
    """Copy the attempts that an attempt is derived from, and those that they are derived from, with
    what is known of their code and the lists of what they have read. Raises JobError if one is
    missing."""
    kept = attempt.path.parent.parent
    _, *inputs = attempts.with_ancestors(attempt.path)
    for source in inputs:
        name = source.relative_to(kept)
        if not attempts.begun(source):
            raise JobError(f"its input, the attempt {name}, is missing")
        shutil.copytree(source, runs / name, dirs_exist_ok=True)
    for folder in (layout.DATA_LISTS, layout.CODES) if inputs else ():
        if (kept / folder).is_dir():
            only_texts = shutil.ignore_patterns("*.tar.gz")
            shutil.copytree(kept / folder, runs / folder, ignore=only_texts, dirs_exist_ok=True)


def run_again(attempt: Recorded, code: Path, flags: Sequence[str], temporary: Path) -> Recorded:
    """Run the script of an attempt again, as it is in the folder `code`; return the new attempt,
    which like all that is written lies in a temporary folder. Raises JobError if it fails, OSError.
    """
    runs = temporary / "runs"
    script = str(code / f"{attempt.about['script']}.py")
    # Without variables that would make it write elsewhere, or log something else.
    elsewhere = (copies.TABLES, copies.VARIABLE, PURPOSE)
    env = {name: value for name, value in os.environ.items() if name not in elsewhere}
    env |= {
        "MLFLOW_TRACKING_URI": f"sqlite:///{temporary}/mlflow.db",
        "PROJECT_FOLDER": str(PROJECT),
        "TMPDIR": str(temporary),
    }
    python = containers.again(attempt.tag("container"))
    words = [*python, script, *flags, f"--runs-root={runs}", "--quiet"]
    status, said = run(words, PROJECT, env)
    if status not in (exit_status.DONE, exit_status.NOT_UPLOADED):
        raise JobError(f"it ended with status {status}: {said}")
    found = [path.parent for path in (runs / attempt.job).glob(f"*/{layout.JOURNAL}")]
    if len(found) != 1:
        raise JobError("with this code, it is another job")
    return Recorded(found[0])


def _conditions(before: Recorded, after: Recorded) -> tuple[str, ...]:
    """What differed between two attempts: devices, threads, number formats, versions."""
    was, now = ({**attempt.conditions, **attempt.versions} for attempt in (before, after))
    return tuple(
        f"{name} {was.get(name) or 'none'}, now {now.get(name) or 'none'}"
        for name in sorted({*was, *now}, key=str.lower)
        if was.get(name) != now.get(name)
    )


def run(
    words: Sequence[str], folder: Path, env: Mapping[str, str], files: Sequence[int] = ()
) -> tuple[int, str]:
    """Run a command in a folder, which holds these files; return its exit status and the last line
    that it printed. When this process is interrupted, so is the command. Raises OSError if there is
    no such command."""
    with TemporaryFile() as output:  # a pipe would stay open as long as the job's courier runs
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=files,
            start_new_session=True,
        )
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        output.seek(0)
        said = scrub(output.read().decode(errors="replace"))
    return status, said.strip().rpartition("\n")[2]


# Where results first differ: in the curves, the weights or the outputs for each test example.

OTHER_EACH_TIME = (ELAPSED, "data_wait_fraction", "mfu", "find_", *costs.NAMES)
"""Beginnings of the names of metrics that measure time or the machine."""

Point = tuple[int, str]
"""A step and the name of a metric."""


def curve_points(lines: Iterable[Mapping[str, Any]]) -> dict[Point, str]:
    """Return the points of all metrics that are the same each time, in the order in which they were
    logged; each value is a text that is different for different floats."""
    return {
        (line["step"], name): repr(value)
        for line in lines
        for name, value in line.get("metrics", {}).items()
        if not (name.startswith(OTHER_EACH_TIME) or name.endswith("_per_second"))
    }


def first_difference(
    before: Mapping[Point, str], after: Mapping[Point, str]
) -> tuple[int, str, str, str] | None:
    """Return the first difference between points, by step: the step, the metric, and its value
    before and after, `missing` if it has none; None if all are the same."""
    for step, name in sorted({**before, **after}, key=lambda point: point[0]):
        was, now = (each.get((step, name), "missing") for each in (before, after))
        if was != now:
            return step, name, was, now
    return None


def compare_outputs(before: Path, after: Path) -> tuple[dict[str, int], str]:
    """Return the number of arrays in each file of two attempts, and the first one whose bits are
    not the same, in words. Raises JobError if a file is damaged, OSError if it cannot be read."""
    counts: dict[str, int] = {}
    for name in (layout.BEST, layout.PREDICTIONS):
        was, now = (_arrays(attempt / name) for attempt in (before, after))
        if not (before / name).exists():  # as of a job that was adopted without its weights
            continue
        for array in was | now:
            if was.get(array) != now.get(array):
                return counts, f"{name}: {array} is not the same"
        if was:
            counts[f"arrays in {name}"] = len(was)
    return counts, ""


def _arrays(file: Path) -> dict[str, tuple[Any, ...]]:
    """The arrays in a file of weights or of predictions, by name: type, shape and bytes, since NaN
    is not equal to NaN, and 0.0 is equal to -0.0; none if there is no such file."""
    if not file.exists():
        return {}
    if file.name == layout.BEST:
        import torch  # slow, like NumPy
        from torch.utils._pytree import tree_leaves_with_path

        from labjobs.training import checkpoints

        kept = tree_leaves_with_path(checkpoints.load(file)["models"])
        found = {".".join(str(key).strip("[]'") for key in path): each for path, each in kept}
        return {
            name: (each.dtype, each.shape, each.reshape(-1).view(torch.uint8).numpy().tobytes())
            for name, each in found.items()
            if isinstance(each, torch.Tensor)
        }
    import numpy as np

    try:
        with np.load(file) as arrays:
            return {name: (each.dtype, each.shape, each.tobytes()) for name, each in arrays.items()}
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise JobError(f"{file.name} is damaged") from error


# `repeat` and `audit`.


def repeat_jobs(project: Project, given: argparse.Namespace) -> int:
    """Repeat jobs and print the outcome of each; return the exit status, 0 if all are the same.
    Raises SettingsError if a job or a figure does not exist."""
    every = named(project, given.what)
    return _all(every, lambda job, folder: repeated(finished(job), folder), given)


ABSENT = "it has not run in this folder of runs"


def finished(job: Job) -> Recorded:
    """Return the finished attempt that counts: the one with the present code, or else the latest.
    Raises JobError if there is none."""
    if not job.attempts:
        raise JobError(ABSENT)
    ended = [path for path in job.attempts if attempts.status_of(path) == "finished"]
    if not ended:
        raise JobError("it has not finished")
    present = [path for path in ended if job.folder and path == job.folder.path]
    return Recorded([*ended, *present][-1])


COUNT = re.compile("[0-9]{1,3}")
"""A number of jobs; the beginning of an id that is a number needs more digits."""


def audit_jobs(project: Project, given: argparse.Namespace) -> int:
    """Audit jobs that are named, or drawn at random, note what was found with each, and print it;
    return the exit status, 0 if all are the same. Raises SettingsError if a job or a figure does
    not exist, JobError if none can be drawn."""
    if len(given.what) > 1 or not COUNT.fullmatch(given.what[0]):
        return _all(named(project, given.what), _audit, given)
    require(int(given.what[0]) > 0, "audit", given.what[0], "at least 1 job")
    every = {
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
    if not (job.attempts and job.folder):
        raise JobError(job.problem if job.attempts else ABSENT)
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
    jobs: Mapping[str, Job],
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
                print(f"{given.command}ing job {job_id}: {job.words}", flush=True)
            try:
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


def named(project: Project, words: Iterable[str]) -> dict[str, Job]:
    """Return the jobs that are named, or whose results a figure shows, by id; a job of a figure may
    be unknown here, and those that diverged are left out. Raises SettingsError if a job or a figure
    does not exist."""
    found: dict[str, Job] = {}
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
            job = Job(job_id)
            with suppress(SettingsError):
                job = project.one(job_id)
            if job.latest and attempts.status_of(job.latest) == "diverged":
                print(f"jobs.py: job {job_id} of {figure} is left out: diverged", file=sys.stderr)
            else:
                found[job_id] = job
    return found
