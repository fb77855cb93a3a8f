"""Damage to a tracking store, and what `jobs.py sync` makes of it: a table of docs/damage.md."""

import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from faults import Project, succeeded
from labjobs.tracking import costs

JOB = """
WITH job AS (SELECT run_uuid, value AS id, artifact_uri FROM tags JOIN runs USING (run_uuid)
    WHERE key = 'job_id' AND lifecycle_stage = 'active')
"""
FOLDERS = f"{JOB} SELECT id, artifact_uri FROM job"
CONTENT = f"""
{JOB}
SELECT id, 'point', key, step, timestamp, value FROM metrics JOIN job USING (run_uuid)
    WHERE key NOT IN ({", ".join(map(repr, costs.NAMES))})
UNION ALL SELECT id, 'last', key, 0, 0, value FROM latest_metrics JOIN job USING (run_uuid)
UNION ALL SELECT id, 'param', key, 0, 0, value FROM params JOIN job USING (run_uuid)
UNION ALL SELECT id, 'tag', key, 0, 0, value FROM tags JOIN job USING (run_uuid)
    WHERE key NOT IN ('heartbeat', 'job_folder', 'mlflow.log-model.history')
ORDER BY 1, 2, 3, 4, 5, 6
"""
"""All that a store has of jobs by their ids, but for the times of heartbeats and the folder, which
differs in copies of a project. Costs are logged at each end of an attempt; the last ones count."""

SHORT = ("--epochs", "2", "--batch-size", "256", "--quiet")
EARLIER = "earlier.db"

Damage = Callable[[Project], object]


def prepare(project: Project) -> None:
    """Run three jobs, of which one is paused; a copy of the store is from the middle of another."""
    project.finish(*SHORT, "--lr", "0.01")
    succeeded(project.run(*SHORT, "--lr", "0.02", "--pause-after", "1e"))
    shutil.copy(project.root / "mlflow.db", project.root / EARLIER)
    project.finish(*SHORT, "--lr", "0.02")
    succeeded(project.run(*SHORT, "--lr", "0.03", "--pause-after", "1e"))


def rows(change: str, table: str = "") -> Damage:
    """A change of the store's rows, or of one row of a table: by a broken disk, or by people."""
    any_loss = f"(SELECT rowid FROM {table} WHERE key LIKE '%loss' ORDER BY random() LIMIT 1)"
    return lambda project: project.write(f"{change} WHERE rowid = {any_loss}" if table else change)


def by_people(code: str) -> Damage:
    """A change that people make in MLflow's pages, which call what its client calls."""
    client = "from sys import argv; from mlflow import MlflowClient as C; store = C(argv[1])"

    def change(project: Project) -> None:
        runs = [str(run) for (run,) in project.ask("SELECT run_uuid FROM runs ORDER BY start_time")]
        address = f"sqlite:///{project.root}/mlflow.db"
        succeeded(project.do(sys.executable, "-c", f"{client}\n{code}", address, *runs))

    return change


def delete(project: Project, pattern: str = "mlflow.db") -> None:
    """Delete a file or a folder."""
    place = sorted(project.root.glob(pattern))[0]
    shutil.rmtree(place) if place.is_dir() else place.unlink()


def replace(project: Project) -> None:
    """Put another store in the place of the project's."""
    delete(project)
    by_people("store.log_metric(store.create_run('0').info.run_id, 'val_loss', 1.0)")(project)


ROWS: dict[str, Damage] = {
    "a point is deleted": rows("DELETE FROM metrics", "metrics"),
    "a point is changed": rows("UPDATE OR REPLACE metrics SET value = value + 1", "metrics"),
    "a point is there twice, at another time": rows(
        "INSERT INTO metrics SELECT key, value, timestamp + 1 + abs(random() % 1000000), run_uuid, "
        "step, is_nan FROM metrics",
        "metrics",
    ),
    "a last value is changed": rows(
        "UPDATE latest_metrics SET value = value + 1", "latest_metrics"
    ),
    "a last value is deleted": rows("DELETE FROM latest_metrics", "latest_metrics"),
    "a param of all runs is changed": rows("UPDATE params SET value = '7' WHERE key = 'epochs'"),
    "a tag of all runs is deleted": rows("DELETE FROM tags WHERE key = 'metrics'"),
}

DAMAGES: dict[str, Damage] = {
    "the store is deleted": delete,
    "another store is put in its place": replace,
    "a copy from the middle of a job is put back": lambda project: shutil.copy(
        project.root / EARLIER, project.root / "mlflow.db"
    ),
    "a run is deleted": by_people("store.delete_run(argv[2])"),
    "all runs are deleted": by_people("[store.delete_run(run) for run in argv[2:]]"),
    "a run's files are deleted": partial(delete, pattern="mlruns/*/artifacts"),
    "a file of a run is deleted": partial(delete, pattern="mlruns/*/artifacts/log.txt"),
    "a run is marked as killed": by_people("store.set_terminated(argv[2], 'KILLED')"),
    "a point is added": by_people("store.log_metric(argv[2], 'val_loss', 0.0, step=7)"),
    **ROWS,
    "the experiment is deleted and restored": by_people(
        "store.delete_experiment('1'); store.restore_experiment('1')"
    ),
}

EDITS: dict[str, Damage] = {
    "a run is renamed": by_people("store.update_run(argv[2], name='the best')"),
    "a run's description is changed": by_people(
        "store.set_tag(argv[2], 'mlflow.note.content', 'the best')"
    ),
    "a run gets a tag of its own": by_people("store.set_tag(argv[2], 'paper', 'yes')"),
}
"""What people may change; it stays as they want it."""


class Trial:
    """Damage to a project's store, and `jobs.py sync` after it; counts are of rows and files."""

    def __init__(self, project: Project, damage: Damage) -> None:
        before = content(project)
        damage(project)
        damaged = content(project)
        self.rows, self.lost = before.total(), (before - damaged).total()
        self.added = (damaged - before).total()
        self.said = succeeded(project.do("python", "jobs.py", "sync")).stdout.splitlines()
        after = content(project)
        self.still_lost, self.still_added = (before - after).total(), (after - before).total()


def content(project: Project) -> Counter[tuple[object, ...]]:
    """Count the rows and the files that a project's store has of its jobs."""
    found = Counter(project.ask(CONTENT))
    for job, address in project.ask(FOLDERS):
        folder = Path(str(address).removeprefix("file://"))
        files = (path for path in folder.rglob("*") if path.is_file())
        found.update((job, "file", path.relative_to(folder).as_posix()) for path in files)
    return found


def table(project: Callable[[], Project]) -> Iterator[str]:
    """Yield the table's lines; each row has a project of its own, which is prepared."""
    yield "| What happens | lost | changed or added | `jobs.py sync` | still lost | duplicated |"
    yield "|---|---|---|---|---|---|"
    for name, damage in (DAMAGES | EDITS).items():
        done = Trial(project(), damage)
        counts = (f"{done.lost} of {done.rows}", done.added, done.said[-1])
        yield f"| {' | '.join(map(str, (name, *counts, done.still_lost, done.still_added)))} |"
