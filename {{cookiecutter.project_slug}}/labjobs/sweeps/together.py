"""Starts a job of several processes, each with its own GPU, and becomes the first of them.

    python -m labjobs.sweeps.together 2 run.py --lr 1e-3

So signals reach process 0, which also determines the exit status; the other processes end when it
does. The environment variables are those that torchrun would set.
"""

import os
import socket
import subprocess
import sys

from labjobs.paths import PROJECT

HOST = "127.0.0.1"


def main(count: int, words: list[str]) -> None:
    """Start the processes; does not return."""
    command = [sys.executable, *words]
    common = {"MASTER_ADDR": HOST, "MASTER_PORT": str(_free_port())}
    common |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    os.chdir(PROJECT)
    for number in reversed(range(count)):
        env = os.environ | common | {"RANK": str(number), "LOCAL_RANK": str(number)}
        if number == 0:
            os.execve(command[0], command, env)
        subprocess.Popen(command, env=env, close_fds=False)  # they hold the GPUs' locks too


def _free_port() -> int:
    with socket.socket() as made:
        made.bind((HOST, 0))
        return int(made.getsockname()[1])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
