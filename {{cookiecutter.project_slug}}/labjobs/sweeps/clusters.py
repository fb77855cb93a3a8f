"""Clusters, and their batch systems, as arrays.py needs them: each submits arrays, lists their
tasks and puts one back. Another system is a class like these, with the same methods; all of them
raise SettingsError.

Sources: schedmd.com's sbatch.html, squeue.html and scontrol.html (slurm.schedmd.com); of Grid
Engine (SGE, Son of Grid Engine, Univa) the manual pages submit(1), qstat(1), queue_conf(5) and
sge_conf(5).
"""

import os
import pwd
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from xml.etree import ElementTree

from labjobs.errors import SettingsError
from labjobs.tracking.mlflow_client import experiment_name

WARNING = 60
"""Seconds before a job's end at which USR1 is sent."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster in cluster.toml, whose keys these are, except for the `flag` that chose it and how
    many jobs run at once, `at_most`."""

    flag: str = "--slurm"
    system: str = "slurm"
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    gpus: int = 1
    cores: int = 0
    memory: str = ""
    time: str = ""
    ask: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    requeue: bool = True
    setup: list[str] = field(default_factory=list)
    runs: str = ""
    data: str = ""
    node_data: str = ""
    at_most: int | None = None

    @property
    def batch(self) -> "Slurm | GridEngine":
        """Its system."""
        return SYSTEMS[self.system]

    @property
    def wanted(self) -> list[str]:
        """The options that ask for what its jobs need."""
        forms = {**self.batch.forms, **self.ask}
        given = [(form, vars(self)[key]) for key, form in forms.items()]
        return [word.replace("{}", str(v)) for form, v in given if v for word in form.split()]

    @property
    def flags(self) -> list[str]:
        """The flags of its jobs: where runs and data lie."""
        roots = {"--runs-root": self.runs, "--data-root": self.data}
        return [f"{flag}={expanded(path)}" for flag, path in roots.items() if path]


def expanded(path: str) -> str:
    """Return a path with the values of its variables, such as $USER."""
    return os.path.expanduser(os.path.expandvars(path))


def ask(*command: str, given: str | None = None) -> str:
    """Return what a command of a batch system prints, `given` what it reads. Raises SettingsError
    if it fails."""
    how: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    try:
        done = subprocess.run(command, input=given, **how)
    except FileNotFoundError as error:
        raise SettingsError(f"there is no {command[0]} on this machine") from error
    if done.returncode:
        said = "; ".join(done.stderr.strip().splitlines()) or f"status {done.returncode}"
        raise SettingsError(f"{command[0]}: {said.removeprefix(f'{command[0]}: ')}")
    return str(done.stdout)


class Array(NamedTuple):
    """An array of `size` tasks that run a script, with their `output` in a folder. They start once
    some tasks have finished (`ok`) and others have `ended` in whatever way. A task is named
    `ARRAY_NUMBER`, with numbers from 0."""

    script: str
    output: Path
    size: int
    ok: Sequence[str] = ()
    ended: Sequence[str] = ()


class Slurm:
    """Slurm: the commands that submit and cancel jobs, a pattern of those options that run.sh sets
    itself, and how it is asked for what a key of cluster.toml says."""

    title, submits, cancels = "Slurm", "sbatch", "scancel"
    taken = r"--(array|dependency|output|wrap)\b.*|-[ado].*"
    plain = ("partition", "account", "qos", "constraint", "time")
    forms: ClassVar = {key: f"--{key}={{}}" for key in plain}
    forms |= {"gpus": "--gres=gpu:{}", "cores": "--cpus-per-task={}", "memory": "--mem={}"}

    def submit(self, cluster: Cluster, array: Array) -> str:
        """Submit an array; returns its id."""
        limit = f"%{cluster.at_most}" if cluster.at_most else ""
        words = [
            f"--array=0-{array.size - 1}{limit}",
            f"--job-name={experiment_name()}",
            "--parsable",
        ]
        words += [f"--signal=B:USR1@{WARNING}", "--open-mode=append"]
        words += ["--requeue" if cluster.requeue else "--no-requeue", *cluster.wanted]
        words.append("--output=" + str(array.output).replace("%", "%%") + "/slurm-%A_%a.txt")
        waits = [f"afterok:{task}" for task in array.ok] + [
            f"afterany:{task}" for task in array.ended
        ]
        if waits:
            words += [f"--dependency={','.join(waits)}", "--kill-on-invalid-dep=yes"]
        printed = ask(self.submits, *words, *cluster.options, f"--wrap={array.script}")
        if not (found := re.fullmatch(r"(\d+)(;.*)?", printed.strip())):
            raise SettingsError("sbatch: has submitted nothing")
        return found[1]

    def tasks(self) -> dict[str, dict[int, str]]:
        """Return the state of each of the user's tasks, with the reason if it waits, by array."""
        found: dict[str, dict[int, str]] = {}
        mine = ("squeue", f"--user={os.getuid()}")
        for line in ask(*mine, "--noheader", "--array", "--format=%F %K %T %r").splitlines():
            array, task, state, reason = line.split(maxsplit=3)
            if task.isdecimal():
                waits = f", {reason}" if state == "PENDING" and reason != "None" else ""
                found.setdefault(array, {})[int(task)] = state + waits
        return found

    def largest_array(self) -> int:
        """Return how many tasks an array can have."""
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"), re.M)
        return int(found[1]) if found else 1001

    def this_task(self) -> tuple[str, int, str, int]:
        """Return this process's array, the number of its task, its machine and its cores."""
        own = os.environ
        number, cores = int(own["SLURM_ARRAY_TASK_ID"]), int(own["SLURM_CPUS_ON_NODE"])
        return own["SLURM_ARRAY_JOB_ID"], number, own["SLURMD_NODENAME"], cores

    def put_back(self, array: str, number: int, status: int) -> int:
        """Put a task back unless it was ended, as by scancel; returns the status to exit with."""
        task = f"{array}_{number}"
        if ask("squeue", "--noheader", f"--job={task}", "--format=%T").strip() == "RUNNING":
            ask("scontrol", "requeue", task)
        return status


class GridEngine:
    """Grid Engine; its own numbers begin at 1.

    An array waits for whole arrays, however they end: a job whose input has failed says so itself.
    """

    title, submits, cancels = "SGE", "qsub", "qdel"
    taken = "-(b|e|hold_jid|hold_jid_ad|j|N|o|S|sync|t|tc|terse)"
    forms: ClassVar = {"partition": "-q {}", "account": "-P {}", "constraint": "-l {}"}
    forms |= {"gpus": "-l gpu={}", "cores": "-pe smp {}", "time": "-l h_rt={}"}

    words: ClassVar = {"E": "ERROR, qstat -j says why", "d": "DELETED", "h": "PENDING, Dependency"}
    words |= {"q": "PENDING", "r": "RUNNING", "t": "RUNNING"}
    """Slurm's words for the letters of a state, of which there may be several."""

    def submit(self, cluster: Cluster, array: Array) -> str:
        """Submit an array, as Slurm does. USR2 comes before tasks are deleted."""
        name = re.sub(r"^(?=\d)|[^\w.-]", "_", experiment_name())
        words = ["-terse", "-t", f"1-{array.size}", "-N", name, "-S", "/bin/sh", "-V", "-notify"]
        words += ["-r", "y" if cluster.requeue else "n", "-j", "y"]
        words += ["-o", f"{array.output}/gridengine-$JOB_ID.$TASK_ID.txt", *cluster.wanted]
        if cluster.time:
            hours, minutes, seconds = map(int, cluster.time.split(":"))
            words += ["-l", f"s_rt={(hours * 60 + minutes) * 60 + seconds - WARNING}"]
        words += ["-tc", str(cluster.at_most)] if cluster.at_most else []
        if arrays := {task.split("_")[0] for task in (*array.ok, *array.ended)}:
            words += ["-hold_jid", ",".join(sorted(arrays))]
        script = f"PATH=$SGE_O_PATH; {array.script}\n"  # Grid Engine gives tasks a PATH of its own
        printed = ask(self.submits, *words, *cluster.options, given=script)
        if not (found := re.search(r"^(\d+)[.:\d-]*$", printed, re.M)):
            raise SettingsError("qsub: has submitted nothing")
        return found[1]

    def tasks(self) -> dict[str, dict[int, str]]:
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
                words = [word for letter, word in self.words.items() if letter in text["state"]]
                state = words[0] if words else "SUSPENDED"
                found.setdefault(text["JB_job_number"], {})[int(text["tasks"]) - 1] = state
        return found

    def largest_array(self) -> int:
        """Return how many tasks an array can have."""
        found = re.search(r"^max_aj_tasks\s+(\d+)", ask("qconf", "-sconf"), re.M)
        return int(found[1]) if found and int(found[1]) else 75_000

    def this_task(self) -> tuple[str, int, str, int]:
        """Return this process's array, the number of its task, its machine and its cores."""
        own = os.environ
        return own["JOB_ID"], int(own["SGE_TASK_ID"]) - 1, own["HOSTNAME"], int(own["NSLOTS"])

    def put_back(self, array: str, number: int, status: int) -> int:
        """Return the status with which a task is put back; Grid Engine heeds it unless it was
        deleted. Nodes may not be allowed to ask for its state."""
        return 99


SYSTEMS: dict[str, Slurm | GridEngine] = {"slurm": Slurm(), "gridengine": GridEngine()}
