"""The default grid by run.sh, by GNU parallel and by Hydra's joblib launcher, side by side.

    pip install hydra-core hydra-joblib-launcher    # and GNU parallel, by your system's packages
    python benchmarks/sweeps.py > benchmarks/sweeps.md

All three run the same 12 jobs of a fresh project, one at a time on the CPU, in turn in each round.
GNU parallel runs the commands that run.sh would; the script for Hydra does in each job what run.py
does, in the launcher's process, which imports torch once.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from pages import machine, page, spread
from projects import make

GRID = list(product(("mlp", "convnet"), ("1e-3", "1e-2"), ("0", "1", "2")))

HYDRA = """
import sys
import hydra
import run
from engine import cli
from engine.launch import OneJob

@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config):
    words = [word for key, value in config.items() for word in (f"--{key}", str(value))]
    if OneJob(cli.parse(run.Settings, words)).run(run.check, run.main):
        raise SystemExit(1)

main()
"""


def run_sh(project: Path, epochs: str) -> list[str]:
    """The sweep as a user has it."""
    script = project / "run.sh"
    script.write_text(script.read_text().replace("job --model", f"job --epochs {epochs} --model"))
    return ["bash", "run.sh"]


def parallel(_project: Path, epochs: str) -> list[str]:
    """GNU parallel over the same commands."""
    flags = ["--epochs", epochs, "--model", "{1}", "--lr", "{2}", "--seed", "{3}"]
    grid = [":::", "mlp", "convnet", ":::", "1e-3", "1e-2", ":::", "0", "1", "2"]
    return ["parallel", "--jobs", "1", sys.executable, "run.py", *flags, *grid]


def hydra(project: Path, epochs: str) -> list[str]:
    """Hydra's joblib launcher over a script that does the same."""
    (project / "hydra_run.py").write_text(HYDRA)
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=1"]
    grid = ["+model=mlp,convnet", "+lr=1e-3,1e-2", "+seed=0,1,2", f"+epochs={epochs}"]
    return [sys.executable, "hydra_run.py", "--multirun", *launcher, *grid]


WAYS = {"run.sh": run_sh, "GNU parallel": parallel, "Hydra, joblib launcher": hydra}


def seconds(way: str, epochs: str) -> float:
    """Wall time of the grid in a fresh project."""
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        command = WAYS[way](project, epochs)
        env = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
        begun = time.perf_counter()
        done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)
        took = time.perf_counter() - begun
        assert done.returncode == 0, done.stdout + done.stderr
        finished = [p for p in project.glob("runs/*/outcome.json") if "finished" in p.read_text()]
        assert len(finished) == len(GRID)
        return took


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", default="30")
    arguments = parser.parse_args()
    assert shutil.which("parallel"), "GNU parallel is not installed"
    rounds = [
        {way: seconds(way, arguments.epochs) for way in WAYS} for _ in range(arguments.rounds)
    ]
    about = (
        f"{machine('torch', 'hydra-core')}; n = {len(rounds)} rounds, in turn; 12 jobs of "
        f"{arguments.epochs} epochs, one at a time. Wall time as a ratio to run.sh's in the same "
        "round: median (least to most). run.sh checks the whole grid before the first job starts, "
        "in a process that imports torch once more. Hydra's launcher runs the jobs one after "
        "another in a process of its own, which imports torch once for all of them; so what one "
        f"job leaves behind, the next one has. `python benchmarks/sweeps.py --epochs "
        f"{arguments.epochs}` makes this page."
    )
    rows = [[way, spread([each[way] / each["run.sh"] for each in rounds])] for way in WAYS]
    page("A sweep by run.sh and by others", about, ["", "wall time"], rows)


if __name__ == "__main__":
    main()
