"""Runs commands that end, with everything that they have started, when this process is
interrupted."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from labjobs.privacy import scrub


def run(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Run a command in a folder; return its exit status and what it said on stderr, scrubbed.

    Raises OSError if there is no such command.
    """
    with TemporaryFile() as said:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
        )
        try:
            status = process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # nothing that it has done is needed
            process.wait()
            raise
        said.seek(0)
        return status, scrub(said.read().decode(errors="replace"))
