"""MLflow's tracking store: its address, its client, its database, and the project's experiment in
it.

An experiment has the project's name and, as a tag, the project's id. If many processes open a new
store at the same time, they crash it, so each prepares it under a lock.
"""

import hashlib
import os
import re
import sqlite3
import tomllib
import warnings
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from labjobs import locks
from labjobs.errors import SettingsError
from labjobs.files import CODE, PROJECT
from labjobs.job.identity import project_id
from labjobs.privacy import printable, scrub

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

# The address is `MLFLOW_TRACKING_URI`, else `mlflow.db` in the project. Only `store_uri` contains
# passwords.

KINDS = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")
"""What the address of a store begins with (mlflow.org/docs, tracking URIs). MLflow no longer
supports file stores."""

SQLITE = "sqlite:///"

SERVER = re.compile(
    r"(?P<scheme>[\w+.-]+://)(?P<user>[^/?#]*@)?(?P<host>[^/?#@]*)(?P<rest>.*)", re.DOTALL
)


def store_uri() -> str:
    """Return the address for MLflow: absolute, since MLflow's default depends on the current
    folder, and with `%40` for each `@` except the last one, which databases would misread."""
    given = os.environ.get("MLFLOW_TRACKING_URI") or _sqlite_uri(PROJECT / "mlflow.db")
    if given.startswith(SQLITE):
        path, mark, options = given.removeprefix(SQLITE).partition("?")
        return f"{_sqlite_uri(Path(unquote(path)).absolute())}{mark}{options}"
    server = SERVER.fullmatch(given)
    if not server or not server["user"]:
        return given
    user = server["user"][:-1].replace("@", "%40")
    return f"{server['scheme']}{user}@{server['host']}{server['rest']}"


def _sqlite_uri(path: Path) -> str:
    """The address of a sqlite store: a question mark would begin its options, and SQLAlchemy
    decodes what looks encoded (docs.sqlalchemy.org, database URLs)."""
    return SQLITE + str(path).replace("%", "%25").replace("?", "%3F")


def sqlite_path() -> Path | None:
    """Return the file of a sqlite store, None for any other kind."""
    path = store_uri().partition("?")[0]
    return Path(unquote(path.removeprefix(SQLITE))) if path.startswith(SQLITE) else None


def local_folder(artifacts: str) -> Path | None:
    """Return the folder in which a run's files are, from their address; None if it is not here."""
    parts = urlsplit(artifacts)
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


def check() -> None:
    """Raise SettingsError if the address is not a valid one for a store."""
    uri = store_uri()
    path, options, wrong = sqlite_path(), uri.partition("?")[2], ""
    server = None if path else SERVER.fullmatch(uri)
    if not f"{uri}{PROJECT}".isprintable() or uri != uri.strip():
        wrong = "has a line break or a space at its end, or the project's folder a line break"
    elif path and "'" in f"{path}{PROJECT}":
        wrong = "MLflow cannot work in a folder with a ' in its path; rename the folder"
    elif path and not path.parent.is_dir():
        wrong = f"there is no folder {path.parent}"
    elif path and (path.is_dir() or path.name == ":memory:"):
        wrong = "must be the path of a file"
    elif path and options and not re.fullmatch(r"timeout=\d+(\.\d+)?", options):
        wrong = "may have only ?timeout=SECONDS after the path; write %3F for a ? in it"
    elif not path and uri.startswith("sqlite"):
        wrong = f"must be {SQLITE} and the path of a file"
    elif re.split("[:+]", uri)[0] not in KINDS:
        wrong = f"must begin with one of {', '.join(KINDS)}, and ://"
    elif server and "@" in server["rest"]:
        wrong = "must have %40, %2F, %3F and %23 for @, /, ? and # in a password or after it"
    elif server and not re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", server["host"]):
        wrong = "must have a number, the port, after the last : before the path"
    if wrong:
        raise SettingsError(f"MLFLOW_TRACKING_URI {shown()}: {scrub(wrong)}")


def shown() -> str:
    """Return the address as it can be printed."""
    return printable(store_uri())


def fingerprint() -> str:
    """Return what distinguishes stores; it stays the same if the password changes."""
    return hashlib.sha256(shown().encode()).hexdigest()[:12]


def reason(error: BaseException) -> str:
    """Return why the store is unavailable, in one line that can be printed: in the system's or the
    database's own words, if there are any."""
    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    for cause in reversed(causes):
        if isinstance(cause, TimeoutError):
            return f"{shown()}: no answer"
        if isinstance(cause, OSError) and cause.strerror:
            where = scrub(str(cause.filename)) if cause.filename else shown()
            return f"{where}: {scrub(cause.strerror)}"
    lines = scrub(str(error)).strip().splitlines() or [type(error).__name__]
    of_database = [line for line in lines if re.match(r"\(\w+(\.\w+)+\) ", line)]
    return (of_database or lines)[0]


def last_line(text: str) -> str:
    """Return the last line that a process has printed, without secrets."""
    return scrub(text).strip().splitlines()[-1]


# MLflow's client takes 2 s to import, and a sqlite store's file milliseconds to query.

ATTEMPTS = 3
"""Number of times that MLflow tries to reach a database in one call, which takes 0.4 s. Its default
of 10 takes 100 s, during which nothing else can be tried."""

ENVIRONMENT = {
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # it raises what it would print
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # not our lines
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # the default of 7 takes four minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
"""Defaults of variables that MLflow reads, some of them when it is imported."""

PINNED = {
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",  # calls would return before anything is stored
    "MLFLOW_TRUNCATE_LONG_VALUES": "true",  # a long note would be refused, for ever
    "MLFLOW_ENABLE_WORKSPACES": "false",  # a database's runs would not be where we read them
    "MLFLOW_SQLALCHEMYSTORE_ECHO": "false",  # the last line on stderr is the problem's
}
"""Variables that change what a call means or prints, whatever the user's environment says."""

LONGEST_QUERY = 20.0  # seconds after which a store that does not answer counts as unavailable

AWAY = "the tracking store cannot be read"


def client(uri: str = "") -> "MlflowClient":
    """Return MLflow's client, quiet, and giving up after seconds: callers try again themselves."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.update(PINNED)
    warnings.filterwarnings("ignore", module="mlflow|sqlalchemy|alembic")  # `python -W error`
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = ATTEMPTS
    # It is there (`check`), and MLflow does not decode the path: it would make another folder.
    utils._make_parent_dirs_if_sqlite = lambda db_uri: None
    uri = uri or store_uri()
    return MlflowClient(uri, registry_uri=uri)  # else MLFLOW_REGISTRY_URI, which may be wrong


def select(path: Path, query: str, **values: str) -> list[tuple[Any, ...]]:
    """Return all rows of a query in a sqlite store, with values by name (`:experiment`); none if
    the store does not exist yet. Raises ConnectionError if it cannot be read.

    The file is opened for writing and then restricted to reading: a connection that is read-only
    from the start cannot roll back the changes of a killed writer, and fails.
    """
    if not path.exists():
        return []
    try:
        uri = f"{path.resolve().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, timeout=LONGEST_QUERY, uri=True)) as connection:
            connection.execute("PRAGMA query_only = ON")
            return connection.execute(query, values).fetchall()
    except sqlite3.DatabaseError as error:
        if str(error).startswith("no such table"):
            return []
        raise ConnectionError(scrub(f"{AWAY}: {path}: {error}")) from error


# The experiment has the project's name and, as a tag, the project's id.

PROJECT_ID = "project_id"  # the tag of an experiment that has the id of its project
ARTIFACTS = PROJECT / "mlruns"  # the folder for the files of runs, unless a server keeps them


@cache
def experiment_name() -> str:
    """Return the project's name, from pyproject.toml: all its jobs are in the experiment with that
    name. Raises SettingsError without one."""
    try:
        with (CODE / "pyproject.toml").open("rb") as file:
            return str(tomllib.load(file)["project"]["name"])
    except (OSError, ValueError, KeyError) as error:
        line = "pyproject.toml: has no name of the project, which is its experiment in MLflow"
        raise SettingsError(f"{line}; write [project] and below it name = …") from error


def prepare(runs_root: Path = PROJECT) -> str:
    """Return the id of the project's experiment, which is made or renamed if necessary. Where the
    project is read-only, the lock of a store that is not a file is in the folder of runs.

    Raises SettingsError if an experiment of this name was deleted or belongs to another project.
    """
    path = sqlite_path()
    folder = PROJECT if os.access(PROJECT, os.W_OK) else runs_root
    file = path or folder / f"mlflow-{fingerprint()}"
    with locks.waiting(file.with_name(file.name + ".lock")):
        if path and not path.exists():
            _make(path)
        found = client().get_experiment_by_name(experiment_name()) or _renamed()
        if not found:
            root = None if store_uri().startswith("http") else ARTIFACTS.as_uri()
            tags = {PROJECT_ID: project_id()}
            return str(client().create_experiment(experiment_name(), root, tags))
        if found.lifecycle_stage == "deleted":
            raise was_deleted(experiment_name(), found.experiment_id)
        owner = found.tags.get(PROJECT_ID)
        if not owner:
            client().set_experiment_tag(found.experiment_id, PROJECT_ID, project_id())
        elif owner != project_id():
            raise belongs_to_another(experiment_name(), owner)
        if path and path.parent == PROJECT:
            _follow_move(path, found)
        return str(found.experiment_id)


def belongs_to_another(experiment: str, owner: str) -> SettingsError:
    """Return the message for a project whose name belongs to another project in the store, with
    this id."""
    return SettingsError(
        f"the experiment {experiment!r} in the tracking store belongs to another project; change "
        "the name in pyproject.toml, or if this is a copy of that project, or git has taken "
        f".project-id away (an older commit, `git stash -u`), `echo {owner} > .project-id`"
    )


def was_deleted(experiment: str, number: str) -> SettingsError:
    """Return the message for a project whose experiment was deleted; the store keeps the name."""
    return SettingsError(
        f"the experiment {experiment!r} in the tracking store was deleted; `mlflow experiments "
        f"restore -x {number}` brings it back with its runs, or change the name in pyproject.toml"
    )


def _make(path: Path) -> None:
    """Make a sqlite store beside its place: MLflow leaves a broken one if it is killed."""
    with TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder:
        part = Path(folder) / path.name
        client(_sqlite_uri(part)).search_experiments(max_results=1)
        part.replace(path)


def _renamed() -> "Experiment | None":
    """Find the project's experiment under a former name, and give it the present name."""
    query = f"tags.{PROJECT_ID} = '{project_id()}'"
    for found in client().search_experiments(filter_string=query):
        client().rename_experiment(found.experiment_id, experiment_name())
        return found
    return None


def _follow_move(path: Path, experiment: "Experiment") -> None:
    """Make MLflow use the project's present folder for files, if the project was moved or copied
    with its store. MLflow records absolute paths, and has no call to change them."""
    old, new = experiment.artifact_location, ARTIFACTS.as_uri()
    if not old.startswith("file:") or old.startswith(new):
        return
    old = old.removesuffix(f"/{experiment.experiment_id}")
    with closing(sqlite3.connect(path, timeout=60)) as connection, connection:
        for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
            connection.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                f"WHERE experiment_id = ? AND substr({column}, 1, ?) = ?",
                (new, len(old) + 1, experiment.experiment_id, len(old), old),
            )
