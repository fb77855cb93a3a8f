"""The README's first command, on a machine that has nothing but Python and bash."""

import json
import os
import shutil
import subprocess
import sys
from statistics import mean

import pytest
from faults import Project, silent, succeeded
from repository import PROJECT, REPOSITORY

pytestmark = pytest.mark.full

KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # where the network has its own certificates


@pytest.fixture(scope="module")
def demo(template, tmp_path_factory, pytestconfig):
    """The demo's project, and what it printed."""
    copy = shutil.copytree(template, tmp_path_factory.mktemp("copy") / "template", symlinks=True)
    if epochs := pytestconfig.getoption("--demo-epochs"):
        Project(copy / PROJECT.name).edit("run.sh", "job --model", f"job --epochs {epochs} --model")
    folder, home = tmp_path_factory.mktemp("demo"), tmp_path_factory.mktemp("home")
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    cache = subprocess.check_output(["uv", "cache", "dir"], text=True).strip()
    project = Project(folder / "demo")
    project.env = env | {
        "HOME": str(home),
        "UV_CACHE_DIR": cache,
        "OMP_NUM_THREADS": "1",  # other tests run beside it
        "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin",
    }
    how = {"cwd": copy, "env": project.env, "capture_output": True, "text": True}
    done = succeeded(subprocess.run(["bash", "demo.sh", str(folder)], **how))
    return project, done.stdout


def accuracies(project):
    """The test accuracies of its jobs, which are finished, by model and learning rate."""
    accuracy = {}
    for file in project.root.glob("runs/*/*/settings.json"):
        job, settings = file.parent.parent.name, json.loads(file.read_text())["settings"]
        found = accuracy.setdefault((settings["model"], settings["lr"]), [])
        found.append(project.tested(job)["accuracy"])
        assert project.runs(job)[0][1] == "FINISHED"
    return accuracy


def test_twelve_jobs_are_finished(demo):
    accuracy = accuracies(demo[0])
    models = sorted((model, len(found)) for (model, _), found in accuracy.items())
    assert models == [("convnet", 3), ("convnet", 3), ("mlp", 3), ("mlp", 3)]


@pytest.mark.long
def test_they_are_good(demo, pytestconfig):
    """If they train as long as the demo's do."""
    if pytestconfig.getoption("--demo-epochs"):
        pytest.skip("its jobs are shorter here")
    accuracy = accuracies(demo[0])
    assert max(mean(found) for (model, _), found in accuracy.items() if model == "convnet") >= 0.985


def test_figures_are_there_and_everything_is_named(demo):
    project, printed = demo
    pictures = (REPOSITORY / "docs" / "figures").iterdir()
    names = {path.stem for path in pictures if not path.stem.startswith("mlflow-")}
    assert {path.name for path in (project.root / "figures").iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("pdf", "png", "tex", "json")
    }
    assert len(names) == 9
    end = printed.split("Done.")[1]
    for place in (".", "figures", "runs", "mlflow.db"):
        assert str(project.root / place) in end
        assert (project.root / place).exists()
    assert len(list((project.root / "runs").glob("*/*/best.pt"))) == 12


def test_the_sweep_again_runs_nothing_and_needs_no_torch(demo, tmp_path):
    project, _ = demo
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    again = silent(project.do("bash", "run.sh", PYTHONPATH=str(tmp_path)))
    assert again.stdout == "12 of 12 jobs finished, 0 of them now\n"
