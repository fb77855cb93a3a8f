"""`export-model`: a job's network in a folder of its own, to use without the project."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from labjobs.errors import JobError
from labjobs.job.interruption import Interrupted, Interruption
from labjobs.job.terminal import leave
from labjobs.jobs.project import Project
from labjobs.paths import PROJECT

FOLDER = "exported"

ARGUMENTS: dict[str, dict[str, Any]] = {
    "--out": {
        "help": f"folder to make (default: {FOLDER}/JOB)",
        "metavar": "FOLDER",
        "type": Path,
    },
    "--onnx": {"help": "also write the network as ONNX", "action": "store_true"},
}
"""The arguments of the command besides a job, as in command.py."""


def export(project: Project, given: argparse.Namespace) -> int:
    """Export the network of a job; return the exit status.

    Raises SettingsError for wrong arguments, JobError if it cannot be exported.
    """
    job = project.one(given.job)
    if not job.folder:
        raise JobError(f"job {job.id}: {job.problem}")
    if not find_spec("safetensors"):  # the environment is older than this command
        raise JobError("safetensors is missing; README.md says how to install packages")
    out: Path = given.out or PROJECT / FOLDER / job.id
    interruption = Interruption()
    try:
        interruption.listen()
        interruption.hold()
        from labjobs.exporting import command  # with torch, which is slow to import

        what = job.id, type(job.folder.settings), job.folder.runs_root, out.expanduser().absolute()
        return command.export(command.Wanted(*what, given.onnx, given.json, interruption))
    except Interrupted as stop:
        return leave(128 + stop.number, f"jobs.py: export-model was interrupted {stop}")
