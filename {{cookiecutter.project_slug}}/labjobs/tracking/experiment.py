"""The project's experiment in the tracking store: making, recognizing, renaming and moving it.

An experiment has the project's name and, as a tag, the project's id. If many processes open a new
store at the same time, they crash it, so `python -m labjobs.tracking.experiment` prepares the store
under a lock.
"""

import sqlite3
import sys
import tomllib
from contextlib import AbstractContextManager, closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TextIO

from labjobs import locks
from labjobs.errors import SettingsError
from labjobs.job.project import project_id
from labjobs.paths import CODE, PROJECT
from labjobs.tracking import address
from labjobs.tracking.client import client

if TYPE_CHECKING:
    from mlflow.entities import Experiment

PROJECT_ID = "project_id"
"""The tag of an experiment that has the id of its project."""

ARTIFACTS = PROJECT / "mlruns"
"""The folder for the files of runs, unless a server keeps them."""


@cache
def experiment_name() -> str:
    """The project's name, from pyproject.toml: all its jobs are in the experiment with that
    name."""
    with (CODE / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["name"])


def prepare() -> str:
    """Return the id of the project's experiment, which is made or renamed if necessary.

    Raises SettingsError if an experiment of this name belongs to another project.
    """
    with _alone():
        _make_whole(address.sqlite_path())
        found = client().get_experiment_by_name(experiment_name()) or _renamed()
        if not found:
            root = None if address.uri().startswith("http") else ARTIFACTS.as_uri()
            tags = {PROJECT_ID: project_id()}
            return str(client().create_experiment(experiment_name(), root, tags))
        owner = found.tags.get(PROJECT_ID)
        if not owner:
            client().set_experiment_tag(found.experiment_id, PROJECT_ID, project_id())
        elif owner != project_id():
            raise belongs_to_another(experiment_name())
        _follow_move(found)
        return str(found.experiment_id)


def belongs_to_another(experiment: str) -> SettingsError:
    """Return the message for a project whose name belongs to another project in the store."""
    return SettingsError(
        f"the experiment {experiment!r} in the tracking store belongs to another project; change "
        "the name in pyproject.toml, or if this is a copy of that project, give it the same "
        ".project-id"
    )


def _renamed() -> "Experiment | None":
    """Find the project's experiment under a former name, and give it the present name."""
    query = f"tags.{PROJECT_ID} = '{project_id()}'"
    for found in client().search_experiments(filter_string=query):
        client().rename_experiment(found.experiment_id, experiment_name())
        return found
    return None


def _follow_move(experiment: "Experiment") -> None:
    """Make MLflow use the project's present folder for files. MLflow records absolute paths, and
    has no call to change them. They are changed only in a sqlite store inside the project, which
    was moved or copied with it.
    """
    path, old, new = address.sqlite_path(), experiment.artifact_location, ARTIFACTS.as_uri()
    if not path or path.parent != PROJECT or not old.startswith("file:") or old.startswith(new):
        return
    old = old.removesuffix(f"/{experiment.experiment_id}")
    with closing(sqlite3.connect(path, timeout=60)) as connection, connection:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                f"WHERE experiment_id = ? AND substr({column}, 1, ?) = ?",
                (new, len(old) + 1, experiment.experiment_id, len(old), old),
            )


def _make_whole(path: Path | None) -> None:
    """Make a sqlite store next to its final place, because MLflow leaves a broken store if it is
    killed in the meantime."""
    if path and not path.exists():
        with TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder:
            part = Path(folder) / path.name
            client(f"sqlite:///{part}").search_experiments(max_results=1)
            part.replace(path)


def _alone() -> AbstractContextManager[TextIO]:
    """Keep other processes on this machine from opening the store in the meantime."""
    file = address.sqlite_path() or PROJECT / f"mlflow-{address.fingerprint()}"
    return locks.waiting(file.with_name(file.name + ".lock"))


if __name__ == "__main__":
    try:
        prepare()
    except Exception as problem:
        sys.exit(address.reason(problem))
