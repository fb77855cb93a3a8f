"""The flags of run.sh."""

import argparse
from typing import Any

from labjobs.cli import parser
from labjobs.errors import SettingsError
from labjobs.sweeps import slurm
from labjobs.sweeps.plan import STARTED

NUMBER: dict[str, Any] = {"type": int, "metavar": "N"}
SWITCH: dict[str, Any] = {"action": "store_true"}
FLAGS: dict[str, dict[str, Any]] = {
    "--list": {"help": "print each job: id, state, settings; start nothing"} | SWITCH,
    "--json": {"help": "with --list: print the jobs as JSON"} | SWITCH,
    "--watch": {"help": "keep printing the progress of the jobs; start nothing"} | SWITCH,
    "--gpus": {
        "help": "GPUs by nvidia-smi's numbers (default: CUDA_VISIBLE_DEVICES, else all)",
        "metavar": "0,2",
    },
    "--per-gpu": {
        "help": "jobs at once on each GPU (default: 1), or on the CPU (default: one per core, "
        "fewer where memory is short)",
    }
    | NUMBER,
    "--gpus-per-job": {
        "help": "GPUs for each job, which trains with a process on each of them (default: 1); "
        "docs/several-gpus.md says when not to",
        "default": 1,
    }
    | NUMBER,
    "--retries": {
        "help": "retry a job up to N times if it ran out of memory or was killed (default: 0)",
        "default": 0,
    }
    | NUMBER,
    "--fail-fast": {"help": "stop all jobs when one fails"} | SWITCH,
    "--only": {
        "help": f"run only jobs in this state: {', '.join(STARTED)}",
        "choices": STARTED,
        "metavar": "STATE",
    },
    "--redo-stale": {"help": "run jobs again that were finished or begun with other code or data"}
    | SWITCH,
    "--slurm": {"help": "submit the jobs to Slurm; words after -- go to sbatch"} | SWITCH,
    "--at-most": {"help": "with --slurm: run at most N jobs at once"} | NUMBER,
    "--per-task": {
        "help": "with --slurm: run up to N jobs one after another in each task, so that they start "
        "faster (default: 1)",
    }
    | NUMBER,
}


OF_RUN_SH = {
    ("--array", "-a"): "run.sh makes the arrays; --at-most N limits them",
    ("--dependency", "-d"): "run.sh sets it, so that jobs wait for their inputs",
    ("--output", "-o"): "run.sh sets it; what a job prints is in output.txt in its folder",
    ("--wrap",): "run.sh sets it",
}
"""Options of sbatch that cannot be given, and why."""


def read(words: list[str]) -> argparse.Namespace:
    """Return run.sh's flags, with the words after `--` as `sbatch`. Raises SettingsError if they
    are wrong; `--help` ends the process.
    """
    cut = words.index("--") if "--" in words else len(words)
    reader = parser.Parser(
        prog="run.sh",
        usage="bash run.sh [flags]",
        description="Runs the jobs of the grid that are not finished.",
        allow_abbrev=False,
    )
    for flag, about in FLAGS.items():
        reader.add_argument(flag, **about)
    flags, unknown = reader.parse_known_args(words[:cut])
    if unknown:
        sbatch = "; options of sbatch go after --" if flags.slurm else ""
        raise SettingsError(parser.unknown_flag(unknown[0], list(FLAGS)) + sbatch)
    flags.sbatch = words[cut + 1 :]
    _check_numbers(flags)
    _check_together(flags)
    return flags


def _check_numbers(flags: argparse.Namespace) -> None:
    for name, least in (
        ("per_gpu", 1),
        ("gpus_per_job", 1),
        ("retries", 0),
        ("at_most", 1),
        ("per_task", 1),
    ):
        value = getattr(flags, name)
        if value is not None and value < least:
            raise SettingsError(f"--{name.replace('_', '-')} {value}: must be {least} or more")


def _check_together(flags: argparse.Namespace) -> None:
    if flags.json and not flags.list:
        raise SettingsError("--json: only with --list")
    of_slurm = {"--at-most": flags.at_most, "--per-task": flags.per_task, "--": flags.sbatch}
    for flag, given in of_slurm.items() if not flags.slurm else ():
        if given:
            raise SettingsError(f"{flag}: only with --slurm")
    elsewhere = {
        "--gpus": flags.gpus,
        "--per-gpu": flags.per_gpu,
        "--retries": flags.retries,
        "--fail-fast": flags.fail_fast,
    }
    for flag, given in elsewhere.items() if flags.slurm else ():
        if given:
            raise SettingsError(f"{flag}: not with --slurm")
    if flags.per_gpu and flags.gpus_per_job > 1:
        raise SettingsError("--gpus-per-job: not with --per-gpu")
    for options, why in OF_RUN_SH.items():
        if any(word.startswith(options) for word in flags.sbatch):
            raise SettingsError(f"{options[0]}: {why}")
    if flags.slurm:
        slurm.require()
