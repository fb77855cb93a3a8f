"""The tracking store's database, queried by SQL if possible (a sqlite file, PostgreSQL). Thousands
of jobs take milliseconds, while importing MLflow takes 2 s. Queries work for both, with values by
name (`:experiment`).
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from labjobs.privacy import scrub
from labjobs.tracking import address

AWAY = "the tracking store cannot be read"

NO_SUCH_TABLE = "42P01"
"""PostgreSQL's code for that (postgresql.org/docs/current/errcodes-appendix.html)."""

LISTED = {
    "sqlite": "(SELECT value FROM json_each(:{}))",
    "postgresql": "(SELECT json_array_elements_text(CAST(:{} AS json)))",
}
"""SQL for "is one of these values", which are passed as a JSON array of texts."""


def kind() -> str:
    """`sqlite`, `postgresql`, or empty if the store cannot be queried by SQL."""
    if address.sqlite_path():
        return "sqlite"
    return "postgresql" if address.uri().startswith(("postgresql:", "postgresql+")) else ""


def listed(name: str) -> str:
    """SQL for a list of texts, whose value is a JSON array."""
    return LISTED[kind()].format(name)


def select(query: str, timeout: float = 60, **values: str) -> list[tuple[Any, ...]]:
    """All rows of a query; empty if the store does not exist yet. Raises ConnectionError if the
    database cannot be read.
    """
    path = address.sqlite_path()
    return _from_file(path, query, timeout, values) if path else _from_server(query, values)


def _from_file(
    path: Path, query: str, timeout: float, values: dict[str, str]
) -> list[tuple[Any, ...]]:
    """The file is opened for writing and then restricted to reading: a connection that is read-only
    from the start cannot roll back the changes of a killed writer, and fails."""
    if not path.exists():
        return []
    try:
        uri = f"{path.resolve().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, timeout=timeout, uri=True)) as connection:
            connection.execute("PRAGMA query_only = ON")
            return connection.execute(query, values).fetchall()
    except sqlite3.DatabaseError as error:
        if str(error).startswith("no such table"):
            return []
        raise ConnectionError(scrub(f"{AWAY}: {path}: {error}")) from error


def _from_server(query: str, values: dict[str, str]) -> list[tuple[Any, ...]]:
    """Uses SQLAlchemy, which MLflow needs as well and which knows the driver that the address
    names."""
    from sqlalchemy import NullPool, create_engine, text
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with create_engine(address.uri(), poolclass=NullPool).connect() as connection:
            return [tuple(row) for row in connection.execute(text(query), values)]
    except (SQLAlchemyError, ImportError, ValueError) as error:
        cause = getattr(error, "orig", error)
        if NO_SUCH_TABLE in (getattr(cause, "sqlstate", ""), getattr(cause, "pgcode", "")):
            return []
        said = scrub(str(cause)).strip().splitlines()[0]
        raise ConnectionError(f"{AWAY}: {address.shown()}: {said}") from error
