"""Runs scripts of projects in forks of a process that has imported the slow libraries already.

A short job takes half the time so, and so does its courier, which is a fork as well. Tests that
kill jobs, that give them another environment or that look at how Python starts begin with a new
Python instead.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NoReturn

SLOW = ("torch", "torch._dynamo")  # which making an optimizer imports

COURIER = ["-m", "engine.tracking.courier"]
SLOW_FOR_COURIERS = ("mlflow.store.tracking.sqlalchemy_store", "mlflow.store.tracking.rest_store")


class Forks:
    """A process that forks for one script at a time, with the environment that it has itself."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.free = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.terminate)

    def run(self, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Return what `python <words>` printed in a folder, and its exit status."""
        with TemporaryDirectory() as printed:
            out, err = Path(printed, "out"), Path(printed, "err")
            request = {"words": words, "folder": str(folder), "out": str(out), "err": str(err)}
            print(json.dumps(request), file=self._process.stdin, flush=True)
            assert self._process.stdout
            status = int(self._process.stdout.readline())
            args = [sys.executable, *words]
            return subprocess.CompletedProcess(args, status, out.read_text(), err.read_text())


@cache
def forks(env: frozenset[tuple[str, str]]) -> Forks:
    """Return the process for an environment, which is started once."""
    return Forks(dict(env))


def serve() -> None:
    """Fork for each request, and print the exit status; a fork returns to run its script."""
    for request in sys.stdin:
        child = os.fork()
        if not child:
            become(**json.loads(request))
            return
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)


def become(words: Sequence[str], folder: str, out: str, err: str) -> None:
    """Make this process what `python <words>` would be, up to the script's first line."""
    os.setsid()
    os.chdir(folder)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY | os.O_CREAT),
        (2, err, os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    script = os.path.abspath(words[0])
    sys.argv = [*words]
    sys.path[0] = os.path.dirname(script)
    main = ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main


class Popen(subprocess.Popen):
    """Starts processes, couriers as forks of this one."""

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        names = [*signature(super()._execute_child).parameters][1:]
        given = dict(zip(names, others, strict=True))
        if [*args][1:3] != COURIER:
            super()._execute_child(args, *others)
            return
        self.pid = os.fork()
        if not self.pid:
            deliver(
                args[3], given["cwd"], [given[end] for end in ("p2cread", "c2pwrite", "errwrite")]
            )
        self._child_created = True
        for end in ("p2cread", "c2pwrite"):
            os.close(given[end])


def deliver(parent: str, folder: str, ends: Sequence[int]) -> NoReturn:
    """Be the courier of a job, with these files as its input, output and errors."""
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, end in enumerate(ends):
            os.dup2(end, number)
        os.closerange(3, 1024)
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        sys.stdin = open(0)  # noqa: SIM115  (as long as the process)
        sys.stderr = open(2, "w")  # noqa: SIM115
        sys.argv[1:] = [parent]
        from engine.tracking import courier

        os.nice(5)
        courier.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    subprocess.Popen = Popen
    for name in (*SLOW, *SLOW_FOR_COURIERS):
        __import__(name)
    serve()
    main = sys.modules["__main__"]
    if main.__file__ != __file__:
        exec(compile(Path(str(main.__file__)).read_bytes(), str(main.__file__), "exec"), vars(main))
