"""`python jobs.py bisect`: which of ten changed definitions make two attempts differ? The jobs are
those of test_refactors.py, without torch."""

import json
import random
import time
from itertools import combinations

import pytest
from faults import Project, one_line, succeeded
from test_refactors import JOBS, RUN, SETTINGS

PARTS = range(10)

PLAIN, REWRITTEN, OTHER = (
    "    return x + {step} / 64",
    "    y = {step} / 64\n    return x + y",
    "    return x + {step} / 32",
)
"""What a definition returns, the same in other words, and something else."""

TOY = """
from settings import Settings

{parts}

def step(state: float, number: int, settings: Settings) -> float:
    for part in ({names}):
        state = part(state) / 2
    return state

def evaluate(state: float, split: str, settings: Settings) -> float:
    return state
"""


def toy(bodies: dict[int, str]) -> str:
    """The code with such bodies of its definitions, PLAIN if they are not given."""
    texts = [bodies.get(n, PLAIN).format(step=n + 1) for n in PARTS]
    parts = (f"def part{n}(x: float) -> float:\n{text}\n" for n, text in enumerate(texts))
    names = ", ".join(f"part{n}" for n in PARTS)
    return TOY.format(parts="\n".join(parts), names=names)


@pytest.fixture
def light(fresh):
    for name, text in {"settings.py": SETTINGS, "run.py": RUN, "jobs.py": JOBS}.items():
        (fresh.root / name).write_text(text)
    return fresh


def attempt(project: Project, code: str) -> str:
    """Run the job with some code, and return its attempt as commands take it."""
    (project.root / "toy.py").write_text(code)
    before = {*project.root.glob("runs/*/*/")}
    succeeded(project.run("--quiet"))
    (made,) = {*project.root.glob("runs/*/*/")} - before
    return f"{made.parent.name}/{made.name}"


@pytest.mark.long
def test_the_guilty_definitions_are_found(light, pytestconfig):
    """One, two or three of ten change the curve."""
    old, runs, began = attempt(light, toy({})), list[int](), time.monotonic()
    sizes = [[*combinations(PARTS, size)] for size in (1, 2, 3)]
    for sets in sizes:
        random.Random(0).shuffle(sets)
    for pair in range(pytestconfig.getoption("--pairs")):
        guilty = sizes[pair % 3][pair // 3]
        new = attempt(light, toy({n: OTHER if n in guilty else REWRITTEN for n in PARTS}))
        done = succeeded(light.do("python", "jobs.py", "bisect", old, new, "--json"))
        found = json.loads(done.stdout)
        assert found["definitions"] == [f"toy.part{n}" for n in guilty], found
        assert found["others"] == [f"toy.part{n}" for n in PARTS if n not in guilty]
        assert (found["step"], found["metric"]) == (1, "train_loss")
        runs.append(found["runs"])
    print(f"runs {runs}, {time.monotonic() - began:.0f} s")


def test_helpers_that_only_one_code_has_come_along(light):
    old = attempt(light, toy({}))
    helped = toy({3: "    return more(x)", 5: REWRITTEN})
    helped += "\nfrom math import nextafter\n\ndef more(x):\n    return nextafter(x, 9.0)\n"
    new = attempt(light, helped)
    done = succeeded(light.do("python", "jobs.py", "bisect", old, new))
    first, others, count = done.stdout.splitlines()
    assert first.startswith("toy.part3 explains the difference: train_loss at step 1 ")
    assert others == "without effect: toy.part5" and count.endswith("ran up to step 1")
    same = attempt(light, toy({7: REWRITTEN}))
    assert one_line(light.do("python", "jobs.py", "bisect", old, same), 1) == (
        "jobs.py: the curves of both are the same"
    )
    said = one_line(light.do("python", "jobs.py", "bisect", old, "none"), 2)
    assert said.startswith("jobs.py: there is no job none")
    copy = json.loads((light.root / "runs" / new / "settings.json").read_text())["code_copy"]
    (light.root / "runs" / copy).unlink()
    said = one_line(light.do("python", "jobs.py", "bisect", old, new), 1)
    assert said == f"jobs.py: {new}: its code is not in runs/"
