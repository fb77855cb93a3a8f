"""Starts a sweep's programs, from its copy of the code: jobs, their check, the store's preparation.

They are forks of two servers, which import libraries once for all of them: one server, for jobs,
imports the libraries of their scripts, the other, for couriers, imports MLflow. A job asks for its
courier itself, through a socket that it inherits. Without a server, programs start cold.
"""

import ast
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

from labjobs import exit_status, files, fork_server, layout, machine
from labjobs.cli.registries import parsed
from labjobs.errors import SettingsError, cause
from labjobs.files import CODE, ENGINE, PROJECT
from labjobs.fork_server import LOST, Process
from labjobs.job.identity import identity
from labjobs.job.terminal import leave
from labjobs.sources import fault
from labjobs.sweeps import gpus, grid
from labjobs.sweeps.grid import Entry, Row, Task
from labjobs.tracking import courier
from labjobs.tracking.mlflow_client import ENVIRONMENT

LATER = {"torch": ["torch._dynamo"]}
"""Modules that a library imports later, when it is used: torch does so for an optimizer."""


class Starter:
    """Starts programs from a sweep's copy of the code; `at_once` jobs share the cores.

    The cores are divided among the jobs, as threads. Libraries (OpenMP's, OpenBLAS, MKL) set their
    number of threads when they are loaded, before run.py could set it, so it is set in the
    environment. Everything that is started also holds the files of `keep`. A single job needs no
    servers, so it need not be `warm`. Jobs of several `processes` start cold.
    """

    def __init__(
        self,
        code: Path,
        scripts: Iterable[str],
        at_once: int,
        keep: Sequence[int] = (),
        warm: bool = True,
        processes: int = 1,
    ) -> None:
        self._code, self._inherited = code, [*keep]
        self._processes, self._at_once = processes, at_once * processes
        self._jobs: fork_server.Server | None = None
        self._couriers: fork_server.Server | None = None
        threads = max(1, machine.cores() // self._at_once)
        self._env = os.environ | {"PROJECT_FOLDER": str(PROJECT)}
        self._env["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or str(threads)
        self._env.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # so that a fork can use the GPU
        if warm:
            self._serve(scripts)

    def _serve(self, scripts: Iterable[str]) -> None:
        """Start the servers, if the system supports them."""
        env, code = ENVIRONMENT | self._env, self._code
        self._couriers = fork_server.serve(courier.MODULES, code, env, self._inherited)
        if self._couriers:
            self._env[courier.SERVER] = str(self._couriers.socket.fileno())
            self._inherited.append(self._couriers.socket.fileno())
        self._jobs = fork_server.serve(self._libraries(scripts), code, self._env, self._inherited)

    def job(
        self, words: Sequence[str], output: int, env: Mapping[str, str], keep: Sequence[int]
    ) -> Process:
        """Start a job, which holds the files of `keep`."""
        script, env = str(self._code / words[0]), {**env, "JOBS_AT_ONCE": str(self._at_once)}
        command, out = [script, *words[1:]], (output, output)
        if self._processes > 1:
            several = ["-m", "labjobs.sweeps.gpus", str(self._processes), *command]
            return self._start(None, several, self._code, out, env, keep)
        return self._start(self._jobs, command, PROJECT, out, env, keep)

    def check(self, sweep: str) -> int:
        """Check the jobs of a sweep; returns checking.py's exit status."""
        words = ("-m", "labjobs.sweeps.starter", sweep)
        status = fork_server.LOST
        while status == fork_server.LOST:  # and so is the server; the next try starts cold
            status = self._start(self._jobs, words, self._code, (1, 2)).wait()
        return status

    def prepare_store(self, errors: int) -> Process:
        """Prepare the store once, because many jobs that open a new store at the same time would
        crash it."""
        words = ("-m", "labjobs.tracking.mlflow_client")
        return self._start(self._couriers, words, self._code, (1, errors))

    def learn(self, modules: Iterable[str]) -> None:
        """Make the server of the jobs import further modules."""
        if self._jobs:
            self._jobs.learn(modules)

    def _start(
        self,
        server: fork_server.Server | None,
        words: Sequence[str],
        folder: Path,
        out: tuple[int, int],
        env: Mapping[str, str] = {},
        keep: Sequence[int] = (),
    ) -> Process:
        """Start `python <words>`."""
        with open(os.devnull) as nothing:
            return fork_server.start(
                server,
                words,
                folder,
                (nothing.fileno(), *out),
                env={**self._env, **env},
                keep=[*self._inherited, *keep],
            )

    def _libraries(self, scripts: Iterable[str]) -> list[str]:
        """The modules that the scripts import at their top and that do not belong to the
        project."""
        names = {name: None for script in scripts for name in _imported(self._code / script)}
        found = [name for name in names if not self._is_the_projects(name)]
        return found + [each for name in found for each in LATER.get(name, ())]

    def _is_the_projects(self, module: str) -> bool:
        top = module.split(".")[0]
        return top != "labjobs" and (
            (self._code / top).is_dir() or (self._code / f"{top}.py").is_file()
        )


def _imported(script: Path) -> Iterator[str]:
    for statement in parsed(script).body:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module


# A job of a sweep while it runs: started, asked to stop, tried again.
#
# What it prints is kept in output.txt in its folder; the last line is shown.

PAUSE = 0.05
"""Seconds between two checks of a job."""

KILLED = 137
"""The exit status of a process that was killed, perhaps because memory ran out."""

TAIL = 65_536
"""Bytes at an output's end that surely hold its last line."""


class Running:
    """A job in its place, such as a GPU, whose locks it holds while it runs.

    Raises OSError if it cannot be started.
    """

    def __init__(
        self,
        task: Task,
        row: Row,
        place: str,
        starter: Starter,
        env: Mapping[str, str] = {},
        locks: Sequence[int] = (),
    ) -> None:
        self.task = task
        self._row, self._place, self._starter = row, place, starter
        self._env, self._locks = env, locks
        self._output = Path(row.folder) / layout.OUTPUT
        self._tries = 0
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again. Raises OSError."""
        self._tries += 1
        self._output.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("a") as output:
            print(f"started on {self._place}, {time.ctime()}", file=output, flush=True)
            self._begun = os.fstat(output.fileno()).st_mtime_ns
            self._process = self._starter.job(
                self.task.words, output.fileno(), self._env, keep=self._locks
            )

    def stop(self, signal: int) -> None:
        """Send it a signal."""
        self._process.send_signal(signal)

    def status(self) -> int | None:
        """Return its exit status as a shell reports it, 128 + n for signal n; None while it
        runs."""
        status = self._process.poll()
        if status == LOST:  # its folder may know more
            known = grid.ended(self._row.folder, since=self._begun)
            return KILLED if known is None else known
        return 128 - status if status is not None and status < 0 else status

    def may_do_better(self, status: int, retries: int) -> bool:
        """Whether it should be tried again, because it ran out of memory, which is not a mistake in
        the code."""
        memory = status == KILLED or (status == 1 and "out of memory" in self._last_line())
        return memory and self._tries <= retries

    def ending(self, status: int) -> str:
        """Return the last line of its output; a line is added if it was killed or crashed."""
        line = self._last_line()
        if not line.startswith(f"job {self._row.id} "):
            line = f"job {self._row.id} ended with status {status}: {line}"
            with suppress(OSError), self._output.open("a") as output:  # a full disk
                print(line, file=output)
        return line

    def _last_line(self) -> str:
        """The last line of its output; empty if somebody has removed that."""
        with suppress(OSError), self._output.open("rb") as file:
            file.seek(max(0, self._output.stat().st_size - TAIL))
            return file.read().decode(errors="replace").rstrip("\n").rpartition("\n")[2]
        return ""


# Checks a sweep's jobs before any of them starts, in a process of its own, which imports torch.
#
# `python -m labjobs.sweeps.starter FOLDER` reads the jobs from `left.json`, names those that are
# wrong and exits with 2 if there are any. Otherwise it writes into `checked.json` how many jobs can
# run on the CPU at once, and the names of the modules that it has imported.


def main(folder: Path) -> int:
    """Check the jobs that are left of a sweep; returns the exit status."""
    _end_with_parent()
    os.chdir(PROJECT)
    left = files.read_json(folder / layout.LEFT)
    named = grid.entries(folder / "grid")
    entries = [named[number - 1] for number in left["numbers"]]
    for entry in entries:
        entry.read()
    try:
        at_once = _check(entries, len(named), on_slurm=left["on_slurm"])
    except SettingsError as error:
        return leave(exit_status.WRONG, f"run.sh: {error}")
    checked = {"at_once": at_once, "modules": _libraries()}
    files.write_json(folder / layout.CHECKED, checked)
    return 0


def _check(entries: list[Entry], count: int, on_slurm: bool) -> int:
    """Check each job; returns how many can run on the CPU at once. Raises SettingsError."""
    modules = {script: _imported_project(script) for script in {entry.script for entry in entries}}
    import torch

    from labjobs.training.loop import Job

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
        at_once.append(gpus.at_once(job.device.type, runtime.threads))

    grid.each(entries, act, of=count)
    return min(at_once)


def _imported_project(script: str) -> ModuleType:
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
    found = []
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or CODE)
        if name != "__main__" and (file.is_relative_to(ENGINE) or not file.is_relative_to(CODE)):
            found.append(name)
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
