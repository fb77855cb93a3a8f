"""Small disks for the fault tests: full or read-only.

They are mounts that only the commands started in them see, which any user may make where there are
user namespaces.
"""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = 4096
"""Bytes of the smallest disk."""


class Disk:
    """A small file system, seen only by commands that begin with `within`."""

    def __init__(self, at: Path, size: str) -> None:
        at.mkdir()
        mount = f'mount -t tmpfs -o size={size} small "$0" && echo made && exec cat'
        self._keeper = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", mount, str(at)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout and self._keeper.stderr
        made = self._keeper.stdout.readline()
        assert made, f"`unshare -rm` has to work for these tests: {self._keeper.stderr.read()}"
        self.at = at
        self.seen = Path(f"/proc/{self._keeper.pid}/root{at}")
        into = (f"--target={self._keeper.pid}", "--user", "--mount", "--preserve-credentials")
        self.within = ("nsenter", *into, "env", f"--chdir={at.parent}")

    def remount(self, options: str) -> None:
        """Change how the file system is mounted, such as its size."""
        command = [*self.within, "mount", "-o", f"remount,{options}", str(self.at)]
        subprocess.run(command, check=True)

    def close(self) -> None:
        """Let go of it: the last command that has it takes it away."""
        self._keeper.communicate()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Within, no file of this process grows above a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
