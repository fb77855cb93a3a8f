"""Faults in the engine that only a GPU shows whose host runs ahead, for test_schedules.py.

gpu_faults.txt has them, each as a change of one file below labjobs/:

=== name of the fault
rule: 5                  the rules of docs/devices.md that it breaks
found: test_gpu_start    what else finds it, if the schedules cannot
--- training/meters.py
lines, once in the file
+++
lines in their place
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_suffix(".txt")

FAULT = re.compile(
    r"=== (?P<name>.+)\nrule: (?P<rules>.+)\n(?:found: (?P<elsewhere>.+)\n)?"
    r"--- (?P<file>.+)\n(?P<old>(?:.*\n)+?)\+\+\+\n(?P<new>(?:.*\n)*?)(?=\n*\Z|\n===)"
)


@dataclass(frozen=True)
class Fault:
    """A change of the text of one file."""

    name: str
    rules: str
    elsewhere: str | None
    file: str
    old: str
    new: str

    def fits(self, project: Path) -> bool:
        return (project / "labjobs" / self.file).read_text().count(self.old) == 1

    def plant(self, project: Path) -> None:
        assert self.fits(project), self
        path = project / "labjobs" / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


def _read() -> Iterator[Fault]:
    text = FILE.read_text()
    for found in FAULT.finditer(text):
        yield Fault(**found.groupdict())


FAULTS = (*_read(),)
