"""The arguments of `find lr`, `find batch-size`, `find noise-scale` and `find workers`."""

import argparse
from typing import Any

from labjobs.errors import SettingsError
from labjobs.job import purpose
from labjobs.jobs.project import Project

Arguments = dict[str, dict[str, Any]]
"""Arguments of a command, as in command.py."""

LARGEST = 1_000_000
"""The default of the largest batch size to try."""


def number(flag: str, about: str, default: int | None = None) -> Arguments:
    """Return a flag whose value is a whole number."""
    return {flag: {"help": about, "metavar": "N", "type": int, "default": default}}


def name(flag: str, about: str) -> Arguments:
    """Return a flag whose value is a name, by default none."""
    return {flag: {"help": about, "metavar": "NAME", "default": ""}}


SETTING = name("--setting", "name of the setting to find a value for, if not the usual one")
AGAIN: Arguments = {
    "--force": {"help": "measure again, even if there are results", "action": "store_true"}
}
UP_TO: Arguments = {
    "--up-to": {
        "help": "highest rate to test; the lowest is a millionth of it (default: 10)",
        "metavar": "RATE",
        "type": float,
        "default": 10.0,
    }
}

FINDERS: dict[str, tuple[str, Arguments]] = {
    purpose.FIND_LR: (
        "find a learning rate by range tests with the job's flags, which follow --",
        UP_TO
        | number("--steps", "optimizer steps of a test (default: 150)", 150)
        | number("--seeds", "tests, each with its own seed (default: 3)", 3)
        | name(
            "--metric",
            "the training loss, by its name in METRICS (default: the monitored metric if lower is "
            "better, or else the first such metric)",
        )
        | SETTING
        | AGAIN,
    ),
    purpose.FIND_BATCH_SIZE: (
        "find the largest batch size that fits, and the smallest that is nearly as fast as any",
        number("--smallest", "size to start with (default: 8)", 8)
        | number("--largest", f"size to end with (default: {LARGEST})", LARGEST)
        | SETTING
        | AGAIN,
    ),
    purpose.FIND_NOISE_SCALE: (
        "find the batch size above which more examples help little (the noise scale)",
        number("--steps", "optimizer steps to measure (default: 200)", 200) | SETTING | AGAIN,
    ),
    purpose.FIND_WORKERS: (
        "find how many processes should read the data with --loader workers",
        number("--largest", "most processes to try (default: the number of cores)") | AGAIN,
    ),
}
"""Help and arguments, by command."""

LEAST = {"steps": 20, "seeds": 1, "smallest": 1, "largest": 0}
"""The smallest allowed values."""


def find(project: Project, given: argparse.Namespace) -> int:
    """Run the jobs that measure, print the answer, and return the exit status.

    Raises SettingsError for wrong arguments.
    """
    for name, least in LEAST.items():
        value = getattr(given, name, None)
        if value is not None and value < least:
            raise SettingsError(f"--{name} {value}: must be at least {least}")
    if getattr(given, "smallest", 0) > (getattr(given, "largest", None) or LARGEST):
        raise SettingsError(f"--smallest {given.smallest}: must be at most --largest")
    if getattr(given, "up_to", 1.0) <= 0:
        raise SettingsError(f"--up-to {given.up_to:g}: must be above 0")
    from labjobs.finding import command  # with NumPy, which is slow to import

    return command.find(given, given.words, given.runs_root)
