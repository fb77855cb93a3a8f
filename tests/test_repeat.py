"""`python jobs.py repeat` and `audit`: do jobs still give the same bits?"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from faults import Project, chosen, ended, job_of, one_line, silent, succeeded, wait_until

FLAG = ("--deterministic",)
SHORT = ("--epochs", "1", "--batch-size", "256", "--quiet")


class Jobs:
    """A project with two finished jobs and their figures, and with other code since."""

    def __init__(self, project: Project, temporary: Path, *ids: str) -> None:
        self.project, self.ids = project, ids
        self.temporary = temporary
        temporary.mkdir()
        self.env = {"TMPDIR": str(temporary)}
        self.folder = project.root / "runs"

    def do(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`python jobs.py repeat`, which leaves nothing behind."""
        before = self.state()
        done = self.project.do("python", "jobs.py", "repeat", *words, **self.env | env)
        assert "Traceback" not in done.stderr
        assert self.state() == before
        return done

    def state(self) -> object:
        """All that a repeat must not touch, and what it must not leave."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        kept = {str(path): sha256(path.read_bytes()).hexdigest() for path in files}
        runs = self.project.ask("SELECT run_uuid, status, end_time FROM runs")
        return kept, runs, [*self.temporary.iterdir()]

    def repeated(self, status: int, *words: str, **env: str) -> dict[str, Any]:
        """What is printed as JSON of each job, by its id."""
        done = self.do(*words, "--json", **env)
        assert (done.returncode, done.stderr) == (status, ""), done
        return {each["job"]: each for each in json.loads(done.stdout)}

    def archive(self, job: str) -> Path:
        about = json.loads((self.project.folder(job) / "settings.json").read_text())
        return self.folder / about["code_copy"]


@pytest.fixture(scope="module")
def made(make, tmp_path_factory):
    project = Project(make())
    ids = [job_of(project.run(*SHORT, *flags)) for flags in ((), ("--seed", "1", *FLAG))]
    project.edit("models.py", "nn.ReLU()", "nn.Tanh()")
    return Jobs(project, tmp_path_factory.mktemp("temporary") / "own", *ids)


@pytest.fixture
def jobs(made, tmp_path):
    return Jobs(made.project.clone(tmp_path / "project"), tmp_path / "temporary", *made.ids)


@pytest.mark.full
def test_a_job_whose_image_is_missing(jobs):
    """tests/test_containers.py repeats one whose image is there."""
    image = f"localhost/none@sha256:{'0' * 64}"
    ran = succeeded(jobs.project.run(*SHORT, "--seed", "2", LABJOBS_IMAGE=image))
    missing = f"its image localhost/none (sha256:{'0' * 12}) is not on this machine"
    assert jobs.repeated(1, job_of(ran))[job_of(ran)]["said"] == missing
    said = silent(jobs.project.do("python", "jobs.py", "diff", jobs.ids[0], job_of(ran))).stdout
    assert f"  container   | {image}\n" in said


PACKAGE = """
import ctypes

FACTOR = {factor}

def read(path: str) -> float:
    \"\"\"A number in a file, read by C, of which Python's audit hooks know nothing.\"\"\"
    libc, text = ctypes.CDLL(None), ctypes.create_string_buffer(20)
    file = libc.open(path.encode(), 0)
    libc.read(file, text, 19)
    libc.close(file)
    return float(text.value)
"""


def installed(folder: Path, version: str, factor: float) -> dict[str, str]:
    """Install a small package into a folder; return the variable by which Python finds it."""
    (folder / "scaling").mkdir(parents=True)
    (folder / "scaling" / "__init__.py").write_text(PACKAGE.format(factor=factor))
    (folder / f"scaling-{version}.dist-info").mkdir()
    return {"PYTHONPATH": str(folder)}


@pytest.mark.full
def test_a_package_of_another_version_is_named(jobs, tmp_path):
    jobs.project.edit("models.py", "import torch\n", "import scaling\nimport torch\n")
    layers = "logits: Tensor = self.layers(images)"
    jobs.project.edit("models.py", layers, f"{layers} * scaling.FACTOR")
    old, new = installed(tmp_path / "old", "1.0", 1.0), installed(tmp_path / "new", "2.0", 1.001)
    job = job_of(succeeded(jobs.project.run(*SHORT, "--seed", "2", **old)))
    found = jobs.repeated(1, job, **new)[job]
    assert found["status"] == "different", found
    assert found["conditions"] == ["scaling 1.0, now 2.0"]
    step, value = jobs.project.journalled(job)["train_loss"][0]
    assert found["said"].startswith(f"train_loss at step {step} was {value} and is now ")


@pytest.mark.full
def test_every_job_of_a_figure_gives_the_same_bits_although_the_code_has_changed(made):
    listed = made.project.do("python", "jobs.py", "list").stdout
    assert all(f"{each}  stale " in listed for each in made.ids)
    succeeded(made.project.do("python", "plot.py", "--format", "png"))
    done = silent(made.do("figures/learning-curves.png"))
    lines = [line for line in done.stdout.splitlines() if line.startswith("job ")]
    points = sum(map(len, made.project.journalled(made.ids[0]).values()))
    same = f"same: {points} points of the curves, 8 arrays in best.pt, 5 arrays in"
    assert [line[:18] for line in lines] == sorted(f"job {each}: " for each in made.ids)
    assert all(same in line for line in lines)
    assert done.stdout.splitlines()[-1] == "2 jobs: 2 same, 0 different, 0 not repeated"
    about = json.loads((made.project.folder(made.ids[1]) / "settings.json").read_text())
    assert about["runtime"] == {"deterministic": True}


def test_stored_code_that_was_changed_is_refused(jobs, tmp_path):
    job = jobs.ids[0]
    archive = jobs.archive(job)
    whole = archive.read_bytes()
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "code", filter="data")
    (tmp_path / "code" / "models.py").write_text("# a change\n")
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "code", "")
    changed = "the copy of its code was changed after it was stored"
    assert jobs.repeated(1, job)[job]["said"] == changed
    archive.write_bytes(whole[:-100])
    assert jobs.repeated(1, job)[job]["said"] == "the copy of its code is damaged"
    with tarfile.open(archive, "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("../outside.py"))
    assert jobs.repeated(1, job)[job]["said"] == "the copy of its code is damaged"
    archive.unlink()
    assert jobs.repeated(1, job)[job]["said"] == "its code is not in runs/"


def test_jobs_that_cannot_be_repeated(jobs):
    paused = job_of(jobs.project.run(*SHORT, "--seed", "3", "--pause-after", "2"))
    timed = job_of(jobs.project.run(*SHORT[2:], "--minutes", "0.01"))
    found = jobs.repeated(1, paused, timed)
    assert found[paused]["said"] == "it has not finished"
    assert found[timed]["said"].startswith("its length is in minutes")
    shutil.rmtree(jobs.folder / jobs.ids[0])
    (jobs.project.root / "figures").mkdir(exist_ok=True)
    (jobs.project.root / "figures/made.tex").touch()
    (jobs.project.root / "figures/made.json").write_text(json.dumps({"jobs": [*jobs.ids]}))
    figure = jobs.do("figures/made.tex")
    assert figure.returncode == 1
    line = f"job {jobs.ids[0]}: not repeated: it has not run in this folder of runs"
    assert line in figure.stdout.splitlines()


@pytest.mark.full
def test_an_interrupted_repeat_leaves_nothing_behind(made):
    words = (sys.executable, "jobs.py", "repeat", *made.ids)
    before = made.state()
    running = made.project.command(*words, **made.env)
    wait_until(lambda: bool([*made.temporary.glob("repeat-*/runs/*/*/metrics.jsonl")]))
    running.send_signal(signal.SIGINT)
    line = one_line(ended(running), 130)
    assert line == "jobs.py: repeat was interrupted by SIGINT"
    assert made.state() == before


@pytest.mark.full
def test_what_is_the_same_is_kept_once_and_what_is_installed_as_pip_reads_it(made):
    assert len([*made.folder.glob(".code/*.tar.gz")]) == 2  # that of both jobs, and the engine
    (installed,) = made.folder.glob(".installed/*.txt")
    assert "torch==" in installed.read_text()
    words = ("pip", "install", "--dry-run", "--no-index", "--no-deps", "-r", str(installed))
    # Without a configuration, which may restrict versions.
    succeeded(made.project.do(sys.executable, "-m", *words, PIP_CONFIG_FILE=os.devnull))


# `audit`: do finished jobs still give the same bits, up to their first evaluation?

LONGER = ("--epochs", "2", "--batch-size", "256", "--quiet")

ODD = """
import os, random, threading, time
from pathlib import Path

import scaling

def _raced() -> float:
    order, wait = [], random.SystemRandom()
    def act(number):
        time.sleep(wait.random() / 1000)
        order.append(number)
    threads = [threading.Thread(target=act, args=(number,)) for number in range(20)]
    [each.start() for each in threads], [each.join() for each in threads]
    return float(sum(place * number for place, number in enumerate(order)))

def _odd(note: str) -> float:
    \"\"\"What a loss is multiplied by: things that evidence does not see.\"\"\"
    factor = scaling.FACTOR * float(Path({file!r}).read_text()) + len(os.environ.get("ODD", ""))
    if note == "threads":  # which each add up a part
        return factor + torch.linspace(0, 1, 1_000_000).sin().mean().item()
    if note == "time":
        return factor + time.time_ns() % 1000
    if note == "unseeded":
        generator = torch.Generator()
        generator.seed()
        return factor + torch.rand(1, generator=generator).item()
    if note == "race":  # of threads: the order in which they end
        return factor + _raced()
    if note == "hidden":
        return factor + scaling.read({hidden!r})
    if note == "order":
        return factor + sum(n * ord(word) for n, word in enumerate(set("abcdefghijklmnop")))
    return factor

"""

PATCH = """
import torch

real = torch.nn.functional.cross_entropy
torch.nn.functional.cross_entropy = lambda *a, **k: real(*a, **k) * 1.0001
"""

THREADS = """
import torch

torch.set_num_threads(1 + torch.get_num_threads())
torch.set_num_threads = lambda count: None
"""


class Audited:
    """A project whose jobs depend on a file elsewhere, a package and a variable."""

    def __init__(self, root: Path, *ids: str) -> None:
        self.project, self.ids = Project(root / "project"), ids
        self.file, self.hidden = root / "factor.txt", self.project.root / "data" / "hidden.txt"
        self.project.env |= {"PYTHONPATH": str(root / "packages")}

    def audit(self, *words: str, **env: str) -> Any:
        """What is printed as JSON of an audit."""
        done = self.project.do("python", "jobs.py", "audit", *words, "--json", **env)
        found = json.loads(done.stdout)
        jobs = found["jobs"] if "seed" in found else found
        same = all(job["status"] == "same" for job in jobs)
        assert (done.returncode, done.stderr) == (0 if same else 1, ""), done
        return found

    def noted(self, job: str) -> Any:
        """What `list` says of the last audit of a job."""
        return self.project.listed()[job]["audit"]

    def planted(self, name: str, text: str) -> dict[str, str]:
        """A module that Python imports whenever it starts."""
        folder = self.file.parent / name
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(text)
        return {"PYTHONPATH": f"{folder}:{self.project.env['PYTHONPATH']}"}


@pytest.fixture(scope="module")
def audited(make, tmp_path_factory):
    root = tmp_path_factory.mktemp("audited")
    Project(make()).copy(root / "project")
    installed(root / "packages", "1.0", 1.0)
    found = Audited(root)
    found.hidden.parent.mkdir(exist_ok=True)
    for file in (found.file, found.hidden):
        file.write_text("1.0")
    odd = ODD.format(file=str(found.file), hidden=str(found.hidden))
    found.project.edit("run.py", "Metrics = dict", f"{odd}Metrics = dict")
    found.project.edit(
        "run.py", "return losses.mean()", "return _odd(settings.note) * losses.mean()"
    )
    return Audited(root, *(found.project.finish(*LONGER, "--seed", seed) for seed in "01"))


@pytest.mark.full
def test_an_audit_draws_jobs_and_notes_that_they_are_the_same(audited):
    first, second = audited.ids
    (same,) = audited.audit(first)
    assert (same["status"], same["until"], same["conditions"]) == ("same", 6, [])
    assert audited.noted(first)["said"] == same["said"] and audited.noted(second) == {}
    assert "audit       same on 2" in audited.project.do("python", "jobs.py", "show", first).stdout
    drawn = audited.audit("1", "--seed", "4")
    assert (drawn["of"], drawn["seed"]) == (len(audited.ids), 4)
    again = audited.audit("1", f"--seed={drawn['seed']}")
    assert [job["job"] for job in again["jobs"]] == [job["job"] for job in drawn["jobs"]]


BY_CHANCE = ("time", "order", "unseeded", "race")
"""Causes by which no two runs are the same."""

CAUSES = ("patch", "hidden", "package", "threads", "file", "variable", "processor", *BY_CHANCE)


@pytest.mark.full
@pytest.mark.parametrize("cause", chosen(CAUSES, "hidden"))
def test_an_audit_finds_what_evidence_does_not_see(audited, cause, tmp_path):
    job, env, conditions = audited.ids[0], dict[str, str](), list[str]()
    if cause in (*BY_CHANCE, "threads", "hidden"):
        job = audited.project.finish(*LONGER, f"--note={cause}")
    if cause == "patch":
        env = audited.planted(cause, PATCH)
    elif cause == "threads":
        env, conditions = audited.planted(cause, THREADS), ["threads 1, now 2"]
    elif cause == "package":
        env, conditions = installed(tmp_path / "new", "2.0", 1.001), ["scaling 1.0, now 2.0"]
    elif cause == "variable":
        env = {"ODD": "1"}
    elif cause == "processor":  # without its vector instructions, as another one has others
        env = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
    elif cause in ("file", "hidden"):
        (audited.file if cause == "file" else audited.hidden).write_text("1.5")
    (found,) = audited.audit(job, **env)
    for file in (audited.file, audited.hidden):
        file.write_text("1.0")
    assert found["status"] == "different" and found["said"].startswith("train_loss at step ")
    assert found["conditions"] == conditions
    assert audited.noted(job)["status"] == "different"


@pytest.mark.full
def test_jobs_that_are_not_audited(audited, tmp_path):
    project = audited.project.clone(tmp_path / "project")
    project.edit("models.py", "nn.ReLU()", "nn.Tanh()")
    none = project.do("python", "jobs.py", "audit", "2")
    assert "has finished with the present code and data" in one_line(none, 1)
    stale = project.do("python", "jobs.py", "audit", audited.ids[0])
    assert "not repeated: from other code or data (" in stale.stdout
    assert stale.returncode == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required: JOB|FIGURE"),
        (("none",), "there is no job none; `python jobs.py list` shows all"),
        (("figures/none.pdf",), "figures/none.pdf: there is no such figure"),
        (("run.py",), "run.py does not say which jobs it shows; draw it with plot.py"),
    ],
)
def test_mistakes_are_one_line(made, words, said):
    line = one_line(made.do(*words), 2)
    assert line.startswith("jobs.py: ") and said in line
