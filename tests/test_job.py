"""`python run.py` of the template's own classifier: what it prints, leaves, stores and returns."""

import json
import re
import shlex
import shutil
import signal
import sys

import numpy as np
import pytest
import torch
from faults import courier_of, ended, job_of, kill, one_line, same, silent, succeeded, wait_until
from sweeps import write_grid

QUICK = ("--epochs", "2", "--batch-size", "256", "--augment", "crop-flip", "--log-every", "2")
STEPS = [2, 4, 6, 8, 10, 12]
"""1,294 examples in batches of 256, the last one smaller."""


@pytest.fixture(scope="module")
def finished(project):
    """A job run to its end, with something logged from the loop."""
    epoch = "        job.log_epoch(metrics)\n"
    logged = f'{epoch}        job.log_text("note", f"after {{job.step}}")\n'
    project.edit("run.py", epoch, logged)
    return project.run(*QUICK)


def test_its_last_line_is_the_result_and_its_files_are_plain(project, finished):
    assert finished.returncode == 0, finished.stderr
    *_, second, last = finished.stdout.splitlines()
    assert second.startswith("epoch 2/2: train_loss ") and " examples/s" in second
    assert last.startswith("job ") and " finished: best_val_loss " in last and "test_" not in last
    folder = project.folder(job_of(finished))
    assert {file.name for file in folder.iterdir()} == {
        *("settings.json", "metrics.jsonl", "log.txt", "outcome.json", "lock", "sent.json"),
        *("best.pt", "predictions.npz", "logged"),
    }
    best = torch.load(folder / "best.pt", weights_only=True)
    assert best["settings"]["epochs"] == 2 and set(best["models"]["model"]) >= {"mean", "std"}
    with np.load(folder / "predictions.npz") as kept:
        right = (kept["label"] == kept["predicted"]).mean()
        assert len(kept["label"]) == 359
    about = json.loads((folder / "settings.json").read_text())
    assert len(about["spec"]["classes"]) == 10 and about["examples"]["test"] == 359
    with np.load(project.root / "runs" / about["split"]) as kept:
        assert sorted(np.concatenate([*kept.values()])) == list(range(1797))
    shown = silent(project.do("python", "jobs.py", "show", job_of(finished))).stdout
    assert f"test_accuracy {right:.4g}" in shown
    assert second in (folder / "log.txt").read_text()


def test_the_store_has_one_run_with_everything(project, finished):
    job = job_of(finished)
    ((run, status),) = project.runs(job)
    assert status == "FINISHED"
    ((begun, ended),) = project.ask("SELECT start_time, end_time FROM runs WHERE run_uuid = ?", run)
    first, *_, last = project.lines(job)
    assert (begun, ended) == (first["time"], last["time"])
    tags = dict(project.ask("SELECT key, value FROM tags WHERE run_uuid = ?", run))
    assert tags["finished"] == "true" and tags["diverged"] == "false"
    assert tags["precision"] == "fp32" and tags["device"] == "cpu"
    assert json.loads(str(tags["metrics"]))["loss"]["better"] == "lower"
    params = dict(project.ask("SELECT key, value FROM params WHERE run_uuid = ?", run))
    settings = json.loads((project.folder(job) / "settings.json").read_text())["settings"]
    assert params.keys() == settings.keys()
    assert params["lr"] == "0.001" and params["batch_size"] == "256"
    query = "SELECT step FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step"
    steps = {
        key: [step for (step,) in project.ask(query, run, key)]
        for (key,) in project.ask("SELECT DISTINCT key FROM metrics WHERE run_uuid = ?", run)
    }
    for key in ("train_loss", "train_accuracy", "lr"):
        assert steps[key] == STEPS, key
    for key in ("val_loss", "val_accuracy", "epoch", "elapsed_seconds", "examples_per_second"):
        assert steps[key] == [6, 12], key
    for key in ("test_loss", "test_accuracy", "best_val_loss", "best_val_accuracy", "best_step"):
        assert len(steps[key]) == 1, key
    artifacts = project.root / "mlruns"
    assert {path.read_text() for path in artifacts.rglob("note-*.txt")} == {"after 6", "after 12"}


def test_force_starts_it_over_in_one_run_and_another_loader_gives_the_same_bits(project, finished):
    job = job_of(finished)
    before, learnt = project.runs(job), project.tensors(job)
    flags = ("--loader", "workers", "--workers", "2", "--force", "--quiet")
    again = silent(project.run(*QUICK, *flags))
    after = project.runs(job)
    assert len(before) == len(after) == 1 and before != after
    assert again.stdout.splitlines() == [finished.stdout.splitlines()[-1]]
    assert same(project.tensors(job)["best"], learnt["best"])


def test_like_takes_the_settings_of_another_job(project, finished):
    """Flags in the command replace its own, and those that they take the place of."""
    like = ("--like", job_of(finished)[:6])
    again = succeeded(project.run(*like, "--log-every", "2")).stdout
    assert again.startswith(f"job {job_of(finished)} already finished")
    other = job_of(succeeded(project.run(*like, "--steps", "3", "--augment", "none", "--quiet")))
    shown = silent(project.do("python", "jobs.py", "show", other)).stdout
    assert "command: python run.py --steps=3 --batch-size=256\n" in shown


def test_it_goes_on_with_as_many_threads_as_it_has_begun_with(project):
    """On a CPU, another number of threads gives other last digits."""
    flags = ("--model", "mlp", "--note", "threads", *QUICK)
    job = job_of(project.run(*flags, "--pause-after", "1e", "--threads", "1"))
    succeeded(project.run(*flags, "--pause-after", "8", OMP_NUM_THREADS="2"))
    succeeded(project.run(*flags, "--threads", "2"))
    folder = project.folder(job)
    lines = project.lines(job)
    threads = [tags["threads"] for line in lines if "threads" in (tags := line.get("tags", {}))]
    assert threads == ["1", "1", "2"]
    said = "threads: begun with 1 and continued with 2: the same bits cannot be expected"
    assert (folder / "log.txt").read_text().count(said) == 1
    repeated = project.do("python", "jobs.py", "repeat", job)
    assert "not repeated: it ran with 1 and then 2 threads; bits depend on" in repeated.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--model", "mpl"), "--model mpl: no such model; did you mean mlp?"),
        (("--precision", "fp16"), "--precision fp16: needs a CUDA GPU"),
        (("--val-fraction", "0"), "--monitor none"),
        (("--lr", "1", "--lr=2"), "--lr: given as 1 and as 2; give one of them"),
        (("--val-fraction", "1e-9"), "1e-09 of 1438 examples is 0, but at least one"),
        (("--fold", "6"), "--fold 6: must be at least 0 and at most 5"),
        (("--like", "0" * 12), f"--like {'0' * 12}: there is no such job of run.py in runs"),
        (("--fold", "1", "--val-fraction", "0.2"), "--val-fraction and --fold: give only one"),
        (("--dataset", "image-folder", "--data-root", "nowhere"), "no folder nowhere"),
    ],
)
def test_wrong_settings_are_one_line_and_leave_nothing(project, flags, said):
    runs = set(project.root.glob("runs/[!.]*"))
    done = project.run(*flags)
    line = one_line(done, 2)
    assert line.startswith("run.py: ") and said in line
    assert done.stdout == "" and set(project.root.glob("runs/[!.]*")) == runs


def test_a_job_without_a_store_is_refused(project):
    for script, *words in (("run.py", *QUICK, "--note", "nowhere"), ("jobs.py", "sync")):
        done = project.do("python", script, *words, MLFLOW_TRACKING_URI="foo://x")
        assert one_line(done, 2).startswith(f"{script}: MLFLOW_TRACKING_URI ")


def test_sets_have_the_same_order_in_each_process(fresh):
    """Classes or a vocabulary made from a set would be others in a job that is continued."""
    check = "    def __post_init__(self) -> None:\n"
    fresh.edit("settings.py", check, f"{check}        raise SettingsError(str(set('ABCDEFGH')))\n")
    said = one_line(ended(fresh.start()), 2).removeprefix("run.py: ")
    write_grid(fresh.root, "")
    assert f": {said}\n" in fresh.do("bash", "run.sh").stderr


def test_another_python_is_told_what_it_lacks(project):
    done = ended(project.command(sys.executable, "-S", "run.py"))
    lacking = "mlflow, numpy, torch, tqdm"
    said = f"missing packages ({lacking}); README.md says how to install them"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{sys.executable}: {said}\n"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("queue.py", "queue.py hides the library queue from all code that needs it; rename it"),
        ("tqdm/__init__.py", "tqdm hides the library tqdm from all code that needs it; rename it"),
        ("data/__init__.py", "the folder data, with an __init__.py, hides data.py; rename one of"),
    ],
)
def test_a_module_that_hides_another_is_named(fresh, file, said):
    """Python looks in a script's folder first. Folders that are no packages hide nothing."""
    path = fresh.root / file
    path.parent.mkdir(exist_ok=True)
    for folder in ("logging", "test"):
        (fresh.root / folder).mkdir()
    succeeded(ended(fresh.command(sys.executable, "jobs.py", "list")))
    path.touch()
    for script in ("run.py", "jobs.py", "plot.py"):
        assert one_line(ended(fresh.command(sys.executable, script)), 1).startswith(said)


@pytest.mark.full
def test_python_that_looks_in_no_folder_of_a_script(project, tmp_path):
    """By PYTHONSAFEPATH, with an installed engine."""
    (tmp_path / "labjobs").symlink_to(project.root / "labjobs")
    bare = project.copy(tmp_path / "project")
    shutil.rmtree(bare.root / "labjobs")
    env = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(tmp_path)}
    assert " finished: " in succeeded(bare.run(*QUICK, "--quiet", **env)).stdout
    write_grid(bare.root, " ".join(QUICK))
    assert "1 job: 1 finished" in succeeded(bare.do("bash", "run.sh", "--list", **env)).stdout


@pytest.mark.parametrize(
    ("before", "status", "said"),
    [
        ("ulimit -n 12", 1, "failed: Too many open files; raise the limit with `ulimit -n`"),
        ("mkdir gone && cd gone && rmdir ../gone", 1, "the current folder was removed; cd into"),
    ],
)
def test_what_a_shell_left(fresh, before, status, said):
    script = shlex.join([sys.executable, str(fresh.root / "run.py"), *QUICK, "--quiet"])
    done = ended(fresh.command("bash", "-c", f"{before}; exec {script}"))
    assert said in one_line(done, status)


def test_a_signal_before_the_job_begins_is_said(fresh):
    job = fresh.start(*QUICK)
    wait_until(lambda: bool([*fresh.root.glob("runs/*/*/lock")]))
    job.terminate()
    said = one_line(ended(job), 128 + signal.SIGTERM)
    assert " interrupted by SIGTERM while it was starting" in said


def test_a_fault_in_the_projects_code_is_one_line_and_its_trace_is_kept(fresh):
    models = fresh.root / "models.py"
    models.write_text(models.read_text().replace("MLP(spec.shape, len", "MLP(spec.shape, ln"))
    done = fresh.run(*QUICK, "--quiet")
    line = one_line(done, 1)
    number = 1 + models.read_text()[: models.read_text().index(", ln(")].count("\n")
    assert f"failed: NameError: name 'ln' is not defined (models.py:{number}; full trace: " in line
    assert "Traceback" in (fresh.folder(job_of(done)) / "log.txt").read_text()


@pytest.mark.full
def test_compiled_on_a_cpu_it_trains_alike(fresh):
    losses = []
    for how in ("on", "off"):
        flags = ("--epochs", "1", "--quiet", "--compile", how, "--note", how)
        line = succeeded(fresh.run(*flags)).stdout.splitlines()[-1]  # after torch's own
        losses.append(float(line.partition("best_val_loss ")[2].partition(",")[0]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("sys.exit()", "failed: SystemExit (run.py:"),
        ("raise KeyboardInterrupt('mine')", "failed: KeyboardInterrupt: mine (run.py:"),
        ("return None", "failed: main() returned NoneType; return the results, a dictionary, or"),
    ],
)
def test_a_job_that_ends_without_results_has_failed(fresh, statement, said):
    """Not finished, as its exit status would say."""
    fresh.edit("run.py", "    job.load_best(model=model)\n", f"    {statement}\n")
    write_grid(fresh.root, shlex.join(QUICK))
    swept = fresh.do("bash", "run.sh")
    assert (swept.returncode, swept.stdout.splitlines()[-1]) == (
        *(1, "0 of 1 jobs finished, 0 of them now; 1 failed"),
    )
    line = one_line(fresh.run(*QUICK, "--quiet"), 1)
    assert said in line
    assert "1 job: 1 failed" in fresh.do("python", "jobs.py", "list").stdout


WRONG = """


class Wrong(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        inside = bool(torch.utils.data.get_worker_info())
        return torch.zeros(1, 8, 8, dtype=torch.uint8), [1][inside]


DATASETS["wrong"] = lambda root, size: Source(Wrong(), ["no", "yes"])
"""


def test_a_fault_in_a_loader_s_process_is_one_line_too(fresh):
    data = fresh.root / "data.py"
    data.write_text(data.read_text() + WRONG)
    line = one_line(fresh.run(*QUICK, "--dataset", "wrong", "--workers", "2", "--quiet"), 1)
    number = 1 + data.read_text().partition("[1][inside]")[0].count("\n")
    assert f"failed: IndexError: list index out of range (data.py:{number}; full trace: " in line


@pytest.mark.full
def test_no_file_is_left_open(fresh):
    """Python's development mode tells of those that nobody has closed at the end."""
    flags = ("-X", "dev", "-W", "error::ResourceWarning", "run.py", "--epochs", "1", "--quiet")
    said = succeeded(fresh.do("python", *flags)).stderr
    assert "ResourceWarning" not in said


def test_with_the_store_away_results_are_safe_and_uploaded_later(fresh):
    address = "http://127.0.0.1:9"
    job = fresh.start(*QUICK, "--quiet", MLFLOW_TRACKING_URI=address)
    wait_until(lambda: courier_of(job) is not None)
    courier = courier_of(job)
    away = ended(job)
    kill(courier)  # or it would try for two more minutes
    line = one_line(away, 3)
    assert "finished: best_val_loss" in line
    missing = f"not everything has been uploaded ({address}: Connection refused)"
    assert line.endswith(f"{missing}: python jobs.py sync uploads what is left")
    best = fresh.folder(job_of(away)) / "best.pt"
    written = best.stat().st_mtime_ns
    damaged = fresh.folder("000000000000")
    damaged.mkdir(parents=True)
    (damaged / "metrics.jsonl").write_text("no line of a journal\n")
    sync = fresh.do("python", "jobs.py", "sync")
    shutil.rmtree(damaged.parent)
    assert sync.returncode == 1
    assert sync.stdout.startswith(f"job {job_of(away)}/")
    wrong, said = sync.stderr.splitlines()
    assert wrong.startswith("job 000000000000 cannot be ")
    assert said.startswith("1 of 2 attempts ")
    back = fresh.run(*QUICK)
    assert back.returncode == 0 and "already finished" in back.stdout
    assert [status for _, status in fresh.runs(job_of(away))] == ["FINISHED"]
    assert best.stat().st_mtime_ns == written  # nothing was trained again


@pytest.mark.full
def test_a_run_deleted_while_its_job_trains_is_made_again(fresh):
    job = fresh.start("--epochs", "200", "--batch-size", "32", "--quiet")
    wait_until(lambda: bool(fresh.ask("SELECT 1 FROM metrics WHERE key = 'val_loss'")))
    fresh.write("UPDATE runs SET lifecycle_stage = 'deleted'")
    assert job.poll() is None
    ended_as = job_of(silent(ended(job)))
    assert [status for _, status in fresh.runs(ended_as)] == ["FINISHED"]
    assert fresh.stored(ended_as) == fresh.journalled(ended_as)


@pytest.mark.full
def test_a_sqlite_store_may_be_anywhere(project, tmp_path):
    """Its path is read by the rules of SQLAlchemy, which decodes it and takes options after it."""
    fresh = project.copy(tmp_path / "q?x=1" / "feature%2Fx")
    job = job_of(silent(fresh.run(*QUICK, "--quiet")))
    assert fresh.stored(job) == fresh.journalled(job)
    assert {path.name for path in tmp_path.iterdir()} == {"q?x=1"}
    path = str(fresh.root / "a b.db").replace("%", "%25").replace("?", "%3F")
    address = f"sqlite:///{path.replace(' ', '%20')}?timeout=60"
    silent(fresh.do("python", "jobs.py", "sync", MLFLOW_TRACKING_URI=address))
    listed = silent(fresh.do("python", "jobs.py", "list", MLFLOW_TRACKING_URI=address))
    assert f"{job}  finished" in listed.stdout and (fresh.root / "a b.db").exists()


OF_MLFLOW = {
    **{"ENABLE_ASYNC_LOGGING": "true", "ASYNC_LOGGING_BUFFERING_SECONDS": "600"},
    **{"TRUNCATE_LONG_VALUES": "false", "REGISTRY_URI": "nonsense"},
    **{"ENABLE_WORKSPACES": "true", "WORKSPACE": "other"},
}


@pytest.mark.full
def test_variables_do_not_change_what_is_stored(fresh):
    """Those of MLflow, and one by which its warnings would be errors, as in a shell in which a test
    suite runs."""
    variables = {f"MLFLOW_{name}": value for name, value in OF_MLFLOW.items()}
    variables["PYTHONWARNINGS"] = "error::DeprecationWarning"
    flags = (*QUICK, "--quiet", "--note", "long " * 1400)
    job = job_of(silent(fresh.run(*flags, **variables)))
    assert fresh.runs(job)[0][1] == "FINISHED"
    assert fresh.stored(job) == fresh.journalled(job)


@pytest.mark.full
def test_a_read_only_project_reaches_its_server(fresh, tmp_path):
    """The lock that jobs hold while they prepare a store is in the folder of runs then."""
    runs = tmp_path / "runs"
    runs.mkdir()
    read_only = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    within = fresh.behind("unshare", "-rm", "sh", "-c", read_only, str(fresh.root))
    where = ("--runs-root", str(runs), "--data-root", str(tmp_path))
    store = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "PYTHONDONTWRITEBYTECODE": "1"}
    line = one_line(within.run(*QUICK, "--quiet", *where, **store), 3)
    reasons = "Connection refused|no answer within 5 s"  # on a slow machine
    why = rf"not everything has been uploaded \(http://127.0.0.1:9: ({reasons})\)"
    assert re.search(why, line), line
    assert list(runs.glob("mlflow-*.lock"))


def test_on_windows_it_says_what_is_needed(project):
    program = "import sys; sys.platform = 'win32'; import labjobs"
    done = ended(project.command(sys.executable, "-c", program))
    assert "on Windows, use it within WSL 2" in one_line(done, 1)
