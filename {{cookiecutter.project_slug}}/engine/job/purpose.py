"""What a job is run for, if not for its own results: `jobs.py find` runs some to measure something.

It is said in the environment, since it changes no result, and is a tag of the run, by which figures
and tables leave the job out. What such a job measures is in its journal under the names below.
"""

import os

VARIABLE = "JOB_PURPOSE"
TAG = "purpose"

FIND_LR = "find lr"
FIND_BATCH_SIZE = "find batch-size"
FIND_NOISE_SCALE = "find noise-scale"
FIND_WORKERS = "find workers"

RATE, EXAMPLES = "find_examples_per_second", "find_examples_per_step"
MEMORY, WORKERS = "find_peak_memory", "find_workers"
"""Metrics of a window of time (training/pace.py); memory is in bytes."""

LOADER = "loader"
"""The tag that says how the job reads its batches."""

SIGNAL, NOISE = "gradient_squared", "gradient_variance"
"""Metrics of a step (training/noise_scale.py), logged as those of training."""


def purpose() -> str:
    """Return what this job is run for; empty if for its results."""
    return os.environ.get(VARIABLE, "")


def tags() -> dict[str, str]:
    """Return the tag of its run."""
    return {TAG: purpose()} if purpose() else {}
