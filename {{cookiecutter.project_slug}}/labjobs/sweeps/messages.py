"""Messages to a person who has started a sweep and gone home: NOTIFY is a shell command that gets
each on its standard input.
"""

import os
import subprocess
from threading import Thread
from typing import Any

from labjobs import exit_status
from labjobs.errors import first_line
from labjobs.files import PROJECT
from labjobs.job.terminal import leave
from labjobs.privacy import scrub

VARIABLE = "NOTIFY"

LONGEST = 60.0  # seconds that a message may take
WIDTH = 1000  # its characters, at most: ntfy takes 4,096 bytes


def send(line: str, wait: bool = False) -> None:
    """Send a line, if there is a command for it, in the background unless the sweep is over. What
    goes wrong is reported and stops nothing."""
    if command := os.environ.get(VARIABLE):
        text = f"{PROJECT.name}: {scrub(line)[:WIDTH]}\n"
        sending = Thread(target=_send, args=(command, text), daemon=True)
        sending.start()
        if wait:
            sending.join()


def _send(command: str, line: str) -> None:
    how: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    try:
        call = ["bash", "-c", command]
        done = subprocess.run(call, input=line, cwd=PROJECT, timeout=LONGEST, **how)
        problem = f"status {done.returncode}: {done.stderr.strip()}" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = first_line(error)
    if problem:
        leave(exit_status.FAILED, scrub(f"run.sh: {VARIABLE}: {' '.join(problem.split())}"))
