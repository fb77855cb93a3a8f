"""The tracking store's address, and forms of it that can be printed: only `uri` contains passwords.

The store is `MLFLOW_TRACKING_URI`, else `mlflow.db` in the project.
"""

import hashlib
import os
import re
from pathlib import Path

from labjobs.errors import SettingsError
from labjobs.paths import PROJECT
from labjobs.privacy import printable, scrub

KINDS = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")
"""What the address of a store begins with (mlflow.org/docs, tracking URIs). MLflow no longer
supports file stores."""

SERVER = re.compile(
    r"(?P<scheme>[\w+.-]+://)(?P<user>[^/?#]*@)?(?P<host>[^/?#@]*)(?P<rest>.*)", re.DOTALL
)


def uri() -> str:
    """Return the address for MLflow: absolute, since MLflow's default depends on the current
    folder, and with `%40` for each `@` except the last one, which databases would misread."""
    given = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{PROJECT / 'mlflow.db'}"
    path = _path(given)
    if path:
        return f"sqlite:///{path.absolute()}"
    server = SERVER.fullmatch(given)
    if not server or not server["user"]:
        return given
    user = server["user"][:-1].replace("@", "%40")
    return f"{server['scheme']}{user}@{server['host']}{server['rest']}"


def sqlite_path() -> Path | None:
    """Return the file of a sqlite store, None for any other kind."""
    return _path(uri())


def check() -> None:
    """Raise SettingsError if the address is not a valid one for a store."""
    path = sqlite_path()
    if path and "'" in f"{path}{PROJECT}":
        raise _wrong("MLflow cannot work in a folder with a ' in its path; rename the folder")
    if path and not path.parent.is_dir():
        raise _wrong(f"there is no folder {path.parent}")
    if re.split("[:+]", uri())[0] not in KINDS:
        raise _wrong(f"must begin with one of {', '.join(KINDS)}, and ://")
    server = SERVER.fullmatch(uri())
    if path or not server:
        return
    if "@" in server["rest"]:
        raise _wrong("must have %40, %2F, %3F and %23 for @, /, ? and # in a password or after it")
    if not re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", server["host"]):
        raise _wrong("must have a number, the port, after the last : before the path")


def shown() -> str:
    """Return the address as it can be printed."""
    return printable(uri())


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


def _path(address: str) -> Path | None:
    begins = "sqlite:///"
    return Path(address.removeprefix(begins)) if address.startswith(begins) else None


def _wrong(text: str) -> SettingsError:
    return SettingsError(f"MLFLOW_TRACKING_URI {shown()}: {scrub(text)}")
