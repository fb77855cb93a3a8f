"""A job whose code has changed: run.py and run.sh say so, and neither use it nor go on with it."""

import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import Project, job_of, one_line, succeeded
from labjobs import locks
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
    assert "was finished with other code (its record is in another folder)" in said


def test_bytecode_that_python_takes_for_current_is_not_what_runs(fresh):
    settings = fresh.root / "settings.py"
    settings.write_text(settings.read_text() + '\nprint("before")\n')
    writes = {"PYTHONDONTWRITEBYTECODE": ""}
    succeeded(fresh.do("python", "-c", "import settings", **writes))
    assert [*fresh.root.glob("__pycache__/settings.*")]
    then = settings.stat()
    settings.write_text(settings.read_text().replace("before", "behind"))
    os.utime(settings, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert succeeded(fresh.run("--help", **writes)).stdout.startswith("behind\n")


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
    drawn = one_line(fresh.do("python", "plot.py"), 1)
    assert "1 of 1 jobs is from different code or data" in drawn


@pytest.mark.full
def test_a_file_with_a_conflict_is_named_and_nothing_that_is_found_through_it(of_example, tmp_path):
    project = of_example("plain").copy(tmp_path / "plain")
    succeeded(project.run(*SHORT))
    with (project.root / "models.py").open("a") as file:
        print("<<<<<<< HEAD", file=file)
    why = "models.py cannot be read as Python"
    assert f"was finished with other code ({why})" in one_line(project.run(*SHORT), 5)
    assert succeeded(project.do("python", "jobs.py", "stale")).stdout.startswith(f"{why}: 1 of 1")


@pytest.mark.full
def test_what_is_accepted_is_the_nearest_code_alone(fresh):
    """Not that of the attempt before, which had a mistake."""
    fresh.edit("run.py", "losses = cross_entropy(", "losses = 2 * cross_entropy(")
    for seed in "01":
        succeeded(fresh.run(*SHORT, "--seed", seed))
    fresh.edit("run.py", "losses = 2 * cross_entropy(", "losses = 1 * cross_entropy(")
    for seed in "01":
        succeeded(fresh.run(*SHORT, "--seed", seed, "--force"))
    fresh.edit("models.py", "nn.ReLU()", "nn.ReLU(inplace=False)")
    accepted = fresh.do("python", "jobs.py", "accept", "--because", "it is the default")
    assert "accepted: models.MLP, of 2 jobs (not verified)" in succeeded(accepted).stdout
    (line,) = (fresh.root / "accepted.jsonl").read_text().splitlines()
    assert [*json.loads(line)["definitions"]] == ["models.MLP"]


@pytest.mark.full
def test_a_sweep_shows_why_a_job_fails_again_with_other_code(fresh):
    write_grid(fresh.root, "--epochs 1")
    fresh.edit("run.py", "    model.eval()\n", '    raise ValueError("a mistake")\n')
    fresh.do("bash", "run.sh")
    fresh.edit("run.py", '("a mistake")', '("another mistake")')
    again = fresh.do("bash", "run.sh")
    (path,) = fresh.root.glob("runs/*/*/output.txt")
    assert "ValueError: another mistake (run.py:" in again.stderr
    assert f"[{path.relative_to(fresh.root)}]" in again.stderr


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


@pytest.mark.full
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


@pytest.mark.full
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
    # They are not of one code because none of them is of the present one.
    project.edit("run.py", "losses = cross_entropy(", "losses = 1.0 * cross_entropy(")
    said = one_line(project.do("python", "plot.py", "--format", "png"), 1)
    assert "3 of 3 jobs are from different code or data" in said


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


def test_what_is_accepted_counts_as_a_whole_and_what_else_changes_is_named(project, tmp_path):
    project.edit("models.py", *SAME)
    project.edit("run.py", "scaler.scale(loss)", "scaler.scale(loss * 1)")
    convnet = job_of(project.run(*SHORT, "--model", "convnet"))
    published = project.do("python", "jobs.py", "publish", convnet, str(tmp_path / "published"))
    assert f"stale: {convnet}; published with the code that" in succeeded(published).stdout
    lock = locks.take(project.folder(convnet) / "lock")
    assert lock  # as if that job was running
    with lock:
        accept = project.do("python", "jobs.py", "accept", "--because", "it is the same")
    accepted, *_, said = succeeded(accept).stdout.splitlines()
    assert accepted == "accepted: models.MLP, of 1 job (not verified)"
    assert said == f"running with other code: {convnet}; accept again when they have ended"
    done = project.run(*SHORT)
    assert (done.returncode, "already finished" in done.stdout) == (0, True)
    project.edit("run.py", "scaler.scale(loss * 1)", "scaler.scale(loss * 2 / 2)")
    said = one_line(project.run(*SHORT), 5)
    assert "was finished with other code (run.train changed)" in said
    project.edit("run.py", "scaler.scale(loss * 2 / 2)", "scaler.scale(loss)")  # half undone
    assert "(models.MLP changed)" in one_line(project.run(*SHORT), 5)


@pytest.mark.full
def test_a_job_that_diverged_is_accepted_like_the_others(project):
    diverges = (*SHORT, "--lr", "1e30", "--optimizer", "sgd")
    job = job_of(project.run(*diverges))
    project.edit("run.py", "scaler.scale(loss)", "scaler.scale(loss * 1)")
    succeeded(project.do("python", "jobs.py", "accept", "--because", "it is the same"))
    found = {job: (row["state"], row["about"]) for job, row in project.listed().items()}
    assert found.pop(job)[0] == "diverged" and {*found.values()} == {("finished", "")}


@pytest.mark.full
def test_the_results_of_an_experiment_that_was_undone_are_never_accepted(project):
    """What counted before the edit that is accepted counts again, and nothing else."""
    before = project.folder(project.finish(*SHORT))
    project.edit("models.py", "nn.ReLU()", "nn.Tanh()")
    succeeded(project.run(*SHORT, "--force"))
    project.edit("models.py", "nn.Tanh()", "nn.ReLU()")
    project.edit("models.py", "nn.Flatten(),", "nn.Flatten(1),")
    accepted = succeeded(project.do("python", "jobs.py", "accept", "--because", "a default"))
    assert "accepted: models.MLP, of 1 job (not verified)\n" in accepted.stdout
    shown = project.do("python", "jobs.py", "show", before.parent.name, "--json").stdout
    attempts = json.loads(shown)["attempts"]
    counts = [Path(each["folder"]) for each in attempts if not each["change"]]
    assert counts == [before] and len(attempts) == 2


# Whether a job still fits has three answers, and all commands give the same.

FITS, CHANGED, UNKNOWN = "fits", "changed", "unknown"


@pytest.fixture(scope="module")
def reading(made, tmp_path_factory):
    """The project, with jobs that read a file of data; and the id of the one with an mlp."""
    project = made.copy(tmp_path_factory.mktemp("reading") / "project")
    file = project.root / "data/scale.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text("1.0")
    read = f'    open("{file.relative_to(project.root)}").read()\n'
    project.edit("run.py", "    model.eval()\n", f"    model.eval()\n{read}")
    drawn = "(Settings, FIGURES, OF_ONE_JOB,"
    project.edit("plot.py", drawn, drawn.replace("FIGURES, OF_ONE_JOB", '{"ranking": ranking}, {}'))
    project.finish(*SHORT, "--model", "convnet")
    write_grid(project.root, "--epochs 1 --model convnet", "--epochs 1 --model mlp")
    return project, project.finish(*SHORT)


LOAD = "import sys, warnings, jobs; warnings.simplefilter('always'); jobs.load(sys.argv[1])"


TABLES = """
import os, sys
sys.path[0] = os.getcwd()
os.chdir("/")
from labjobs.results import tables
from labjobs.tracking.mlflow_store import experiment_name
jobs = tables.jobs(experiment_name()).set_index("job_id")
print(jobs.loc[sys.argv[1], ["stale", "unchecked"]].to_json())
"""
"""A notebook in another folder, without the class of the settings."""


def answers(project: Project, job: str) -> dict[str, str]:
    """What each command says of a job."""

    def ask(*words: str) -> str:
        done = project.do(*words)
        return done.stdout if "--json" in words else done.stdout + done.stderr

    def in_words(said: str) -> str:
        if "not all data was checked" in said or "It is not known whether the data" in said:
            return UNKNOWN
        words = ("with other ", "other code or data", "different code or data", "is stale: ")
        changed = any(word in said for word in (*words, "has changed since"))
        return CHANGED if changed else FITS

    def in_state(row: dict[str, str]) -> str:
        state = {"finished": FITS, "stale": CHANGED}[row["state"]]
        return UNKNOWN if state == FITS and row["about"] else state

    ran = project.run(*SHORT)
    found = {"run.py": in_words(ran.stdout + ran.stderr), "run.sh": in_words(ask("bash", "run.sh"))}
    listed = ("bash", "run.sh", "--list"), ("python", "jobs.py", "list")
    for words in listed:
        (row,) = (row for row in json.loads(ask(*words, "--json")) if row["id"] == job)
        found[" ".join(words)] = in_state(row)
    shown = json.loads(ask("python", "jobs.py", "show", job, "--json"))
    attempt = shown["attempts"][-1]
    found["show"] = in_state(shown)
    found["attempt"] = CHANGED if attempt["change"] else UNKNOWN if attempt["unchecked"] else FITS
    rows = json.loads(ask("python", "jobs.py", "stale", "--json"))
    of_job = [row["stale"] for row in rows if job in row["jobs"]]
    found["stale"] = FITS if not of_job else CHANGED if any(of_job) else UNKNOWN
    if (project.root / "runs" / job).exists():
        found["jobs.load"] = in_words(ask("python", "-c", LOAD, job))
    drawn = ("python", "plot.py", "--format", "png", "--any-code")
    succeeded(project.do(*drawn))
    found["caption"] = in_words((project.root / "figures/ranking.tex").read_text())
    row = json.loads(ask("python", "-c", TABLES, job))
    found["tables.jobs"] = CHANGED if row["stale"] else UNKNOWN if row["unchecked"] else FITS
    with (project.root / "tables/jobs.csv").open() as file:
        (row,) = (row for row in csv.DictReader(file) if row["job_id"] == job)
    changed = row["stale"] == "True"
    found["jobs.csv"] = CHANGED if changed else UNKNOWN if row["unchecked"] else FITS
    return found


def remove(pattern: str) -> Callable[[Project], None]:
    def act(project: Project) -> None:
        for path in [*project.root.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return act


def with_other_data(project: Project) -> None:
    (project.root / "data/scale.txt").write_text("2.0")


def with_other_code(project: Project) -> None:
    project.edit("models.py", "nn.ReLU()", "nn.GELU()")


def accepted(project: Project) -> None:
    with_other_code(project)
    succeeded(project.do("python", "jobs.py", "accept", "--because", "a test"))


def of_another_user(project: Project) -> None:
    """Its folder is on another machine."""
    remove("runs")(project)
    folder = Path("/nowhere/runs/0/1")
    project.write(f"UPDATE tags SET value = '{folder}' WHERE key = 'job_folder'")


SITUATIONS = {
    "other code": (with_other_code, CHANGED),
    "of another user": (of_another_user, UNKNOWN),
    "accepted": (accepted, FITS),
}


@pytest.mark.full
@pytest.mark.parametrize("situation", SITUATIONS)
def test_all_commands_give_the_same_of_three_answers(reading, tmp_path, situation):
    (made, job), (act, answer) = reading, SITUATIONS[situation]
    project = made.clone(tmp_path / "project")
    act(project)
    found = answers(project, job)
    assert found == dict.fromkeys(found, answer)


@pytest.mark.full
def test_a_job_that_is_run_again_knows_its_data_without_its_outcome(reading, tmp_path):
    """It would otherwise be continued with other data, as one curve."""
    made, job = reading
    project = made.clone(tmp_path / "project")
    remove("runs/*/*/outcome.json")(project)
    with_other_data(project)
    assert project.run(*SHORT).returncode == 0
    log = (project.folder(job) / "log.txt").read_text()
    assert "starting over, since the data has changed (data/scale.txt changed)" in log
