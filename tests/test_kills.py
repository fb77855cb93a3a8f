"""Jobs killed at random instants and started again end as if nothing had happened."""

import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import Project, chosen, courier_of, ended, kill, same

pytestmark = pytest.mark.full

FLAGS = (
    *("--accumulate", "2", "--ema", "0.9", "--clip-norm", "1", "--precision", "bf16"),
    *("--warmup", "20", "--log-every", "7", "--checkpoint-minutes", "0.0001"),
    *("--schedule", "constant"),  # last.pt stays, to be compared
    *("--val-fraction", "0.5", "--augment", "crop-flip"),
)
"""A checkpoint follows upon the other; means over 7 steps are half full in most of them."""

CASES = {
    "resident": ("--epochs 40 --loader resident", 0.0),
    "workers": ("--epochs 40 --loader workers --workers 1 --seed 1", 0.0),
    "one-step intervals": ("--epochs 8 --eval-every 1 --seed 2", 0.05),
}
"""Flags, and seconds that an evaluation takes at least."""

SURE = 10
"""Evaluations after which a checkpoint that was due after the first has surely been written."""

START_UP = 8.0
"""Seconds in which a job has surely begun to train, on a quiet machine."""

TRACED = re.compile(
    r'^Traceback .*\n  File "(.*?)", line (?!0,|\d+, in <module>\n    from labjobs import launch)',
    re.M,
)
"""The outermost file of each trace that was printed. At line 0, Python is about to begin; until
labjobs is imported, it answers Ctrl-C itself."""

SENDER = "resource_sharer.py"
"""Of Python itself: by it a loader's process gives batches to the job. It prints a trace if the job
is killed at that moment."""

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT)


class Left:
    def __init__(self, project: Project, flags: tuple[str, ...]) -> None:
        self.project, self.flags = project, flags
        self.job = project.finish(*flags)


@pytest.fixture(scope="module", params=chosen(CASES, "one-step intervals"))
def left_alone(request, project, tmp_path_factory):
    flags, seconds = CASES[request.param]
    own = project.copy(tmp_path_factory.mktemp("left") / "project")
    own.edit_loop("    model.eval()\n", f"    model.eval()\n    time.sleep({seconds})\n")
    return Left(own, (*FLAGS, *flags.split()))


def instants(project: Project, job: str, chance: random.Random) -> dict[str, Callable[[], bool]]:
    """Ways to choose the instant of a kill: each says whether it has come."""
    begun, wait = time.monotonic(), chance.uniform(0, START_UP)

    def folder() -> Path:
        return project.folder(job)  # which may not be there yet

    def journal() -> str:
        file = folder() / "metrics.jsonl"
        return file.read_text() if file.exists() else ""

    evaluations = journal().count("elapsed_seconds") + chance.randrange(1, 8)
    points = journal().count('"lr"') + chance.randrange(1, 50)
    return {
        "any": lambda: time.monotonic() - begun > wait,
        "training": lambda: journal().count('"lr"') > points,
        "checkpoint": lambda: (folder() / "last.pt.part").exists(),
        "best": lambda: (folder() / "best.pt.part").exists(),
        "evaluation": lambda: journal().count("elapsed_seconds") > evaluations,
        "final save": lambda: "best_step" in journal() or any(folder().glob("outcome.json.part")),
    }


def disturb(project: Project, left: Left, number: int, chance: random.Random) -> tuple[str, bool]:
    """Start a job and kill it at a random instant; when and whom, and whether the job has ended."""
    job = project.start(*left.flags)
    ways = instants(project, left.job, chance)
    way = chance.choice(list(ways))
    whom = chance.choice(["job", "courier", "both"]) if number == signal.SIGKILL else "job"
    while job.poll() is None and not ways[way]():
        time.sleep(0.001)
    alive, courier = job.poll() is None, courier_of(job)
    if courier and whom != "job":
        kill(courier, number)
    if whom != "courier":
        kill(job.pid, number)
    done = ended(job)
    while_uploading = done.returncode == 3 and "interrupted by" in done.stderr
    assert while_uploading or done.returncode in {0, -number, 128 + number}, done
    traced = {Path(file).name for file in TRACED.findall(done.stderr)}
    assert traced <= ({SENDER} if number == signal.SIGKILL and whom != "courier" else set()), done
    folder = project.folder(left.job)
    if (folder / "metrics.jsonl").exists():
        evaluated = (folder / "metrics.jsonl").read_text().count("elapsed_seconds")
        assert evaluated < SURE or any(folder.glob("last.pt")) or any(folder.glob("previous.pt"))
    when = f"{signal.Signals(number).name} {whom}, {way}" if alive else "too late"
    return when, done.returncode == 0


def torment(project: Project, left: Left, kills: int) -> "Counter[str]":
    """Kill a job, start it again, and so on; where it gets to its end, from nothing."""
    chance, hit = random.Random(kills), Counter[str]()
    while (done := hit.total() - hit["too late"] - hit["ends"]) < kills:
        when, over = disturb(project, left, SIGNALS[done % len(SIGNALS)], chance)
        hit[when] += 1
        if over:
            assert_as_left_alone(project, left)
            hit["ends"] += 1
            shutil.rmtree(project.root / "runs")
            (project.root / "mlflow.db").unlink()
    return hit


def assert_as_left_alone(project: Project, left: Left) -> None:
    """Let a job get to its end; all that it leaves is what the undisturbed one left."""
    done = project.run(*left.flags)
    if done.returncode == 3:  # on a slow machine, not all is uploaded within 30 s
        done = project.run(*left.flags)
    assert done.returncode == 0, done
    assert same(project.tensors(left.job), left.project.tensors(left.job))
    ((_, status),) = project.runs(left.job)
    assert status == "FINISHED"
    expected = left.project.journalled(left.job)
    assert project.journalled(left.job) == expected
    assert project.stored(left.job) == expected


def test_killed_again_and_again(left_alone, tmp_path, pytestconfig):
    fresh = left_alone.project.copy(tmp_path / "copy")
    hit = torment(fresh, left_alone, pytestconfig.getoption("kills"))
    print(f"\n{' '.join(left_alone.flags)}:", dict(sorted(hit.items())))
    assert_as_left_alone(fresh, left_alone)
