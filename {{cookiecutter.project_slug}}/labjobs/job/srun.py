"""A job of several processes that srun has started, perhaps on several machines.

    srun --nodes 2 --ntasks-per-node 4 python run.py --batch-size 512

srun's variables are translated into those that torchrun would set (ranks.py).
Source: slurm.schedmd.com/srun.html, Output Environment Variables.
"""

import os
import re
from collections.abc import Mapping

TASKS = "SLURM_STEP_NUM_TASKS"
"""The variable that only srun sets, not sbatch: a script that sbatch runs is one process."""

PORTS = range(10_000, 30_000)
"""Ports that systems do not give to programs that ask for any."""


def translate() -> None:
    """Set torchrun's variables if srun has started several processes.

    Does nothing in a process that torchrun has started, or in a shell of `srun --pty`. The address
    and the port of process 0 are kept if they are set.
    """
    count = os.environ.get(TASKS, "1")
    if count == "1" or "RANK" in os.environ or "SLURM_PTY_PORT" in os.environ:
        return
    for name, value in _variables(os.environ, count).items():
        os.environ.setdefault(name, value)


def forget() -> None:
    """Let the programs that this process starts be jobs of their own, if srun has started it."""
    os.environ.pop(TASKS, None)


def _variables(of_slurm: Mapping[str, str], count: str) -> dict[str, str]:
    found = {
        "RANK": of_slurm["SLURM_PROCID"],
        "WORLD_SIZE": count,
        "LOCAL_RANK": of_slurm["SLURM_LOCALID"],
        "MASTER_ADDR": _first(of_slurm["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": str(_port(of_slurm["SLURM_JOB_ID"], of_slurm["SLURM_STEP_ID"])),
        "OMP_NUM_THREADS": of_slurm.get("SLURM_CPUS_PER_TASK", "1"),  # Slurm's default
    }
    if of_slurm["SLURM_STEP_NUM_NODES"] == "1":
        found["LOCAL_WORLD_SIZE"] = count
    return found


def _first(machines: str) -> str:
    """The first machine of a list such as `gpu[07-09,12],login`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", machines)
    assert first
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0])


def _port(job: str, step: str) -> int:
    """The port for the processes of a step, another for the next one."""
    return PORTS[(int(job) * 31 + int(step)) % len(PORTS)]
