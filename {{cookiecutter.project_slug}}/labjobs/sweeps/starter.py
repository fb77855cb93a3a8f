"""Starts a sweep's programs, from its copy of the code: its jobs, and their check.

They are forks of two servers, which import libraries once for all of them: one server, for jobs,
imports torch and what the check has imported, the other, for couriers, MLflow. A job asks for its
courier itself, through a socket that it inherits. Without a server, programs start cold.
"""

import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from signal import Signals
from types import ModuleType

from labjobs import exit_status, files, fork_server, layout, machine
from labjobs.cli.flags import option
from labjobs.errors import BROKEN_GPU, SettingsError
from labjobs.exit_status import KILLED
from labjobs.files import CODE, ENGINE, PROJECT
from labjobs.fork_server import LOST, Process, Server
from labjobs.job import identity, provenance
from labjobs.job.terminal import leave
from labjobs.sources import described, unread
from labjobs.sweeps import containers, grid
from labjobs.sweeps.gpus import Gpu
from labjobs.sweeps.grid import Entry
from labjobs.tracking import courier
from labjobs.tracking.mlflow_store import ENVIRONMENT

SLOW = ("torch", "torch._dynamo")
"""What the check of the jobs takes longest to import; the second is imported for an optimizer."""


class Starter:
    """Starts programs from a sweep's copy of the code; `at_once` jobs share the cores. Everything
    that is started also holds the files of `keep`. Jobs of several `processes` start cold, as all
    do without `warm`, and those that run in a `container`."""

    def __init__(
        self,
        code: Path,
        at_once: int,
        keep: Sequence[int] = (),
        processes: int = 1,
        warm: bool = True,
        container: str = "",
    ) -> None:
        self._code, self._keep, self._processes = code, [*keep], processes
        self._container = container
        self._couriers: Server | None = None
        self._jobs: Server | None = None
        # Libraries (OpenMP's, OpenBLAS, MKL) set their number of threads when they are loaded,
        # before run.py could set it, so it is set in the environment.
        threads = max(1, machine.cores() // (at_once * processes))
        self._env = os.environ | {
            "PROJECT_FOLDER": str(PROJECT),
            "JOBS_AT_ONCE": str(at_once * processes),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(threads),
        }
        self._env.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # so that a fork can use the GPU
        if warm and not container:
            env = ENVIRONMENT | self._env
            self._couriers = fork_server.serve(courier.MODULES, code, env, self._keep)
            if self._couriers:
                self._env[courier.SERVER] = str(self._couriers.fileno())
                self._keep.append(self._couriers.fileno())
            self._jobs = fork_server.serve(SLOW, code, self._env, self._keep)

    def job(self, words: Sequence[str], output: int, gpu: Gpu) -> Process:
        """Start a job, which holds the locks of its place. Raises OSError, or SettingsError if
        there is no image for its container."""
        server, folder = self._jobs, PROJECT
        command = [str(self._code / words[0]), *words[1:]]
        if self._processes > 1:
            server, folder = None, self._code
            command = ["-m", "labjobs.sweeps.gpus", str(self._processes), *command]
        python = [sys.executable]
        if self._container:
            python = containers.python(containers.digested(self._container), folder)
        env, keep = self._env | gpu.env, [*self._keep, *gpu.files]
        with open(os.devnull, "rb") as nothing:
            streams = (nothing.fileno(), output, output)
            return fork_server.start(
                server, command, folder, streams, env=env, keep=keep, python=python
            )

    def check(self, sweep: Path) -> int:
        """Check the jobs of a sweep, as `main` below does; returns its exit status. What it has
        imported, the server of the jobs imports too."""
        words = ("-m", "labjobs.sweeps.starter", str(sweep))
        status = LOST
        self._make_store()
        with open(os.devnull, "rb") as nothing:
            streams = (nothing.fileno(), 1, 2)
            while status == LOST:  # and so is the server; the next try starts cold
                check = fork_server.start(
                    self._jobs, words, self._code, streams, env=self._env, keep=self._keep
                )
                status = check.wait()
        if self._jobs and not status:
            fork_server.teach(self._jobs, files.read_json(sweep / layout.CHECKED)["modules"])
        return status

    def _make_store(self) -> None:
        """Have a courier without a job make the store, so that no job waits for it."""
        if self._couriers:
            words = ("-m", courier.__name__, str(os.getpid()), "0")
            with open(os.devnull, "r+b", buffering=0) as nothing:
                streams = (nothing.fileno(),) * 3
                fork_server.start(self._couriers, words, self._code, streams, env=self._env)


PAUSE = 0.05  # seconds between two checks of a job


class Running:
    """A job in its place, whose locks it holds while it runs. What it prints is kept in output.txt
    in the folder of its attempt; the last line is shown. Raises OSError, or SettingsError, if it
    cannot be started."""

    def __init__(self, attempt: Path, words: Sequence[str], starter: Starter, gpu: Gpu) -> None:
        self._label = f"job {attempt.parent.name} "
        self._output = attempt / layout.OUTPUT
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("a", encoding="utf-8") as output:
            print(f"started on {gpu.device}, {time.ctime()}", file=output, flush=True)
            self._begun = os.fstat(output.fileno()).st_mtime_ns
            self._process = starter.job(words, output.fileno(), gpu)
        self.send_signal = self._process.send_signal

    def status(self) -> int | None:
        """Return its exit status as a shell has it, 128 + n for signal n; None while it runs."""
        status = self._process.poll()
        if status == LOST:  # its folder may know more
            known = grid.ended(self._output.parent, since=self._begun)
            return KILLED if known is None else known
        return 128 - status if status is not None and status < 0 else status

    def failed_by(self, status: int) -> str:
        """Return what may have ended it other than a mistake in the code: `memory`, if there was
        too little, or `gpu`, if that is broken."""
        said = grid.last_line(self._output) if status == exit_status.FAILED else ""
        if status == KILLED or "out of memory" in said:
            return "memory"
        return "gpu" if re.search(BROKEN_GPU, said) else ""

    def ending(self, status: int) -> str:
        """Return the last line of its output; a line is added if it was killed or crashed."""
        line = grid.last_line(self._output)
        has_other_code = line.startswith(f"{self._label}is already running, with other ")
        if status == exit_status.ELSEWHERE and not has_other_code:
            return f"{self._label}is already running; its results will count here too"
        if not self._output.exists():
            return f"{self._label}{_ended(status)}: its folder was removed or moved while it ran"
        if not line.startswith(self._label):
            line = f"{self._label}{_ended(status)}: {line}"
            with suppress(OSError), self._output.open("a", encoding="utf-8") as output:  # disk full
                print(line, file=output)
        return line


def _ended(status: int) -> str:
    """How a program ended that has not said it itself."""
    with suppress(ValueError):
        return f"was killed by {Signals(status - 128).name}; its output ends"
    return f"ended with status {status}"


# Checks a sweep's jobs before any of them starts, in a process of its own, which imports torch.
#
# `python -m labjobs.sweeps.starter FOLDER` reads the jobs from `left.json`, names those that are
# wrong and exits with 2 if there are any. Otherwise it writes into `checked.json` whether all jobs
# run on the CPU, and the names of the modules that it has imported.


def main(folder: Path) -> int:
    """Check the jobs that are left of a sweep; returns the exit status."""
    machine.end_with_parent()
    os.chdir(PROJECT)
    left = files.read_json(folder / layout.LEFT)
    named = grid.entries(folder / "grid", left["flags"])
    try:
        on_cpu = _check([named[number - 1] for number in left["numbers"]], left["here"])
    except SettingsError as error:
        return leave(exit_status.WRONG, f"run.sh: {error}")
    checked = {"on_cpu": on_cpu, "modules": _imported_libraries()}
    files.write_json(folder / layout.CHECKED, checked)
    return exit_status.DONE


def _check(entries: list[Entry], here: bool) -> bool:
    """Check each job; returns whether all run on the CPU. Raises SettingsError."""
    scripts = {script: _imported(script) for script in {entry.script for entry in entries}}
    import torch

    from labjobs.training.loop import Job

    # Where a cluster's jobs are submitted there may be no GPU.
    device = None if here else torch.device("meta")
    kinds: set[str] = set()
    checked: set[tuple[object, ...]] = set()

    def act(entry: Entry) -> None:
        """Check a job, unless one that differs only in its seed was checked already."""
        entry.read()
        job = Job(entry.job, device)
        unseeded = identity.identity(entry.job.settings) | {"seed": None}
        alike = entry.script, str(unseeded), entry.job.runtime
        if alike not in checked:
            check = identity.read(entry.script).check
            getattr(scripts[entry.script], check)(job)
            if "length" in entry.drawn:  # of `breed`, whose next generation goes on from here
                job.check_end()
            checked.add(alike)
        kinds.add(job.device.type)

    grid.each(entries, act)
    scripts_settings = {type(entry.job.settings): entry.job.settings for entry in entries}
    for settings in scripts_settings.values():
        if names := unread(settings, _own_code())[0]:
            print(f"run.sh: no code reads {', '.join(map(option, names))}", flush=True)
    return kinds == {"cpu"}


def _own_code() -> list[Path]:
    """The project's Python files, but for those that only look at results, and tests."""
    left_out = {"plot.py", "jobs.py", "tests", "labjobs"}
    found = [CODE / path for path in provenance.paths() if path.parts[0] not in left_out]
    inside = (file for path in found if path.is_dir() for file in path.rglob("*.py"))
    return [*(path for path in found if path.suffix == ".py"), *inside]


def _imported(script: str) -> ModuleType:
    """Import a job script. Raises SettingsError if that fails."""
    try:
        return import_module(script)
    except Exception as error:
        text = f"{script}.py cannot be imported: {described(error)}; nothing was started"
        raise SettingsError(text) from error


def _imported_libraries() -> list[str]:
    """The modules that this process has imported, except the project's own."""
    found = []
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or CODE)
        if name != "__main__" and (file.is_relative_to(ENGINE) or not file.is_relative_to(CODE)):
            found.append(name)
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
