"""Random refactors of jobs with different settings: what `accept --verify` accepts gives the same
results, by an oracle that computes them all.

The jobs compute a few numbers, without torch, so that hundreds of refactors take minutes.
"""

import random
from collections import Counter
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import pytest
from faults import Project, succeeded

SETTINGS = """
from dataclasses import dataclass

METRICS = {}

@dataclass(frozen=True, kw_only=True)
class Settings:
    model: str = "mlp"
    smoothing: float = 0.0
    lr: float = 1.0

    @property
    def is_smooth(self) -> bool:
        return self.smoothing > 0.2
"""

RUN = """
import sys

from labjobs.cli.parser import parse
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.launch import begin
from settings import METRICS, Settings
from toy import evaluate, step

def main(settings: Settings, log) -> None:
    state = 1.0
    for number in range(1, 21):
        state = step(state, number, settings)
        val = evaluate(state, "val", settings)
        log(number, {"train_loss": state, "val_loss": val, "elapsed_seconds": 1.0})
    log(20, {"test_loss": evaluate(state, "test", settings)})

def never() -> None:  # by these words, a script is one of jobs
    command = begin(Settings, METRICS)
    command.run(main, None)

if __name__ == "__main__":
    job = JobFolder(*parse(Settings, Runtime, sys.argv[1:]), {})
    job.make()
    job.take()
    job.open()
    main(job.settings, job.journal.metrics)
    job.close("finished", "")
"""

JOBS = "import sys\nfrom labjobs import jobs_command\nsys.exit(jobs_command())\n"

TOY = """
from settings import Settings

def gain(settings: Settings) -> float:
    return 2.0 if settings.smoothing > 0.2 else 1.0

def first(x: float) -> float:
    return x * 2.0

def second(x: float) -> float:
    return x * 1.0

def smooth(x: float, amount: float) -> float:
    return x * (1.0 - amount)

def forward(x: float, settings: Settings) -> float:
    x = first(x)
    if settings.model == "mlp":
        x = second(x)
    amount = settings.smoothing
    return smooth(x, amount)

def step(state: float, number: int, settings: Settings) -> float:
    return state - 0.01 * settings.lr * forward(state, settings)

def evaluate(state: float, split: str, settings: Settings) -> float:
    total = 0.0
    for each in range(3):
        total += forward(state + each, settings)
    return total
"""

EDITS = [
    ("x * 2.0", "2.0 * x"),
    ("x * 2.0", "x + x"),
    ("x * 2.0", "x * 1.0"),
    ("x * 1.0", "x * 2.0"),
    ("return x * 1.0", "return x  # as it is"),
    ("(1.0 - amount)", "(1.0 - 2 * amount)"),
    ("(1.0 - amount)", "(1.0 - (amount if amount < 0.2 else 0.2))"),
    ("amount = settings.smoothing", "amount = settings.smoothing if gain(settings) < 2 else 0.1"),
    ("amount = settings.smoothing", 'amount = vars(settings)["smoothing"]'),
    ("0.01 * settings.lr", "0.01 * settings.lr * (1 if number < 15 else settings.lr)"),
    ("0.01 * settings.lr", "settings.lr * 0.01"),
    ("    return total", "    return total * gain(settings)"),
    ("    return total", "    return total * (2 if split == 'test' else 1)"),
    ("    return total", "    mean = total / 3\n    return mean * 3"),
    ("    total = 0.0", "    total = 0.0 if settings.model == 'mlp' else 0.5"),
    ("2.0 if settings.smoothing > 0.2", "2.0 if settings.smoothing > 0.1"),
    ("2.0 if settings.smoothing > 0.2", "2.0 if 0.2 < settings.smoothing"),
]
"""Texts of TOY and what takes their places: some change no result, some that of some jobs."""


@dataclass(frozen=True)
class Settings:
    model: str
    smoothing: float
    lr: float

    @property
    def is_smooth(self) -> bool:
        return self.smoothing > 0.2


GRID = [Settings(*each) for each in product(("mlp", "convnet"), (0.0, 0.15, 0.3), (1.0, 2.0))]


def results(code: str, settings: Settings) -> list[float]:
    """What a job logs with some code."""
    names: dict[str, object] = {}
    exec(code.replace("from settings import Settings", "Settings = object"), names)
    toy, found = SimpleNamespace(**names), []
    state = 1.0
    for number in range(1, 21):
        state = toy.step(state, number, settings)
        found += [state, toy.evaluate(state, "val", settings)]
    return [*found, toy.evaluate(state, "test", settings)]


@pytest.fixture(scope="module")
def light(project: Project) -> tuple[Project, dict[str, Settings]]:
    """The project with light jobs that have finished, and their settings by id."""
    files = {"settings.py": SETTINGS, "run.py": RUN, "jobs.py": JOBS, "toy.py": TOY}
    for name, text in files.items():
        (project.root / name).write_text(text)
    for settings in GRID:
        flags = [f"--{name}={value}" for name, value in vars(settings).items()]
        assert project.run(*flags, "--quiet").returncode == 0
    rows = project.listed().items()
    return project, {job: Settings(**row["settings"]) for job, row in rows}


def refactored(code: str, chance: random.Random) -> str:
    """Some code after a few edits; sometimes, one of them is undone."""
    for old, new in chance.sample(EDITS, chance.randint(1, 3)):
        code = code.replace(new, old) if chance.random() < 0.2 else code.replace(old, new, 1)
    return code


def counting(project: Project) -> set[str]:
    return {job for job, row in project.listed().items() if row["state"] != "stale"}


def test_what_is_refused_does_not_count_through_jobs_whose_code_was_accepted_as_the_same(
    light, tmp_path
):
    project = light[0].copy(tmp_path / "project")
    accept = ("python", "jobs.py", "accept", "--verify", "--because", "a refactor")
    for smoothing in ("0.0", "0.3"):
        succeeded(project.run(f"--smoothing={smoothing}", "--quiet"))
    project.edit("toy.py", "x * 2.0", "2.0 * x")
    accepted = succeeded(project.do(*accept)).stdout
    assert "accepted: toy.first, of 2 jobs (replayed to its end with the same bits)" in accepted
    succeeded(project.run("--lr=2", "--quiet"))
    project.edit("toy.py", "(1.0 - amount)", "(1.0 - 2 * amount)")
    refused = project.do(*accept)
    assert "not accepted for 1 job: " in refused.stderr and counting(project) == set()


@pytest.mark.full
def test_what_is_accepted_gives_the_same_results(light, pytestconfig):
    """Minutes at full counts: each refactor is replayed."""
    project, jobs = light
    wanted = {job: results(TOY, settings) for job, settings in jobs.items()}
    count, wrong = Counter[str](), list[tuple[str, Settings]]()
    for seed in range(pytestconfig.getoption("--refactors")):
        chance, code = random.Random(seed), TOY
        (project.root / "accepted.jsonl").unlink(missing_ok=True)
        for _ in range(chance.randint(1, 2)):  # changes that follow one another
            code = refactored(code, chance)
            (project.root / "toy.py").write_text(code)
            project.do("python", "jobs.py", "accept", "--verify", "--because", "a refactor")
            same = {job for job, known in wanted.items() if results(code, jobs[job]) == known}
            found = counting(project)
            wrong += [(code, jobs[job]) for job in found - same]
            count.update(accepted=len(found & same), refused=len(jobs.keys() - found - same))
            count.update(needlessly=len(same - found), wrongly=len(found - same))
        # What is accepted as a whole does not count by halves.
        code = code.replace(*chance.choice(EDITS))
        (project.root / "toy.py").write_text(code)
        same = {job for job, known in wanted.items() if results(code, jobs[job]) == known}
        wrong += [(code, jobs[job]) for job in counting(project) - same]
    print(dict(count))
    assert not wrong, (len(wrong), *wrong[0], dict(count))
    assert count["accepted"] and count["refused"]
