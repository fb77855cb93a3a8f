"""Tables that jobs have logged, by `job.log_table`."""

import re
from collections.abc import Collection, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from labjobs.errors import cause
from labjobs.results.metrics import NoResults
from labjobs.results.outputs import of_finished
from labjobs.tracking import stored_jobs

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "logged"


def logged(jobs: "pd.DataFrame", name: str, settings: Collection[str] = ()) -> "pd.DataFrame":
    """Return the rows of the tables that finished jobs have logged under a name. The columns are
    `job_id`, these settings (or other columns of the jobs), `step` (the optimizer step), and the
    columns of the tables, which take precedence if names are the same.

    Raises NoResults if a job has logged no such table or it cannot be read, SettingsError for an
    unknown setting.
    """
    import pandas as pd

    found = []
    for job, about in of_finished(jobs, settings):
        try:
            tables = _tables(job, name)
        except Exception as error:  # damaged files raise all kinds of errors
            why = f"the table {name} of the job {job['job_id']} cannot be read ({cause(error)})"
            raise NoResults(why) from error
        if not tables:
            why = f"the job {job['job_id']} has logged no table {name}; see job.log_table"
            raise NoResults(why)
        for step, table in tables.items():
            columns = {k: v for k, v in {**about, "step": step}.items() if k not in table}
            found.append(table.assign(**columns)[[*columns, *table]])
    return pd.concat(found, ignore_index=True)


def _tables(job: Mapping[Any, Any], name: str) -> "dict[int, pd.DataFrame]":
    """A job's tables of a name, by the step at which each was logged."""
    import pandas as pd

    place = job["run_id"], job["job_folder"]
    wanted = re.compile(rf"{FOLDER}/{re.escape(name)}-(\d{{8,}})\.csv")
    found = {}
    for match in filter(None, map(wanted.fullmatch, stored_jobs.files(*place, FOLDER))):
        content = BytesIO(stored_jobs.file(*place, match[0]))
        table = pd.read_csv(content, keep_default_na=False, na_values=["", "nan"])
        found[int(match[1])] = table  # words such as "None" stay words
    return dict(sorted(found.items()))
