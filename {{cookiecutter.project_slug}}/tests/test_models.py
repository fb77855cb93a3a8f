"""What holds for all networks in models.py, and for what else has a name in a registry."""

import pytest
from conftest import short

import models
from engine.cli import flags
from settings import Settings

OTHERS = {
    name: flag.names
    for name, flag in flags.of(Settings).items()
    if flag.rules.get("names") and name not in ("model", "dataset")
}
"""The names in other registries, by setting; datasets may not be on this machine."""


@pytest.mark.parametrize("name", models.MODELS)
def test_a_network_trains_or_one_line_says_why_not(project, name):
    done = project.watched("--model", name, *short(2), "--scratch")
    if done.returncode:
        assert done.returncode == 2 and name != Settings().model
        assert done.stderr.startswith(f"run.py: --model {name}: ")
        assert len(done.stderr.splitlines()) == 1
    else:
        assert "finished" in done.stdout


@pytest.mark.parametrize("number", range(max(map(len, OTHERS.values()), default=0)))
def test_what_runs_is_in_the_fingerprint(project, number):
    """So a change of it is noticed. One job has a name from each registry."""
    names = [f"--{setting}={names[number % len(names)]}" for setting, names in OTHERS.items()]
    done = project.watched(*names, *short(2), "--scratch")
    assert done.returncode == 0, done.stderr
