"""What the sweep tests have in common: pretend GPUs, and jobs that need no torch."""

import json
import os
import re
import shlex
import sqlite3
import stat
import subprocess
import tomllib
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from faults import Project

LIGHT = '''
"""A job that notes where and when it ran, and ends as its note tells it to."""
import time
BEGUN = time.time()
import json, os, sys
from pathlib import Path
from types import SimpleNamespace

from labjobs.cli.parser import parse
from labjobs.errors import JobError, SettingsError
from labjobs.job import attempts, provenance
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.launch import begin
from settings import METRICS, Settings

class Job:
    def __init__(self, folder, device):
        self.settings, self.device = folder.settings, SimpleNamespace(type="cpu")

def check(job):
    if job.settings.note == "wrong":
        raise SettingsError("--note wrong: cannot run")

def main(job):
    command = begin(Settings, METRICS)  # run.sh reads these names
    command.run(main, check)

if __name__ != "__main__":  # it is imported for check()
    sys.modules["torch"] = SimpleNamespace(device=str)
    sys.modules["labjobs.training.loop"] = SimpleNamespace(Job=Job)
else:
    script = Path(sys.argv[0]).stem
    job = JobFolder(*parse(Settings, Runtime, sys.argv[1:]), {}, script)
    note = json.loads(job.settings.note or "{}")
    try:
        attempts.check_inputs(job.settings, job.runs_root)
    except JobError as error:
        print(job.label, error)
        sys.exit(1)
    job.make()
    try:
        job.take()
    except JobError as error:
        print(job.label, error)
        sys.exit(4)
    if job.outcome().get("status") == "finished":
        sys.exit(0)
    job.open()
    job.journal.metrics(2, {"elapsed_seconds": 4.0}, of=12)
    job.journal.flush()
    ran = job.path / "ran"
    ran.open("a").write("x")
    time.sleep(note.get("seconds", 0.3))
    status, said = note.get("ends", "finished"), note.get("says", "")
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    device, threads = (os.environ.get(name, "") for name in names)
    if len(ran.read_text()) > note.get("times", 99) or note.get("on", device) != device:
        status = "finished"
    job.close(status, said)
    line = {"job": job.id, "device": device, "threads": threads}
    line |= {"begun": BEGUN, "ended": time.time()}
    line |= {"code": __doc__, "commit": provenance.version()["commit"]}
    line |= {"lr": getattr(job.settings, "lr", None)}
    with Path(os.environ["INTERVALS"]).open("a") as file:
        print(json.dumps(line), file=file)
    print(f"{job.label} {status}: {said}")
    sys.exit(note.get("status", status in ("failed", "diverged")))
'''

SETTINGS = """
from dataclasses import dataclass

METRICS = {}

@dataclass(frozen=True, kw_only=True)
class Settings:
    epochs: int = 1
    seed: int = 0
    lr: float = 0.1
    note: str = ""
"""

ANALYSIS = """
from labjobs.settings import JobId

@dataclass(frozen=True, kw_only=True)
class AnalysisSettings:
    first: JobId
    note: str = ""
"""

UNNEEDED = """
raise ImportError("light jobs do without")
"""

STORE = """
CREATE TABLE experiments (experiment_id, name, lifecycle_stage);
CREATE TABLE runs (run_uuid, experiment_id, status, lifecycle_stage, start_time, end_time);
CREATE TABLE tags (run_uuid, key, value);
"""

NVIDIA_SMI = """#!/bin/sh
# Pretend GPUs, a file each: first its UUID, then what --query-gpu says of its use.
cd "$(dirname "$0")/gpus" || exit 1
for last; do :; done
case "$*" in
  -L) n=0; for f in *; do echo "GPU $n: Pretend (UUID: $(head -n 1 "$f"))"; n=$((n + 1)); done ;;
  *)
    for name in $(echo "${last#--id=}" | tr , ' '); do
      found=
      for f in *; do
        if [ "$f" = "$name" ] || [ "$(head -n 1 "$f")" = "$name" ]; then found=$f; fi
      done
      [ -n "$found" ] || { echo "No devices were found"; exit 6; }
      case "$*" in *=uuid*) head -n 1 "$found" ;; *) tail -n 1 "$found" ;; esac
    done ;;
esac
"""


RECORDS = "runs/*/*/settings.json"


class Lab:
    """A project whose jobs are light, on a machine with pretend GPUs.

    Its store has the project's experiment, and of MLflow's tables those that a sweep asks: to make
    a whole one takes seconds. So would the imports of torch and MLflow, which sweeps begin with:
    here they fail.
    """

    def __init__(
        self, project: Project, folder: Path, gpus: int, machine: Path | None = None
    ) -> None:
        self.project, self.machine = project.copy(folder / "project"), machine or folder / "machine"
        (self.project.root / "run.py").write_text(LIGHT)
        (self.project.root / "settings.py").write_text(SETTINGS)
        self.intervals_file = self.machine / "intervals"
        if not machine:
            self._make_machine(gpus)
        self.env = self.project.env
        self.env |= {
            "PATH": f"{self.machine}:{os.environ['PATH']}",
            "GPU_LOCKS": str(self.machine / "locks"),
            "INTERVALS": str(self.intervals_file),
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.machine}/store.db",
            "PYTHONPATH": str(self.machine / "light"),
        }

    def _make_machine(self, gpus: int) -> None:
        make_gpus(self.machine, gpus)
        self.intervals_file.touch(0o666)
        self.intervals_file.chmod(0o666)
        self.machine.chmod(0o1777)  # as /tmp is
        (self.machine / "light").mkdir()
        for name in ("torch", "mlflow"):
            (self.machine / "light" / f"{name}.py").write_text(UNNEEDED)
        name = tomllib.loads((self.project.root / "pyproject.toml").read_text())["project"]["name"]
        with closing(sqlite3.connect(self.machine / "store.db")) as store, store:
            store.executescript(STORE)
            store.execute("INSERT INTO experiments VALUES (0, ?, 'active')", [name])

    def use(self, gpu: int, memory: int, percent: int) -> None:
        """Have someone use so many MiB, and so much of the time, of a GPU."""
        use(self.machine, gpu, memory, percent)

    def write_grid(self, *jobs: str) -> None:
        write_grid(self.project.root, *jobs)

    def write_lines(self, *lines: str) -> None:
        write_lines(self.project.root, *lines)

    def write_analysis(self) -> None:
        """Add analyse.py, whose jobs are light too, and derived from others."""
        script = re.sub(r"\bSettings\b", "AnalysisSettings", LIGHT)
        (self.project.root / "analyse.py").write_text(script)
        (self.project.root / "settings.py").write_text(SETTINGS + ANALYSIS)

    def start(self, *flags: str, **env: str) -> subprocess.Popen[str]:
        return self.project.command("bash", "run.sh", *flags, **env)

    def sweep(self, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.project.do("bash", "run.sh", *flags, **env)

    def intervals(self) -> list[SimpleNamespace]:
        """What the jobs have noted of when and where they ran."""
        lines = self.intervals_file.read_text().splitlines()
        return [SimpleNamespace(**json.loads(line)) for line in lines]


def make_gpus(machine: Path, count: int) -> None:
    """Make a folder with an nvidia-smi that knows this many GPUs, which nobody uses."""
    (machine / "gpus").mkdir(parents=True)
    for number in range(count):
        use(machine, number, memory=3, percent=0)
    script = machine / "nvidia-smi"
    script.write_text(NVIDIA_SMI)
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def use(machine: Path, gpu: int, memory: int, percent: int) -> None:
    (machine / "gpus" / str(gpu)).write_text(f"GPU-{gpu}\n{memory}, {percent}\n")


def write_grid(root: Path, *jobs: str) -> None:
    """Make these jobs, each given as shell words, the grid of a project's run.sh."""
    write_lines(root, *(f"job {job}" for job in jobs))


def write_lines(root: Path, *lines: str) -> None:
    """Make these lines the grid of a project's run.sh."""
    head, rest = (root / "run.sh").read_text().split("grid() {\n")
    tail = rest.split("\n}\n", 1)[1]
    body = "".join(f"  {line}\n" for line in lines)
    (root / "run.sh").write_text(f"{head}grid() {{\n{body}}}\n{tail}")


def pretend_slurm(lab: Lab) -> None:
    """Put commands of Slurm's on the machine that take jobs and do nothing with them."""
    submit = 'printf \'%s\\0\' "$@" >>"$(dirname "$0")/submitted"; echo $$'
    done = {"sbatch": submit, "scontrol": "echo MaxArraySize = 9", "squeue": "true"}
    for name, answer in done.items():
        (lab.machine / name).write_text(f"#!/bin/sh\n{answer}\n")
        (lab.machine / name).chmod(0o755)


def light(**note: object) -> Callable[[int], str]:
    """A light job's words, by its seed."""
    return lambda seed: f"--seed {seed} --note {shlex.quote(json.dumps(note))}"


def assert_after_their_inputs(lab: Lab, count: int) -> None:
    """So many jobs of analyse.py have run, each after the job that it is derived from."""
    found = {interval.job: interval for interval in lab.intervals()}
    records = [json.loads(path.read_text()) for path in lab.project.root.glob(RECORDS)]
    derived = {each["id"]: each["settings"]["first"] for each in records if each["script"] != "run"}
    assert len(derived) == count
    assert all(found[first].ended <= found[job].begun for job, first in derived.items())


def assert_one_at_a_time(intervals: list[SimpleNamespace]) -> None:
    """No device had two jobs at once."""
    for device in {interval.device for interval in intervals}:
        here = sorted((i for i in intervals if i.device == device), key=lambda i: i.begun)
        for one, after in pairwise(here):
            assert one.ended <= after.begun, (one, after)


def processes(mark: str) -> dict[int, str]:
    """What runs of sweeps with a mark in their environment, by pid: queues, servers of jobs or
    couriers, and jobs."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                command, name = (folder / "cmdline").read_text(), (folder / "comm").read_text()
                if command:  # else it is dead, and not yet waited for
                    found[int(folder.name)] = role(name.strip(), command)
        except OSError:
            continue
    return found


def role(name: str, command: str) -> str:
    """What a process of a sweep is there for."""
    if name == "run.py" or "/code/run.py" in command:  # a fork, or started cold
        return "job"
    if "fork_server.py" in command:
        return "couriers" if "mlflow" in command else "server"
    return "queue" if "labjobs.sweeps.sweep" in command else ""
