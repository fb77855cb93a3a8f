"""The classes that a job predicted for the test examples, if it has kept them: the arrays
`label` and `predicted` in `predictions.npz`, by `job.keep_outputs` in run.py."""

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from labjobs.results.metrics import NoResults
from labjobs.results.outputs import FILE, kept
from labjobs.tracking import stored_jobs

if TYPE_CHECKING:
    import pandas as pd

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
            f"{FILE} of the job {row['job_id']} does not have an integer class for each example"
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
        spec = stored_jobs.file(row["run_id"], row["job_folder"], "spec.json")
        names = json.loads(spec)["classes"]
    except (OSError, ValueError, KeyError, TypeError):
        names = []
    return [str(name) for name in names] if len(names) >= count else [str(i) for i in range(count)]


def _are_numbers(*arrays: Any) -> bool:
    return all(array.dtype.kind in "iub" for array in arrays)
