"""--init-from by the front door: in a grid, in MLflow, and in what becomes stale."""

import json

import pytest
from faults import Project, one_line, succeeded
from sweeps import write_lines

pytestmark = pytest.mark.full

SHORT = "--schedule constant --batch-size 512 --eval-every 3 --log-every 1 --ema 0.9 --steps 6"
LONG = SHORT.replace("--steps 6", "--steps 12")
BEGUN = "--schedule cosine --batch-size 512 --steps 3 --eval-every 3 --seed 1"


@pytest.fixture(scope="module")
def made(make):
    """A project with a short job, a longer one that continues it, one that begins with its best
    weights, and one as long that does all steps itself; its grid has run them."""
    project = Project(make())
    longer, begun = f'job {LONG} --init-from "$short:last"', f'job {BEGUN} --init-from "$short"'
    write_lines(project.root, f"short=$(job {SHORT})", longer, begun, f"job {LONG}")
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
    for given in (short, f"{short}:fork"):
        line = one_line(made.run(*LONG.split(), "--fold", "2", "--init-from", given), 2)
        said = "--fold is 2, but was 0 in that job, which trained on examples held out here"
        assert line == f"run.py: --init-from {given}: {said}"
    assert set(made.root.glob("runs/*")) == runs


@pytest.mark.parametrize("other", ["--optimizer sgd", "--optimizer muon", "--weight-decay 0.1"])
def test_a_fork_with_another_optimizer_begins_without_its_moments(made, other):
    before = {*made.root.glob("runs/*")}
    source = f"{jobs(made)['short']}:fork"
    done = succeeded(made.run(*LONG.split(), *other.split(), "--init-from", source))
    assert "optimizer begins without moments: that job had another optimizer" in done.stdout
    (job,) = {*made.root.glob("runs/*")} - before
    assert max(step for step, _ in made.journalled(job.name)["train_loss"]) == 12
