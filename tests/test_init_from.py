"""--init-from by the front door: in a grid, in MLflow, and in what becomes stale."""

import json
import shutil
from pathlib import Path

import pytest
from faults import Project, curves_in, one_line, same, succeeded
from sweeps import write_grid

SHORT = "--schedule constant --batch-size 512 --eval-every 3 --log-every 1 --ema 0.9 --steps 6"
LONG = SHORT.replace("--steps 6", "--steps 12")
BEGUN = "--schedule cosine --batch-size 512 --steps 3 --eval-every 3 --seed 1"


@pytest.fixture(scope="module")
def made(make):
    """A project with a short job, a longer one that continues it, one that begins with its best
    weights, and one as long that does all steps itself; its grid has run them."""
    project = Project(make())
    write_grid(project.root, LONG)
    run_sh = project.root / "run.sh"
    lines = f'  short=$(job {SHORT})\n  job {LONG} --init-from "$short:last"\n'
    lines += f'  job {BEGUN} --init-from "$short"\n  job {LONG}\n'
    run_sh.write_text(run_sh.read_text().replace(f"  job {LONG}\n", lines))
    done = succeeded(project.do("bash", "run.sh"))
    assert done.stdout.splitlines()[-1] == "4 of 4 jobs finished, 4 of them now"
    return project


def jobs(project: Project) -> dict[str, str]:
    """The ids of the jobs: `short`, `long`, `begun` and `straight`."""
    found = {}
    for path in project.root.glob("runs/*/*/settings.json"):
        about = json.loads(path.read_text())
        given, steps = about["settings"]["init_from"], about["settings"]["steps"]
        name = {None: "straight" if steps == 12 else "short"}.get(given, "")
        found[name or ("long" if given.endswith(":last") else "begun")] = about["id"]
    return found


def test_the_longer_job_is_the_one_that_does_all_steps(made):
    ids = jobs(made)
    one, other = (made.tensors(ids[name]) for name in ("long", "straight"))
    for kept in (one, other):
        del kept["best"]["settings"], kept["last"]["best"]["settings"]
    assert same(one, other)
    long, straight = (curves_in(made.folder(ids[name])) for name in ("long", "straight"))
    assert long.keys() == straight.keys()
    for name, points in straight.items():
        assert long[name] == [
            point for point in points if point[0] > 6 or name.startswith(("best_", "test_"))
        ]


def test_last_pt_stays_where_a_longer_job_could_go_on(made):
    stays = {name for name, job in jobs(made).items() if (made.folder(job) / "last.pt").exists()}
    assert stays == {"short", "long", "straight"}
    again = made.do("bash", "run.sh")
    assert again.stdout.splitlines()[-1] == "4 of 4 jobs finished, 0 of them now"


def test_where_it_comes_from_is_said(made):
    ids = jobs(made)
    short = f"{ids['short']}/{made.folder(ids['short']).name}"
    for name, given in (("long", f"{ids['short']}:last"), ("begun", ids["short"])):
        shown = made.do("python", "jobs.py", "show", ids[name]).stdout
        assert f"  inputs      {short}\n" in shown and f"  init_from  {' ' * 6}{given}" in shown
        ((run, _),) = made.runs(ids[name])
        tags = dict(made.ask("SELECT key, value FROM tags WHERE run_uuid = ?", run))
        assert tags["inputs"] == short
        assert f"Derived from the job `{ids['short']}`" in str(tags["mlflow.note.content"])
        params = dict(made.ask("SELECT key, value FROM params WHERE run_uuid = ?", run))
        assert params["init_from"] == given
    log = (made.folder(ids["begun"]) / "log.txt").read_text()
    assert f"--init-from {ids['short']}: 8 of 8 weights of model are taken" in log


def test_what_cannot_go_on_is_one_line_and_leaves_nothing(made):
    short, runs = jobs(made)["short"], set(made.root.glob("runs/*"))
    flags = (*LONG.replace("constant", "cosine").split(), "--quiet")
    line = one_line(made.run(*flags, "--init-from", f"{short}:last"), 2)
    assert line.startswith(f"run.py: --init-from {short}:last: in step 6 the learning rate would ")
    assert line.endswith("must not depend on the length, like --schedule constant")
    line = one_line(made.run(*flags, "--model", "convnet", "--init-from", short), 2)
    assert "none of its weights fit; that job kept weights of model" in line
    assert set(made.root.glob("runs/*")) == runs


def test_changed_code_of_the_input_makes_them_stale(made, tmp_path):
    project = Project(Path(shutil.copytree(made.root, tmp_path / "project")))
    short = jobs(made)["short"]
    project.edit("models.py", "class MLP(nn.Module):", "class MLP(nn.Module):\n    depth = 2\n")
    rows = project.do("bash", "run.sh", "--list").stdout.splitlines()[:-1]
    assert len(rows) == 4 and all(" stale " in row for row in rows)
    assert sum(f"input {short} changed" in row for row in rows) == 2
    done = project.run(*BEGUN.split(), "--lr", "0.1", "--init-from", short, "--quiet")
    assert f"cannot start: its input {short} is stale (models.MLP changed)" in one_line(done, 1)
    done = project.do("python", "jobs.py", "accept", "--verify", "--because", "nothing uses it")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("replaying the first steps of job ") == 1  # the same of all of them
    assert "accepted: models.MLP, of 4 jobs (replayed with the same bits)" in done.stdout
    assert "no longer stale: 4 jobs" in done.stdout
    done = project.do("bash", "run.sh")
    assert done.stdout.splitlines()[-1] == "4 of 4 jobs finished, 0 of them now"
