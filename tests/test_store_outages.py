"""The tracking store goes away while a job trains."""

import json
import re
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from faults import Project, chosen, courier_of, ended, job_of, kill, silent, wait_until
from labjobs.tracking import costs
from servers import guarded, mlflow_server, postgres

pytestmark = pytest.mark.full

FOREVER = 1_000_000
"""Epochs of a job that does not end by itself."""

SHORT = 300
"""Epochs of a job that ends soon, but not before the store has its first metrics."""

POINTS = """
SELECT metrics.key, step, timestamp, metrics.value FROM metrics JOIN runs USING (run_uuid)
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
WHERE id.value = :job_id AND lifecycle_stage = 'active'
"""
RUNS = """
SELECT status, mark.value FROM runs
JOIN tags AS id ON id.run_uuid = runs.run_uuid AND id.key = 'job_id'
LEFT JOIN tags AS mark ON mark.run_uuid = runs.run_uuid AND mark.key = 'finished'
WHERE id.value = :job_id AND lifecycle_stage = 'active'
"""

Action = Callable[[], object]


class Trial:
    """A job in training, and the database of the store that it is tracked in."""

    def __init__(self, project: Project, database: str, *flags: str) -> None:
        self.project, self._database = project, database
        self.flags = ("--batch-size", "64", "--log-every", "1", "--quiet", *flags)
        self.process = project.start(*self.flags)
        self.folder = Path("none")

    def trains(self) -> bool:
        """Whether the job has taken steps; notes its folder."""
        for lock in self.project.root.glob("runs/*/*/lock"):
            if read(lock).get("pid") == self.process.pid:
                self.folder = lock.parent
        journal = self.folder / "metrics.jsonl"
        return journal.exists() and "train_loss" in journal.read_text()

    def begin(self) -> None:
        """Wait until the job trains and the store has its first metrics."""
        wait_until(lambda: self.process.poll() is not None or self.trains())
        assert self.process.poll() is None, ended(self.process)
        wait_until(lambda: "bytes" in read(self.folder / "sent.json"))

    def away(self, go: Action, come: Action, seconds: float) -> None:
        """Have the store away for so long while the job trains; stop it later; nothing is lost."""
        self.begin()
        go()
        begun = now()
        time.sleep(seconds)
        come()
        back = now()
        steps = sum(begun < at < back for name, _, at, _ in self._written() if name == "lr")
        print(f"away for {(back - begun) / 1000:.0f} s, in which {steps} steps were trained")
        assert steps > 0
        self.stop()

    def stop(self) -> None:
        """Stop the job; all of it comes to the store, if by a courier that outlives it."""
        self.process.send_signal(signal.SIGTERM)
        assert ended(self.process).returncode == 128 + signal.SIGTERM
        self.wait_until_all_is_there("KILLED")

    def wait_until_all_is_there(self, status: str) -> None:
        """The store has each metric of the journal once, and one run, that ended as it should."""
        mark = "true" if status == "FINISHED" else None
        wait_until(lambda: self._ask(RUNS) == [(status, mark)])
        points, written = Counter(self._ask(POINTS)), self._written()
        # What a job has cost is from its courier.
        stored = Counter({point: n for point, n in points.items() if point[0] not in costs.NAMES})
        steps = sorted(step for name, step, _, _ in written if name == "train_loss")
        assert steps == list(range(1, len(steps) + 1))
        assert (written - stored, stored - written) == (Counter(), Counter())

    def _ask(self, query: str) -> list[tuple[object, ...]]:
        engine = sqlalchemy.create_engine(self._database, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            job = {"job_id": self.folder.parent.name}
            return [tuple(row) for row in connection.execute(sqlalchemy.text(query), job)]

    def _written(self) -> "Counter[tuple[Any, ...]]":
        """(name, step, time, value) of all metrics in the job's journal."""
        text = (self.folder / "metrics.jsonl").read_text()
        lines = map(json.loads, text[: text.rfind("\n")].splitlines())
        return Counter(
            (name, line["step"], line["time"], value)
            for line in lines
            for name, value in line.get("metrics", {}).items()
        )


def read(path: Path) -> dict[str, Any]:
    """What a file of the job's holds, if it is there and whole."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def now() -> int:
    """The journal's time: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def started_database():
    with postgres() as database:
        yield database


@pytest.fixture
def database(started_database):
    """PostgreSQL, started again if the test before has failed and left it stopped."""
    return started_database.ensure()


@pytest.fixture(scope="module")
def started_server(started_database):
    with mlflow_server(started_database.ensure().uri) as server:
        yield server


@pytest.fixture
def server(started_server, database):
    """MLflow's server on that database, likewise."""
    return started_server.ensure()


@pytest.fixture
def train(project, tmp_path):
    """Starts a job: the store's address and its database, epochs, other flags."""
    fresh, trials = project.copy(tmp_path / "fresh"), []

    def train(address: str, database: str, epochs: int, *flags: str, **env: str) -> Trial:
        fresh.env |= {"MLFLOW_TRACKING_URI": address, **env}
        trials.append(Trial(fresh, database, "--epochs", str(epochs), *flags))
        return trials[-1]

    yield train
    for process in [trial.process for trial in trials if trial.process.poll() is None]:
        kill(courier_of(process) or process.pid)  # a test has failed
        process.kill()
        process.communicate()


@pytest.fixture
def outage(request):
    """Seconds for which the store is away."""
    return float(request.config.getoption("--outage-seconds"))


OUTAGES = [("server", "kill", "start"), ("server", "freeze", "thaw"), ("database", "stop", "start")]


@pytest.mark.parametrize("outage_of", chosen(OUTAGES, OUTAGES[0]))
def test_away_while_a_job_trains(train, server, database, outage, outage_of):
    what, go, come = outage_of
    trial = train(server.uri, database.uri, FOREVER, "--note", f"{what} {go}")
    it = {"server": server, "database": database}[what]
    trial.away(getattr(it, go), getattr(it, come), outage)


@pytest.mark.long
def test_server_killed_for_good_and_the_rest_sent_later(train, server, database):
    """Two jobs at once; the courier of one of them is killed too, so that its rest stays behind."""
    left, outlived = (train(server.uri, database.uri, SHORT, "--seed", seed) for seed in "01")
    left.begin()
    outlived.begin()
    courier = courier_of(left.process)
    server.kill()
    for trial in (left, outlived):
        done = ended(trial.process)
        assert done.returncode == 3
        assert len(done.stderr.splitlines()) == 1 and "python jobs.py sync" in done.stderr
    kill(courier)
    server.start()
    outlived.wait_until_all_is_there("FINISHED")
    sync = ("python", "jobs.py", "sync")
    sent = silent(left.project.do(*sync))
    assert re.fullmatch(
        rf"job {left.folder.parent.name}/\S+ \w+\n1 of 1 attempts \w+\n", sent.stdout
    )
    left.wait_until_all_is_there("FINISHED")
    assert len(silent(left.project.do(*sync)).stdout.splitlines()) == 1
    assert "already finished" in silent(left.project.run(*left.flags)).stdout


@pytest.mark.long
def test_database_away_from_the_start(train, database):
    database.stop()
    trial = train(database.uri, database.uri, FOREVER)
    wait_until(trial.trains)
    database.start()
    trial.begin()
    trial.stop()


@pytest.mark.long
def test_sqlite_locked(train, tmp_path, outage):
    address = f"sqlite:///{tmp_path}/store.db"
    trial = train(address, address, FOREVER)
    with closing(sqlite3.connect(tmp_path / "store.db", timeout=60)) as other:
        trial.away(partial(other.execute, "BEGIN EXCLUSIVE"), other.rollback, 2 * outage)


def test_a_finished_job_that_is_stopped_while_it_waits_for_the_store(train, tmp_path):
    """Its courier goes on, and then removes the checkpoint that nobody needs any more."""
    address = f"sqlite:///{tmp_path}/store.db"
    trial = train(address, address, SHORT, "--checkpoint-minutes", "0.01")
    trial.begin()
    with closing(sqlite3.connect(tmp_path / "store.db", timeout=60)) as other:
        other.execute("BEGIN EXCLUSIVE")
        wait_until((trial.folder / "outcome.json").exists)
        trial.process.send_signal(signal.SIGTERM)
        assert ended(trial.process).returncode == 3
        assert (trial.folder / "last.pt").exists()
        other.rollback()
    wait_until(lambda: not (trial.folder / "last.pt").exists())
    assert read(trial.folder / "sent.json")["status"] == "FINISHED"


PASSWORD = "correct horse"
RIGHT = {"MLFLOW_TRACKING_USERNAME": "ada", "MLFLOW_TRACKING_PASSWORD": PASSWORD}
ANSWERS = {
    "right": RIGHT,
    "token": {"MLFLOW_TRACKING_TOKEN": PASSWORD},
    "wrong": {**RIGHT, "MLFLOW_TRACKING_PASSWORD": "battery staple"},
    "missing": dict[str, str](),
}


@pytest.mark.parametrize("answer", chosen(ANSWERS, "wrong"))
def test_a_server_that_asks_for_a_password(train, server, database, answer):
    given = ANSWERS[answer]
    with guarded(server, "ada", PASSWORD) as address:
        trial = train(address, database.uri, 3, "--note", answer, **given)
        wait_until(lambda: courier_of(trial.process) is not None)
        courier = courier_of(trial.process)
        done = ended(trial.process)
        trial.folder = trial.project.folder(job_of(done))
        if answer in ("right", "token"):
            assert (done.returncode, done.stderr) == (0, "")
        else:
            (line,) = done.stderr.splitlines()
            assert done.returncode == 3 and "401" in line and "python jobs.py sync" in line
            assert not any(secret in line for secret in given.values())
            kill(courier)  # or it would try for two more minutes
            sent = silent(trial.project.do("python", "jobs.py", "sync", **RIGHT))
            assert sent.stdout.endswith("1 of 1 attempts sent\n")
        trial.wait_until_all_is_there("FINISHED")
