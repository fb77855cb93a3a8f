"""Bring the examples up to date with the template.

    python scripts/merge.py           merge what the template has changed since the last time
    python scripts/merge.py --check   exit 1 if that is left to do, or a conflict is

An example is a folder in examples/. It holds those of the student's files that differ from the
template's, each of them whole, a README, and perhaps a file `.without`, which names those of the
template's files that its projects do not have. `merged`, beside this script, holds the template's
files as they were when last merged: they tell what the template has changed since then from what
makes the example (git merge-file). Where both change the same lines, conflict markers are left in
the example, to be resolved by hand. A new file in an example counts as made from today's template.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
TEMPLATE = REPOSITORY / "{{cookiecutter.project_slug}}"
EXAMPLES = REPOSITORY / "examples"
BASE = HERE / "merged"
ABOUT = "README.md"
"""What an example is, which has nothing of the template's page of that name."""


class Versions(NamedTuple):
    """The three versions of a file."""

    example: Path
    base: Path
    template: Path

    @property
    def problem(self) -> str:
        """What is left to do; empty if nothing is."""
        if not self.template.exists():
            return "the template has no such file any longer; delete it here and in scripts/merged"
        if "\n<<<<<<< " in self.example.read_text():
            return "conflicts with the template; edit it where it is marked"
        if not self.base.exists() or self.base.read_bytes() != self.template.read_bytes():
            return "the template's file has changed; type python scripts/merge.py"
        return ""


def names() -> list[str]:
    """Return the names of the examples."""
    return sorted(path.parent.name for path in EXAMPLES.glob("*/settings.py"))


def versions() -> Iterator[Versions]:
    """Yield the versions of each file of the examples that the template has, or once had."""
    for name in names():
        for file in sorted(path for path in (EXAMPLES / name).rglob("*") if path.is_file()):
            if file == EXAMPLES / name / ABOUT:
                continue
            relative = file.relative_to(EXAMPLES / name)
            found = Versions(file, BASE / relative, TEMPLATE / relative)
            if found.base.exists() or found.template.exists():
                yield found


def merge() -> None:
    """Merge the template's changes into the examples, and make today's template the base."""
    present = [each for each in versions() if each.template.exists()]
    for each in present:
        if each.base.exists():
            labels = [f"-L{label}" for label in Versions._fields]
            done = subprocess.run(["git", "merge-file", "--diff3", *labels, *map(str, each)])
            if done.returncode not in range(128):  # which is the number of conflicts
                sys.exit("merge.py: git merge-file failed")
    for each in present:
        each.base.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(each.template, each.base)


def main() -> int:
    """Merge, unless told to --check, and name what is left to do; returns the exit status."""
    if sys.argv[1:] not in ([], ["--check"]):
        print("Usage: python scripts/merge.py [--check]", file=sys.stderr)
        return 2
    if not sys.argv[1:]:
        merge()
    left = [each for each in versions() if each.problem]
    for each in left:
        print(f"{each.example.relative_to(REPOSITORY)}: {each.problem}", file=sys.stderr)
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
