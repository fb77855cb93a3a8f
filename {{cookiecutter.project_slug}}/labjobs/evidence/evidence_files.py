"""Files that a job depends on and Python does not open for it: those that comments name, and the
sources of other programs that constants name. Files that Python opens are recorded by
labjobs.job.reads.

# depends: kernels/*.cu, config.yaml
"""

import re
from collections.abc import Iterator
from pathlib import Path

from labjobs.evidence.canonical import short

DEPENDS = re.compile(r"#\s*depends:\s*(.+)")

SOURCES = (
    ".c",
    ".cc",
    ".cpp",
    ".cu",
    ".cuh",
    ".h",
    ".hpp",
    ".jl",
    ".py",
    ".pyx",
    ".r",
    ".rs",
    ".sh",
)
"""How the names of programs' sources end."""


class Files:
    """Files below the project's folder, read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hashes: dict[str, str] = {}

    def hash(self, name: str) -> str:
        """Return the hash of a file's bytes; empty if the file is missing."""
        if name not in self._hashes:
            try:
                self._hashes[name] = short((self._folder / name).read_bytes())
            except OSError:
                self._hashes[name] = ""
        return self._hashes[name]

    def named(self, text: str) -> str:
        """Return the name of the program source that a constant names; empty if it does not name
        one."""
        if len(text) > 200 or not text.lower().endswith(SOURCES) or text.startswith(("/", "..")):
            return ""
        try:
            file = self._folder / text
            return file.relative_to(self._folder).as_posix() if file.is_file() else ""
        except (OSError, ValueError):
            return ""

    def matching(self, pattern: str) -> list[str]:
        """Return the files that a pattern matches, by their names."""
        try:
            found = [file for file in self._folder.glob(pattern) if file.is_file()]
            return sorted(file.relative_to(self._folder).as_posix() for file in found)
        except (OSError, ValueError, NotImplementedError, IndexError):
            return []

    def text(self, name: str) -> str:
        """Return what is in a file."""
        try:
            return (self._folder / name).read_bytes().decode(errors="replace")
        except OSError:
            return ""


def patterns(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the line, counted from 0, and the pattern of each `# depends:` comment."""
    for number, line in enumerate(lines):
        if "depends:" in line and (found := DEPENDS.search(line)):
            for pattern in re.split(r"[,\s]+", found.group(1).strip()):
                yield number, pattern
