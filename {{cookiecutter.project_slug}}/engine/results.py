"""Results as tables: what a figure or a notebook asks for.

    jobs = results.finished_jobs("my-project")
    jobs.groupby(["model", "lr"])["test_accuracy"].mean()
    curves = results.curves(jobs, "val_accuracy")

pandas is imported when a table is first asked for.
"""

from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING

from engine import reading
from engine.settings import Runtime

if TYPE_CHECKING:
    import pandas as pd

WORDS = {"True": True, "False": False, "None": None}


class NoResults(Exception):
    """There is nothing to draw. Its text is one line: what is missing."""


def finished_jobs(experiment: str) -> "pd.DataFrame":
    """One row per finished job, by job id: its settings, last metrics and tags, each a column.

    Of a setting, a metric and a tag with the same name the setting is kept (`lr`). The names of the
    settings are in `attrs["settings"]`. Raises NoResults where there are none, ConnectionError
    where the store cannot be read.
    """
    found = reading.jobs(experiment)
    if not found:
        raise NoResults(_why_none(experiment))
    import pandas as pd

    settings = [{name: _value(text) for name, text in job["params"].items()} for job in found]
    table = pd.DataFrame(
        {**job["tags"], **job["metrics"], **own, "run_id": job["run_id"], "ended": job["ended"]}
        for job, own in zip(found, settings, strict=True)
    )
    table.attrs["settings"] = sorted(set().union(*settings))
    return table


def curves(jobs: "pd.DataFrame", key: str) -> "pd.DataFrame":
    """The history of a metric in each job: `step`, `value` and the job's own columns.

    A step logged twice counts once, as last logged. Raises NoResults where no job has the metric.
    """
    import pandas as pd

    points = pd.DataFrame(
        reading.histories(list(jobs["run_id"]), key), columns=["run_id", "step", "value"]
    )
    if points.empty:
        raise NoResults(f"no finished job has the metric {key}")
    return points.drop_duplicates(["run_id", "step"], keep="last").merge(jobs, on="run_id")


def differing(jobs: "pd.DataFrame", but: Collection[str] = ()) -> list[str]:
    """The settings that the jobs differ in, but for those named or of `Runtime`."""
    known = {*but, *(field.name for field in fields(Runtime))}
    names = [name for name in jobs.attrs["settings"] if name not in known]
    return [name for name in names if jobs[name].nunique(dropna=False) > 1]


def comparable(jobs: "pd.DataFrame", but: Collection[str]) -> "pd.DataFrame":
    """The jobs that differ in nothing but the settings named: the largest such set, or the newest.

    Raises NoResults where the jobs have no such setting.
    """
    for name in but:
        if name not in jobs:
            raise NoResults(f"the finished jobs have no setting {name}")
    names = differing(jobs, but)
    if not names:
        return jobs
    alike = jobs.groupby(names, dropna=False)["ended"]
    group = alike.ngroup()
    ranked = jobs.assign(size=alike.transform("size"), newest=alike.transform("max"))
    best = ranked.sort_values(["size", "newest"]).index[-1]
    return jobs[group.eq(group[best])]


def _value(text: str) -> bool | int | float | str | None:
    """A setting as it was before it was stored as text."""
    if text in WORDS:
        return WORDS[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _why_none(experiment: str) -> str:
    known = reading.experiments()
    if experiment in known or not known:
        return f"no finished job in the experiment {experiment!r} yet"
    return f"no experiment {experiment!r} in the tracking store; it has {', '.join(known)}"
