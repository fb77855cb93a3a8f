"""A real Slurm on this machine: on loopback, on free ports, with pretend GPUs; or one of several
machines (machines.py), without GPUs.

Sources: slurm.schedmd.com/slurm.conf.html, gres.conf.html, preempt.html.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import debian
import pytest
from faults import silent, wait_until
from machines import Machine
from servers import free_port

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
"""Where programs lie, those that ordinary users need not find as well."""

CPUS = 4
"""Cores that a machine without GPUs claims to have."""

PAUSE = 0.5
"""Seconds between two questions to Slurm, which take its time and ours."""

CONFIGURATION = """
ClusterName=lab
SlurmctldHost={host}({address})
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
SlurmctldParameters={parameters}
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
MinJobAge=3600
MaxArraySize={largest_array}
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime={grace} State=UP
PartitionName=high Nodes=ALL PriorityTier=2 State=UP
"""


HERE = "127.0.0.1"


def arrays(done: subprocess.CompletedProcess[str], jobs: int) -> list[str]:
    """The ids of the arrays in which this many jobs were submitted."""
    form = rf"^{jobs} jobs? submitted to (?:Slurm|SGE) as (.*); --list"
    (ids,) = re.findall(form, silent(done).stdout, re.MULTILINE)
    return ids.split(", ")


def listed(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    """What `--list` says of each job."""
    found = re.findall(r"^(\w{12})  (\w+) .*?(?:\[(.*)\])?$", silent(done).stdout, re.MULTILINE)
    return {job: (state, re.sub("(PENDING), .*", r"\1", about)) for job, state, about in found}


HELD = """\
        folder = job._folder
        with (folder.path / "devices").open("a") as file:
            print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"], file=file)
        if settings.note == "fails":
            raise KeyError("no")
        while job.step and os.path.exists("hold") and not folder.interruption.asked:
            (folder.path / "held").touch()
            time.sleep(0.05)
        (folder.path / "held").unlink(missing_ok=True)
        model.train()
"""
"""In the training loop: a job writes down its GPU and its threads, and fails, or waits after its
first epoch for as long as there is a file `hold`."""


class Batch:
    """A batch system in a folder: its processes, and its commands, which need `env` to find it."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder, self.env = folder, env
        self._processes: list[subprocess.Popen[bytes]] = []

    def ask(self, *command: str, given: str | None = None) -> str:
        done = self._try(*command, given=given)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def end(self) -> None:
        """End its processes, the last one first."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(60)

    def _start(self, command: list[str], ready: Callable[[], bool]) -> None:
        with (self._folder / "output.txt").open("a") as output:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=os.environ | self.env | {"PATH": PATH},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        wait_until(lambda: process.poll() is not None or ready())
        assert process.poll() is None, (self._folder / "output.txt").read_text()

    def _try(self, *command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self._folder,
            env=os.environ | self.env | {"PATH": PATH},
            capture_output=True,
            text=True,
            input=given,
        )


class Cluster(Batch):
    """A Slurm of one machine, or of several that reach this one at an `address`."""

    def __init__(
        self, folder: Path, gpus: int, largest_array: int, machines: Sequence[Machine], address: str
    ) -> None:
        super().__init__(folder, {"SLURM_CONF": str(folder / "slurm.conf")})
        host = platform.node().split(".")[0]
        self._machines = machines or [Machine(host, HERE, ())]
        node = "NodeName={} NodeAddr={} CPUs={} RealMemory=8000 Gres=gpu:{} State=UNKNOWN"
        cpus = 2 * gpus or CPUS
        self._settings: dict[str, object] = {
            "host": host,
            "address": address,
            "nodes": "\n".join(node.format(*m[:2], cpus, gpus) for m in self._machines),
            "control_port": free_port(),
            "node_port": free_port(),
            "user": self.ask("id", "-un").strip(),
            "folder": folder,
            "parameters": "preempt_send_user_signal",
            "grace": 60,
            "largest_array": largest_array,
        }
        self._write(gpus)

    def start(self) -> None:
        """Start its processes; returns once they answer."""
        key, socket = self._folder / "munge.key", self._folder / "munge.sock"
        places = [f"--{name}-file={self._folder}/munged.{name}" for name in ("pid", "log", "seed")]
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}"]
        asked = ["sinfo", "--noheader", "--partition=main", "--format=%t"]
        self._start([*munged, *places], socket.exists)
        self._start(["slurmctld", "-D"], lambda: self._try(*asked).returncode == 0)
        for machine in self._machines:
            self._start([*machine.within, "slurmd", "-D", "-N", machine.name], lambda: True)
        wait_until(lambda: self._try(*asked).stdout == "idle\n")

    def states(self) -> list[str]:
        """Slurm's word for the state of each task in its queue."""
        return self.ask("squeue", "--noheader", "--array", "--format=%T").split()

    def wait_until_empty(self) -> None:
        """Return once nothing is left in its queue."""
        wait_until(lambda: not self.states(), 600, PAUSE)

    def restarts(self) -> dict[str, int]:
        """How often each task that has begun was sent back into the queue."""
        lines = self.ask("scontrol", "--oneliner", "show", "job").splitlines()
        form = r"ArrayJobId=(\d+) ArrayTaskId=(\d+) .* Restarts=(\d+)"
        found = [re.search(form, line) for line in lines]
        return {f"{task[1]}_{task[2]}": int(task[3]) for task in found if task}

    def ended(self, task: str) -> str:
        """Slurm's word for the state of a task that is over."""
        found = re.search(r"JobState=(\w+)", self.ask("scontrol", "show", "job", task))
        return found[1] if found else ""

    @contextmanager
    def configured(self, **settings: object) -> Iterator[None]:
        """Within, some of its configuration is another."""
        self._configure(self._settings | settings)
        self.ask("scontrol", "reconfigure")
        try:
            yield
        finally:
            self._configure(self._settings)
            self.ask("scontrol", "reconfigure")

    def set(self, what: str, **values: object) -> None:
        """Change something of Slurm's, such as JobId=17_3."""
        self.ask("scontrol", "update", what, *(f"{k}={v}" for k, v in values.items()))

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Within, no job starts."""
        self.set("PartitionName=main", State="DOWN")
        try:
            yield
        finally:
            self.set("PartitionName=main", State="UP")

    def preempt(self) -> None:
        """Have a job take the place of another on a GPU."""
        job = ["sbatch", "--partition=high", "--gres=gpu:1", "--output=/dev/null", "--wrap=true"]
        self.ask(*job)

    def stop(self) -> None:
        try:
            if len(self._processes) == 2 + len(self._machines):
                wait_until(self._is_emptied, pause=PAUSE)
        finally:
            self.end()

    def _is_emptied(self) -> bool:
        self.ask("scancel", f"--user={self._settings['user']}")
        return not self.states()

    def _write(self, gpus: int) -> None:
        """The key that its parts know each other by, its GPUs and its configuration."""
        for name in ("state", *(f"spool-{machine.name}" for machine in self._machines)):
            (self._folder / name).mkdir()
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        lines = ""
        for number in range(gpus):
            device = self._folder / f"gpu{number}"
            device.symlink_to("/dev/null")  # Slurm takes no plain file for a device
            lines += f"NodeName={self._machines[0].name} Name=gpu File={device}\n"
        (self._folder / "gres.conf").write_text(lines)
        self._configure(self._settings)
        version = re.findall(r"\d+", self.ask("slurmctld", "-V"))
        if (int(version[0]), int(version[1])) >= (23, 11):  # those before know no such thing
            (self._folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        self._folder.chmod(0o755)

    def _configure(self, settings: dict[str, object]) -> None:
        (self._folder / "slurm.conf").write_text(CONFIGURATION.format(**settings))


@contextmanager
def slurm(
    gpus: int, largest_array: int, machines: Sequence[Machine] = (), address: str = HERE
) -> Iterator[Cluster]:
    install()
    with TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), gpus, largest_array, machines, address)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def install() -> None:
    if not shutil.which("slurmctld", path=PATH):
        debian.install("munge", "slurmctld", "slurmd", "slurm-client")
    if not shutil.which("slurmctld", path=PATH):
        pytest.fail("Slurm is installed, but its slurmctld may not be executed")
