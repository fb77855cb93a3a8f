"""What holds for all networks in models.py, and for what else has a name in a registry."""

import sys

import pytest
from conftest import HERE, short

import models
from labjobs.cli import flags
from settings import Settings

DEFAULT = getattr(Settings(), "model", "")
NETWORKS = {name: ["--model", name] for name in getattr(models, "MODELS", ()) if DEFAULT} or {
    "": []
}
"""The flags for each network by name; none in a project without a choice."""

OTHERS = {
    name.replace("_", "-"): flag.names
    for name, flag in flags.of(Settings).items()
    if flag.rules.get("names") and name not in ("model", "dataset")
}
"""The names in other registries, by setting; datasets may not be on this machine."""


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_or_one_line_says_why_not(project, name):
    done = project.run(*NETWORKS[name], *short(2), "--scratch")
    if done.returncode:
        assert done.returncode == 2 and name != DEFAULT
        assert done.stderr.startswith(f"run.py: --model {name}: ")
        assert len(done.stderr.splitlines()) == 1
    else:
        assert "finished" in done.stdout


@pytest.mark.parametrize("number", range(max(map(len, OTHERS.values()), default=0)))
def test_what_runs_is_in_the_fingerprint(project, number):
    """So a change of it is noticed. One job has a name from each registry."""
    names = [f"--{setting}={names[number % len(names)]}" for setting, names in OTHERS.items()]
    done = project.run(*names, *short(2), "--scratch")
    assert done.returncode == 0, done.stderr
    assert "added to the job's fingerprint" not in done.stdout + done.stderr


CHECKS = """
import os, runpy, sys
import torch._dynamo
for words in sys.argv[1:]:
    if not os.fork():
        root = os.environ["DATA_ROOT"]
        sys.argv = ["run.py", *words.split(), "--check", "--data-root", root]
        runpy.run_path("run.py", run_name="__main__")
    print("status:", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def test_the_guarantees_hold_for_every_network(project):
    """In processes forked from one that has imported torch: --check takes seconds so."""
    words = (sys.executable, "-c", CHECKS, *map(" ".join, NETWORKS.values()))
    out, err = project.start(*words, DATA_ROOT=str(HERE / "data")).communicate(timeout=600)
    said = [int(line.split()[1]) for line in out.splitlines() if line.startswith("status: ")]
    status = dict(zip(NETWORKS, said, strict=True))
    assert status[DEFAULT] == 0, out + err
    assert {*said} <= {0, 2}, out + err  # 2: it does not take such data
