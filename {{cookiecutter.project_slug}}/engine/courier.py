"""The courier: a process of its own that carries a job's journal to the tracking store.

It alone imports MLflow. In the training process MLflow's threads would fight the loop for the
interpreter's lock, and its import would nearly double the start. So the job starts the courier
before it imports torch, hands it the job's folder on a pipe, and closes the pipe at the end; when
the job is killed the kernel closes it.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from engine import journal
from engine.settings import PROJECT
from engine.store import Run, prepare

INTERVAL = 1.0
"""Seconds between two looks at the journal."""

PATIENCE = 120.0
"""Seconds that a job waits, at its end, for the store to take the rest."""


class Courier:
    """The job's side: starts the process, gives it its work, hears how it went."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (open as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine.courier"],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C at the terminal stops the job, not its courier
            text=True,
        )

    def carry(self, folder: Path) -> None:
        """Begin to carry the journal in a job's folder."""
        with suppress(BrokenPipeError):  # it has ended already; `finish` says why
            print(folder, file=self._process.stdin, flush=True)

    def finish(self) -> str:
        """Wait until all is delivered; what went wrong, as one line, empty if nothing did."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return f"no answer within {PATIENCE:.0f} s"
        self._errors.seek(0)
        said = self._errors.read().strip() or f"the courier ended with status {code}"
        return said.splitlines()[-1] if code else ""


def main() -> None:
    """Carry one journal, named by the pipe's first line, until it ends or the pipe is closed."""
    prepare()
    folder = Path(sys.stdin.readline().rstrip("\n"))
    if folder == Path():
        return  # the job ended before it began
    job = json.loads((folder / "settings.json").read_text())
    run = Run(job["id"], job["name"], job["settings"], {"job_folder": str(folder)})
    offset, status = 0, ""
    while not status:
        closed = select.select([sys.stdin], [], [], INTERVAL)[0]
        lines, offset = journal.read(folder, offset)
        run.log(lines)
        ends = [line["end"] for line in lines if "end" in line]
        status = ends[0] if ends else "KILLED" if closed else ""
    run.end(status)


if __name__ == "__main__":
    os.nice(5)  # training goes first
    main()
