"""From a command line to what has to be done.

`begin` does what needs no torch: help, wrong settings, finished jobs, and the start of the courier,
which imports MLflow while the script imports torch. The `run` of what it returns does the rest.
"""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from engine.attempt import Attempt, Scratch
from engine.cli import metrics as declared
from engine.cli.metrics import Metric
from engine.cli.parser import parse
from engine.errors import SettingsError
from engine.job import interruption
from engine.job.folder import JobFolder
from engine.job.runtime import Runtime
from engine.job.terminal import leave
from engine.sweeps.sweep import Grid
from engine.tracking import address

S = TypeVar("S")


def begin(kind: type[S], metrics: Mapping[str, Metric]) -> Attempt[S] | Grid[S]:
    """Read the command line of a job script; ends the process if that is all there is to do.

    Returns what to call `run(main, check)` of: an attempt at the job or, for `--grid FOLDER …`, by
    which run.sh hands over the command lines of many jobs, the check of these.
    """
    interruption.handle(signal.SIG_DFL)
    script, words = Path(sys.argv[0]).name, sys.argv[1:]
    of_sweep = words[:1] == ["--grid"]
    os.environ["MLFLOW_TRACKING_URI"] = address.uri()  # absolute, for all that is started
    try:
        declared.check(metrics)
        if of_sweep:
            return Grid(kind, metrics, script, Path(words[1]), words[2:])
        settings, runtime = parse(kind, Runtime, words)
        folder = JobFolder(settings, runtime, metrics, Path(script).stem)
        return Scratch(folder) if runtime.scratch else Attempt(folder)
    except SettingsError as error:
        sys.exit(leave(2, f"{'run.sh' if of_sweep else script}: {error}"))
