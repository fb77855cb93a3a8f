"""`confirm` of run.sh: what validation has chosen runs again with fresh seeds.

The best of many settings was partly lucky, on validation data and on test data alike. Jobs with
seeds that had no part in the choice say how good it is; tables report these alone. The jobs are a
function of the results that the grid's jobs have, so they are the same each time.

`python -m labjobs.commands.confirm` reads how many seeds are wanted and which jobs there are, and
prints the arguments of the jobs to run: nothing while a job of the grid has no results.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from labjobs import exit_status, settings
from labjobs.cli import flags
from labjobs.errors import SettingsError
from labjobs.job import attempts, identity
from labjobs.job.terminal import leave
from labjobs.results import groups, tables
from labjobs.results.metrics import NoResults, chooser
from labjobs.tracking.mlflow_client import experiment_name

if TYPE_CHECKING:
    import pandas as pd


def jobs(count: int, ids: list[str]) -> list[list[str]]:
    """Return the arguments of run.py for the jobs that confirm the best of these on each task, with
    `count` fresh seeds each; an empty list while one has no results with the present code. Raises
    SettingsError if nothing can be chosen or there are no seeds."""
    kind = identity.read(identity.DEFAULT).settings
    try:
        every = tables.jobs(experiment_name(), kind)
    except NoResults:
        return []
    own = every[every["job_id"].isin(ids) & ~every["stale"]]
    if {*own["job_id"]} != {*ids} or own["diverged"].all():
        return []
    if groups.SEED not in own.attrs["settings"]:
        raise SettingsError("confirm: settings.py has no setting seed")
    try:
        return [job for alike in groups.tasks(own).values() for job in _of_task(count, alike)]
    except NoResults as none:
        raise SettingsError(f"confirm: {none}") from none


def _of_task(count: int, own: "pd.DataFrame") -> list[list[str]]:
    best = next(iter(groups.ranked(own, groups.varied(own), chooser(own)).values()))
    others = [name for name in groups.repeated(own) if name != groups.SEED]
    found = []
    for job in best.drop_duplicates(others)["job_id"] if others else best["job_id"][:1]:
        known = attempts.settings_of(job, attempts.runs_root())
        assert known  # `tables` has registered all jobs
        for seed in range(settings.CONFIRMING, settings.CONFIRMING + count):
            changed = identity.changed(replace(known[0], seed=seed)).items()
            found.append([f"{flags.option(name)}={text}" for name, text in changed])
    return found


def answer(function: Callable[..., Any]) -> int:
    """Answer what a sweep asks on standard input, in JSON; returns the exit status."""
    try:
        print(json.dumps(function(**json.load(sys.stdin))))
    except (SettingsError, ConnectionError) as error:
        return leave(exit_status.WRONG, str(error))
    return exit_status.DONE


if __name__ == "__main__":
    sys.exit(answer(jobs))
