"""`python jobs.py try`: is changed code, or are other settings, better than finished jobs? The jobs
are light, without torch, like those of test_refactors.py."""

import json
import signal
import sys

import numpy as np
import pytest
from faults import Project, chosen, ended, one_line, succeeded, wait_until
from labjobs import locks
from labjobs.commands.gate import NEEDED, evidence
from test_refactors import JOBS

SETTINGS = """
from dataclasses import dataclass
from labjobs.settings import Metric, added

METRICS = {"loss": Metric(better="lower"), "accuracy": Metric(better="higher")}

@dataclass(frozen=True, kw_only=True)
class Settings:
    model: str = "mlp"
    lr: float = 1.0
    dataset: str = "digits"
    eval_every: int = 3
    seed: int = 0
"""

MODELS = """
WIDTH = 1.0

def make(settings):
    return WIDTH
"""

DATA = """
NOISE = 0.1

def augment(x: float) -> float:
    return x + 0.0

def load(settings) -> float:
    return NOISE
"""

MEASURES = """
SCALE = 1.0

class Mean:
    def __init__(self) -> None:
        self.total = 0.0

    def add(self, x: float) -> None:
        self.total += x

def read(mean: Mean) -> float:
    return mean.total / SCALE
"""

RUN = """
import random
import sys

import data
import measures
import models
from labjobs.cli.parser import parse
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.launch import begin
from settings import METRICS, Settings

STEPS = 3

def forward(model: float, x: float, settings: Settings) -> float:
    return model * x

def train(settings: Settings, model: float, noise: float, log) -> float:
    luck = random.Random(settings.seed).gauss(0, noise)
    weight = data.augment(luck + settings.lr)
    for number in range(1, STEPS + 1):
        log(number, {"train_loss": forward(model, weight, settings)})
    return weight

def evaluate(model: float, weight: float, settings: Settings) -> dict[str, float]:
    mean = measures.Mean()
    mean.add(forward(model, weight, settings))
    found = measures.read(mean)
    return {"val_loss": found, "val_accuracy": -found}

def main(settings: Settings, log) -> None:
    model, noise = models.make(settings), data.load(settings)
    metrics = evaluate(model, train(settings, model, noise, log), settings)
    log(STEPS, metrics | {"elapsed_seconds": 1.0})
    log(STEPS, {f"best_{name}": value for name, value in metrics.items()})

def never() -> None:  # by these words, a script is one of jobs
    command = begin(Settings, METRICS)
    command.run(main, None)

if __name__ == "__main__":
    job = JobFolder(*parse(Settings, Runtime, sys.argv[1:]), METRICS)
    job.make()
    job.take()
    job.open()
    main(job.settings, job.journal.metrics)
    job.close("finished", "")
"""

FILES = {
    "settings.py": SETTINGS,
    "models.py": MODELS,
    "data.py": DATA,
    "measures.py": MEASURES,
    "run.py": RUN,
    "jobs.py": JOBS,
}


@pytest.fixture(scope="module")
def project(make):
    """A project with eight repeats of a job."""
    made = Project(make())
    for name, text in FILES.items():
        (made.root / name).write_text(text)
    for seed in range(8):
        succeeded(made.run(f"--seed={seed}"))
    return made


@pytest.fixture
def light(project, tmp_path):
    return project.clone(tmp_path / "project")


def edit(project: Project, file: str, old: str, new: str) -> None:
    text = (project.root / file).read_text()
    assert text.count(old) == 1, (file, old)
    (project.root / file).write_text(text.replace(old, new))


def tried(project: Project, *words: str, against: str = "lr=1", metric: str = "loss"):
    """What `try` prints as JSON; its exit status is 0 if it is better, else 1."""
    command = "python", "jobs.py", "try", "--against", against, "--metric", metric, "--json"
    done = project.do(*command, *words)
    assert done.returncode in (0, 1), done
    found = json.loads(done.stdout)
    assert done.returncode == (found["answer"] != "better"), done
    return found


@pytest.mark.full
def test_flags_are_tried_with_each_seed_until_it_is_clear(light):
    lr, metric, repeats = "0.9", "accuracy", 5
    found = tried(light, "--", "--lr", lr, metric=metric)
    assert (found["answer"], len(found["differences"])) == ("better", repeats)
    assert found["evidence"] == evidence(found["differences"]) >= NEEDED
    assert np.allclose(np.abs(found["differences"]), 0.1)
    assert len([*light.root.glob("runs/*/*/")]) == 8 + repeats
    assert tried(light, "--", "--lr", lr, metric=metric) == found  # nothing runs twice
    again = tried(light, "--at-most", "3", "--", "--lr", lr, metric=metric)
    assert (again["answer"], again["try"]) == ("undecided", 1)
    (kept,) = map(json.loads, (light.root / "tries.jsonl").read_text().splitlines())
    assert kept["differences"] == found["differences"]  # the longer one
    assert tried(light, "--", "--lr", "1.5", metric=metric)["try"] == 2


@pytest.mark.full
def test_a_change_that_only_rounds_otherwise_is_not_called_better(light):
    edit(light, "run.py", "luck + settings.lr", "(luck + settings.lr) * (1 - 2e-16)")
    found = tried(light)
    assert (found["answer"], found["differences"]) == ("undecided", [0.0] * 8)


@pytest.mark.full
def test_code_is_tried_against_the_last_that_was_not_tried_in_vain(light):
    before = {path.parent.name: path.name for path in light.root.glob("runs/*/*/")}
    edit(light, "run.py", "luck + settings.lr", "luck + 1.1 * settings.lr")
    worse = tried(light, against=min(before))
    assert (worse["answer"], len(worse["jobs"])) == ("worse", 8)
    edit(light, "run.py", "luck + 1.1 * settings.lr", "luck + 0.9 * settings.lr")
    better = tried(light)
    assert (better["answer"], better["against"]) == ("better", worse["against"])
    edit(light, "models.py", "WIDTH = 1.0", "WIDTH = 0.5")
    further = tried(light)
    assert (further["answer"], further["against"]) == ("better", better["code"])
    named = tried(light, against=f"{min(before)}/{before[min(before)][:4]}")
    assert (named["answer"], named["against"]) == ("better", worse["against"])
    lines = (light.root / "tries.jsonl").read_text().splitlines()
    assert [json.loads(line)["answer"] for line in lines] == ["worse", *["better"] * 3]


KINDS = [
    ("run.py", "return model * x", "return model * x * 0.9"),
    ("run.py", "found = measures.read(mean)", "found = measures.read(mean) / 2"),
    ("run.py", "import random\n", "import random\nimport builtins\nbuiltins.abs = float\n"),
    ("measures.py", "self.total += x", "self.total += x / 2"),
    ("data.py", "NOISE = 0.1", "NOISE = 0.05"),
    ("settings.py", '"loss": Metric(better="lower")', '"loss": Metric(better="higher")'),
]
OTHERS = [
    ("run.py", '{f"best_{name}": value for', '{f"best_{name}": value / 2 for'),
    ("run.py", "STEPS = 3", "STEPS = 4"),
    ("measures.py", "SCALE = 1.0", "SCALE = 2.0"),
    ("measures.py", "return mean.total / SCALE", "return 2 * mean.total / SCALE"),
    ("data.py", "return NOISE", "return NOISE / 2"),
    ("settings.py", "\n\n@dataclass", "\nimport builtins\nbuiltins.round = int\n\n@dataclass"),
    ("data.py", "NOISE = 0.1", "import measures\nmeasures.SCALE = 3.0\nNOISE = 0.1"),
    ("models.py", "WIDTH = 1.0", "WIDTH = 1.0\nimport measures\nmeasures.SCALE = 3.0"),
]
"""Edits of what results are measured with, one of each definition."""


@pytest.mark.full
@pytest.mark.parametrize("edits", chosen([KINDS, OTHERS], KINDS), ids=["kinds", "others"])
def test_what_is_measured_otherwise_is_never_called_better(light, edits):
    files = {name: (light.root / name).read_text() for name in FILES}
    for file, old, new in edits:
        edit(light, file, old, new)
        found = tried(light)
        assert (found["answer"], found["differences"]) == ("the measure changed", []), (old, new)
        (light.root / file).write_text(files[file])


def test_other_data_seeds_and_evaluations_are_no_better_settings(light):
    for flag, value in (("seed", "9"), ("dataset", "letters"), ("eval-every", "1")):
        words = "try", "--against", "lr=1", "--metric", "loss", "--", f"--{flag}", value
        said = one_line(light.do("python", "jobs.py", *words), 2)
        assert said.startswith(f"jobs.py: --{flag}: is that of the jobs of --against")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "lr=3", "--metric", "loss"), "--against lr=3: no job here has such"),
        (("--against", "lr=1", "--metric", "los", "--", "--lr", "3"), "did you mean loss"),
        (("--against", "lr=1", "--metric", "loss"), "nothing is tried: code and settings are"),
        (("--against", "lr=1", "--metric", "loss", "--", "--lx", "3"), "--lx: no such flag"),
        (("--against", "ffffff", "--metric", "loss"), "there is no job ffffff"),
        (("--against", "lr=1", "--metric", "loss", "--at-most", "0"), "--at-most 0: must be at"),
        (("--metric", "loss"), "the following arguments are required: --against"),
    ],
)
def test_what_cannot_be_tried_is_said_in_one_line(light, words, said):
    assert said in one_line(light.do("python", "jobs.py", "try", *words), 2)
    assert not (light.root / "tries.jsonl").exists()


@pytest.mark.full
def test_interrupted_it_ends_its_job_and_goes_on_when_it_is_called_again(light):
    wait = "    while settings.lr > 3 and not os.path.exists('go'):\n        time.sleep(0.05)\n"
    edit(light, "run.py", "    weight = data", f"    import os, time\n{wait}    weight = data")
    words = "jobs.py", "try", "--against", "lr=1", "--metric", "loss", "--", "--lr", "4"
    trying = light.command(sys.executable, *words)
    wait_until(lambda: len([*light.root.glob("runs/*/*/")]) > 8)
    trying.send_signal(signal.SIGTERM)
    done = ended(trying)
    assert done.returncode == 143 and "jobs.py: try was interrupted by SIGTERM" in done.stderr
    assert not [p for p in light.root.glob("runs/*/*/lock") if locks.held(p)]
    (light.root / "go").touch()
    assert tried(light, "--", "--lr", "4")["answer"] == "worse"


def test_a_group_is_one_setting(light):
    succeeded(light.run("--lr=2"))
    words = "try", "--against", "lr>0", "--metric", "loss", "--", "--lr", "3"
    assert "these jobs differ in --lr; name jobs" in one_line(
        light.do("python", "jobs.py", *words), 2
    )


def test_a_group_is_of_one_script(light):
    other = SETTINGS.split("\n\n")[-1].replace("Settings", "Other").replace("dataset", "data")
    with (light.root / "settings.py").open("a") as file:
        file.write(other)
    script = RUN.replace("Settings", "Other").replace("[1:]), METRICS)", '[1:]), METRICS, "other")')
    (light.root / "other.py").write_text(script)
    succeeded(light.do("python", "other.py"))
    words = "try", "--against", "lr=1", "--metric", "loss", "--", "--lr", "3"
    said = one_line(light.do("python", "jobs.py", *words), 2)
    assert "these jobs differ in --script, --data" in said


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "few values"])
def test_of_tries_that_change_nothing_at_most_5_percent_are_called_different(noise):
    """1,000 tries of up to 20 repeats, looked at after each of them."""
    chance = np.random.default_rng(0)
    draws = {
        "normal": chance.normal(size=(1000, 20)),
        "heavy tails": chance.standard_t(3, size=(1000, 20)),
        "few values": chance.integers(-2, 3, size=(1000, 20)).astype(float),
    }[noise]
    different = [any(evidence(row[:n]) >= NEEDED for n in range(1, 21)) for row in draws]
    assert 0 < np.mean(different) <= 0.05
    better = [any(evidence(row[:n]) >= NEEDED for n in range(1, 21)) for row in draws + 2.0]
    assert np.mean(better) > 0.9
