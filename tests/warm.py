"""Runs scripts of projects as forks of a process that has imported the slow libraries already.

So a short job takes a fraction of the time, and so does its courier. Tests that kill jobs, that
give them another environment or that look at how Python starts begin with a new Python instead.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

from labjobs import fork_server
from labjobs.tracking import courier
from labjobs.tracking.mlflow_store import ENVIRONMENT

SLOW = (
    *("torch", "torch._dynamo", "torchvision", "sklearn.datasets"),
    *("matplotlib.pyplot", "pandas", "scipy.stats"),
)
MLFLOW = [name for name in courier.MODULES if not name.startswith("labjobs")]


@cache
def servers() -> tuple[fork_server.Server | None, int]:
    """Return what starts scripts, and the socket that they ask for their couriers."""
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    env["OMP_NUM_THREADS"] = "1"
    if not (couriers := fork_server.serve(MLFLOW, Path("/"), ENVIRONMENT | env)):
        return None, -1
    socket = couriers.fileno()
    return fork_server.serve(SLOW, Path("/"), env, keep=[socket]), socket


def run(
    words: Sequence[str], folder: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Return what `python <words>` printed in a folder, and its exit status."""
    scripts, couriers = servers()
    env = {**env, courier.SERVER: str(couriers)} if scripts else env
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err, open(os.devnull) as nothing:
        files = (nothing.fileno(), out.fileno(), err.fileno())
        status = fork_server.start(scripts, words, folder, files, env=env, session=True).wait()
        for printed in (out, err):
            printed.seek(0)
        args = [sys.executable, *words]
        return subprocess.CompletedProcess(args, status, out.read(), err.read())
