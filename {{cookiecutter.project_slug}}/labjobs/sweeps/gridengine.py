"""Grid Engine (SGE, Son of Grid Engine, Univa), as arrays.py needs it; its numbers begin at 1.

An array waits for whole arrays, however they end: a job whose input has failed says so itself.
Sources: the manual pages submit(1), qstat(1), queue_conf(5) and sge_conf(5).
"""

import os
import pwd
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from labjobs.errors import SettingsError
from labjobs.sweeps.options import Cluster, ask
from labjobs.tracking.mlflow_client import experiment_name

WARNING = 60
"""Seconds before the end at which USR1 is sent; USR2 comes before tasks are deleted."""

WORDS = {"E": "ERROR, qstat -j says why", "d": "DELETED", "h": "PENDING, Dependency"}
WORDS |= {"q": "PENDING", "r": "RUNNING", "t": "RUNNING"}
"""Slurm's words for the letters of a state, of which there may be several."""

AGAIN = 99
"""Exit status with which a task goes back into the queue."""


def submit(
    cluster: Cluster, script: str, output: Path, count: int, ok: Sequence[str], ended: Sequence[str]
) -> str:
    """Submit an array of `count` tasks, with their output in a folder, which start once the arrays
    of some tasks have ended; returns its id. Raises SettingsError if that fails, as all functions
    here do."""
    words = ["-terse", "-t", f"1-{count}", "-N", re.sub(r"^(?=\d)|[^\w.-]", "_", experiment_name())]
    words += ["-S", "/bin/sh", "-V", "-notify", "-r", "y" if cluster.requeue else "n"]
    words += ["-j", "y", "-o", f"{output}/gridengine-$JOB_ID.$TASK_ID.txt", *cluster.wanted]
    if cluster.time:
        hours, minutes, seconds = map(int, cluster.time.split(":"))
        words += ["-l", f"s_rt={(hours * 60 + minutes) * 60 + seconds - WARNING}"]
    words += ["-tc", str(cluster.at_most)] if cluster.at_most else []
    if arrays := {task.split("_")[0] for task in (*ok, *ended)}:
        words += ["-hold_jid", ",".join(sorted(arrays))]
    script = f"PATH=$SGE_O_PATH; {script}\n"  # Grid Engine gives tasks a PATH of its own
    printed = ask("qsub", *words, *cluster.options, given=script)
    if not (found := re.search(r"^(\d+)[.:\d-]*$", printed, re.M)):
        raise SettingsError("qsub: has submitted nothing")
    return found[1]


def tasks() -> dict[str, dict[int, str]]:
    """Return the state of each of the user's tasks, in Slurm's words, by array."""
    found: dict[str, dict[int, str]] = {}
    user = pwd.getpwuid(os.getuid()).pw_name
    said = ask("qstat", "-xml", "-g", "d", "-u", user)
    try:
        jobs = [*ElementTree.fromstring(said).iter("job_list")]
    except ElementTree.ParseError as error:
        raise SettingsError(f"qstat: has not printed XML ({error})") from error
    for job in jobs:
        text = {each.tag: each.text or "" for each in job}
        if text.get("tasks", "").isdecimal():
            words = [word for letter, word in WORDS.items() if letter in text["state"]]
            state = words[0] if words else "SUSPENDED"
            found.setdefault(text["JB_job_number"], {})[int(text["tasks"]) - 1] = state
    return found


def largest_array() -> int:
    """Return how many tasks an array can have."""
    found = re.search(r"^max_aj_tasks\s+(\d+)", ask("qconf", "-sconf"), re.M)
    return int(found[1]) if found and int(found[1]) else 75_000


def this_task() -> tuple[str, int, str, int]:
    """Return this process's array, the number of its task from 0, its machine and its cores."""
    own = os.environ
    return own["JOB_ID"], int(own["SGE_TASK_ID"]) - 1, own["HOSTNAME"], int(own["NSLOTS"])


def put_back(array: str, number: int, status: int) -> int:
    """Return the status with which a task is put back; Grid Engine heeds it unless it was deleted.
    Nodes may not be allowed to ask for its state."""
    return AGAIN
