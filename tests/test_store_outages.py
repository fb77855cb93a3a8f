"""The tracking store goes away while a job trains."""

import json
import re
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults import Project, courier_of, kill, silent, wait_until
from labjobs.tracking import costs
from servers import Store, mlflow_server, postgres

pytestmark = pytest.mark.full

FOREVER = 1_000_000
"""Epochs of a job that does not end by itself."""

SHORT = 300
"""Epochs of a job that ends soon, but not before the store has its first metrics."""

Action = Callable[[], object]


class Trial:
    """A job in training, and the store that it is tracked in."""

    def __init__(self, project: Project, address: str, store: Store, *flags: str) -> None:
        self._project, self._store, self._address = project, store, address
        self._flags = ("--batch-size", "64", "--log-every", "1", "--quiet", *flags)
        self._process = project.start(*self._flags, MLFLOW_TRACKING_URI=address)
        self.courier = 0

    def begin(self) -> None:
        """Wait until the job trains and the store has its first metrics."""
        wait_until(lambda: self._process.poll() is not None or self._is_owner())
        assert self._process.poll() is None, self.end()
        wait_until(lambda: "bytes" in _read(self.folder / "sent.json"))
        self.courier = courier_of(self._process) or 0

    def trains(self) -> bool:
        """Whether the job has taken steps."""
        if not self._is_owner():
            return False
        journal = self.folder / "metrics.jsonl"
        return journal.exists() and "train_loss" in journal.read_text()

    def do(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A script of the project with this store, to its end."""
        return self._project.do("python", script, *words, MLFLOW_TRACKING_URI=self._address)

    def again(self) -> subprocess.CompletedProcess[str]:
        """The same command, to its end."""
        return self.do("run.py", *self._flags)

    def end(self) -> tuple[int, str]:
        """Wait for the job's end; its exit status and what it said on stderr."""
        _, errors = self._process.communicate(timeout=600)
        return self._process.returncode, errors

    def abandon(self) -> None:
        """Kill what is left of it, if a test has failed."""
        if self._process.poll() is None:
            courier = courier_of(self._process)
            self._process.kill()
            kill(courier or self._process.pid)
            self._process.communicate()

    def away(self, go: Action, come: Action, seconds: float) -> None:
        """Have the store away for so long while the job trains; stop it later; nothing is lost."""
        self.begin()
        go()
        begun = now()
        time.sleep(seconds)
        come()
        ended = now()
        steps = sum(begun < at < ended for name, _, at, _ in self._written() if name == "lr")
        print(f"away for {(ended - begun) / 1000:.0f} s, in which {steps} steps were trained")
        assert steps > 0
        self.stop()

    def stop(self) -> None:
        """Stop the job; all of it comes to the store, if by a courier that outlives it."""
        self._process.send_signal(signal.SIGTERM)
        assert self.end()[0] == 128 + signal.SIGTERM
        wait_until(lambda: self.status() == "KILLED")
        self.check("KILLED")

    def status(self) -> str:
        """The status of the job's one run in the store, if it is whole."""
        runs = self._store.runs(self.folder.parent.name)
        mark = "true" if runs[0][0] == "FINISHED" else None
        return str(runs[0][0]) if [run[1] for run in runs] == [mark] else str(runs)

    def check(self, status: str) -> None:
        """The store has each metric of the journal once, and one run, that ended as it should."""
        points = self._store.points(self.folder.parent.name)
        stored = Counter({point: n for point, n in points.items() if journalled(point)})
        written = self._written()
        lost, added = written - stored, stored - written
        steps = sorted(step for name, step, _, _ in written if name == "train_loss")
        assert steps == list(range(1, len(steps) + 1))
        assert (lost, added) == (Counter(), Counter())
        assert self.status() == status

    def _written(self) -> "Counter[tuple[Any, ...]]":
        """(name, step, time, value) of all metrics in the job's journal."""
        text = (self.folder / "metrics.jsonl").read_text()
        whole = text[: text.rfind("\n")].splitlines()
        points = [line for line in map(json.loads, whole) if "metrics" in line]
        return Counter(
            (name, line["step"], line["time"], value)
            for line in points
            for name, value in line["metrics"].items()
        )

    def _is_owner(self) -> bool:
        """Whether a folder is the job's; notes which."""
        for lock in (self._project.root / "runs").glob("*/*/lock"):
            if _read(lock).get("pid") == self._process.pid:
                self.folder = lock.parent
                return True
        return False


def journalled(point: tuple[Any, ...]) -> bool:
    """Whether a point is from the journal; what a job has cost is from its courier."""
    return point[0] not in costs.NAMES


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
def fresh(project, tmp_path):
    """A copy of one project for each test, whose jobs do not know that they are tested."""
    copy = project.copy(tmp_path / "fresh")
    copy.env = {k: v for k, v in copy.env.items() if not k.startswith("PYTEST")}
    return copy


@pytest.fixture
def train(fresh, request):
    """Starts a job: the store's address and its database, epochs, other flags."""
    trials: list[Trial] = []

    def train(address: str, database: str, epochs: int, *flags: str) -> Trial:
        flags = ("--epochs", str(epochs), "--note", request.node.name, *flags)
        trials.append(Trial(fresh, address, Store(database), *flags))
        return trials[-1]

    yield train
    for trial in trials:
        trial.abandon()


@pytest.fixture
def outage(request):
    """Seconds for which the store is away."""
    return float(request.config.getoption("--outage-seconds"))


@pytest.mark.parametrize(
    ("what", "go", "come"),
    [("server", "kill", "start"), ("server", "freeze", "thaw"), ("database", "stop", "start")],
)
def test_away_while_a_job_trains(train, server, database, outage, what, go, come):
    trial = train(server.uri, database.uri, FOREVER)
    it = {"server": server, "database": database}[what]
    trial.away(getattr(it, go), getattr(it, come), outage)


def test_server_killed_for_good_and_the_rest_sent_later(train, server, database):
    """Two jobs at once; the courier of one of them is killed too, so that its rest stays behind."""
    trials = [train(server.uri, database.uri, SHORT, "--seed", seed) for seed in "01"]
    for trial in trials:
        trial.begin()
    server.kill()
    for trial in trials:
        status, errors = trial.end()
        assert status == 3
        assert len(errors.splitlines()) == 1 and "python jobs.py sync" in errors
    left, outlived = trials
    kill(left.courier)
    server.start()
    wait_until(lambda: outlived.status() == "FINISHED")
    outlived.check("FINISHED")
    sent = silent(left.do("jobs.py", "sync"))
    assert re.fullmatch(rf"job {left.folder.parent.name} \w+\n1 of 1 jobs \w+\n", sent.stdout)
    left.check("FINISHED")
    second = left.do("jobs.py", "sync")
    assert second.returncode == 0 and len(second.stdout.splitlines()) == 1
    third = left.again()
    assert third.returncode == 0 and "already finished" in third.stdout


def test_database_away_from_the_start(train, database):
    database.stop()
    trial = train(database.uri, database.uri, FOREVER)
    wait_until(trial.trains)
    database.start()
    trial.begin()
    trial.stop()


def test_sqlite_locked(train, fresh, outage):
    path = fresh.root / "mlflow.db"
    trial = train(f"sqlite:///{path}", f"sqlite:///{path}", FOREVER)
    with lock_of(path) as (lock, unlock):
        trial.away(lock, unlock, 2 * outage)


@contextmanager
def lock_of(path: Path) -> Iterator[tuple[Action, Action]]:
    """What locks a sqlite store against everyone, and what unlocks it."""
    with closing(sqlite3.connect(path, timeout=60)) as other:
        yield partial(other.execute, "BEGIN EXCLUSIVE"), other.rollback


def now() -> int:
    """The journal's time: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _read(path: Path) -> dict[str, Any]:
    """What a file of the job's holds, if it is there and whole."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}
