"""What copies in TensorBoard, Trackio and W&B cost a job: its steps, its end, its courier.

    uv pip install --group trackers
    python benchmarks/trackers.py > benchmarks/trackers.md

Jobs with all three and without any take turns, on one thread. The time of a step is the mean
between the first and the last point of a job, so what the courier does in between counts.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from courier import Use, courier_of, used
from pages import machine, page, spread
from projects import journal, make

ALL = "tensorboard,trackio,wandb"


class Cost(NamedTuple):
    """Of a job, in seconds: a step, from the last point to the end, and the courier on a core."""

    step: float
    end: float
    courier: float


def cost(project: Path, trackers: str, minutes: float, seed: int) -> Cost:
    """Run a job, and measure it."""
    words = [sys.executable, "run.py", "--quiet", "--device", "cpu", "--schedule", "constant"]
    words += ["--minutes", str(minutes), "--seed", str(seed)]
    env = {"OMP_NUM_THREADS": "1", "TRACKERS": trackers, "TRACKIO_DIR": str(project / "trackio")}
    job = subprocess.Popen(words, cwd=project, env=os.environ | env, stdout=subprocess.DEVNULL)
    courier, use = None, Use(0, 0)
    while job.poll() is None:
        courier = courier or courier_of(job.pid)
        use = (courier and used(courier)) or use
        time.sleep(0.2)
    ended = time.time()
    assert job.returncode == 0
    points = journal(project)
    steps = [point for point in points if "train_loss" in point["metrics"]]
    (first, last) = steps[0], steps[-1]
    taken = (last["time"] - first["time"]) / (last["step"] - first["step"]) / 1000
    return Cost(taken, ended - points[-1]["time"] / 1000, use.seconds)


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=2.0)
    given = parser.parse_args()
    found: dict[str, list[Cost]] = {ALL: [], "": []}
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        cost(project, ALL, 0.05, seed=1000)  # makes the store
        for pair in range(given.pairs):
            order = [ALL, ""] if pair % 2 else ["", ALL]
            for trackers in order:
                seed = 2 * pair + bool(trackers)
                found[trackers].append(cost(project, trackers, given.minutes, seed))
    packages = ("torch", "mlflow", "tensorboard", "trackio", "wandb")
    about = (
        f"{machine(*packages)}; the template's network and data, "
        f"{1000 * statistics.median(each.step for each in found['']):.1f} ms a step; {given.pairs} "
        f"jobs of {given.minutes:g} minutes with all three, as many without, in turns; median "
        "(least to most). `python benchmarks/trackers.py` makes this page."
    )
    pairs = list(zip(found[ALL], found[""], strict=True))
    ratios = [with_all.step / without.step for with_all, without in pairs]
    same = found[""]
    noise = [one.step / other.step for one, other in zip(same[1:], same, strict=False)]
    rows = [
        ["a step, with to without", spread(ratios, 3)],
        ["a step, without to the time before, without", spread(noise, 3)],
        *(
            [f"{what}, {when}", spread([getattr(each, name) for each in found[which]], 1)]
            for name, what in (
                ("end", "from the last point to the end, s"),
                ("courier", "its courier, s of a core"),
            )
            for which, when in ((ALL, "with"), ("", "without"))
        ),
    ]
    page("What copies in other trackers cost", about, ["", ""], rows)


if __name__ == "__main__":
    main()
