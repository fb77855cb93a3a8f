"""Clusters, and their batch systems, as arrays.py needs them: each submits arrays, lists their
tasks and puts one back. Another system is a class like these. Its methods raise SettingsError.

Sources: schedmd.com's sbatch.html, squeue.html and scontrol.html (slurm.schedmd.com); of Grid
Engine (SGE, Son of Grid Engine, Univa) the manual pages submit(1), qstat(1), queue_conf(5) and
sge_conf(5); of PBS (PBS Professional, OpenPBS) the manual pages qsub(1B), qstat(1B), qdel(1B) and
qrerun(1B) of OpenPBS 23.06.06; of LSF the pages bsub, bjobs, bkill, bparams and lsf.conf of the
IBM Spectrum LSF 10.1.0 documentation (www.ibm.com/docs/en/spectrum-lsf/10.1.0).
"""

import os
import platform
import pwd
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from xml.etree import ElementTree

from labjobs.errors import SettingsError
from labjobs.tracking.mlflow_store import experiment_name

WARNING = 60  # seconds before a job's end at which USR1 is sent
UNITS = {unit: 1024**power for power, unit in enumerate("KMGT", 1)}  # of memory, in bytes


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster in cluster.toml, whose keys these are, except for the last ones: how many jobs run
    at once, `at_most`; the seconds of a `piece` of a job, 0 if jobs are not divided; and in how
    many `pieces` a job is submitted, if none puts itself back."""

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
    container: str = ""
    runs: str = ""
    data: str = ""
    node_data: str = ""
    at_most: int | None = None
    piece: int = 0
    pieces: int = 1

    @property
    def batch(self) -> "System":
        """Its system."""
        return SYSTEMS[self.system]

    @property
    def put_back(self) -> Callable[[str, int, int], int] | None:
        """What puts a task back into the queue; None if tasks do not come back."""
        return self.batch.put_back if self.requeue and self.batch.requeues else None

    @property
    def forms(self) -> dict[str, str]:
        """How it is asked for what a key says."""
        return {**self.batch.forms, **self.ask}

    @property
    def wanted(self) -> list[str]:
        """The options that ask for what its jobs need."""
        given = [(form, vars(self)[key]) for key, form in self.forms.items()]
        return [word.replace("{}", str(v)) for form, v in given if v for word in form.split()]

    @property
    def bytes(self) -> int:
        """The memory that it is asked for; 0 if none is."""
        return int(self.memory[:-1]) * UNITS[self.memory[-1]] if self.memory else 0

    def given(self, key: str) -> str:
        """Return what its keys or its options say of a limit; empty if nothing does."""
        options = (word for word in self.options if re.fullmatch(self.batch.limits[key], word))
        return vars(self)[key] or next(options, "")

    def lacks(self, key: str) -> bool:
        """Return whether it could be asked for a limit that nothing gives."""
        return bool(self.forms.get(key)) and not self.given(key)

    @property
    def flags(self) -> list[str]:
        """The flags of its jobs: where runs and data lie."""
        roots = {"--runs-root": self.runs, "--data-root": self.data}
        return [f"{flag}={expanded(path)}" for flag, path in roots.items() if path]


def expanded(path: str) -> str:
    """Return a path with the values of its variables, such as $USER."""
    return os.path.expanduser(os.path.expandvars(path))


def ask(*command: str, given: str | None = None, timeout: float | None = None) -> str:
    """Return what a command prints, `given` what it reads. Raises SettingsError if it fails, and
    subprocess.TimeoutExpired."""
    how: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    try:
        done = subprocess.run(command, input=given, timeout=timeout, **how)
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

    @property
    def waits(self) -> list[str]:
        """The whole arrays that it waits for, if a system knows no more."""
        return sorted({task.split("_")[0] for task in (*self.ok, *self.ended)})


class System:
    """A batch system: the commands that submit and cancel jobs; how the answer of the first begins
    if it has submitted an array; whether it lets users put tasks back; patterns of those options
    that run.sh sets itself and of those that set a limit; and how it is asked for what a key of
    cluster.toml says."""

    title = submits = cancels = answer = taken = ""
    requeues = True
    limits: ClassVar[dict[str, str]]
    forms: ClassVar[dict[str, str]]
    largest: ClassVar[tuple[int, str, tuple[str, ...]]]
    """Tasks of an array, by default, and what says where how many there can be."""
    first, task = 0, "{}_{}"
    """The number of an array's first task, and how one is named by its array and its number."""
    variables: ClassVar[tuple[str, str, str]]
    """Where a task finds its array, its number and its cores."""

    def submit(self, cluster: Cluster, array: Array) -> str:
        """Submit an array; returns its id."""
        words, script = self._request(cluster, array)
        if not (found := re.search(self.answer, ask(self.submits, *words, given=script), re.M)):
            raise SettingsError(f"{self.submits}: has submitted nothing")
        return found[1]

    def _request(self, cluster: Cluster, array: Array) -> tuple[list[str], str]:
        """The options with which an array is submitted, and the script that is read."""
        raise NotImplementedError

    @property
    def _name(self) -> str:
        """A name for arrays that every system accepts."""
        return re.sub(r"^(?=\d)|[^\w.-]", "_", experiment_name())

    def tasks(self) -> dict[str, dict[int, str]]:
        """Return the state of each of the user's tasks, in Slurm's words and with the reason if it
        waits (`PENDING, Priority`), by array."""
        found: dict[str, dict[int, str]] = {}
        for array, number, state, reason in self._tasks():
            waits = f", {reason}" if state == "PENDING" and reason else ""
            found.setdefault(array, {})[number] = state + waits
        return found

    def _tasks(self) -> Iterator[tuple[str, int, str, str]]:
        """Yield the array, the number and the state of each task, and why it waits."""
        raise NotImplementedError

    def largest_array(self) -> int:
        """Return how many tasks an array can have."""
        usual, pattern, command = self.largest
        found = re.search(pattern, ask(*command), re.M)
        return int(found[1]) or usual if found else usual

    def this_task(self) -> tuple[str, int, str, int]:
        """Return this process's array, the number of its task, its machine and its cores."""
        task, number, cores = (os.environ[name] for name in self.variables)
        node = os.environ.get("SLURMD_NODENAME") or platform.node()
        return re.sub(r"\[\d+\].*", "[]", task), int(number) - self.first, node, int(cores)

    def put_back(self, array: str, number: int, status: int) -> int:
        """Put a task back unless it was ended; returns the status to exit with, which most heed."""
        return 99

    def cancel(self, tasks: Iterable[str]) -> None:
        """End tasks, or whole arrays. Jobs that run already write a checkpoint."""
        ask(self.cancels, *map(self._own, tasks))

    def _own(self, task: str) -> str:
        """The system's own name for a task, or for a whole array."""
        array, _, number = task.partition("_")
        if not number:
            return array
        return self.task.format(array.removesuffix("[]"), int(number) + self.first)


def _with_clock(script: str, cluster: Cluster) -> str:
    """A task's script that warns itself before its time limit."""
    if not cluster.time:
        return script
    hours, minutes, seconds = map(int, cluster.time.split(":"))
    until = 3600 * hours + 60 * minutes + seconds - WARNING
    clock = f"timeout --foreground --preserve-status -s USR1 {until}"
    return f"exec {clock} /bin/sh -c {shlex.quote(script)}"


class Slurm(System):
    """Slurm."""

    title, submits, cancels, answer = "Slurm", "sbatch", "scancel", r"^(\d+)(?:;.*)?$"
    taken = r"--(array|dependency|output|wrap)\b.*|-[ado].*"
    limits: ClassVar = {"time": "--time.*|-t.*", "memory": "--mem.*"}
    plain = ("partition", "account", "qos", "constraint", "time")
    forms: ClassVar = {key: f"--{key}={{}}" for key in plain}
    forms |= {"gpus": "--gres=gpu:{}", "cores": "--cpus-per-task={}", "memory": "--mem={}"}
    largest = 1001, r"^MaxArraySize\s*=\s*(\d+)", ("scontrol", "show", "config")
    variables = "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_CPUS_ON_NODE"

    def _request(self, cluster: Cluster, array: Array) -> tuple[list[str], str]:
        limit = f"%{cluster.at_most}" if cluster.at_most else ""
        words = [f"--array=0-{array.size - 1}{limit}", f"--job-name={experiment_name()}"]
        words += ["--parsable", f"--signal=B:USR1@{WARNING}", "--open-mode=append"]
        words += ["--requeue" if cluster.requeue else "--no-requeue", *cluster.wanted]
        words.append("--output=" + str(array.output).replace("%", "%%") + "/slurm-%A_%a.txt")
        waits = [f"afterok:{task}" for task in array.ok]
        if waits := waits + [f"afterany:{task}" for task in array.ended]:
            words += [f"--dependency={','.join(waits)}", "--kill-on-invalid-dep=yes"]
        return [*words, *cluster.options, f"--wrap={array.script}"], ""

    def _tasks(self) -> Iterator[tuple[str, int, str, str]]:
        mine = ("squeue", f"--user={os.getuid()}")
        for line in ask(*mine, "--noheader", "--array", "--format=%F %K %T %r").splitlines():
            array, task, state, reason = line.split(maxsplit=3)
            if task.isdecimal():
                yield array, int(task), state, reason.removeprefix("None")

    def put_back(self, array: str, number: int, status: int) -> int:
        """Put a task back unless it was ended, as by scancel; returns the status to exit with."""
        task = f"{array}_{number}"
        if ask("squeue", "--noheader", f"--job={task}", "--format=%T").strip() == "RUNNING":
            ask("scontrol", "requeue", task)
        return status


class GridEngine(System):
    """Grid Engine. An array waits for whole arrays, however they end: a job whose input has failed
    says so itself. Nodes may not be allowed to ask whether a task was deleted."""

    title, submits, cancels, answer = "SGE", "qsub", "qdel", r"^(\d+)[.:\d-]*$"
    taken = "-(b|e|hold_jid|hold_jid_ad|j|N|o|S|sync|t|tc|terse)"
    limits: ClassVar = {"time": ".*h_rt=.*", "memory": ".*(h_vmem|mem_free)=.*"}
    forms: ClassVar = {"partition": "-q {}", "account": "-P {}", "constraint": "-l {}"}
    forms |= {"gpus": "-l gpu={}", "cores": "-pe smp {}", "time": "-l h_rt={}"}
    largest = 75_000, r"^max_aj_tasks\s+(\d+)", ("qconf", "-sconf")
    first, task, variables = 1, "{}.{}", ("JOB_ID", "SGE_TASK_ID", "NSLOTS")

    words: ClassVar = {"E": "ERROR, qstat -j says why", "d": "DELETED", "h": "PENDING, Dependency"}
    words |= {"q": "PENDING", "r": "RUNNING", "t": "RUNNING"}
    """Slurm's words for the letters of a state, of which there may be several."""

    def _request(self, cluster: Cluster, array: Array) -> tuple[list[str], str]:
        """USR2 comes before tasks are deleted. `s_rt` would send it too, and end the task, if the
        task has been put back before."""
        words = ["-terse", "-t", f"1-{array.size}", "-N", self._name, "-S", "/bin/sh", "-V"]
        words += ["-notify", "-r", "y" if cluster.requeue else "n", "-j", "y"]
        words += ["-o", f"{array.output}/gridengine-$JOB_ID.$TASK_ID.txt", *cluster.wanted]
        words += ["-tc", str(cluster.at_most)] if cluster.at_most else []
        words += ["-hold_jid", ",".join(array.waits)] if array.waits else []
        # Grid Engine gives tasks a PATH of its own. The clock is not to end by a signal.
        script = f"PATH=$SGE_O_PATH; trap '' USR1 USR2; {_with_clock(array.script, cluster)}"
        return [*words, *cluster.options], f"{script}\n"

    def _tasks(self) -> Iterator[tuple[str, int, str, str]]:
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
                yield text["JB_job_number"], int(text["tasks"]) - 1, state, ""


class Pbs(System):
    """PBS. Only its operators may put a task back (qrerun(1B)), and nothing warns of a time limit.
    An array waits for whole arrays, as in Grid Engine. Forms that begin with a colon are parts of
    the chunk of nodes that a task gets."""

    title, submits, cancels, answer, requeues = "PBS", "qsub", "qdel", r"^(\d+\[\])", False
    taken = r"-[JNjorSVW].*|depend=.*"
    limits: ClassVar = {"time": ".*walltime=.*", "memory": ".*(select|mem)=.*"}
    forms: ClassVar = {"partition": "-q {}", "account": "-A {}", "time": "-l walltime={}"}
    forms |= {"constraint": ":{}", "cores": ":ncpus={}", "gpus": ":ngpus={}", "memory": ":mem={}b"}
    largest = 10_000, r"max_array_size = (\d+)", ("qstat", "-B", "-f")
    task, variables = "{}[{}]", ("PBS_JOBID", "PBS_ARRAY_INDEX", "NCPUS")

    words: ClassVar = dict.fromkeys("QTW", "PENDING") | dict.fromkeys("RE", "RUNNING")
    words |= {"H": "PENDING, Dependency"} | dict.fromkeys("SU", "SUSPENDED")
    """Slurm's words for the letters of a state. Others are for subjobs that have ended."""

    def _request(self, cluster: Cluster, array: Array) -> tuple[list[str], str]:
        numbers = f"0-{array.size - 1}" if array.size > 1 else "0-1:2"  # PBS refuses 0-0
        words = ["-J", f"{numbers}%{cluster.at_most}" if cluster.at_most else numbers]
        words += ["-N", self._name, "-S", "/bin/sh", "-V", "-j", "oe", "-o", "/dev/null"]
        chunk = "".join(word for word in cluster.wanted if word.startswith(":"))
        words += ["-l", f"select=1{chunk}"] if chunk else []
        words += [word for word in cluster.wanted if not word.startswith(":")]
        words += ["-W", f"depend=afterany:{':'.join(array.waits)}"] if array.waits else []
        output = shlex.quote(f"{array.output}/pbs-")
        start = f'exec >>{output}"$PBS_JOBID.txt" 2>&1; PATH=$PBS_O_PATH; '
        return [*words, *cluster.options], f"{start}{_with_clock(array.script, cluster)}\n"

    def _tasks(self) -> Iterator[tuple[str, int, str, str]]:
        said = ask("qstat", "-s", "-t", "-w", "-u", pwd.getpwuid(os.getuid()).pw_name)
        line = r"^(\d+)\[(\d+)\]\S* .* ([A-Z]) +\S+ *$(?:\n +(\S.*))?"
        for array, task, letter, reason in re.findall(line, said, re.M):
            if letter in self.words:
                yield f"{array}[]", int(task), self.words[letter], reason.strip()


class Lsf(System):
    """LSF. Deleted tasks get INT, and so are not put back."""

    title, submits, cancels, answer = "LSF", "bsub", "bkill", r"^Job <(\d+)> is submitted"
    taken = "-(J|w|ti|o|oo|e|eo|Q|r|rn|wa|wt)"
    limits: ClassVar = {"time": "-W.*", "memory": "-M.*|.*mem=.*"}
    forms: ClassVar = {"partition": "-q {}", "account": "-P {}", "qos": "-sla {}"}
    forms |= {"constraint": "-R select[{}]", "gpus": "-gpu num={}", "time": "-W {}"}
    forms |= {"cores": "-n {} -R span[hosts=1]", "memory": "-M {} -R rusage[mem={}]"}
    largest = 1000, r"MAX_JOB_ARRAY_SIZE\s*=\s*(\d+)", ("bparams", "-a")
    first, task = 1, "{}[{}]"
    variables = "LSB_JOBID", "LSB_JOBINDEX", "LSB_DJOB_NUMPROC"

    words: ClassVar = {"PEND": "PENDING", "PROV": "PENDING", "WAIT": "PENDING", "RUN": "RUNNING"}
    """Slurm's words for its own."""

    def _request(self, cluster: Cluster, array: Array) -> tuple[list[str], str]:
        limit = f"%{cluster.at_most}" if cluster.at_most else ""
        words = ["-J", f"{self._name}[1-{array.size}]{limit}"]
        to_the_minute = replace(cluster, time=cluster.time.rpartition(":")[0])
        words += ["-o", f"{array.output}/lsf-%J_%I.txt", *to_the_minute.wanted]
        words += ["-r", "-Q", "99"] if cluster.requeue else ["-rn"]
        words += ["-wa", "USR1", "-wt", str(WARNING // 60)] if cluster.time else []
        waits = [f"done({self._own(task)})" for task in array.ok]
        waits += [f"ended({self._own(task)})" for task in array.ended]
        words += ["-w", " && ".join(waits), "-ti"] if waits else []
        return [*words, *cluster.options], f"#!/bin/sh\n{array.script}\n"

    def _tasks(self) -> Iterator[tuple[str, int, str, str]]:
        fields = "jobid jobindex stat pend_reason delimiter='|'"
        try:
            said = ask("bjobs", "-noheader", "-o", fields)
        except SettingsError as error:
            if "No unfinished job found" not in str(error):
                raise
            return
        for array, task, own, reason in (line.split("|", 3) for line in said.splitlines()):
            yield array, int(task) - 1, self.words.get(own, own), reason.removeprefix("-")


SYSTEMS = {"slurm": Slurm(), "gridengine": GridEngine(), "pbs": Pbs(), "lsf": Lsf()}
