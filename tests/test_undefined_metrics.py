"""A monitored metric that is NaN in some jobs, or in all: nothing is chosen by it in silence."""

import pytest
from faults import job_of, one_line, succeeded
from sweeps import write_lines

SHORT = ("--epochs", "3", "--batch-size", "256")


@pytest.fixture(scope="module")
def unsure(project, tmp_path_factory):
    """A project that monitors a metric which is defined with a low learning rate alone."""
    made = project.copy(tmp_path_factory.mktemp("unsure") / "my_project")
    metric = '    "sureness": Metric(better="higher"),\n    "accuracy": Metric('
    made.edit("settings.py", '    "accuracy": Metric(', metric)
    made.edit("settings.py", 'setting("val_loss", metric', 'setting("val_sureness", metric')
    evaluated = '        metrics = evaluate(job, forward, ema.model, val, "val")\n'
    sure = 'float("nan") if settings.lr > 0.01 else 0.5'
    made.edit("run.py", evaluated, f'{evaluated}        metrics["val_sureness"] = {sure}\n')
    return made


def test_the_last_weights_are_kept_and_it_is_said(unsure):
    never = succeeded(unsure.run(*SHORT, "--lr", "0.1"))
    assert "val_sureness was NaN each time, so it has not chosen the best weights" in never.stdout
    points = unsure.journalled(job_of(never))["val_sureness"]
    assert unsure.tensors(job_of(never))["best"]["step"] == points[-1][0] > points[0][0]
    always = succeeded(unsure.run(*SHORT))
    assert "NaN" not in always.stdout
    listed = succeeded(unsure.do("python", "jobs.py", "list", "--by", "sureness")).stdout
    assert listed.index(job_of(always)) < listed.index(job_of(never))
    tried = ("--metric", "sureness", "--against", job_of(never), "--", "--epochs", "2")
    said = one_line(unsure.do("python", "jobs.py", "try", *tried), 2)
    assert f"best_val_sureness is NaN in {job_of(never)}, so nothing can be compared" in said


def test_a_search_by_it_says_so(unsure, tmp_path):
    project = unsure.copy(tmp_path / "my_project")
    # By its id, the first of these two is the better one, so the search finds it finished.
    draw = "search {} seed=6 --lr 'log 0.02 0.05' -- --epochs 2 --batch-size 256"
    write_lines(project.root, "halving 2 1e", draw.format(2))
    done = succeeded(project.do("bash", "run.sh"))
    assert "1 of 2 jobs finished, 1 of them now; 1 stopped" in done.stdout
    assert "val_sureness was NaN after 1e in 2 of 2 jobs, which counted as the worst" in done.stdout
    write_lines(project.root, draw.format("until 1 without improvement --at-most 9"), "confirm 2")
    done = project.do("bash", "run.sh")
    assert done.returncode == 2 and "[2/9]" not in done.stdout
    assert "confirm: no finished job has a finite best_val_sureness" in done.stderr
