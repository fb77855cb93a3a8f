"""Jobs killed at random instants and started again end as if nothing had happened.

A job is killed, started, killed again, until it gets to its end; then its weights, its journal and
its run in MLflow are held against those of a job that was left in peace. `--kills N` sets how often
a job is killed by SIGKILL; the other signals take their share of it.
"""

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faults import Project, courier_of, job_of, kill, same

JOB = (
    *("--epochs", "40", "--val-fraction", "0.5", "--augment", "crop-flip", "--ema", "0.9"),
    *("--log-every", "1", "--checkpoint-minutes", "0.0001", "--warmup", "2"),
)
"""Half its time goes to evaluation; it writes a checkpoint as soon as the last is written."""

LOADERS = {
    "resident": ("--loader", "resident", "--optimizer", "adamw"),
    "workers": ("--loader", "workers", "--workers", "1", "--optimizer", "sgd", "--seed", "1"),
}
START_UP = 6.0
"""Seconds in which a job has surely begun to train, on a quiet machine."""


@pytest.fixture(scope="module")
def in_peace(project: Project) -> dict[str, str]:
    """Job ids of jobs that ran from start to end undisturbed, one for each loader."""
    done = {name: project.run(*JOB, *flags) for name, flags in LOADERS.items()}
    for name, job in done.items():
        assert job.returncode == 0, (name, job.stderr)
    return {name: job_of(job) for name, job in done.items()}


@pytest.fixture
def fresh(project: Project, tmp_path: Path) -> Project:
    """A copy of the project that has no jobs yet."""
    return project.copy(tmp_path / "copy")


def instants(folder: Path, chance: random.Random) -> dict[str, Callable[[], bool]]:
    """Ways to choose the instant of a kill: each says whether it has come."""
    begun, wait = time.monotonic(), chance.uniform(0, START_UP)

    def journal() -> str:
        file = folder / "metrics.jsonl"
        return file.read_text() if file.exists() else ""

    epochs = journal().count("val_loss") + chance.randrange(1, 12)
    steps = journal().count("train_loss") + chance.randrange(1, 200)
    return {
        "any": lambda: time.monotonic() - begun > wait,
        "training": lambda: journal().count("train_loss") > steps,
        "checkpoint": lambda: (folder / "last.part").exists(),
        "best": lambda: (folder / "best.part").exists(),
        "evaluation": lambda: journal().count("val_loss") > epochs,
        "final save": lambda: "test_loss" in journal() or (folder / "outcome.part").exists(),
    }


def disturb(
    project: Project, flags: tuple[str, ...], job_id: str, number: int, chance: random.Random
) -> tuple[str, bool]:
    """Start a job and kill it at a random instant; when and whom, and whether the job has ended."""
    job = project.start(*flags)
    ways = instants(project.folder(job_id), chance)
    way = chance.choice(list(ways))
    whom = chance.choice(["job", "courier", "both"]) if number == signal.SIGKILL else "job"
    while job.poll() is None and not ways[way]():
        time.sleep(0.001)
    alive, courier = job.poll() is None, courier_of(job)
    if courier and whom != "job":
        kill(courier, number)
    if whom != "courier":
        kill(job.pid, number)
    _, err = job.communicate(timeout=300)
    assert job.returncode in {0, -number, 128 + number}, err
    assert "Traceback" not in err
    return (f"{whom}, {way}" if alive else "too late"), job.returncode == 0


def torment(
    project: Project,
    peace: Project,
    flags: tuple[str, ...],
    job_id: str,
    kills: int,
    number: int,
) -> Counter[str]:
    """Kill a job, start it again, and so on; each time it gets to its end, begin it anew."""
    chance, hit = random.Random(kills), Counter[str]()
    while hit.total() - hit["too late"] - hit["ends"] < kills:
        when, ended = disturb(project, flags, job_id, number, chance)
        hit[when] += 1
        if ended:
            ended_as_in_peace(project, peace, flags, job_id)
            hit["ends"] += 1
            shutil.rmtree(project.folder(job_id))
            (project.root / "mlflow.db").unlink()
    return hit


def ended_as_in_peace(
    project: Project, peace: Project, flags: tuple[str, ...], job_id: str
) -> None:
    """Let a job get to its end, and hold all that it leaves against one that ran undisturbed."""
    done = project.run(*flags)
    assert done.returncode == 0, done.stderr
    assert same(project.tensors(job_id), peace.tensors(job_id))
    ((_, status),) = project.runs(job_id)
    assert status == "FINISHED"
    expected = peace.journalled(job_id)
    assert project.journalled(job_id) == expected
    assert project.stored(job_id) == expected
    steps = [step for step, _ in expected["train_loss"]]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.full
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_again_and_again(
    project: Project,
    fresh: Project,
    in_peace: dict[str, str],
    pytestconfig: pytest.Config,
    loader: str,
    number: signal.Signals,
) -> None:
    flags, job_id = (*JOB, *LOADERS[loader]), in_peace[loader]
    kills = pytestconfig.getoption("kills") // (1 if number == signal.SIGKILL else 2)
    hit = torment(fresh, project, flags, job_id, kills, number)
    print(f"\n{number.name}, {loader}: {kills} kills:", dict(sorted(hit.items())))
    ended_as_in_peace(fresh, project, flags, job_id)


@pytest.mark.full
def test_two_jobs_at_once_on_one_store(
    project: Project, fresh: Project, in_peace: dict[str, str], pytestconfig: pytest.Config
) -> None:
    def kill_one(loader: str) -> Counter[str]:
        chance, hit = random.Random(loader), Counter[str]()
        ended = False
        while not ended and hit.total() < pytestconfig.getoption("kills"):
            flags = (*JOB, *LOADERS[loader])
            when, ended = disturb(fresh, flags, in_peace[loader], signal.SIGKILL, chance)
            hit[when] += 1
        return hit

    with ThreadPoolExecutor() as both:
        hits = dict(zip(LOADERS, both.map(kill_one, LOADERS), strict=True))
    print("\ntwo at once:", {loader: dict(sorted(hit.items())) for loader, hit in hits.items()})
    for loader, flags in LOADERS.items():
        ended_as_in_peace(fresh, project, (*JOB, *flags), in_peace[loader])
