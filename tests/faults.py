"""What the fault tests have in common: a project's jobs as processes, and what is left of them."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
import warm
from bits import plain
from labjobs.tracking import costs
from labjobs.training import checkpoints

POINTS = """
SELECT metrics.key, metrics.step, metrics.value FROM metrics JOIN runs USING (run_uuid)
JOIN tags USING (run_uuid) WHERE tags.key = 'job_id' AND tags.value = ?
AND lifecycle_stage = 'active' ORDER BY metrics.step
"""
RUNS = """
SELECT run_uuid, status FROM runs JOIN tags USING (run_uuid)
WHERE tags.key = 'job_id' AND tags.value = ? AND lifecycle_stage = 'active'
"""
TIMES = (
    *("elapsed_seconds", "examples_per_second", "tokens_per_second", "data_wait_fraction", "mfu"),
    *costs.NAMES,
)
"""How metrics begin that are not the same each time."""

Curves = dict[str, list[tuple[object, ...]]]
"""(step, value) of each metric that is the same each time, by its name."""

UNSET = ("MLFLOW", "CUDA", "PYTEST", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
"""What the commands of a project are not told by the environment, since a user's does not."""


OFTEN = ("--checkpoint-minutes", "0.0001")
"""The flags of a job that makes a checkpoint after each step."""


def some(values: Iterable[Any], *first: Any) -> list[Any]:
    """Return values as parameters of a test: the first for `bash test.sh`, the others for .ci/run
    alone."""
    return [v if v in first else pytest.param(v, marks=pytest.mark.full) for v in values]


def chosen(values: Iterable[Any], *first: Any) -> list[Any]:
    """Return values as parameters of a test: the first for .ci/run, the others for --all alone."""
    return [v if v in first else pytest.param(v, marks=pytest.mark.long) for v in values]


class Project:
    """A generated project, its jobs and what they leave."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._before: tuple[str, ...] = ()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(UNSET)}
        self.env = {**kept, "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}

    def copy(self, root: Path) -> "Project":
        """The same project in another folder, with its id, but without jobs and store."""
        if not (self.root / ".project-id").exists():
            (self.root / ".project-id").write_text(uuid4().hex)
        left = shutil.ignore_patterns("runs", "mlflow.db*", "mlruns")
        return Project(Path(shutil.copytree(self.root, root, ignore=left)))

    def clone(self, root: Path) -> "Project":
        """The same project in another folder, with its jobs and their store."""
        return Project(Path(shutil.copytree(self.root, root)))

    def behind(self, *words: str) -> "Project":
        """The same project, its commands put behind others such as `Disk.within`."""
        other = Project(self.root)
        other.env, other._before = self.env, words
        return other

    def start(self, *flags: str, **env: str) -> subprocess.Popen[str]:
        """Start `python run.py` in a process group of its own."""
        return self.command(sys.executable, str(self.root / "run.py"), *flags, **env)

    def run(self, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`python run.py` to its end."""
        if env or self._starts_otherwise:
            return ended(self.start(*flags, **env))
        return warm.run([str(self.root / "run.py"), *flags], self.root, self.env)

    def killed(self, *flags: str) -> None:
        """Start a job that makes a checkpoint in each step, and kill it once it has made one."""

        def checkpoints() -> dict[Path, int]:
            found = self.root.glob("runs/*/*/last.pt")
            return {path: path.stat().st_mtime_ns for path in found}

        before, job = checkpoints(), self.start(*flags, *OFTEN)
        wait_until(lambda: job.poll() is not None or checkpoints() != before)
        kill(job.pid)
        done = ended(job)
        assert done.returncode == -signal.SIGKILL, done

    def finish(self, *flags: str) -> str:
        """Run a job to its end, which must be well; returns its id."""
        return job_of(succeeded(self.run(*flags)))

    def do(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Another command in the project's folder, such as `python plot.py`, to its end."""
        if words[0] != "python":
            return ended(self.command(*words, **env))
        if env or self._starts_otherwise or not words[1].endswith(".py"):
            return ended(self.command(sys.executable, *words[1:], **env))
        return warm.run(words[1:], self.root, self.env)

    def listed(self) -> dict[str, dict[str, Any]]:
        """Return what `python jobs.py list` says of each job, by its id."""
        rows = json.loads(self.do("python", "jobs.py", "list", "--json").stdout)
        return {row["id"]: row for row in rows}

    @property
    def _starts_otherwise(self) -> bool:
        """Whether Python starts in another way than usual, such as with modules of a test's own."""
        return bool(self._before) or "PYTHONPATH" in self.env

    def execute(self, code: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Some Python code in the project's folder, as by `python -c`, to its end, which must be
        well. Its file is elsewhere: one more in the project could be code of its jobs."""
        with TemporaryDirectory() as folder:
            script = Path(folder, "code.py")
            script.write_text(f"import sys; sys.path[0] = {str(self.root)!r}\n{code}")
            return succeeded(self.do("python", str(script), *words, **env))

    def printed(self, code: str, *words: str) -> list[str]:
        return self.execute(code, *words).stdout.splitlines()

    def arrays(self, code: str, *words: str, **env: str) -> dict[str, np.ndarray]:
        """Return the arrays that some Python code saves as arrays.npz in the project's folder."""
        self.execute(code, *words, **env)
        with np.load(self.root / "arrays.npz") as kept:
            found = dict(kept)
        (self.root / "arrays.npz").unlink()
        return found

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text wherever a file of the project has it, which is somewhere."""
        path = self.root / file
        text = path.read_text()
        assert old in text, (file, old)
        path.write_text(text.replace(old, new))

    def edit_loop(self, old: str, new: str) -> None:
        """Replace a text of run.py by one that may use `os` and `time`."""
        self.edit("run.py", old, new)
        self.edit("run.py", "import sys\n", "import os\nimport sys\nimport time\n")

    def command(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._before, *words],
            cwd=self.root,
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def folder(self, job_id: str) -> Path:
        """The folder of a job's only attempt."""
        return attempt_in(self.root / "runs" / job_id)

    def ask(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Rows of the project's sqlite store; none while the store has no tables yet."""
        with closing(sqlite3.connect(self.root / "mlflow.db", timeout=120)) as store:
            try:
                return store.execute(query, values).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    raise
                return []

    def write(self, change: str) -> None:
        with closing(sqlite3.connect(self.root / "mlflow.db", timeout=120)) as store, store:
            store.execute(change)

    def runs(self, job_id: str) -> list[tuple[object, ...]]:
        """(run id, status) of a job's runs that are not deleted."""
        return self.ask(RUNS, job_id)

    def stored(self, job_id: str) -> Curves:
        """Return a job's curves as the sqlite store has them."""
        return curves(self.ask(POINTS, job_id))

    def journalled(self, job_id: str) -> Curves:
        """Return a job's curves as its journal has them."""
        return curves_in(self.folder(job_id))

    def lines(self, job_id: str) -> list[dict[str, Any]]:
        """Return the lines of a job's journal."""
        return lines_in(self.folder(job_id))

    def tested(self, job_id: str) -> dict[str, float]:
        """Return a job's test results by name, as the sqlite store has them."""
        stored = self.stored(job_id).items()
        return {key[5:]: float(v[-1][1]) for key, v in stored if key.startswith("test_")}

    def outputs(self, job_id: str) -> dict[str, np.ndarray]:
        """Return what a job has kept of its test examples."""
        with np.load(self.folder(job_id) / "predictions.npz") as kept:
            return dict(kept)

    def weights(self, job_id: str) -> dict[str, torch.Tensor]:
        """Return the weights that a job has kept, of its only model."""
        weights: dict[str, torch.Tensor] = self.tensors(job_id)["best"]["models"]["model"]
        return weights

    def tensors(self, job_id: str) -> dict[str, dict[str, Any]]:
        """Return what best.pt and last.pt hold, but for times and the journal's length.

        Of a finished job last.pt is there if a longer one could go on, as with --schedule constant.
        """
        best = torch.load(self.folder(job_id) / "best.pt", weights_only=True)
        if not (self.folder(job_id) / "last.pt").exists():
            return {"best": best}
        last = torch.load(self.folder(job_id) / "last.pt", weights_only=True)
        del last["parts"]["job.stopwatch"], last["lines"]
        return {"best": best, "last": last}


def attempt_in(job: Path) -> Path:
    """The folder of the only attempt at a job; a path that does not exist if there is none yet."""
    found = list(job.glob("*/"))
    assert len(found) < 2
    return found[0] if found else job / "none"


def curves_in(attempt: Path) -> Curves:
    """Return an attempt's curves as its journal has them."""
    points = lines_in(attempt)
    return curves([(k, p["step"], v) for p in points for k, v in p.get("metrics", {}).items()])


def lines_in(attempt: Path) -> list[dict[str, Any]]:
    """Return the lines of an attempt's journal."""
    return [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]


def curves(points: Iterable[tuple[Any, ...]]) -> Curves:
    """Return points (name, step, value) by name, without times."""
    found: Curves = {}
    for name, step, value in sorted(points, key=lambda point: point[1]):
        if not name.startswith(TIMES):
            found.setdefault(name, []).append((step, value))
    return found


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """A process and what it printed, once it has ended."""
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def succeeded(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done
    return done


def silent(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """A command that has ended well, and has complained of nothing."""
    assert (done.returncode, done.stderr) == (0, ""), done
    return done


def one_line(done: subprocess.CompletedProcess[str], status: int) -> str:
    """What a command said on stderr: one line, and no trace anywhere."""
    assert done.returncode == status, done
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    return line


def jobs_of(project: Project, script: str = "run") -> list[str]:
    """The ids of a script's jobs, by their seed."""
    found = {}
    for file in project.root.glob("runs/*/*/settings.json"):
        about = json.loads(file.read_text())
        if about["script"] == script:
            found[about["settings"]["seed"]] = file.parent.parent.name
    return [job for _, job in sorted(found.items())]


def job_of(done: subprocess.CompletedProcess[str]) -> str:
    """The job id in the last line that a command printed."""
    return (done.stderr or done.stdout).splitlines()[-1].split()[1].rstrip(":")


def same(one: object, other: object) -> bool:
    """Whether two nested values are equal, tensors bit for bit."""
    return bool(plain(one) == plain(other))


def learnt(project: Project, job: str) -> dict[str, dict[str, object]]:
    """What a job has learnt, without what tells it from others that learn the same."""
    found = project.tensors(job)
    for best in (found["best"], *([found["last"]["best"]] if "last" in found else [])):
        del best["settings"]["note"], best["id"]
    return found


def assert_as_undisturbed(project: Project, job: str, wanted: Project, reference: str) -> None:
    """A job ended with the same bits as the undisturbed one, and the store has one run of it."""
    assert same(learnt(project, job), learnt(wanted, reference))
    assert [status for _, status in project.runs(job)] == ["FINISHED"]
    assert project.stored(job) == wanted.stored(reference)


def assert_nothing_torn(folder: Path) -> None:
    """Each file of a job is whole, but for half a line at the journal's end, which is cut off."""
    journal = folder / "metrics.jsonl"
    assert not list(folder.glob("*.part"))
    for path in folder.glob("*.pt"):
        assert checkpoints.load(path)
    for path in folder.glob("*.json"):
        json.loads(path.read_bytes())
    if journal.exists():  # there was space for it
        lines = journal.read_bytes().splitlines(keepends=True)
        assert all(json.loads(line) for line in lines if line.endswith(b"\n"))
        assert all(line.endswith(b"\n") for line in lines[:-1])


def children(pid: int) -> list[int]:
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:  # it is gone
        return []
    return [int(child) for child in listed.split()]


def courier_of(job: subprocess.Popen[str]) -> int | None:
    """The pid of a job's courier, if it has one yet."""
    for child in children(job.pid):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"labjobs.tracking.courier" in words:
            return child
    return None


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(true: Callable[[], bool], seconds: float = 120, pause: float = 0.02) -> None:
    """Return as soon as a condition holds; fails if it never does."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(pause)
