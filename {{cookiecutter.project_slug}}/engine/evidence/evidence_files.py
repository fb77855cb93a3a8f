"""Files that a job depends on: those that comments or constants name.

# depends: kernels/*.cu, config.yaml
"""

import re
from collections.abc import Iterator
from pathlib import Path

from engine.evidence.canonical import short

DEPENDS = re.compile(r"#\s*depends:\s*(.+)")
LARGEST = 1_000_000
"""Bytes of a file above which a constant that is its name does not make it evidence: data."""


class Files:
    """Files below the project's folder, read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hashes: dict[str, str] = {}

    def hash(self, name: str) -> str:
        """Return the hash of a file's bytes; of a missing one, nothing."""
        if name not in self._hashes:
            try:
                self._hashes[name] = short((self._folder / name).read_bytes())
            except OSError:
                self._hashes[name] = ""
        return self._hashes[name]

    def named(self, text: str) -> str:
        """Return the name of the file that a constant names; nothing if it names none."""
        if not 2 < len(text) < 200 or "." not in text or text.startswith(("/", "..")):
            return ""
        try:
            file = self._folder / text
            small = file.is_file() and file.stat().st_size <= LARGEST
            return file.relative_to(self._folder).as_posix() if small else ""
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
