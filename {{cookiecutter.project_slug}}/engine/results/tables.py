"""Results as tables: what a figure or a notebook asks for.

    jobs = results.jobs("my-project")
    jobs.groupby(["model", "lr"])["test_accuracy"].mean()
    curves = results.curves(jobs, "val_accuracy")

pandas is imported when a table is first asked for.
"""

import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile

from engine.cli.settings import Runtime
from engine.errors import cause
from engine.results.style import names
from engine.tracking import reading, stored_jobs

if TYPE_CHECKING:
    import pandas as pd

WORDS = {"True": True, "False": False, "None": None}

OWN = ("job_id", "run_id", "ended", "diverged")
"""What a table of jobs has beside their settings, metrics and tags."""


class Predictions(NamedTuple):
    """Of each test example its class and what the model took it for, as numbers (N,), and the
    names of all classes (K,)."""

    labels: Any
    guesses: Any
    classes: Any


class NoResults(Exception):
    """There is nothing to draw. Its text is one line: what is missing."""


def jobs(experiment: str) -> "pd.DataFrame":
    """One row per job, by job id: its settings, last metrics and tags, each a column.

    The jobs are those that finished, and those that `diverged`, as that column says: they have
    settings, but no metrics. A setting that a job is older than has its neutral value. Of a
    setting, a metric and a tag with the same name the setting is kept (`lr`); `hardware` is the tag
    that tells which device it was. The names of the settings are in `attrs["settings"]`. Raises
    NoResults where no job has finished, ConnectionError where the store cannot be read.
    """
    found = stored_jobs.jobs(experiment)
    if all(job["diverged"] for job in found):
        raise NoResults(_why_none(experiment))
    import pandas as pd

    table = pd.DataFrame(map(_row, found))
    settings = _settings(found)
    for name, values in settings.items():
        table[name] = pd.Series(values, dtype=object if None in values else None)
    table.attrs["settings"] = sorted(settings)
    return table


def _row(job: stored_jobs.StoredJob) -> dict[str, Any]:
    metrics = {} if job["diverged"] else job["metrics"]
    own = {key: value for key, value in job.items() if key in OWN}
    return job["tags"] | metrics | own | {"hardware": job["tags"].get("device", "unknown")}


def _settings(found: list[stored_jobs.StoredJob]) -> dict[str, list[Any]]:
    """Each setting's values: as they were before they were stored as text, if that goes for all."""
    older: dict[str, Any] = {}
    for job in found:
        older |= json.loads(job["tags"].get("neutral", "{}"))
    settings: dict[str, list[Any]] = {}
    for name in set(older).union(*(job["params"] for job in found)):
        texts = [job["params"].get(name) for job in found]
        values = [older.get(name) if text is None else _value(text) for text in texts]
        words = any(isinstance(value, str) for value in values)
        told = [value if text is None else text for value, text in zip(values, texts, strict=True)]
        settings[name] = told if words else values
    return settings


def curves(jobs: "pd.DataFrame", key: str) -> "pd.DataFrame":
    """The history of a metric in the jobs that finished: settings, `job_id`, `step` and `value`.

    A step logged twice counts once, as last logged. Raises NoResults where no job has the metric.
    """
    import pandas as pd

    of_run = jobs[~jobs["diverged"]].set_index("run_id")
    points = _points(tuple(of_run.index), key)
    if points.empty:
        raise NoResults(f"no finished job has the metric {key}")
    rows = of_run.index.get_indexer(pd.Index(points["run_id"]))
    own = of_run[["job_id", *jobs.attrs["settings"]]].take(rows).reset_index(drop=True)
    return own.join(points[["step", "value"]])


@cache
def _points(runs: tuple[str, ...], key: str) -> "pd.DataFrame":
    """A metric's history in runs that are over, so it is read but once."""
    import pandas as pd

    points = pd.DataFrame(stored_jobs.histories(runs, key), columns=["run_id", "step", "value"])
    return points.drop_duplicates(["run_id", "step"], keep="last", ignore_index=True)


def samples(jobs: "pd.DataFrame", by: Sequence[str], metric: str) -> "dict[str, pd.Series[Any]]":
    """A metric's values, by seed, in the jobs with the same settings, by those as text: the largest
    mean first. Raises NoResults where no job has the metric."""
    found = {
        name: repeated.set_index("seed")[metric]
        for name, repeated in groups(having(jobs, metric), by).items()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1].mean()))


def groups(jobs: "pd.DataFrame", by: Sequence[str]) -> "dict[str, pd.DataFrame]":
    """The jobs with the same settings, by those as text: `mlp, 0.001`."""
    import numpy as np

    texts = [names(jobs[name]) for name in by]
    rows = zip(*(jobs[name] for name in by), strict=True)
    keys = [", ".join(of[value] for of, value in zip(texts, row, strict=True)) for row in rows]
    return {key: jobs[np.array(keys) == key] for key in sorted({*keys})}


def having(jobs: "pd.DataFrame", metric: str) -> "pd.DataFrame":
    """The jobs that have a metric, and a finite one. Raises NoResults where there are none."""
    import numpy as np

    if metric not in jobs or not np.isfinite(jobs[metric]).any():
        raise NoResults(f"no finished job has the metric {metric}")
    finite: pd.DataFrame = jobs[np.isfinite(jobs[metric])]
    return finite


def best(jobs: "pd.DataFrame", metric: str) -> str:
    """The id of the job in which a metric was best at any step: a loss lowest, others highest. Of
    several the first."""
    history = curves(jobs, metric)
    sign = -1 if metric.endswith("loss") else 1
    of_job = (sign * history["value"]).groupby(history["job_id"]).max()
    return str(of_job.idxmax())


def times_to(jobs: "pd.DataFrame", metric: str, target: float) -> "pd.DataFrame":
    """The jobs with the seconds of training and evaluation until a metric was first at least the
    target (`reached`, NaN if it never was) and until the job's end (`ended`). One that diverged
    would never have come there: its end is that of the longest."""
    keys = ["job_id", "step"]
    seconds = curves(jobs, "epoch_seconds").set_index(keys)["value"].groupby("job_id").cumsum()
    values = curves(jobs, metric).set_index(keys)["value"]
    first = seconds[values.reindex(seconds.index) >= target].groupby("job_id").min()
    last = seconds.groupby("job_id").max()
    ended = jobs["job_id"].map(last).fillna(last.max())
    return jobs.assign(reached=jobs["job_id"].map(first), ended=ended)


def predictions(job: "pd.DataFrame") -> Predictions:
    """What the best weights of the one job in a table made of the test examples, as run.py has kept
    it.

    Raises NoResults if it has kept nothing that can be read.
    """
    import numpy as np

    (row,) = job.to_dict("records")
    try:
        file = stored_jobs.file(row["run_id"], row["job_folder"], "predictions.npz")
        with np.load(BytesIO(file)) as kept:
            return Predictions(*(kept[name] for name in Predictions._fields))
    except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
        why = f"cannot read the predictions of the job {row['job_id']}"
        raise NoResults(f"{why}: {cause(error)}") from error


def provenance(jobs: "pd.DataFrame") -> dict[str, Any]:
    """Where a figure of these jobs comes from, as JSON has it: their ids, the commits of their code
    and whether it was changed since, the settings that they share and those they differ in, and
    when the newest of them ended."""
    varied = differing(jobs)
    known = {field.name for field in fields(Runtime)}
    shared = [name for name in jobs.attrs["settings"] if name not in known.union(varied)]
    newest = datetime.fromtimestamp(int(jobs["ended"].max()) / 1000, UTC)
    return {
        "jobs": sorted(jobs["job_id"]),
        "commits": sorted({_commit(job) for _, job in jobs.iterrows()}),
        "shared": {name: jobs[name].tolist()[0] for name in shared},
        "varied": {name: sorted(set(jobs[name].tolist()), key=str) for name in varied},
        "newest": newest.isoformat(timespec="seconds"),
    }


def _commit(job: "pd.Series[Any]") -> str:
    changed = " with changes" if job.get("dirty") == "true" else ""
    return f"{job.get('commit', 'unknown')}{changed}"


def differing(jobs: "pd.DataFrame", but: Collection[str] = ()) -> list[str]:
    """The settings that the jobs differ in, but for those named or of `Runtime`."""
    known = {*but, *(field.name for field in fields(Runtime))}
    others = [name for name in jobs.attrs["settings"] if name not in known]
    return [name for name in others if jobs[name].nunique(dropna=False) > 1]


def comparable(jobs: "pd.DataFrame", but: Collection[str]) -> "pd.DataFrame":
    """The jobs that differ in nothing but the settings named: the set in which most finished, or
    the newest.

    Raises NoResults where the jobs have no such setting.
    """
    for name in but:
        if name not in jobs:
            raise NoResults(f"the finished jobs have no setting {name}")
    others = differing(jobs, but)
    if not others:
        return jobs
    group = jobs.groupby(others, dropna=False).ngroup()
    finished = (~jobs["diverged"]).groupby(group).transform("sum")
    newest = jobs["ended"].groupby(group).transform("max")
    ranked = jobs.assign(finished=finished, newest=newest).sort_values(["finished", "newest"])
    return jobs[group.eq(group[ranked.index[-1]])]


def _value(text: str) -> bool | int | float | str | None:
    """A setting as it was before it was stored as text."""
    if text in WORDS:
        return WORDS[text]
    for number in (int, float):
        with suppress(ValueError):
            if repr(number(text)) == text != "nan":  # words may look like numbers: 01, 1_000
                return number(text)
    return text


def _why_none(experiment: str) -> str:
    known = reading.experiments()
    if experiment in known or not known:
        return f"no finished job in the experiment {experiment!r} yet"
    return f"no experiment {experiment!r} in the tracking store; it has {', '.join(known)}"
