"""What a job predicted for the test examples, as it has kept it: `predictions.npz` in its folder.

The file has arrays of the true classes `labels` (N,), those `predicted` (N,), both numbers, and the
names of all `classes` (K,).
"""

from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile

from engine.errors import cause
from engine.results.metrics import NoResults
from engine.tracking import stored_jobs

if TYPE_CHECKING:
    import pandas as pd

FILE = "predictions.npz"


class Predictions(NamedTuple):
    """Of each test example its class and the predicted one, as numbers (N,), and the names of all
    classes (K,)."""

    labels: Any
    predicted: Any
    classes: Any


def predictions(job: "pd.DataFrame") -> Predictions:
    """Return the predictions of the one job in a table.

    Raises NoResults if it has kept none that can be read.
    """
    import numpy as np

    (row,) = job.to_dict("records")
    why = f"the job {row['job_id']} has kept no predictions of classes that can be read"
    try:
        file = stored_jobs.file(row["run_id"], row["job_folder"], FILE)
        with np.load(BytesIO(file)) as kept:
            return Predictions(*(kept[name] for name in Predictions._fields))
    except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
        raise NoResults(f"{why} ({cause(error)})") from error
