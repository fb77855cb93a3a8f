"""Which of a job's processes this one is, according to torchrun's environment variables, or those
of srun translated into them (srun.py).

Source: docs.pytorch.org/docs/stable/elastic/run.html, Environment Variables.
"""

import os
from typing import Any, NamedTuple

from labjobs.errors import SettingsError, require
from labjobs.job.runtime import Runtime


class Rank(NamedTuple):
    """The `number` of a process, from 0, of `size`; `local` is its number on its machine."""

    number: int
    size: int
    local: int


ALONE = Rank(0, 1, 0)
"""The rank of a job's only process."""


def mine() -> Rank:
    """Return this process's rank; ALONE if the job has no other processes. Raises SettingsError if
    the variables contradict each other.

    Variables left over from a cluster's software, without the address where the processes meet, are
    ignored.
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
    if runtime.shard:
        _check_shard(runtime, size)


def _check_shard(runtime: Runtime, size: int) -> None:
    if size == 1:
        raise SettingsError(
            "--shard: needs several processes: torchrun --nproc-per-node 4 run.py --shard, or "
            "bash run.sh --gpus-per-job 4"
        )
    if runtime.compile not in ("auto", "off"):
        raise SettingsError(f"--shard: not with --compile {runtime.compile}; leave it out")
    if runtime.profile:
        raise SettingsError("--shard: not with --profile; profile a smaller network without it")
