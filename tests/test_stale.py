"""A job whose code has changed: run.py and run.sh say so, and neither use it nor go on with it."""

import pytest
from faults import Project, one_line, succeeded
from sweeps import write_grid

SHORT = ("--epochs", "1", "--quiet")
LONG = ("--epochs", "150", "--quiet")


@pytest.fixture(scope="module")
def made(make):
    """A project with two jobs, one of which an edit of MLP is to concern."""
    project = Project(make())
    for model in ("mlp", "convnet"):
        assert project.run(*SHORT, "--model", model).returncode == 0
    return project


@pytest.fixture
def project(made, tmp_path):
    return made.clone(tmp_path / "project")


def test_a_changed_network_is_named_and_each_code_has_its_own_results(project):
    project.edit("models.py", "256", "128")
    said = one_line(project.run(*SHORT), 5)
    assert "was finished with other code (models.MLP changed); --force runs it again" in said
    other = project.run(*SHORT, "--model", "convnet")  # which does not use it
    assert (other.returncode, "already finished" in other.stdout) == (0, True)
    newer = project.run(*SHORT, "--force").stdout.splitlines()[-1]
    project.edit("models.py", "128", "256")
    older = project.run(*SHORT)
    assert (older.returncode, "already finished" in older.stdout) == (0, True)
    project.edit("models.py", "256", "128")
    again = project.run(*SHORT).stdout.splitlines()[-1]
    assert again == newer.replace("finished", "already finished")
    assert older.stdout.splitlines()[-1] != again


def test_the_store_alone_tells_as_well(project, fresh):
    fresh.edit("models.py", "256", "128")
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{project.root}/mlflow.db"}
    said = one_line(fresh.run(*SHORT, **store), 5)
    assert "was finished with other code (in another folder)" in said


@pytest.mark.full
def test_one_that_was_interrupted_is_continued_by_other_code_only_on_request(fresh):
    fresh.killed(*LONG)
    (journal,) = fresh.root.glob("runs/*/*/metrics.jsonl")
    before = journal.read_bytes()
    fresh.edit("models.py", "nn.ReLU()", "nn.GELU()")
    said = one_line(fresh.run(*LONG), 5)
    assert "was begun with other code (models.MLP changed); --force starts it over" in said
    assert "--continue-anyway continues it" in said
    assert journal.read_bytes() == before
    succeeded(fresh.run(*LONG, "--continue-anyway"))
    assert "it was continued with changed code" in one_line(fresh.run(*LONG), 5)


@pytest.mark.full
def test_one_that_failed_starts_over_and_its_curve_is_of_the_new_code_alone(project):
    project.edit("run.py", "    model.eval()\n", '    raise ValueError("a mistake")\n')
    flags = ("--epochs", "3", "--quiet", "--lr", "0.5", "--log-every", "1")
    failed = one_line(project.run(*flags), 1)
    assert "ValueError: a mistake" in failed
    job = failed.split()[1]
    project.edit("run.py", '    raise ValueError("a mistake")\n', "    model.eval()\n")
    project.edit("models.py", "nn.ReLU()", "nn.GELU()")
    succeeded(project.run(*flags))
    clean = project.copy(project.root.parent / "clean")
    assert clean.run(*flags).returncode == 0
    assert project.journalled(job) == clean.journalled(job) == project.stored(job)


def test_a_sweep_names_stale_jobs_and_runs_them_again_on_request(project):
    write_grid(project.root, "--epochs 1 --model mlp", "--epochs 1 --model convnet")
    project.edit("models.py", "256", "128")
    listed = succeeded(project.do("bash", "run.sh", "--list"))
    assert "2 jobs: 1 finished, 1 stale" in listed.stdout
    assert "[models.MLP changed]" in listed.stdout
    idle = project.do("bash", "run.sh")
    assert idle.returncode == 1
    assert "is stale: models.MLP changed; --redo-stale runs it again" in idle.stderr
    assert "1 of 2 jobs finished, 0 of them now; 1 stale" in idle.stdout
    done = succeeded(project.do("bash", "run.sh", "--redo-stale"))
    assert "2 of 2 jobs finished, 1 of them now" in done.stdout
    assert "2 of 2 jobs finished, 0 of them now" in project.do("bash", "run.sh").stdout


def test_figures_of_seeds_from_different_code_are_refused_or_say_so(project):
    project.edit("models.py", "256", "128")
    assert project.run(*SHORT, "--seed", "1").returncode == 0
    drawn = project.do("python", "plot.py", "--format", "png")
    said = one_line(drawn, 1)
    assert "1 of 3 jobs is from different code or data" in said
    assert "--redo-stale" in said and "--any-code" in said
    assert not (project.root / "figures").exists()
    succeeded(project.do("python", "plot.py", "--format", "png", "--any-code"))
    caption = (project.root / "figures" / "learning-curves.tex").read_text()
    assert "1 of the 3 jobs is from different code or data." in caption


@pytest.mark.full
def test_a_trial_that_diverged_with_other_code_does_not_stand_in_the_way(fresh):
    """With this code it may not diverge."""
    assert fresh.run("--epochs", "1", "--optimizer", "sgd", "--lr", "1e30").returncode == 1
    fresh.edit("run.py", "losses = cross_entropy(", "losses = 1.0 * cross_entropy(")
    succeeded(fresh.run("--epochs", "1"))
    drawn = succeeded(fresh.do("python", "plot.py"))
    assert "left out 1 job that diverged with other code or data" in drawn.stderr
    caption = fresh.root / "figures" / "learning-curves.tex"
    assert "1 diverged with other code or data" in caption.read_text()
    succeeded(fresh.do("python", "plot.py", "--any-code"))
    assert "diverged" in caption.read_text()
    assert "1 of the 2 jobs is from different code or data" in caption.read_text()


SAME = ("nn.Flatten(),\n            nn.Linear(prod", "nn.Flatten(1),\n            nn.Linear(prod")


def test_what_is_accepted_counts_as_a_whole_and_what_else_changes_is_named(project):
    project.edit("models.py", *SAME)
    project.edit("run.py", "scaler.scale(loss)", "scaler.scale(loss * 1)")
    accepted = succeeded(project.do("python", "jobs.py", "accept", "--because", "it is the same"))
    assert "accepted: models.MLP, of 1 job (not verified)" in accepted.stdout
    done = project.run(*SHORT)
    assert (done.returncode, "already finished" in done.stdout) == (0, True)
    project.edit("run.py", "scaler.scale(loss * 1)", "scaler.scale(loss * 2 / 2)")
    said = one_line(project.run(*SHORT), 5)
    assert "was finished with other code (run.train changed)" in said
    project.edit("run.py", "scaler.scale(loss * 2 / 2)", "scaler.scale(loss)")  # half undone
    assert "(models.MLP changed)" in one_line(project.run(*SHORT), 5)


def test_jobs_are_replayed_for_each_value_that_a_change_reads_and_with_their_test_results(project):
    accept = ("python", "jobs.py", "accept", "--verify", "--because", "it is the same")
    assert project.run(*SHORT, "--label-smoothing", "0.3").returncode == 0
    smoothing = "smoothing = settings.label_smoothing if"
    doubled = smoothing.replace("= ", "= 2 * ")  # the same for the jobs that have 0
    project.edit("run.py", smoothing, doubled)
    refused = project.do(*accept)
    assert "not accepted for 2 jobs: " in refused.stderr  # both have the same code
    assert "train_loss at step 1" in refused.stderr
    convnet = "accepted: run.forward, of 1 job (replayed to its end with the same bits)"
    assert convnet in refused.stdout and "(run.forward changed)" in one_line(project.run(*SHORT), 5)
    project.edit("run.py", doubled, smoothing)
    project.edit(
        "run.py", "value for name, value in means", "scale * value for name, value in means"
    )
    project.edit("run.py", "means = Means()", 'means, scale = Means(), 2 if split == "test" else 1')
    refused = project.do(*accept)
    assert "test_loss at step " in refused.stderr and "accepted: " not in refused.stdout
