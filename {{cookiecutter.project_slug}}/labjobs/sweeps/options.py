"""The flags of run.sh."""

import shutil
from dataclasses import dataclass
from typing import Literal

from labjobs.cli.flags import option
from labjobs.cli.parser import parse
from labjobs.errors import SettingsError
from labjobs.settings import setting


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What to do with the jobs of the grid that are not finished."""

    # Without starting any
    list: bool = False
    """Print each job: id, state, settings."""

    json: bool = False
    """With --list: print the jobs as JSON."""

    watch: bool = False
    """Keep printing the progress of the jobs."""

    # Which jobs
    only: Literal["failed", "interrupted", "pending", "unsent"] | None = None
    """Run only jobs in this state."""

    redo_stale: bool = False
    """Run jobs again that were finished or begun with other code or data."""

    retries: int = setting(0, at_least=0)
    """Retry a job up to this many times if it ran out of memory or was killed."""

    fail_fast: bool = False
    """Stop all jobs when one fails."""

    # Where
    gpus: str | None = None
    """GPUs by nvidia-smi's numbers, such as 0,2. none: CUDA_VISIBLE_DEVICES, else all."""

    per_gpu: int | None = setting(None, at_least=1)
    """Jobs at once on each GPU, or on the CPU. none: one on a GPU; on the CPU one per core, fewer
    where memory is short."""

    gpus_per_job: int = setting(1, at_least=1)
    """GPUs for each job, which trains with a process on each of them. `python jobs.py docs
    several-gpus` says when not to."""

    slurm: bool = False
    """Submit the jobs to Slurm; words after -- go to sbatch."""

    at_most: int | None = setting(None, at_least=1)
    """With --slurm: run at most this many jobs at once."""


@dataclass(frozen=True)
class Nothing:
    """No other flags."""


HERE = ("gpus", "per_gpu", "retries", "fail_fast")
"""Flags of a sweep on this machine."""

OF_RUN_SH = ("--array", "-a", "--dependency", "-d", "--output", "-o", "--wrap")
"""Options of sbatch that cannot be given."""


def read(words: list[str]) -> tuple[Flags, list[str]]:
    """Return run.sh's flags, and the words after `--`, which are for sbatch. Raises SettingsError
    if they are wrong; `--help` ends the process.
    """
    cut = words.index("--") if "--" in words else len(words)
    own, sbatch = words[:cut], words[cut + 1 :]
    try:
        flags, _ = parse(Flags, Nothing, own)
    except SettingsError as error:
        is_sbatchs = "--slurm" in own and "no such flag" in str(error)
        raise SettingsError(f"{error}{'; options of sbatch go after --' * is_sbatchs}") from None
    here = [option(name) for name in HERE if flags.slurm and getattr(flags, name)]
    refused = [word for word in sbatch if word.startswith(OF_RUN_SH)]
    wrong = {
        "--json: only with --list": flags.json and not flags.list,
        "--at-most: only with --slurm": flags.at_most and not flags.slurm,
        "--: only with --slurm": sbatch and not flags.slurm,
        f"{', '.join(here)}: not with --slurm": here,
        "--gpus-per-job: not with --per-gpu": flags.per_gpu and flags.gpus_per_job > 1,
        f"{', '.join(refused)}: run.sh sets this option of sbatch": refused,
        "--slurm: there is no sbatch on this machine": flags.slurm and not shutil.which("sbatch"),
    }
    for line in filter(wrong.get, wrong):
        raise SettingsError(line)
    return flags, sbatch
