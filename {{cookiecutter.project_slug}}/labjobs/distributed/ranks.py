"""Which of a job's processes this one is, and how they learn that one of them has ended."""

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any, NamedTuple

from labjobs.errors import SettingsError, require
from labjobs.exit_status import FAILED
from labjobs.job.runtime import Runtime

TASKS = "SLURM_STEP_NUM_TASKS"  # set by srun, not by sbatch, whose script is one process
PORTS = range(10_000, 30_000)  # ports that systems do not give to programs that ask for any


class Rank(NamedTuple):
    """The `number` of a process, from 0, of `size`; `local` is its number on its machine."""

    number: int
    size: int
    local: int


ALONE = Rank(0, 1, 0)  # the rank of a job's only process


def mine() -> Rank:
    """Return this process's rank, according to torchrun's environment variables; ALONE if the job
    has no other processes. Raises SettingsError if the variables contradict each other.

    Variables left over from a cluster's software, without the address where the processes meet, are
    ignored. Source: docs.pytorch.org/docs/stable/elastic/run.html, Environment Variables.
    """
    found = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if not all(each.isdecimal() for each in found) or "MASTER_ADDR" not in os.environ:
        return ALONE
    rank = Rank(*map(int, found))
    if rank.number >= rank.size:
        raise SettingsError(f"RANK={rank.number}: must be less than WORLD_SIZE={rank.size}")
    return ALONE if rank.size == 1 else rank


def apart() -> bool:
    """Return whether the processes may be on several machines."""
    return os.environ.get("LOCAL_WORLD_SIZE") != os.environ["WORLD_SIZE"]


def check(settings: Any, runtime: Runtime, size: int) -> None:
    """Raise SettingsError if a job cannot have `size` processes: each needs an example of every
    batch, as far as the settings say how many a batch has."""
    batch = getattr(settings, "batch_size", None)
    fine = not isinstance(batch, int) or batch >= size
    require(fine, "--batch-size", batch, f"at least the number of processes, {size}")
    if runtime.shard and size == 1:
        raise SettingsError(
            "--shard: needs several processes: torchrun --nproc-per-node 4 run.py --shard, or "
            "bash run.sh --gpus-per-job 4"
        )
    if runtime.shard and runtime.compile not in ("auto", "off"):
        raise SettingsError(f"--shard: not with --compile {runtime.compile}; leave it out")
    if runtime.shard and runtime.profile:
        raise SettingsError("--shard: not with --profile; profile a smaller network without it")


def translate() -> None:
    """Set torchrun's variables if srun has started several processes, perhaps on several machines:

        srun --nodes 2 --ntasks-per-node 4 python run.py --batch-size 512

    Does nothing in a process that torchrun has started, or in a shell of `srun --pty`. Variables
    that are set stay, such as the address and the port of process 0. Source:
    slurm.schedmd.com/srun.html, Output Environment Variables.
    """
    slurm = dict(os.environ)
    count = slurm.get(TASKS, "1")
    if count == "1" or "RANK" in slurm or "SLURM_PTY_PORT" in slurm:
        return
    # The first machine of a list such as `gpu[07-09,12],login`.
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", slurm["SLURM_STEP_NODELIST"])
    assert first
    # Another port for each step of a Slurm job.
    port = PORTS[(int(slurm["SLURM_JOB_ID"]) * 31 + int(slurm["SLURM_STEP_ID"])) % len(PORTS)]
    found = {
        "RANK": slurm["SLURM_PROCID"],
        "WORLD_SIZE": count,
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "MASTER_ADDR": re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0]),
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": slurm.get("SLURM_CPUS_PER_TASK", "1"),  # Slurm's default
    }
    if slurm["SLURM_STEP_NUM_NODES"] == "1":
        found["LOCAL_WORLD_SIZE"] = count
    os.environ.update({name: value for name, value in found.items() if name not in slurm})


def forget() -> None:
    """Let the programs that this process starts be jobs of their own, if srun has started it."""
    os.environ.pop(TASKS, None)


# How the processes of a job learn that one of them has ended, within seconds and with one line.
# Each process is connected to process 0, and a thread of each listens. A process that fails says
# so to process 0; if one is killed, its connection is closed without a message. A process that
# waits for something that will never happen, such as another process's GPU, is ended by its thread.

GRACE = 5.0  # seconds after which a process ends that still waits for one that has ended
STOPPED = "stopped"  # prefix of the message of a process that was ended by a signal


class First:
    """Process 0, to which all others are connected; if they may be `apart`, on other machines.
    `fault` says which of them has ended, unless a signal ended it."""

    def __init__(self, host: str, key: bytes, apart: bool) -> None:
        self._listener = Listener(("" if apart else host, 0), authkey=key)
        self.address = host, self._listener.address[1]  # where the others find this process
        self._others: dict[Connection, int] = {}
        self._lost = self.fault = ""
        self._noticed = threading.Event()
        self.ending = False  # whether this process ends on its own, whatever happens to the others

    def listen(self, count: int, say: Callable[[str], object]) -> None:
        """Wait until `count` others are connected, and listen to them from then on."""
        for _ in range(count):
            connection = self._listener.accept()
            self._others[connection] = connection.recv()
        self._listener.close()
        threading.Thread(target=self._listen, args=(say,), daemon=True).start()

    def lost(self, seconds: float) -> str:
        """Return in one line which other process has ended, and why if known; empty if none ends
        within this many seconds."""
        self.ending = True
        self._noticed.wait(seconds)
        return self._lost

    def end(self, status: int) -> None:
        """Tell the others with which status this process ends."""
        self.ending = True
        for connection in self._others:
            _send(connection, status)

    def _listen(self, say: Callable[[str], object]) -> None:
        ended = wait(list(self._others))[0]
        assert isinstance(ended, Connection)
        number, said = self._others[ended], _received(ended) or ""
        self._lost = f"process {number} has ended" + (f" ({said})" if said else "")
        self.fault = "" if said.startswith(STOPPED) else self._lost
        self._noticed.set()
        time.sleep(GRACE)
        if not self.ending:
            say(self._lost)
            self.end(FAILED)
            os._exit(FAILED)


class Other:
    """A process that is not process 0."""

    def __init__(self, number: int, address: Any, key: bytes, say: Callable[[str], object]) -> None:
        self._number, self._say = number, say
        self._first = Client(address, authkey=key)
        self._first.send(number)
        self._over = threading.Event()
        self._status: int | None = None
        self._ending = False
        threading.Thread(target=self._listen, daemon=True).start()

    def fail(self, line: str) -> None:
        """Tell process 0 why this process ends."""
        _send(self._first, line)

    def follow(self) -> int:
        """Return the exit status of process 0 once that has ended."""
        self._ending = True
        self._over.wait()
        if self._status is None and self._number == 1:
            self._say("process 0 has ended")
        return FAILED if self._status is None else self._status

    def _listen(self) -> None:
        self._status = _received(self._first)
        self._over.set()
        time.sleep(GRACE)
        if not self._ending:
            os._exit(self.follow())


def _send(connection: Connection, value: Any) -> None:
    with suppress(OSError):  # it has ended
        connection.send(value)


def _received(connection: Connection) -> Any:
    """The message that a process has sent; None if it has ended without one."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None
