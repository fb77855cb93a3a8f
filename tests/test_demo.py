"""The README's first command, on a machine that has nothing but Python and bash."""

import os
import sqlite3
import statistics
import subprocess
import sys
from contextlib import closing

import pytest
from repository import REPOSITORY

KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # where the network has its own certificates

RESULTS = """
SELECT lr.value, metrics.value FROM runs
JOIN tags ON tags.run_uuid = runs.run_uuid AND tags.key = 'finished'
JOIN params AS model ON model.run_uuid = runs.run_uuid AND model.key = 'model'
JOIN params AS lr ON lr.run_uuid = runs.run_uuid AND lr.key = 'lr'
JOIN latest_metrics AS metrics
    ON metrics.run_uuid = runs.run_uuid AND metrics.key = 'test_accuracy'
WHERE runs.status = 'FINISHED' AND model.value = ?
"""


@pytest.fixture(scope="module")
def demo(template, tmp_path_factory):
    """The demo's folder, what it printed, and the environment it ran in."""
    folder, home = tmp_path_factory.mktemp("demo"), tmp_path_factory.mktemp("home")
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    cache = subprocess.check_output(["uv", "cache", "dir"], text=True).strip()
    env |= {
        "HOME": str(home),
        "UV_CACHE_DIR": cache,
        "OMP_NUM_THREADS": "1",  # other tests run beside it
        "PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin",
    }
    done = subprocess.run(
        ["bash", "demo.sh", str(folder)], cwd=template, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout, env


@pytest.mark.full
def test_twelve_jobs_are_finished_and_good(demo):
    folder, _, _ = demo
    with closing(sqlite3.connect(folder / "demo" / "mlflow.db")) as store:
        convnet, mlp = (store.execute(RESULTS, [m]).fetchall() for m in ("convnet", "mlp"))
    assert len(convnet) == len(mlp) == 6
    accuracy = {rate: statistics.mean(v for r, v in convnet if r == rate) for rate, _ in convnet}
    assert len(accuracy) == 2
    assert max(accuracy.values()) >= 0.985


@pytest.mark.full
def test_figures_are_there_and_everything_is_named(demo):
    folder, printed, _ = demo
    figures = folder / "demo" / "figures"
    pictures = (REPOSITORY / "docs" / "figures").iterdir()
    names = {path.stem for path in pictures if not path.stem.startswith("mlflow-")}
    assert {path.name for path in figures.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("pdf", "png", "tex", "json")
    }
    assert len(names) == 7
    end = printed.split("Done.")[1]
    for place in ("demo", "demo/figures", "demo/runs", "demo/mlflow.db"):
        assert f"{folder}/{place}" in end
        assert (folder / place).exists()
    assert len(list((folder / "demo" / "runs").glob("*/*/best.pt"))) == 12


@pytest.mark.full
def test_the_sweep_again_runs_nothing_and_needs_no_torch(demo, tmp_path):
    folder, _, env = demo
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    again = subprocess.run(
        ["bash", "run.sh"],
        cwd=folder / "demo",
        env=env | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == "12 of 12 jobs finished, 0 of them now\n"
