"""The purpose of a job that is not run for its own results: `jobs.py find` runs jobs to measure.

The purpose is in the environment, since it changes no result, and in a tag of the run, so that
figures and tables leave the job out. Such a job logs its measurements under the names below.
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
"""Metrics of a window of time (training/pace.py), with memory in bytes."""

LOADER = "loader"
"""The tag that says how the job reads its batches."""

SIGNAL, NOISE = "gradient_squared", "gradient_variance"
"""Metrics of a step (training/noise_scale.py), logged like training metrics."""


def purpose() -> str:
    """Return the purpose of this job; empty if it is run for its results."""
    return os.environ.get(VARIABLE, "")


def tags() -> dict[str, str]:
    """Return the tag of the job's run, if it has a purpose."""
    return {TAG: purpose()} if purpose() else {}
