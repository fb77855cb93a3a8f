"""`gpu`: what this machine's driver, torch and GPUs can do, in seconds, before a night is lost.

torch is asked in another process, whose answers are read as they come. So a GPU that hangs costs
the lines that are missing and no more; and CUDA does not start in this process, which --check
forks.
"""

import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import NamedTuple

from labjobs import exit_status
from labjobs.commands.inventory import Project
from labjobs.files import PROJECT, json_of
from labjobs.sweeps import gpus

OK, NOT = "ok   ", "not  "
SECONDS = 60  # after which torch will not answer any more


class Line(NamedTuple):
    """What was found of something, and whether it works; if not, with what to do."""

    name: str
    found: str
    works: bool = True

    def __str__(self) -> str:
        return f"{OK if self.works else NOT}{self.name}: {self.found}"


def print_gpu(_: Project, given: Namespace) -> int:
    """Print what there is; the exit status is 0 if a GPU is used, and nothing is wrong with it."""
    lines = []
    for line in found():
        lines.append(line)
        if not given.json:
            print(line, flush=True)
    if given.json:
        print(json_of([line._asdict() for line in lines]))
    return exit_status.DONE if all(line.works for line in lines) else exit_status.FAILED


def found() -> Iterator[Line]:
    """Yield what is known of the driver, of torch, and of each GPU that a job would see."""
    table = gpus.nvidia_smi()
    driver, cuda = (re.search(rf"{name} Version: ([\d.]+)", table) for name in ("Driver", "CUDA"))
    known = f"{driver[1]}, for CUDA {cuda[1]} at most" if driver and cuda else "unknown"
    missing = ", since nvidia-smi is not there or fails; a sweep finds no GPUs without it"
    yield Line("driver", known + missing * (not table), bool(table))
    yield from _from_torch()
    for gpu in gpus.named(None) if table else ():
        use = gpus.usage(gpu)
        yield Line("use", f"{gpu} {use or 'is free'}", not use)


def _from_torch() -> Iterator[Line]:
    """What torch answers, and why it does not answer more."""
    command = [sys.executable, "-m", "labjobs.commands.gpu"]
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # it ends with the process
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=PROJECT, env=env, stdout=pipe, stderr=pipe)
    try:
        said, errors = process.communicate(timeout=SECONDS)
        why = f"torch ended with status {process.returncode}" if process.returncode else ""
    except subprocess.TimeoutExpired as error:
        process.kill()  # and not waited for: it may be stuck in the driver
        said, errors = error.output or b"", b""
        why = f"no answer within {SECONDS} s after what stands above"
    for line in said.splitlines():
        yield Line(*json.loads(line))
    if why:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        yield Line("torch", ": ".join([why, *last]), False)


if __name__ == "__main__":
    from labjobs import devices  # torch, which takes longer than all else

    for answer in devices.answers():
        print(json.dumps(answer), flush=True)
