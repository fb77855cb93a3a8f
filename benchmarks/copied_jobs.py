"""Copies a project's finished jobs: `copied_jobs.py NUMBER`, until there are NUMBER of each.

They differ in the setting `note`, which changes no result. They share the files of the weights; in
the store they have what a sweep and figures ask for.
"""

import os
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from labjobs.files import read_record, write_record
from labjobs.job.identity import identity, job_id, restore
from settings import Settings

TABLES = ("runs", "tags", "params", "latest_metrics")
COPIES = """
INSERT INTO {table} ({columns}) SELECT {values} FROM {table}, jobs
WHERE run_uuid = (SELECT run_uuid FROM tags WHERE key = 'job_id' AND value = jobs.original)
"""
CHANGED = {
    "tags": ("value", "CASE WHEN key = 'job_id' THEN jobs.id ELSE value END"),
    "params": ("value", "CASE WHEN key = 'note' THEN jobs.note ELSE value END"),
}


def copy(job: Path, note: str) -> str:
    """Copy a job's folder for another note; returns the job's id."""
    (attempt,) = job.iterdir()
    about = read_record(attempt / "settings.json")
    settings = replace(restore(Settings, about["settings"]), note=note)
    copied = job.with_name(job_id(settings, "run")) / attempt.name
    shutil.copytree(attempt, copied, copy_function=os.link)
    for name in ("settings.json", "outcome.json", "sent.json", "lock"):
        found = read_record(attempt / name)
        found.pop("crc", None)
        changed = found | ({"id": copied.parent.name} if "id" in found else {})
        if "settings" in found:
            changed["settings"] = identity(settings)
        write_record(copied / name, changed)
    return copied.parent.name


def main() -> None:
    """Copy each of the project's jobs."""
    originals = [job for job in Path("runs").iterdir() if not job.name.startswith(".")]
    jobs = [
        (copy(job, note), job.name, note)
        for job in originals
        for note in map(str, range(1, int(sys.argv[1])))
    ]
    with closing(sqlite3.connect("mlflow.db")) as store, store:
        store.execute("CREATE TEMP TABLE jobs (id TEXT, original TEXT, note TEXT)")
        store.executemany("INSERT INTO jobs VALUES (?, ?, ?)", jobs)
        for table in TABLES:
            names = [name for _, name, *_ in store.execute(f"PRAGMA table_info({table})")]
            values = {"run_uuid": "jobs.id", **dict([CHANGED[table]] if table in CHANGED else [])}
            copies = ", ".join(values.get(name, name) for name in names)
            store.execute(COPIES.format(table=table, columns=", ".join(names), values=copies))


if __name__ == "__main__":
    main()
