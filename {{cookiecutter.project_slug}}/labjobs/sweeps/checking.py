"""Checks a sweep's jobs before any of them starts, in a process of its own, which imports torch.

`python -m labjobs.sweeps.checking FOLDER` reads the jobs from `left.json`, names those that are
wrong and exits with 2 if there are any. Otherwise it writes into `checked.json` how many jobs can
run on the CPU at once, and the names of the modules that it has imported.
"""

import ctypes
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from labjobs import files
from labjobs.errors import SettingsError, cause
from labjobs.job.identity import identity
from labjobs.job.terminal import leave
from labjobs.paths import CODE, PROJECT
from labjobs.sources import fault
from labjobs.sweeps import grid, slots
from labjobs.sweeps.grid import Entry


def main(folder: Path) -> int:
    """Check the jobs that are left of a sweep; returns the exit status."""
    _end_with_parent()
    os.chdir(PROJECT)
    left = files.read_json(folder / "left.json")
    named = grid.entries(folder / "grid")
    entries = [named[number - 1] for number in left["numbers"]]
    for entry in entries:
        entry.read()
    try:
        at_once = _check(entries, len(named), on_slurm=left["on_slurm"])
    except SettingsError as error:
        return leave(2, f"run.sh: {error}")
    checked = {"at_once": at_once, "modules": _libraries()}
    files.write_json(folder / "checked.json", checked)
    return 0


def _check(entries: list[Entry], count: int, on_slurm: bool) -> int:
    """Check each job; returns how many can run on the CPU at once. Raises SettingsError."""
    modules = {script: _imported(script) for script in {entry.script for entry in entries}}
    import torch

    from labjobs.training.job import Job

    # Where Slurm's jobs are submitted there may be no GPU, so each asks for its own by itself.
    device = torch.device("meta") if on_slurm else None
    at_once: list[int] = []
    checked: set[tuple[object, ...]] = set()

    def act(entry: Entry) -> None:
        """Check a job, unless one that differs only in its seed was checked already."""
        settings, runtime = entry.job.settings, entry.job.runtime
        job = Job(entry.job, device)
        unseeded = identity(settings) | {"seed": None}  # a job can run whatever its seed is
        alike = entry.script, str(unseeded), runtime
        if alike not in checked:
            getattr(modules[entry.script], entry.declared().check)(job)
            checked.add(alike)
        at_once.append(slots.at_once(job.device.type, runtime.threads))

    grid.each(entries, act, of=count)
    return min(at_once)


def _imported(script: str) -> ModuleType:
    """Import a job script. Raises SettingsError if that fails."""
    try:
        return import_module(script)
    except Exception as error:
        at = fault(error)
        place = f" ({at})" if at else ""
        text = f"{script}.py cannot be imported: {cause(error)}{place}; nothing was started"
        raise SettingsError(text) from error


def _end_with_parent() -> None:
    """Have this process killed when its parent ends, and so with the sweep; on Linux.

    Source: man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _libraries() -> list[str]:
    """The modules that this process has imported, except the project's own."""
    engine = CODE / "labjobs"
    found = []
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or CODE)
        if name != "__main__" and (file.is_relative_to(engine) or not file.is_relative_to(CODE)):
            found.append(name)
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
