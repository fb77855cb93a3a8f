"""A job whose code has changed: run.py and run.sh say so, and neither use it nor go on with it."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import Project, ended, job_of, kill, one_line, wait_until
from sweeps import write_grid

SHORT = ("--epochs", "1", "--quiet")
LONG = ("--epochs", "150", "--quiet", "--checkpoint-minutes", "0.0001")


@pytest.fixture(scope="module")
def made(make: Callable[..., Path]) -> Project:
    """A project with two jobs, one of which an edit of MLP is to concern."""
    project = Project(make())
    for model in ("mlp", "convnet"):
        assert project.run(*SHORT, "--model", model).returncode == 0
    return project


@pytest.fixture
def project(made: Project, tmp_path: Path) -> Project:
    """That project with its jobs and their store, to change."""
    return Project(Path(shutil.copytree(made.root, tmp_path / "project")))


def test_a_changed_network_is_named_and_concerns_the_jobs_that_have_it(project: Project) -> None:
    project.edit("models.py", "256", "128")
    said = one_line(project.run(*SHORT), 5)
    assert "was finished with other code (models.MLP changed); --force runs it again" in said
    other = project.run(*SHORT, "--model", "convnet")
    assert (other.returncode, "already finished" in other.stdout) == (0, True)
    project.edit("models.py", "128", "256")
    assert project.run(*SHORT).returncode == 0


def test_comments_moves_and_new_options_at_their_neutral_value_change_nothing(
    project: Project,
) -> None:
    project.edit(
        "run.py",
        "    settings = job.settings\n",
        "    # why\n    settings = job.settings\n",
    )
    project.edit("models.py", "class MLP(", "class Unused(nn.Module):\n    pass\n\n\nclass MLP(")
    done = project.run(*SHORT)
    assert (done.returncode, "already finished" in done.stdout) == (0, True)


def test_jobs_with_several_values_of_a_setting_are_drawn(project: Project) -> None:
    """Their settings are read back from the store as they were."""
    note = '    note: str = ""\n'
    project.edit("settings.py", note, f"    sizes: tuple[int, ...] = (1, 2)\n\n{note}")
    for seed in ("0", "1"):
        assert project.run(*SHORT, "--sizes", "3,4", "--seed", seed).returncode == 0
    project.edit("plot.py", "ONLY: dict[str, object] = {}", 'ONLY = {"sizes": "3,4"}')
    done = project.do("python", "plot.py")
    assert done.returncode == 0 and "different code" not in done.stderr, done
    assert (project.root / "figures" / "learning-curves.pdf").exists()


def test_forced_it_runs_again_and_is_finished_by_the_new_code(project: Project) -> None:
    project.edit("models.py", "256", "128")
    done = project.run(*SHORT, "--force")
    assert done.returncode == 0, done
    assert len(project.runs(job_of(done))) == 2
    again = project.run(*SHORT)
    assert (again.returncode, "already finished" in again.stdout) == (0, True)


def test_back_at_the_older_code_its_results_count_again(project: Project) -> None:
    project.edit("models.py", "256", "128")
    newer = project.run(*SHORT, "--force").stdout.splitlines()[-1]
    project.edit("models.py", "128", "256")
    older = project.run(*SHORT)
    assert (older.returncode, "already finished" in older.stdout) == (0, True)
    project.edit("models.py", "256", "128")
    again = project.run(*SHORT).stdout.splitlines()[-1]
    assert again == newer.replace("finished", "already finished")
    assert older.stdout.splitlines()[-1] != again


def test_the_store_alone_tells_as_well(project: Project, tmp_path: Path) -> None:
    project.edit("models.py", "256", "128")
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{project.root}/mlflow.db"}
    elsewhere = project.copy(tmp_path / "elsewhere")
    said = one_line(elsewhere.run(*SHORT, **store), 5)
    assert "was finished with other code (in another folder)" in said


@pytest.mark.full
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.alike)]
)
def test_one_that_was_interrupted_is_continued_by_other_code_only_on_request(
    made: Project, tmp_path: Path, number: int
) -> None:
    project = made.copy(tmp_path / "project")
    job = project.start(*LONG)
    wait_until(lambda: any(project.root.glob("runs/*/*/last.pt")))
    kill(job.pid, number)
    ended(job)
    (journal,) = project.root.glob("runs/*/*/metrics.jsonl")
    before = journal.read_bytes()
    project.edit("models.py", "nn.ReLU()", "nn.GELU()")
    said = one_line(project.run(*LONG), 5)
    assert "was begun with other code (models.MLP changed); --force starts it over" in said
    assert "--continue-anyway continues it" in said
    assert journal.read_bytes() == before
    done = project.run(*LONG, "--continue-anyway")
    assert done.returncode == 0, done
    assert "it was continued with changed code" in one_line(project.run(*LONG), 5)


@pytest.mark.full
def test_one_that_failed_starts_over_and_its_curve_is_of_the_new_code_alone(
    project: Project,
) -> None:
    project.edit("run.py", "    model.eval()\n", '    raise ValueError("a mistake")\n')
    flags = ("--epochs", "3", "--quiet", "--lr", "0.5", "--log-every", "1")
    failed = one_line(project.run(*flags), 1)
    assert "ValueError: a mistake" in failed
    job = failed.split()[1]
    project.edit("run.py", '    raise ValueError("a mistake")\n', "    model.eval()\n")
    project.edit("models.py", "nn.ReLU()", "nn.GELU()")
    done = project.run(*flags)
    assert done.returncode == 0, done
    clean = project.copy(project.root.parent / "clean")
    assert clean.run(*flags).returncode == 0
    assert project.journalled(job) == clean.journalled(job) == project.stored(job)


def test_a_sweep_names_stale_jobs_and_runs_them_again_on_request(project: Project) -> None:
    write_grid(project.root, "--epochs 1 --model mlp", "--epochs 1 --model convnet")
    project.edit("models.py", "256", "128")
    listed = project.do("bash", "run.sh", "--list")
    assert listed.returncode == 0, listed
    assert "2 jobs: 1 finished, 1 stale" in listed.stdout
    assert "[models.MLP changed]" in listed.stdout
    idle = project.do("bash", "run.sh")
    assert idle.returncode == 1
    assert "is stale: models.MLP changed; --redo-stale runs it again" in idle.stderr
    assert "1 of 2 jobs finished, 0 of them now; 1 stale" in idle.stdout
    done = project.do("bash", "run.sh", "--redo-stale")
    assert done.returncode == 0, done
    assert "2 of 2 jobs finished, 1 of them now" in done.stdout
    assert "2 of 2 jobs finished, 0 of them now" in project.do("bash", "run.sh").stdout


def test_figures_of_seeds_from_different_code_are_refused_or_say_so(project: Project) -> None:
    project.edit("models.py", "256", "128")
    assert project.run(*SHORT, "--seed", "1").returncode == 0
    drawn = project.do("python", "plot.py", "--format", "png")
    said = one_line(drawn, 1)
    assert "1 of 3 jobs is from different code or data" in said
    assert "--redo-stale" in said and "--any-code" in said
    assert not (project.root / "figures").exists()
    drawn = project.do("python", "plot.py", "--format", "png", "--any-code")
    assert drawn.returncode == 0, drawn
    caption = (project.root / "figures" / "learning-curves.tex").read_text()
    assert "1 of the 3 jobs is from different code or data." in caption


@pytest.mark.full
def test_a_trial_that_diverged_with_other_code_does_not_stand_in_the_way(
    project: Project, tmp_path: Path
) -> None:
    """With this code it may not diverge: the job counts as pending, and the figures leave it
    out."""
    project = project.copy(tmp_path / "fresh")
    assert project.run("--epochs", "1", "--optimizer", "sgd", "--lr", "1e30").returncode == 1
    project.edit("run.py", "losses = cross_entropy(", "losses = 1.0 * cross_entropy(")
    done = project.run("--epochs", "1")
    assert done.returncode == 0, done
    drawn = project.do("python", "plot.py")
    assert drawn.returncode == 0, drawn
    assert "left out 1 job that diverged with other code or data" in drawn.stderr
    caption = project.root / "figures" / "learning-curves.tex"
    assert "diverged" not in caption.read_text()
    drawn = project.do("python", "plot.py", "--any-code")
    assert drawn.returncode == 0, drawn
    assert "diverged" in caption.read_text()
    assert "1 of the 2 jobs is from different code or data" in caption.read_text()


@pytest.mark.full
def test_a_job_that_is_running_is_said_to_run_whatever_the_code(
    made: Project, tmp_path: Path
) -> None:
    project = made.copy(tmp_path / "project")
    job = project.start(*LONG)
    wait_until(lambda: any(project.root.glob("runs/*/*/last.pt")))
    project.edit("models.py", "nn.ReLU()", "nn.GELU()")
    said = one_line(project.run(*LONG), 4)
    assert "is running already, with other code (models.MLP changed); --force runs it" in said
    kill(job.pid)
    ended(job)


SAME = ("nn.Flatten(),\n            nn.Linear(prod", "nn.Flatten(1),\n            nn.Linear(prod")
OTHER = (SAME[0], "nn.Flatten(), nn.Tanh(),\n            nn.Linear(prod")


def test_jobs_whose_change_is_accepted_are_finished_again_and_what_else_changes_is_named(
    project: Project,
) -> None:
    project.edit("models.py", *SAME)
    accepted = project.do("python", "jobs.py", "accept", "--because", "it is the same")
    assert accepted.returncode == 0, accepted
    assert "accepted: models.MLP, of 1 job (not verified)" in accepted.stdout
    done = project.run(*SHORT)
    assert (done.returncode, "already finished" in done.stdout) == (0, True)
    project.edit("run.py", "scaler.scale(loss)", "scaler.scale(loss * 1)")
    said = one_line(project.run(*SHORT), 5)
    assert "was finished with other code (run.train changed)" in said


@pytest.mark.full
def test_what_is_verified_gives_the_same_bits_and_what_does_not_is_not_accepted(
    project: Project,
) -> None:
    accept = ("python", "jobs.py", "accept", "--verify", "--because", "it is the same")
    project.edit("models.py", *OTHER)
    refused = project.do(*accept)
    said = one_line(refused, 1)
    assert "not accepted for 1 job: " in said
    assert "train_loss at step 1 was " in said
    assert not (project.root / "accepted.json").exists()
    project.edit("models.py", OTHER[1], SAME[1])
    accepted = project.do(*accept)
    assert accepted.returncode == 0, accepted
    assert "accepted: models.MLP, of 1 job (replayed with the same bits)" in accepted.stdout
    done = project.run(*SHORT)
    assert (done.returncode, "already finished" in done.stdout) == (0, True)


@pytest.mark.full
def test_what_runs_outside_of_the_fingerprint_is_named_and_counts_from_then_on(
    made: Project, tmp_path: Path
) -> None:
    """What check() sets is one of the things that no static analysis can know.

    A job finds it out by itself from Python 3.12 on.
    """
    project = made.copy(tmp_path / "project")
    hooks = "HOOKS = []\n\n\ndef hidden() -> None:\n    pass\n\n\n"
    project.edit("run.py", "def check(", f"{hooks}def check(")
    begins = "    spec = data.load(job.settings"
    project.edit("run.py", begins, f"    HOOKS.append(hidden)\n{begins}")
    begins = "    model.to(job.device)\n"
    project.edit("run.py", begins, f"    HOOKS[0]()\n{begins}")
    watched = ("python", "-m", "labjobs.watched", "run.py", *SHORT, "--seed", "7")
    done = project.do(*watched)
    assert done.returncode == 6, done
    assert "not in the job's fingerprint: run.hidden" in done.stderr
    again = project.run(*SHORT, "--seed", "7")
    assert "already finished" in again.stdout, again
    body = "def hidden() -> None:\n    "
    project.edit("run.py", f"{body}pass", f"{body}HOOKS.clear()")
    stale = one_line(project.run(*SHORT, "--seed", "7"), 5)
    assert "finished with other code (run.hidden changed)" in stale
    whole = json.loads(project.do("python", "jobs.py", "stale", "--json").stdout)
    assert "run.hidden" in [each["definition"] for each in whole]
