"""Jobs whose steps are compiled, or one CUDA graph, killed at the instants where that matters.

They kill themselves: instants.py is beside their run.py.
"""

import random
import shutil
import signal
from collections import Counter
from itertools import cycle
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from faults import Project, assert_as_undisturbed, chosen, jobs_of, succeeded
from gpus import Machine, needs_stand_in
from test_recipes import graphed

pytestmark = pytest.mark.full

FLAGS = (
    *("--epochs", "3", "--batch-size", "96", "--accumulate", "3", "--ema", "0.9"),
    *("--clip-norm", "1", "--augment", "crop-flip", "--log-every", "5"),
    *("--checkpoint-minutes", "1e-9"),  # after each step
    *("--schedule", "constant"),  # last.pt stays, to be compared
)
"""Of an epoch's 14 batches, the last has 46 examples."""

GRAPH, COMPILED = ("--graph", "on", "--precision", "fp16"), ("--compile", "on")

PLACES = {
    GRAPH: {"capture": 3, "last batch": 6, "replay": 9, "part": 9, "val": 4},
    COMPILED: {"last batch": 6, "val": 4, "part": 39},
}
"""Where a job is killed, for the how-manieth time in its process at most. Of parts, those of the
steps that are not in a graph."""


@needs_stand_in
@pytest.mark.parametrize("kind", chosen(PLACES, GRAPH), ids=" ".join)
def test_killed_where_it_matters(project, tmp_path, pytestconfig, kind):
    """It ends with the bits that it would have had, each call compiled that would have been."""
    flags, places = (*FLAGS, *kind), PLACES[kind]
    whole = _watched(project.copy(tmp_path / "whole"))
    if kind == GRAPH:
        Machine(tmp_path, gpus=1).host(whole)
    expected = _calls(succeeded(whole.run(*flags)))
    killed = whole.copy(tmp_path / "killed")  # with what was compiled
    killed.env |= whole.env
    (job,) = jobs_of(whole)

    def assert_ends_alike() -> None:
        del killed.env["KILLED_AT"]
        calls.update(_calls(succeeded(killed.run(*flags))))
        assert_as_undisturbed(killed, job, whole, job)
        assert calls == expected or kind == GRAPH

    kills = pytestconfig.getoption("kills")
    chance, hit, calls = random.Random(kills), Counter[str](), set[str]()
    for place in cycle(places):
        killed.env["KILLED_AT"] = f"{place} {chance.randint(1, places[place])}"
        done = killed.run(*flags)
        calls |= _calls(done)
        if done.returncode == -signal.SIGKILL:
            hit[place] += 1
            if hit.total() == kills:
                break
            continue
        assert done.returncode in (0, 3), done  # 3: not all is uploaded yet
        assert_ends_alike()
        calls.clear()
        shutil.rmtree(killed.root / "runs")
        (killed.root / "mlflow.db").unlink()
    print(f"\n{' '.join(flags)}:", dict(hit))
    assert_ends_alike()


def _calls(done: CompletedProcess[str]) -> set[str]:
    """What instants.py said: where the forward function was called, and how."""
    return {line for line in done.stdout.splitlines() if line.startswith("called: ")}


def _watched(project: Project) -> Project:
    """Give a project's step to job.graphed, and have instants.py watch its job."""
    graphed(project)
    shutil.copy(Path(__file__).with_name("instants.py"), project.root)
    for old, new in (
        ("import data\n", "import data\nimport instants\n"),
        (
            "    inputs, labels = batch\n",
            "    if not torch.compiler.is_compiling():\n"
            "        instants.run_as_it_is()\n    inputs, labels = batch\n",
        ),
        (
            "forward(model, part, settings)\n",
            "forward(model, part, settings)\n            instants.called()\n",
        ),
        (
            "            step(batch)\n",
            "            whole = len(batch[1]) == settings.batch_size\n"
            '            instants.begin(job, "part" if whole else "last batch")\n'
            "            step(batch)\n            instants.stepped()\n",
        ),
        ("    means = Means()\n", "    instants.begin(job, split)\n    means = Means()\n"),
        (
            "forward(model, batch, job.settings)\n",
            "forward(model, batch, job.settings)\n        instants.called()\n",
        ),
    ):
        project.edit("run.py", old, new)
    return project
