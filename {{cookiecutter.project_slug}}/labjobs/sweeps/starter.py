"""Starts a sweep's programs, from its copy of the code: jobs, their check, the store's preparation.

They are forks of two servers, which import libraries once for all of them: one server, for jobs,
imports the libraries of their scripts, the other, for couriers, imports MLflow. A job asks for its
courier itself, through a socket that it inherits. Without a server, programs start cold.
"""

import ast
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from labjobs import machine
from labjobs.cli.registries import parsed
from labjobs.paths import PROJECT
from labjobs.tracking import courier
from labjobs.tracking.client import ENVIRONMENT
from labjobs.warm import client
from labjobs.warm.client import Process

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
        self._jobs: client.Server | None = None
        self._couriers: client.Server | None = None
        threads = max(1, machine.cores() // self._at_once)
        self._env = os.environ | {"PROJECT_FOLDER": str(PROJECT)}
        self._env["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or str(threads)
        self._env.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # so that a fork can use the GPU
        if warm:
            self._serve(scripts)

    def _serve(self, scripts: Iterable[str]) -> None:
        """Start the servers, if the system supports them."""
        env, code = ENVIRONMENT | self._env, self._code
        self._couriers = client.serve(courier.MODULES, code, env, self._inherited)
        if self._couriers:
            self._env[courier.SERVER] = str(self._couriers.socket.fileno())
            self._inherited.append(self._couriers.socket.fileno())
        self._jobs = client.serve(self._libraries(scripts), code, self._env, self._inherited)

    def job(
        self, words: Sequence[str], output: int, env: Mapping[str, str], keep: Sequence[int]
    ) -> Process:
        """Start a job, which holds the files of `keep`."""
        script, env = str(self._code / words[0]), {**env, "JOBS_AT_ONCE": str(self._at_once)}
        command, out = [script, *words[1:]], (output, output)
        if self._processes > 1:
            several = ["-m", "labjobs.sweeps.together", str(self._processes), *command]
            return self._start(None, several, self._code, out, env, keep)
        return self._start(self._jobs, command, PROJECT, out, env, keep)

    def check(self, sweep: str) -> int:
        """Check the jobs of a sweep; returns checking.py's exit status."""
        words = ("-m", "labjobs.sweeps.checking", sweep)
        status = client.LOST
        while status == client.LOST:  # and so is the server; the next try starts cold
            status = self._start(self._jobs, words, self._code, (1, 2)).wait()
        return status

    def prepare_store(self, errors: int) -> Process:
        """Prepare the store once, because many jobs that open a new store at the same time would
        crash it."""
        words = ("-m", "labjobs.tracking.experiment")
        return self._start(self._couriers, words, self._code, (1, errors))

    def learn(self, modules: Iterable[str]) -> None:
        """Make the server of the jobs import further modules."""
        if self._jobs:
            self._jobs.learn(modules)

    def _start(
        self,
        server: client.Server | None,
        words: Sequence[str],
        folder: Path,
        out: tuple[int, int],
        env: Mapping[str, str] = {},
        keep: Sequence[int] = (),
    ) -> Process:
        """Start `python <words>`."""
        with open(os.devnull) as nothing:
            return client.start(
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
