"""Slurm, as arrays.py needs it: submits arrays, lists their tasks, puts one back.

Sources: slurm.schedmd.com/sbatch.html, squeue.html, scontrol.html.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from labjobs.errors import SettingsError
from labjobs.sweeps.options import Cluster, ask
from labjobs.tracking.mlflow_client import experiment_name

OPTIONS = ("--parsable", "--signal=B:USR1@60", "--open-mode=append")
"""USR1 is sent 60 s before the end, as a warning."""


def submit(
    cluster: Cluster, script: str, output: Path, count: int, ok: Sequence[str], ended: Sequence[str]
) -> str:
    """Submit an array of `count` tasks, with their output in a folder, which start once some tasks
    have finished (`ok`) and others have `ended` in whatever way; returns its id. Raises
    SettingsError if that fails, as all functions here do."""
    limit = f"%{cluster.at_most}" if cluster.at_most else ""
    words = [f"--array=0-{count - 1}{limit}", f"--job-name={experiment_name()}", *OPTIONS]
    words += ["--requeue" if cluster.requeue else "--no-requeue", *cluster.wanted]
    words.append("--output=" + str(output).replace("%", "%%") + "/slurm-%A_%a.txt")
    waits = [f"afterok:{task}" for task in ok] + [f"afterany:{task}" for task in ended]
    if waits:
        words += [f"--dependency={','.join(waits)}", "--kill-on-invalid-dep=yes"]
    printed = ask("sbatch", *words, *cluster.options, f"--wrap={script}")
    if not (found := re.fullmatch(r"(\d+)(;.*)?", printed.strip())):
        raise SettingsError("sbatch: has submitted nothing")
    return found[1]


def tasks() -> dict[str, dict[int, str]]:
    """Return the state of each of the user's tasks, with the reason if it waits, by array."""
    found: dict[str, dict[int, str]] = {}
    mine = ("squeue", f"--user={os.getuid()}")
    for line in ask(*mine, "--noheader", "--array", "--format=%F %K %T %r").splitlines():
        array, task, state, reason = line.split(maxsplit=3)
        if task.isdecimal():
            waits = f", {reason}" if state == "PENDING" and reason != "None" else ""
            found.setdefault(array, {})[int(task)] = state + waits
    return found


def largest_array() -> int:
    """Return how many tasks an array can have; their numbers begin at 0."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.M)
    return int(found[1]) if found else 1001


def this_task() -> tuple[str, int, str, int]:
    """Return this process's array, the number of its task from 0, its machine and its cores."""
    own = os.environ
    number, cores = int(own["SLURM_ARRAY_TASK_ID"]), int(own["SLURM_CPUS_ON_NODE"])
    return own["SLURM_ARRAY_JOB_ID"], number, own["SLURMD_NODENAME"], cores


def put_back(array: str, number: int, status: int) -> int:
    """Put a task back unless it was ended, as by scancel; returns the status to exit with."""
    task = f"{array}_{number}"
    if ask("squeue", "--noheader", f"--job={task}", "--format=%T").strip() == "RUNNING":
        ask("scontrol", "requeue", task)
    return status
