"""MLflow's tracking store: its address, client and database, the project's experiment in it, and an
attempt's run there. Reading is in stored_jobs.py.

If many processes open a new store at the same time, they crash it, so each prepares it under a
lock.
"""

import getpass
import hashlib
import json
import os
import re
import sqlite3
import time
import tomllib
import warnings
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from labjobs import layout, locks
from labjobs.errors import Elsewhere, SettingsError
from labjobs.files import CODE, PROJECT, portable
from labjobs.job import data_evidence, provenance
from labjobs.job.folder import JobFolder
from labjobs.job.identity import as_command, as_words, identity, project_id
from labjobs.job.journal import record_of
from labjobs.privacy import printable, scrub
from labjobs.settings import roles

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from mlflow.entities import Run as StoredRun

# The address is `MLFLOW_TRACKING_URI`, else `mlflow.db` in the project. Only `store_uri` contains
# passwords.

KINDS = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")
"""What the address of a store begins with (mlflow.org/docs, tracking URIs). MLflow no longer
supports file stores."""

SQLITE = "sqlite:///"

SERVER = re.compile(r"[\w+.-]+://([^/?#]*@)?(?P<host>[^/?#@]*)(?P<rest>.*)", re.DOTALL)


def store_uri() -> str:
    """Return the address for MLflow: absolute, since MLflow's default depends on the current
    folder, and with `%40` for each `@` except the last one, which databases would misread."""
    given = os.environ.get("MLFLOW_TRACKING_URI") or _sqlite_uri(PROJECT / "mlflow.db")
    if given.startswith(SQLITE):
        path, mark, options = given.removeprefix(SQLITE).partition("?")
        return f"{_sqlite_uri(Path(unquote(path)).absolute())}{mark}{options}"
    before_host = r"^[\w+.-]+://[^/?#]*(?=@)"  # with the user and the password
    return re.sub(before_host, lambda found: found[0].replace("@", "%40"), given)


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

    utils.MAX_RETRY_COUNT = 3  # tries to reach a database, in 0.4 s; the default of 10 takes 100 s
    # It is there (`check`), and MLflow does not decode the path: it would make another folder.
    utils._make_parent_dirs_if_sqlite = lambda db_uri: None
    uri = uri or store_uri()
    return MlflowClient(uri, registry_uri=uri)  # else MLFLOW_REGISTRY_URI, which may be wrong


def select(path: Path, query: str, **values: str) -> list[tuple[Any, ...]]:
    """Return all rows of a query in a sqlite store, with values by name (`:experiment`); none if
    the store does not exist yet. Raises ConnectionError if it cannot be read."""
    if not path.exists():
        return []
    try:
        # One that only reads could not roll back the changes of a killed writer, and would fail.
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
    """Return the project's name, in pyproject.toml, and its experiment's. Raises SettingsError."""
    try:
        with (CODE / "pyproject.toml").open("rb") as file:
            return str(tomllib.load(file)["project"]["name"])
    except (OSError, ValueError, KeyError) as error:
        line = "pyproject.toml: has no name of the project, which is its experiment in MLflow"
        raise SettingsError(f"{line}; write [project] and below it name = …") from error


def prepare(runs_root: Path = PROJECT) -> str:
    """Return the id of the project's experiment, which is made or renamed if necessary. Where the
    project is read-only, the lock of a store that is not a file is in the folder of runs. Raises
    SettingsError if an experiment of this name was deleted or belongs to another project."""
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
    """Return the message for a project whose name another one has in the store, the `owner`."""
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


# Writing, with MLflow's client, which only the courier's process uses.
#
# An attempt has one run. Its tags identify it: `owner` (the attempt's folder), `journal` (the
# journal from which it is written) and `heartbeat`, the time at which its courier was last alive. A
# run that is RUNNING, has a recent heartbeat and belongs to another folder is a lease: someone else
# is training that job with the same code.

Line = dict[str, Any]  # a line of the journal (labjobs/job/journal.py)

AT_THE_END = (layout.SETTINGS, "changes.diff", layout.LOG, layout.BEST)
"""The files that a run gets when its job ends, the small ones first; the journal names the
others."""

BATCH = 1000  # metrics in a request, the most that MLflow takes (REST API, log-batch)
BEAT = 20.0  # seconds between two heartbeats
LEASE = 120.0  # seconds after its last heartbeat for which a run belongs to its owner


def fresh(status: str, heartbeat: str) -> bool:
    """Whether a run with this status and this heartbeat still belongs to its owner."""
    with suppress(ValueError):  # others may have written it
        return status == "RUNNING" and time.time() - float(heartbeat) < LEASE
    return False


class Run:
    """The single run of an attempt, new or continued. Other runs of the job with the same code are
    deleted: unfinished ones immediately, and those that finished with the same data when this run
    has finished.

    Any method may raise any error of MLflow's, which means that the store is unavailable. After
    that, `open` comes first again, and whatever was not acknowledged may be logged a second time:
    the store keeps it once. `had_ended` says whether it had ended when it was opened.
    """

    def __init__(self, folder: Path, about: dict[str, Any], journal: str, begun: int) -> None:
        self._about, self._begun = about, begun
        self._job, self._code = str(about["id"]), str(about["code"])
        self._owner, self._journal = str(about["owner"]), journal
        self._runs_root = folder.parent.parent
        self._tags = {"job_folder": str(folder), "host": os.uname().nodename}
        self.id = ""
        self.had_ended = False

    def open(self) -> None:
        """Find the run or make it. Raises Elsewhere if another one is a lease."""
        self._experiment = prepare(self._runs_root)
        self._client = client()
        self._beaten = 0.0
        self._artifacts = ""
        self._settle()
        if not self.id:
            names = {"mlflow.runName": self._about["name"], "job_id": self._job, "code": self._code}
            whose = {"owner": self._owner, "journal": self._journal, "heartbeat": str(time.time())}
            tags = {**names, **whose, **self._tags}
            self._client.create_run(self._experiment, self._begun or None, tags)
            self._settle()  # another may have begun at the same time
        self._complete()
        self.beat()

    def beat(self) -> None:
        """Send a heartbeat, if it is time. Raises Elsewhere if another folder has the job."""
        if time.monotonic() - self._beaten > BEAT:
            self._settle()
            self._client.set_tag(self.id, "heartbeat", str(time.time()))
            self._beaten = time.monotonic()

    def log(self, lines: Sequence[Line]) -> None:
        """Send journal lines: metrics with the journal's own times, and tags."""
        from mlflow.entities import Metric, RunTag

        points = [
            Metric(name, value, line["time"], line["step"])
            for line in lines
            for name, value in line.get("metrics", {}).items()
        ]
        for start in range(0, len(points), BATCH):
            self._client.log_batch(self.id, metrics=points[start : start + BATCH])
        tags = [RunTag(k, v) for line in lines for k, v in line.get("tags", {}).items()]
        if tags:
            self._client.log_batch(self.id, tags=tags)

    def add(self, folder: Path, names: Iterable[str]) -> None:
        """Copy files in a job's folder to the run, into folders of the same names. If that fails, a
        tag says why, and no further ones are tried: nothing else should wait for them."""
        for name in names:
            if not (folder / name).exists():
                continue
            try:
                never_changed = name == layout.BEST or folder.name == layout.CODES
                if never_changed and self._link(folder / name):
                    continue
                below = name.rpartition("/")[0]
                self._client.log_artifact(self.id, str(folder / name), below or None)
            except Exception as error:  # for any file store
                self._client.set_tag(self.id, "files", f"{name} is not here: {reason(error)}")
                return

    def has_read(self, attempt: Path) -> None:
        """Store which data the attempt has read, if that is known, in MLflow's field for it."""
        from mlflow.entities import Dataset, DatasetInput

        name, path, sizes = data_evidence.summary(attempt)
        if name:
            source = json.dumps({"uri": str(Path(path))})
            profile = json.dumps({"files": len(sizes), "bytes": sum(sizes)})
            read = Dataset(name, data_evidence.digest(attempt), "local", source, profile=profile)
            self._client.log_inputs(self.id, datasets=[DatasetInput(read)])

    def end(self, status: str, at: int) -> None:
        """Store how the run ended, and when, in milliseconds since 1970; the mark of a finished run
        is written last, since the status alone is not reliable."""
        self._client.set_terminated(self.id, status, at or None)
        if status == "FINISHED":
            self._client.set_tag(self.id, "finished", "true")
            runs = {run.info.run_id: run.data.tags for run in self._all()}
            own = runs.pop(self.id)
            for run_id, tags in runs.items():
                if "finished" in tags and tags.get("data") == own.get("data"):
                    self._client.delete_run(run_id)

    def _link(self, file: Path) -> bool:
        """Give the run a second name for a file (a hard link) instead of a copy, since weights can
        be large, and jobs many; it is never changed, only replaced. Returns whether that is
        possible: not if the run's files are on a server or on another disk."""
        if not (folder := local_folder(self._artifacts)):
            return False
        part = folder / f".{file.name}"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            os.link(file, part)
            part.replace(folder / file.name)
            part.unlink(missing_ok=True)  # if both are the same file already, replace() leaves it
            return True
        return False

    def _all(self) -> "list[StoredRun]":
        """The runs of this attempt and of others with its code or owner, the oldest first."""
        query = f"tags.job_id = '{self._job}'"
        mine = [
            run
            for run in self._client.search_runs([self._experiment], query)
            if run.data.tags.get("code") == self._code or run.data.tags.get("owner") == self._owner
        ]
        return sorted(mine, key=lambda run: (run.info.start_time, run.info.run_id))

    def _settle(self) -> None:
        """Find the run that is written from this journal; clear away the job's dead ones. If there
        are two leases, the older one is valid, and this run gives way."""
        runs = self._all()
        same = [run for run in runs if run.data.tags.get("journal") == self._journal]
        self.id = str(same[0].info.run_id) if same else ""
        older = True
        for run in runs:
            tags = run.data.tags
            of_another = tags.get("owner") != self._owner
            if run.info.run_id == self.id:
                older = False
            elif "finished" in tags:
                continue
            elif not (of_another and fresh(run.info.status, tags.get("heartbeat", "0"))):
                self._client.delete_run(run.info.run_id)
            elif older:
                if self.id:
                    self._client.delete_run(self.id)
                where = f"on {tags.get('host')}, in {tags.get('job_folder')}"
                raise Elsewhere(f"is already running ({where})")

    def _complete(self) -> None:
        """Add the missing params of the run: existing ones cannot be changed."""
        from mlflow.entities import Param, RunTag

        run = self._client.get_run(self.id)
        self.had_ended = run.info.status != "RUNNING"
        self._artifacts, settings = str(run.info.artifact_uri), self._about["settings"]
        params = [Param(k, str(v)) for k, v in settings.items() if k not in run.data.params]
        tags = [RunTag(k, v) for k, v in self._tags.items()]
        self._client.log_batch(self.id, params=params, tags=tags)
        if self.had_ended:
            self._client.update_run(self.id, status="RUNNING")
        if "files" in run.data.tags:  # what could not be uploaded is tried again
            self._client.delete_tag(self.id, "files")


# What MLflow's own pages show about a run: who ran what, from which commit, in which sweep.
#
# MLflow fills in these fields itself only if a training process calls `mlflow.start_run()`. Names
# that begin with `mlflow.` are reserved for MLflow (mlflow.org/docs, tracking, system tags).

LONGEST = 1000  # characters of a line of the description; MLflow refuses tags of more than 8000


def tags(folder: JobFolder[Any]) -> dict[str, str]:
    """Return the fields of a run's page as tags; unknown ones are left out."""
    version = provenance.version()
    inputs: dict[str, str] = record_of(folder.path, layout.SETTINGS).get("inputs", {})
    found = {
        "mlflow.user": user(),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": f"{folder.script}.py",
        "mlflow.source.git.commit": version["commit"],
        "mlflow.source.git.branch": version.get("branch", ""),
        "mlflow.note.content": _note(folder, list(inputs)),
        # A sweep runs jobs from a copy of the code; its name contains the time when it began.
        "sweep": "" if CODE == PROJECT else CODE.parent.name,
        "seed_group": _seed_group(folder),
        "search": scrub(json.dumps(folder.drawn)) if folder.drawn else "",
        "inputs": ", ".join(f"{job}/{attempt}" for job, attempt in inputs.items()),
    }
    return {name: text for name, text in found.items() if text}


def _seed_group(folder: JobFolder[Any]) -> str:
    """What all repeats of a job, as over seeds and folds, have in common, and no other jobs: its
    name without these, and digits of a hash over its settings and its code. Empty for a job without
    repeats."""
    known, each = roles(type(folder.settings)), identity(folder.settings)
    settings = {name: value for name, value in each.items() if known.get(name) != "repeat"}
    if len(settings) == len(each):
        return ""
    repeated = json.dumps([folder.script, settings, folder.code.digest], sort_keys=True)
    words = as_words(folder.settings).split(" ")
    words = [word for word in words if known.get(word.partition("=")[0]) != "repeat"]
    return " ".join([*words, f"({hashlib.sha256(repeated.encode()).hexdigest()[:6]})"])


def _note(folder: JobFolder[Any], inputs: Sequence[str]) -> str:
    """The description, in Markdown: the job's command, its inputs, its note and its folder."""
    derived = ", ".join(f"`{job}`" for job in inputs)
    lines = [
        f"`{as_command(folder.settings, folder.script)}`",
        f"Derived from the job{'s' * (len(inputs) > 1)} {derived}" if inputs else "",
        str(getattr(folder.settings, "note", "")),
        f"Folder: `{portable(folder.path)}`",
    ]
    return scrub("\n\n".join(line[:LONGEST] for line in lines if line))


def user() -> str:
    """Return the name of this process's user, or else the number."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return str(os.getuid())
