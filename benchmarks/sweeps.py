"""The default grid by run.sh, by GNU parallel and by Hydra's joblib launcher, side by side, and the
time that its training takes by itself.

    pip install hydra-core hydra-joblib-launcher    # and GNU parallel, by your system's packages
    python benchmarks/sweeps.py > benchmarks/sweeps.md

All run the same 12 jobs of a fresh project on the CPU, in turn in each round. GNU parallel runs the
commands that run.sh would; the script for Hydra does in each job what run.py does, in the
launcher's processes, which import torch once each.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pages import machine, page, spread
from projects import make

CORES = len(os.sched_getaffinity(0))
JOBS = 12

HYDRA = """
import sys
import hydra
import run
from labjobs.attempt import Attempt
from labjobs.cli.parser import parse
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from settings import METRICS, Settings

@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config):
    words = [word for key, value in config.items() for word in (f"--{key}", str(value))]
    if Attempt(JobFolder(*parse(Settings, Runtime, words), METRICS)).run(run.main, run.check):
        raise SystemExit(1)

main()
"""

Command = Callable[[Path, str], list[str]]
"""From a project and a number of epochs to a command that does the grid."""


def run_sh(*flags: str) -> Command:
    """The sweep as a user has it."""

    def command(project: Path, epochs: str) -> list[str]:
        """Return the command, after writing the grid into the project's run.sh."""
        script = project / "run.sh"
        grid = script.read_text().replace("job --model", f"job --epochs {epochs} --model")
        script.write_text(grid)
        return ["bash", "run.sh", *flags]

    return command


def parallel(at_once: int) -> Command:
    """GNU parallel over the same commands."""

    def command(_project: Path, epochs: str) -> list[str]:
        """Return the command, with the grid as arguments."""
        flags = ["--epochs", epochs, "--model", "{1}", "--lr", "{2}", "--seed", "{3}"]
        grid = [":::", "mlp", "convnet", ":::", "1e-3", "1e-2", ":::", "0", "1", "2"]
        return ["parallel", "--jobs", str(at_once), sys.executable, "run.py", *flags, *grid]

    return command


def hydra(project: Path, epochs: str) -> list[str]:
    """Hydra's joblib launcher over a script that does the same."""
    (project / "hydra_run.py").write_text(HYDRA)
    launcher = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={CORES}"]
    grid = ["+model=mlp,convnet", "+lr=1e-3,1e-2", "+seed=0,1,2", f"+epochs={epochs}"]
    return [sys.executable, "hydra_run.py", "--multirun", *launcher, *grid]


WAYS: dict[str, tuple[Command, int]] = {  # and the threads of each job; 0: as run.sh chooses
    "run.sh": (run_sh(), 0),
    "GNU parallel": (parallel(CORES), 1),
    "Hydra, joblib launcher": (hydra, 1),
    "run.sh, one job at a time": (run_sh("--per-gpu", "1"), 1),
    "GNU parallel, one job at a time": (parallel(1), 1),
}
FLOOR = "training alone"


def seconds(way: str, epochs: str) -> dict[str, float]:
    """Wall time of the grid in a fresh project; of run.sh also of its jobs' training, over the
    cores."""
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        made, threads = WAYS[way]
        command = made(project, epochs)
        env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        env |= {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
        env |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
        begun = time.perf_counter()
        done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
        took = time.perf_counter() - begun
        assert done.returncode == 0, done.stdout + done.stderr
        finished = [p for p in project.glob("runs/*/*/outcome.json") if "finished" in p.read_text()]
        assert len(finished) == JOBS
        if way != "run.sh":
            return {way: took}
        return {way: took, FLOOR: sum(map(trained, finished)) / CORES}


def trained(outcome: Path) -> float:
    """Seconds that a job has trained and evaluated, by its journal."""
    lines = map(json.loads, outcome.with_name("metrics.jsonl").read_text().splitlines())
    return max(line.get("metrics", {}).get("elapsed_seconds", 0.0) for line in lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", nargs="+", default=["5", "30"])
    arguments = parser.parse_args()
    assert shutil.which("parallel"), "GNU parallel is not installed"
    columns = {epochs: ratios(epochs, arguments.rounds) for epochs in arguments.epochs}
    about = (
        f"{machine('torch', 'hydra-core')}; n = {arguments.rounds} rounds, in turn; {JOBS} jobs of "
        f"{' or '.join(columns)} epochs. Wall time as a ratio to run.sh's in the same round: "
        f"median (least to most). By itself run.sh does {CORES} jobs at once here, one for each "
        "core, with one thread each, and the other two programs were told to do the same. run.sh "
        "checks the whole grid before the first job starts; its jobs and their couriers are forks "
        "of processes that have imported torch and MLflow. GNU parallel starts a Python for each. "
        "Hydra's launcher runs the jobs one after another in processes of its own, which import "
        "torch once for all of theirs; so what one job leaves behind, the next one has. The last "
        "row is the time that the jobs of run.sh trained and evaluated by their own account, over "
        "the cores. `python benchmarks/sweeps.py` makes this page."
    )
    header = ["wall time", *(f"{epochs} epochs" for epochs in columns)]
    rows = [[way, *(spread(each[way]) for each in columns.values())] for way in [*WAYS, FLOOR]]
    page("A sweep by run.sh and by others", about, header, rows)


def ratios(epochs: str, rounds: int) -> dict[str, list[float]]:
    """Each way's wall time in each round, as a ratio to run.sh's."""
    of_each: dict[str, list[float]] = {way: [] for way in [*WAYS, FLOOR]}
    for _ in range(rounds):
        took: dict[str, float] = {}
        for way in WAYS:
            took |= seconds(way, epochs)
        for way, each in of_each.items():
            each.append(took[way] / took["run.sh"])
    return of_each


if __name__ == "__main__":
    main()
