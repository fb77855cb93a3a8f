"""A training step while Python reports which functions are called first, and while it does not.

    python benchmarks/recording.py > benchmarks/recording.md        # Python 3.12 or later

A job's evidence notes which of the project's functions have run. Here the reports are switched off
and on again while a job of steps.py trains, turn by turn.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages import machine, page, spread
from projects import add, make, run

TURNS, STEPS = 40, 1000  # long, since each switch has Python look at each function anew
JOB = "--model small --dataset random --val-fraction 0.03 --log-every 1"


def switched(_settings: Any) -> dict[str, Iterator[None]]:
    """Return what switches the reports off, on, off … each time that its next element is asked
    for."""
    monitoring = sys.monitoring
    owner = "labjobs.evidence.fingerprint"
    (tool,) = (each for each in range(6) if monitoring.get_tool(each) == owner)

    def switch() -> Iterator[None]:
        while True:
            for events in (monitoring.events.NO_EVENTS, monitoring.events.PY_START):
                monitoring.set_events(tool, events)
                yield

    return {"switch": switch()}


def main() -> None:
    """Print the page; or, as `recording.py --loop` in a project, the seconds per step by turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop:
        from turns import seconds_per_step

        print(json.dumps(seconds_per_step(switched, TURNS, STEPS, JOB.split())["run.py"]))
        return
    from steps import DATASET, NETWORK

    ratios, milliseconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        project = make(folder)
        add(project, models=NETWORK, data=DATASET)
        for _ in range(arguments.rounds):
            printed = run(project, str(Path(__file__).resolve()), "--loop")
            seconds = json.loads(printed.splitlines()[-1])
            on, off = (statistics.median(seconds[first::2]) for first in (0, 1))
            ratios.append(on / off)
            milliseconds.append(1000 * on)
    about = (
        f"{machine('torch', 'mlflow')}; one thread; n = {len(ratios)} jobs `{JOB}`, each {TURNS} "
        f"turns of {STEPS} steps. In every second turn Python does not report which functions are "
        "called. A ratio is that of the medians over a job's turns, with reports to without: "
        "median (least to most) over the jobs. `python benchmarks/recording.py` makes this page."
    )
    rows = [["with reports", spread(milliseconds, 3), spread(ratios, 3)]]
    page("A step whose functions are recorded", about, ["", "ms a step", "to without"], rows)


if __name__ == "__main__":
    main()
