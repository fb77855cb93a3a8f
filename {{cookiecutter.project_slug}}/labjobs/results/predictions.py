"""The classes that a job predicted for the test examples, if it has kept them: the arrays
`label` and `predicted` in `predictions.npz`, by `job.keep_outputs` in run.py.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from labjobs import layout
from labjobs.errors import SettingsError, cause, did_you_mean
from labjobs.results.metrics import NoResults
from labjobs.tracking import stored_jobs

if TYPE_CHECKING:
    import pandas as pd

# The values that jobs have kept for each test example, by `job.keep_outputs` in run.py.

INDEX = "index"


def outputs(jobs: "pd.DataFrame", *names: str, settings: Collection[str] = ()) -> "pd.DataFrame":
    """Return a row for each test example of each finished job, with the values kept for it. The
    columns are `job_id`, these settings (or other columns of the jobs), `index` (the example's
    index in its dataset, if it is certain), and the outputs with these names, by default all. If an
    example has several numbers, as in an embedding (D,), its value is an array:
    `np.stack(table["embedding"])` is (N, D).

    Raises NoResults if a job has not kept these outputs or they cannot be read, SettingsError for
    an unknown setting.
    """
    import pandas as pd

    found = [about | _columns(job, names) for job, about in of_finished(jobs, settings)]
    return pd.concat(map(pd.DataFrame, found), ignore_index=True)


def of_finished(
    jobs: "pd.DataFrame", settings: Collection[str]
) -> list[tuple[dict[Any, Any], dict[str, Any]]]:
    """Return the rows of the jobs that finished, each with its `job_id` and these settings.

    Raises NoResults if none has finished, SettingsError for an unknown setting.
    """
    for name in settings:
        if name not in jobs:
            known = did_you_mean(name, map(str, jobs))
            raise SettingsError(f"the jobs have no setting {name}; {known}")
    finished = jobs[~jobs["diverged"]].to_dict("records")
    if not finished:
        raise NoResults("none of the jobs has finished")
    about = ("job_id", *settings)
    return [(job, {name: job[name] for name in about}) for job in finished]


@contextmanager
def kept(job: Mapping[Any, Any], what: str = "outputs") -> Iterator[Mapping[str, Any]]:
    """Open what a job has kept: arrays, by name.

    Raises NoResults, which says `what`, if they cannot be read.
    """
    import numpy as np

    try:
        file = stored_jobs.file(job["run_id"], job["job_folder"], layout.PREDICTIONS)
        with np.load(BytesIO(file)) as arrays:
            yield arrays
    except Exception as error:  # damaged files raise all kinds of errors
        why = f"no {what} of the job {job['job_id']} can be read"
        raise NoResults(f"{why} ({cause(error)}); see job.keep_outputs in run.py") from error


def _columns(job: Mapping[Any, Any], names: Collection[str]) -> dict[str, Any]:
    """The values that a job has kept, as columns of a table."""
    with kept(job) as arrays:
        own = [name for name in arrays if name != INDEX and not name.endswith(layout.LENGTHS)]
        index = [INDEX] if INDEX in arrays else []
        return {name: _column(arrays, name) for name in (*index, *(names or own))}


def _column(arrays: Mapping[str, Any], name: str) -> Any:
    """An array (N,), or a list of N arrays."""
    import numpy as np

    values = arrays[name]
    if name + layout.LENGTHS in arrays:
        return np.split(values, np.cumsum(arrays[name + layout.LENGTHS]))[:-1]
    return values if values.ndim == 1 else list(values)


MOST_CLASSES = 1000
"""Largest number of classes that a figure can show."""


class Predictions(NamedTuple):
    """The true and the predicted class of each test example, as numbers (N,), and the names of all
    classes (K,)."""

    label: Any
    predicted: Any
    classes: list[str]


def predictions(job: "pd.DataFrame") -> Predictions:
    """Return the predictions of the single job in a table. Raises NoResults if it has kept none, or
    if they cannot be read or are not classes.
    """
    (row,) = job.to_dict("records")
    with kept(row, "predicted classes") as arrays:
        label, predicted = arrays["label"], arrays["predicted"]
    if label.shape != predicted.shape or label.ndim != 1 or not _are_numbers(label, predicted):
        raise NoResults(
            f"{layout.PREDICTIONS} of the job {row['job_id']} does not have an integer class for "
            "each example"
        )
    count = int(max(label.max(initial=0), predicted.max(initial=0))) + 1
    if count > MOST_CLASSES:
        raise NoResults(f"{count} classes are too many for a figure")
    return Predictions(label, predicted, classes(job, count))


def classes(job: "pd.DataFrame", count: int) -> list[str]:
    """Return the names of at least this many classes, from the spec of the single job in a table,
    or else their numbers."""
    (row,) = job.to_dict("records")
    try:
        spec = stored_jobs.file(row["run_id"], row["job_folder"], layout.SPEC)
        names = json.loads(spec)["classes"]
    except (OSError, ValueError, KeyError, TypeError):
        names = []
    return [str(name) for name in names] if len(names) >= count else [str(i) for i in range(count)]


def _are_numbers(*arrays: Any) -> bool:
    return all(array.dtype.kind in "iub" for array in arrays)
