"""A job whose data has changed: it is noticed, named, and neither used nor mixed with the new."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from faults import Project, ended, job_of, one_line, succeeded, wait_until
from mlflow import MlflowClient
from PIL import Image

FLAGS = ("--dataset", "image-folder", "--image-size", "8", "--epochs", "1", "--quiet")
BY_WORKERS = (*FLAGS, "--loader", "workers", "--workers", "1")


def image(seed: int, path: Path) -> None:
    """Write an image; those of dogs are lighter."""
    pixels = np.random.default_rng(seed).integers(0, 100, (8, 8, 3))
    Image.fromarray((pixels + 100 * (path.parent.name == "dog")).astype("uint8")).save(path)


@pytest.fixture(scope="module")
def made(make):
    """A project with images and a job that has read them, in processes of its own."""
    project = Project(make())
    for name in ("cat", "dog"):
        folder = project.root / "data" / name
        folder.mkdir(parents=True)
        for number in range(20):
            image(number, folder / f"{number}.png")
    assert project.run(*BY_WORKERS).returncode == 0
    return project


@pytest.fixture
def project(made, tmp_path):
    return made.clone(tmp_path / "project")


def finished_already(project: Project, *flags: str) -> bool:
    done = project.run(*BY_WORKERS, *flags)
    return (done.returncode, "already finished" in done.stdout) == (0, True)


def read_by(project: Project) -> set[str]:
    """The names of the files that the project's only job has read."""
    (found,) = project.root.glob("runs/.data/*.jsonl")
    return {json.loads(line)["name"] for line in found.read_text().splitlines()}


@pytest.mark.full
def test_all_that_a_job_reads_and_lists_is_known_and_mlflow_shows_it(made):
    images = {f"data/{name}/{number}.png" for name in ("cat", "dog") for number in range(20)}
    assert read_by(made) == {"data/", "data/train", "data/cat/", "data/dog/", *images}
    client = MlflowClient(f"sqlite:///{made.root / 'mlflow.db'}")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    (read,) = run.inputs.dataset_inputs
    assert (read.dataset.name, json.loads(read.dataset.profile)["files"]) == ("data", 40)
    assert json.loads(read.dataset.source) == {"uri": str(made.root / "data")}
    assert read.dataset.digest == run.data.tags["data"]


def test_a_changed_file_is_named_and_each_data_has_its_own_results(project):
    file = project.root / "data/cat/3.png"
    before = file.read_bytes()
    older = project.run(*BY_WORKERS).stdout.splitlines()[-1]
    image(99, file)
    said = one_line(project.run(*BY_WORKERS), 5)
    assert "was finished with other data (data/cat/3.png changed); --force runs it again" in said
    assert "data/cat/3.png changed: 1 of 1 job" in project.do("python", "jobs.py", "stale").stdout
    newer = succeeded(project.run(*BY_WORKERS, "--force"))
    assert len(project.runs(job_of(newer))) == 2
    again = project.run(*BY_WORKERS).stdout.splitlines()[-1]
    assert again == newer.stdout.splitlines()[-1].replace("finished", "already finished")
    file.write_bytes(before)
    assert project.run(*BY_WORKERS).stdout.splitlines()[-1] == older != again


def test_files_that_come_or_go_are_noticed(project):
    image(99, project.root / "data/dog/99.png")
    assert "(data/dog changed)" in one_line(project.run(*BY_WORKERS), 5)
    (project.root / "data/dog/99.png").unlink()
    assert finished_already(project)
    (project.root / "data/cat/0.png").unlink()
    assert "(data/cat, data/cat/0.png changed)" in one_line(project.run(*BY_WORKERS), 5)


@pytest.mark.full
def test_names_that_are_no_text(fresh):
    odd = os.fsencode(fresh.root) + b"/data/cat/caf\xe9.png"
    os.rename(fresh.root / "data/cat/7.png", odd)
    assert fresh.run(*BY_WORKERS).returncode == 0
    assert finished_already(fresh)
    image(99, Path(os.fsdecode(odd)))
    assert r"(data/cat/caf\xe9.png changed)" in one_line(fresh.run(*BY_WORKERS), 5)
    for command in ("stale", "list"):
        listed = fresh.do("python", "jobs.py", command)
        assert listed.returncode == 0 and r"data/cat/caf\xe9.png changed" in listed.stdout


def test_copies_elsewhere_are_the_same_data_and_what_is_away_is_not_checked(project, tmp_path):
    copied = shutil.copytree(project.root / "data", tmp_path / "copy", copy_function=shutil.copy)
    assert finished_already(project, "--data-root", str(copied))
    shutil.rmtree(project.root / "data")
    done = project.run(*BY_WORKERS)
    remark = f"(not all data was checked: there is no folder {project.root / 'data'})"
    assert remark in done.stdout and done.returncode == 0


@pytest.mark.full
def test_one_that_was_stopped_is_continued_with_other_data_only_on_request(fresh):
    flags = (*FLAGS[:-3], "--epochs", "300", "--quiet")
    fresh.killed(*flags)
    image(99, fresh.root / "data/cat/99.png")
    said = one_line(fresh.run(*flags), 5)
    assert "was begun with other data (data/cat changed); --force starts it over" in said
    succeeded(fresh.run(*flags, "--continue-anyway"))
    assert "it was continued with changed data" in one_line(fresh.run(*flags), 5)


def test_a_mean_over_older_jobs_with_different_data_is_refused(project):
    changed = project.root / "data" / "cat" / "0.png"
    image(100, changed)
    assert project.run(*FLAGS, "--seed", "1").returncode == 0
    image(101, changed)
    drawn = project.do("python", "plot.py", "--format", "png")
    assert "2 of 2 jobs are from different code or data" in one_line(drawn, 1)


SPAWNED = '\ntorch.multiprocessing.set_start_method("spawn", force=True)\n'
OF_PROJECT = """
import os, threading
WORDS = Path(__file__).with_name("words.txt").read_text()
CACHE = Path(__file__).with_name("words.npy")
np.save(CACHE, np.zeros(len(WORDS)))
np.load(CACHE)
os.mkfifo(PIPE := CACHE.with_name("pipe"))
threading.Thread(target=PIPE.write_text, args=("words",)).start()
assert PIPE.read_text() == "words"
"""


@pytest.mark.full
def test_processes_that_are_not_forked_note_what_they_read_as_well(made, fresh):
    with (fresh.root / "data.py").open("a") as file:
        file.write(SPAWNED)
    assert fresh.run(*BY_WORKERS).returncode == 0
    assert read_by(fresh) == read_by(made)


@pytest.mark.full
def test_files_of_the_project_count_but_not_what_the_job_has_made(fresh):
    """Nor what is no plain file: to hash a pipe would wait for ever, or take what it has."""
    words = fresh.root / "words.txt"
    words.write_text("a few words")
    with (fresh.root / "data.py").open("a") as file:
        file.write(OF_PROJECT)
    assert fresh.run(*FLAGS[-3:]).returncode == 0
    assert read_by(fresh) == {"project/words.txt"}
    words.write_text("other words")
    said = one_line(fresh.run(*FLAGS[-3:]), 5)
    assert "was finished with other data (project/words.txt changed)" in said


@pytest.mark.full
def test_what_others_change_while_a_job_runs_is_noticed_at_its_end(fresh, tmp_path):
    trained, changed = tmp_path / "trained", tmp_path / "changed"
    trained.mkdir()
    code = (fresh.root / "run.py").read_text()
    line = "    job.load_best(model=model)\n"
    wait = f"    os.rmdir({str(trained)!r})\n    while not os.path.exists({str(changed)!r}): pass\n"
    code = code.replace(line, f"{wait}{line}")
    (fresh.root / "run.py").write_text(f"import os\n{code}")
    job = fresh.start(*BY_WORKERS)
    wait_until(lambda: not trained.exists())
    (fresh.root / "data/cat/3.png").write_bytes(b"")
    changed.mkdir()
    succeeded(ended(job))
    (log,) = fresh.root.glob("runs/*/*/log.txt")
    assert "the data has changed while the job ran (data/cat/3.png changed)" in log.read_text()
    assert "its data changed while it ran" in one_line(fresh.run(*BY_WORKERS), 5)


QUICK = ("--epochs", "1", "--quiet")
BEFORE_THE_JOB = """
from pathlib import Path
CLASSES = (Path(__file__).parent / "data" / "classes.txt").read_text()
"""
LOOKS = """
import ctypes
C = ctypes.CDLL(None)
C.fopen.restype = ctypes.c_void_p
HANDLE = C.fopen(str(Path(__file__).parent / "data/c.bin").encode(), b"r")
import atexit, csv, json, os, sqlite3, subprocess, sys, tempfile, threading
import kept
ROOT = Path(__file__).parent / "data"
SKIPPED = (ROOT / "excluded.txt").exists()
try:
    ORDER = (ROOT / "order.txt").read_text()
except FileNotFoundError:
    ORDER = ""
SOURCES = [(ROOT / name).read_text() for name in sorted(os.listdir(ROOT)) if name.endswith(".py")]
RESULTS = Path(__file__).with_name("results.csv")
RESULTS.write_text((RESULTS.read_text() if RESULTS.exists() else "") + "one more\\n")
(ROOT / "index.json").write_text(json.dumps(os.listdir(ROOT)))
LISTED = os.listdir(os.open(ROOT / "more", os.O_RDONLY)) + os.listdir(ROOT.with_name("kept"))
subprocess.run(f"echo more >> {RESULTS.with_name('sorted.txt')}", shell=True, check=True)
KEY = ROOT.with_name(".env").read_text()
LENT = os.rename(ROOT / "lent.txt", AWAY := ROOT.with_name("away.txt")), AWAY.read_text()
AWAY.rename(ROOT / "lent.txt")
ELSEWHERE = Path(tempfile.mkdtemp())
os.symlink(ROOT, ELSEWHERE / "data")
ALSO_LISTED = os.listdir("/") + os.listdir(ELSEWHERE / "data")
os.link(ROOT / "twice.txt", ELSEWHERE / "twice.txt")
STAGED = (ELSEWHERE / "twice.txt").read_text() + (ELSEWHERE / "data/linked.txt").read_text()
sqlite3.connect(f"file:{ROOT}/g.db?mode=ro", uri=True).execute("SELECT 1")
subprocess.run(f"D={ROOT}; cat $D/e.bin; cd {ROOT}/more && cat f.bin", shell=True, check=True)


def read_in_a_process() -> None:
    # As a loader's worker does: a child of another thread, with a file open.
    child = subprocess.Popen(["sh", "-c", f"exec sleep 600 < {ROOT}/d.bin"])
    atexit.register(child.kill)


THREAD = threading.Thread(target=read_in_a_process)
THREAD.start()
THREAD.join()
"""


@pytest.fixture(scope="module")
def looking(make):
    """A project with a job that looks for files, reads code as data and keeps results in a file."""
    project = Project(make())
    (project.root / "data/more").mkdir(parents=True)
    (project.root / "kept").mkdir()
    (project.root / "kept/__init__.py").write_text("")
    (project.root / "data/d.bin").write_text("open in another process")
    (project.root / "data/e.bin").write_text("named with a variable of the shell")
    (project.root / "data/more/f.bin").write_text("named after `cd`")
    (project.root / "data/classes.txt").write_text("cat dog")
    (project.root / "data/g.db").write_text("")
    (project.root / "data/lent.txt").write_text("read under another name, and put back")
    (project.root / "data/linked.txt").write_text("read by a link elsewhere")
    (project.root / "data/twice.txt").write_text("read by a second name elsewhere")
    (project.root / ".env").write_text("KEY=1")
    (project.root / "data/a.py").write_text("pass")
    (project.root / "data/c.bin").write_text("read by a C library")
    (project.root / "results.csv").write_text("first\\n")
    (project.root / "sorted.txt").write_text("first\\n")
    for file, text in (("settings.py", BEFORE_THE_JOB), ("data.py", LOOKS)):
        with (project.root / file).open("a") as opened:
            opened.write(text)
    assert project.run(*QUICK).returncode == 0
    return project


def test_of_what_a_job_changes_itself_it_cannot_be_told(looking):
    """Results that are read, extended and written back, also by another program; an index beside
    the data is no change."""
    (log,) = looking.root.glob("runs/*/*/log.txt")
    own = "project/results.csv, project/sorted.txt"
    assert f"it is unknown whether {own} changes, since the job has changed it" in log.read_text()
    done = looking.run(*QUICK)
    told = f"(not all data was checked: the job has changed {own} itself, "
    assert "already finished" in done.stdout and told in done.stdout
    (looking.root / "results.csv").write_text("other")
    assert looking.run(*QUICK).stdout == done.stdout
    about = (looking.root / "pyproject.toml").read_text()
    exempt = f'{about}\n[tool.labjobs]\nnot-data = ["project/*"]\n'
    (looking.root / "pyproject.toml").write_text(exempt)
    assert "the job has changed" not in looking.run(*QUICK).stdout
    (looking.root / "pyproject.toml").write_text(about)


def test_a_file_that_pyproject_toml_exempts_does_not_count(looking):
    file = looking.root / "data/c.bin"
    about, before = (looking.root / "pyproject.toml").read_text(), file.read_text()
    file.write_text("grows while jobs run")
    for names, status in (('["data/*.bin"]', 0), ('"data/c.bin"', 2), ('["data/d.bin"]', 5)):
        text = f"{about}\n[tool.labjobs]\nnot-data = {names}\n"
        (looking.root / "pyproject.toml").write_text(text)
        done = looking.run(*QUICK)
        assert done.returncode == status
        assert status != 2 or "tool.labjobs.not-data: a list of names" in one_line(done, 2)
    (looking.root / "pyproject.toml").write_text(about)
    file.write_text(before)


UNSEEN = """
import ctypes, subprocess
C = ctypes.CDLL(None)
C.fopen.restype = ctypes.c_void_p


def read_unseen(root: Path) -> None:
    C.fclose(ctypes.c_void_p(C.fopen(str(root / "closed.bin").encode(), b"r")))
    subprocess.run("cat tree/*/*", shell=True, cwd=root, capture_output=True)
"""
DECLARED = """    root = job.runtime.data_root
    job.data(root / "closed.bin", f"{root}/tree")
    data.read_unseen(root)
    job.save_spec("""


def test_what_the_code_declares_counts_whatever_reads_it(project):
    """A C library that closes its file again, and a program that finds files by itself."""
    root = project.root / "data"
    (root / "tree/a").mkdir(parents=True)
    (root / "tree/a/one.txt").write_text("one")
    (root / "tree/a/back").symlink_to(root / "tree")
    (root / "tree/b").symlink_to(project.root / "data/cat")  # counts with what it leads to
    (root / "closed.bin").write_text("closed again")
    with (project.root / "data.py").open("a") as file:
        file.write(UNSEEN)
    project.edit("run.py", "    job.save_spec(", DECLARED)
    assert project.run(*QUICK).returncode == 0
    for name, said in (
        ("closed.bin", "closed.bin"),
        ("tree/a/one.txt", "tree/a/one.txt"),
        ("tree/a/two.txt", "tree/a"),
        ("tree/b/0.png", "tree/b/0.png"),
    ):
        before = (root / name).read_bytes() if (root / name).exists() else None
        (root / name).write_text("other")
        assert f"(data/{said} changed)" in one_line(project.run(*QUICK), 5)
        (root / name).unlink() if before is None else (root / name).write_bytes(before)
    assert "already finished" in project.run(*QUICK).stdout


PEEKS = """
from torchvision.io import read_image


def peek(root: Path) -> None:
    read_image(f"{root}/cat/0.png")
"""


def test_what_reads_without_python_is_named_unless_all_is_declared(project):
    with (project.root / "data.py").open("a") as file:
        file.write(PEEKS)
    project.edit(
        "run.py", "    job.save_spec(", "    data.peek(job.runtime.data_root)\n    job.save_spec("
    )
    job = project.finish(*QUICK)
    why = "torchvision.io.read_image reads files without Python"
    assert f": {why}; declare: job.data(path)" in (project.folder(job) / "log.txt").read_text()
    assert f"(not all data was checked: {why})" in project.run(*QUICK).stdout
    listed = project.do("python", "jobs.py", "list").stdout
    assert f"[not all data was checked: {why}]\n" in listed
    project.edit("run.py", "    data.peek(", "    job.data()\n    data.peek(")
    assert project.run(*QUICK, "--force").returncode == 0
    assert "not all data was checked" not in project.run(*QUICK).stdout


@pytest.mark.full
def test_where_the_output_goes_is_no_data(project):
    into = 'python run.py "$@" >out.log 2>&1; cat out.log'
    done = project.do("bash", "-c", into, "-", *FLAGS[:-1], "--seed=3")
    assert " finished: " in done.stdout and "without Python" not in done.stdout
    listed = project.do("python", "jobs.py", "list").stdout
    assert "seed=3" in listed and "not all data was checked" not in listed


@pytest.mark.parametrize("path", ["/none.bin", "/etc/passwd", "data.py"])
def test_what_could_not_be_compared_later_cannot_be_declared(project, path):
    project.edit("run.py", "    job.save_spec(", f'    job.data("{path}")\n    job.save_spec(')
    why = "there is no" if "none" in path else "below --data-root or in the project"
    said = one_line(project.run(*QUICK), 1)
    assert "failed: job.data: " in said and path in said and why in said


NOT_BY_PYTHON = ("c.bin", "d.bin", "e.bin", "more/f.bin")
LISTED = ("more/e.txt", "../kept/a.txt")
LOOKED_FOR = ("excluded.txt", "order.txt", "a.py", "classes.txt", *NOT_BY_PYTHON, *LISTED)
LOOKED_FOR += ("../.env", "g.db", "lent.txt", "linked.txt", "twice.txt")


def test_what_is_not_there_or_code_or_read_early_or_in_c_counts(looking):
    for name in LOOKED_FOR:
        file = looking.root / "data" / name
        before = file.read_text() if file.exists() else None
        file.write_text("other")
        # A file that comes changes the listing as well, and Python code may count as code too.
        part = name.removeprefix("../").split("/")[-2:][0]
        assert part in one_line(looking.run(*QUICK), 5), name
        file.unlink() if before is None else file.write_text(before)
    assert "already finished" in looking.run(*QUICK).stdout
