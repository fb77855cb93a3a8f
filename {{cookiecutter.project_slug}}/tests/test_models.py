"""What holds for all networks in models.py, whichever they are."""

import pytest
from conftest import short

import models
from settings import Settings


@pytest.mark.parametrize("name", models.MODELS)
def test_a_network_trains_or_one_line_says_why_not(project, name):
    done = project.run("--model", name, *short(2), "--scratch")
    if done.returncode:
        assert done.returncode == 2 and name != Settings().model
        assert done.stderr.startswith(f"run.py: --model {name}: ")
        assert len(done.stderr.splitlines()) == 1
    else:
        assert "finished" in done.stdout
