"""Repeats the first steps and the first evaluation of a job: are they the same, bit for bit?"""

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labjobs.cli import flags
from labjobs.cli.flags import option
from labjobs.cli.values import as_text
from labjobs.errors import JobError
from labjobs.job import lines
from labjobs.job.folder import JobFolder
from labjobs.job.identity import identity, inputs
from labjobs.job.runtime import LENGTHS
from labjobs.paths import CODE
from labjobs.tracking.address import last_line

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
    declared = lines.record_of(job.latest, "settings.json").get("metrics", {})
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
    with (attempt / lines.FILE).open("rb") as file:
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
    (journal,) = folder.glob(f"*/*/{lines.FILE}")
    return _journal(journal.parent)[1]
