"""Results as tables: what a figure or a notebook asks for.

    jobs = tables.jobs("my-project")
    jobs.groupby(["model", "lr"])["best_val_loss"].mean()
    curves = tables.curves(jobs, "val_loss")
    kept = tables.outputs(jobs, "label", "predicted", settings=["model"])
    worst = tables.logged(jobs, "worst")

pandas is imported when a table is first asked for.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from engine.cli.job_ids import LAST
from engine.errors import SettingsError, did_you_mean
from engine.job import purpose
from engine.job.identity import can_have_inputs
from engine.job.scripts import DEFAULT
from engine.results import freshness
from engine.results.logged import logged
from engine.results.metrics import DECLARED, Measured, NoResults
from engine.results.outputs import outputs
from engine.results.predictions import classes, predictions
from engine.tracking import reading, stored_jobs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["classes", "curves", "jobs", "logged", "only", "outputs", "predictions", "times_to"]

OWN = ("job_id", "run_id", "ended", "diverged")
"""What a table of jobs has besides their settings, metrics and tags."""


def jobs(experiment: str, kind: type[Any] | None = None, script: str = DEFAULT) -> "pd.DataFrame":
    """Return one row per job of a script, such as `run` for run.py, by job id: its settings, last
    metrics and tags, each a column.

    With the class of the project's settings (`kind`), a job's row is that of its attempt with the
    present code, if it has one; without, that of its last one. Whether it is of other code than the
    present is in the column `stale`.

    The jobs are those that finished, and those that `diverged`, as that column says: they have
    settings, but no metrics. Those that `jobs.py find` has run are left out. Settings have today's
    names; one that a job is older than has its neutral value. Of a setting, a metric and a tag with
    the same name the setting is kept (`lr`); `hardware` is the tag that tells which device it was.
    The names of the settings are in `attrs["settings"]`. Raises NoResults where no job has
    finished, ConnectionError where the store cannot be read.
    """
    every = [job for job in stored_jobs.jobs(experiment) if purpose.TAG not in job["tags"]]
    if kind and can_have_inputs(kind):
        freshness.name_all(every)
    of_script = [job for job in every if freshness.script_of(job) == script]
    found, stale = freshness.chosen(of_script, kind)
    if all(job["diverged"] for job in found):
        raise NoResults(_why_none(experiment, script, len(found)))
    import pandas as pd

    table = pd.DataFrame(map(_row, found))
    table["stale"] = table["run_id"].isin(stale)
    settings = _settings(found)
    for name, values in settings.items():
        table[name] = pd.Series(values, dtype=object if None in values else None)
    table.attrs["settings"] = sorted(settings)
    return table


def only(jobs: "pd.DataFrame", wanted: Mapping[str, Any]) -> "pd.DataFrame":
    """Return the jobs whose settings have these values; of a list of values, any.

    Raises SettingsError for an unknown setting, NoResults where no finished job is left.
    """
    for name, value in wanted.items():
        if name not in jobs.attrs["settings"]:
            known = did_you_mean(name, jobs.attrs["settings"])
            raise SettingsError(f"ONLY in plot.py: the jobs have no setting {name}; {known}")
        values = value if isinstance(value, list | tuple | set) else [value]
        jobs = jobs[jobs[name].isin(values) | jobs[name].map(str).isin(map(str, values))]
    if jobs["diverged"].all():
        raise NoResults(f"no finished job has the settings of ONLY in plot.py: {dict(wanted)}")
    return jobs


def curves(jobs: "pd.DataFrame", key: str) -> "pd.DataFrame":
    """Return the history of a metric in the jobs that finished: settings, `job_id`, `step` (that of
    the optimizer) and `value`.

    A step logged twice counts once, as last logged. Raises NoResults where no job has the metric.
    """
    import pandas as pd

    of_run = jobs[~jobs["diverged"]].set_index("run_id")
    points = _points(tuple(of_run.index), key)
    if points.empty:
        raise NoResults(f"no finished job has logged {key}")
    rows = of_run.index.get_indexer(pd.Index(points["run_id"]))
    own = of_run[["job_id", *jobs.attrs["settings"]]].take(rows).reset_index(drop=True)
    return own.join(points[["step", "value"]])


def times_to(jobs: "pd.DataFrame", metric: Measured) -> "pd.DataFrame":
    """Return the jobs with the seconds of training and evaluation until a metric first had its
    target (`reached`, NaN if it never had) and until the job's end (`lasted`).

    One that diverged would never have reached it: its end is that of the longest. Those that go on
    where a shorter job has ended are left out: their curves do not say when they had the target
    first. Raises NoResults where none has reached it.
    """
    if "init_from" in jobs:
        jobs = jobs[~jobs["init_from"].map(str).str.endswith(LAST)]
    seconds = curves(jobs, "elapsed_seconds").set_index(["job_id", "step"])["value"]
    values = curves(jobs, metric.key).set_index(["job_id", "step"])["value"]
    target = metric.declared.target
    assert target is not None
    there = metric.sign * values >= metric.sign * target
    if not there.any():
        cure = "train longer or declare another target in METRICS"
        raise NoResults(f"no job has reached a {metric} of {metric.goal}; {cure}")
    first = seconds.reindex(values.index[there]).groupby("job_id").min()
    last = seconds.groupby("job_id").max()
    lasted = jobs["job_id"].map(last).fillna(last.max())
    return jobs.assign(reached=jobs["job_id"].map(first), lasted=lasted)


@cache
def _points(runs: tuple[str, ...], key: str) -> "pd.DataFrame":
    """A metric's history in runs that are over, so it is read but once."""
    import pandas as pd

    points = pd.DataFrame(stored_jobs.histories(runs, key), columns=["run_id", "step", "value"])
    return points.drop_duplicates(["run_id", "step"], keep="last", ignore_index=True)


def _row(job: stored_jobs.StoredJob) -> dict[str, Any]:
    metrics = {} if job["diverged"] else job["metrics"]
    own = {key: value for key, value in job.items() if key in OWN}
    about = {
        "hardware": job["tags"].get("device", "unknown"),
        DECLARED: job["tags"].get("metrics", "{}"),
    }
    return job["tags"] | metrics | own | about


def _settings(found: list[stored_jobs.StoredJob]) -> dict[str, list[Any]]:
    """Each setting's values: as they were before they were stored as text, if that goes for all."""
    older, renamed = _merged(found, "neutral"), _merged(found, "former")
    params = [
        {_today(name, renamed): text for name, text in job["params"].items()} for job in found
    ]
    settings: dict[str, list[Any]] = {}
    for name in set(older).union(*params):
        texts = [each.get(name) for each in params]
        values = [older.get(name) if text is None else freshness.value(text) for text in texts]
        words = any(isinstance(value, str) for value in values)
        as_text = [
            text if text is not None else value if value is not None else str(None)
            for value, text in zip(values, texts, strict=True)
        ]
        settings[name] = as_text if words else values
    return settings


def _merged(found: Iterable[stored_jobs.StoredJob], tag: str) -> dict[str, Any]:
    """What the jobs say in a tag of JSON, the newest last."""
    said: dict[str, Any] = {}
    for job in sorted(found, key=lambda job: job["ended"]):
        said |= json.loads(job["tags"].get(tag, "{}"))
    return said


def _today(name: str, renamed: Mapping[str, str]) -> str:
    """The name that a setting has now, after any number of others."""
    seen = {name}
    while (name := renamed.get(name, name)) not in seen:
        seen.add(name)
    return name


def _why_none(experiment: str, script: str, diverged: int) -> str:
    known = reading.experiments()
    job = "job" if script == DEFAULT else f"job of {script}.py"
    if diverged:
        return f"all {diverged} {job}s in the experiment {experiment!r} diverged; see their log.txt"
    if experiment in known or not known:
        return f"no finished {job} in the experiment {experiment!r} yet"
    return f"no experiment {experiment!r} in the tracking store; it has {', '.join(known)}"
