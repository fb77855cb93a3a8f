"""Rewrites the imports of a project whose engine was the folder `engine/`, after `cruft update`,
and puts the records of its jobs where they are today.

    python scripts/move_project.py PROJECT

From then on its files import from the package `labjobs`. Only lines of imports change, the names
that stand for them, and the line of run.sh that finds the shell part; `git diff` shows them. No job
may run meanwhile.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "{{cookiecutter.project_slug}}"))

from labjobs.files import read_json, read_record, write_record

RENAMED = {
    "command": ("jobs_command", r"\bcommand\.run\([^)]*\)", "jobs_command()"),
    "kept": ("best_weights", r"\bkept\.best\(", "best_weights("),
    "limits": ("", r"\blimits\.of_(curves|intervals)\(", r"figures.limit_to_\1("),
    "figures": ("figures", r"\bfigures\.limit\(", "figures.limit_to_curves("),
    "whole": ("underlying", r"(?<![.\w])whole\(", "underlying("),
    "fetch": ("examples_at", r"(?<![.\w])fetch\(", "examples_at("),
}
"""Names that students could import: what they are called now, and how each use changes."""

USES = {
    r"\bshown\.results\(": "shown.samples(",
    r"(\bplots\.ranking\(\w+, \w+), \w+\.metric": r"\1",
    r"\bfigures\.legend\(fig, shown\.repeats\)": "figures.legend(fig, shown.labels)",
    r"\{shown\.difference\}": "{shown.told_apart(RANKED)}",
}
"""What is called otherwise now in plot.py."""

IMPORT = re.compile(r"^( *)from engine(\.[\w.]+)? import (\([^)]*\)|[^\n#]+)(.*)$", re.MULTILINE)

OLD_SOURCE = 'source "$(dirname "$0")/engine/sweeps/sweep.sh"'
NEW_SOURCE = """CDPATH='' cd -- "$(dirname -- "$0")" || exit 1
shell=$(PATH="${VIRTUAL_ENV:-.venv}/bin:$PATH" "${PYTHON:-python}" -m labjobs.sweeps) || exit 1
# shellcheck source=/dev/null
. "$shell" # job, search, sweep"""


def names_in(found: re.Match[str]) -> list[str]:
    """Return the names that an import lists."""
    return [name.strip() for name in found[3].strip("()\n ").split(",") if name.strip()]


def moved(found: re.Match[str]) -> str:
    """Return an import from `engine` as one from `labjobs`."""
    doors = {".cli": "labjobs.settings", ".results": "labjobs.results"}
    now = [RENAMED.get(name, (name,))[0] for name in names_in(found)]
    door = doors.get(found[2], "labjobs")
    return f"{found[1]}from {door} import {', '.join(filter(None, now))}{found[4]}"


def rewritten(text: str) -> str:
    """Return a file's text with its imports, and what they are used for, as they are now."""
    imported = {name for found in IMPORT.finditer(text) for name in names_in(found)}
    text = IMPORT.sub(moved, text).replace(OLD_SOURCE, NEW_SOURCE)
    for name in imported & RENAMED.keys():
        _, use, now = RENAMED[name]
        text = re.sub(use, now, text)
    for use, now in USES.items():
        text = re.sub(use, now, text)
    return text


GATHERED = {
    "spec.json": ("settings.json", ()),
    "split.json": ("settings.json", ("split", "examples")),
    "code.json": ("settings.json", ("digest",)),
    "trained.json": (
        "outcome.json",
        ("steps", "steps_per_epoch", "early", "read_length", "goes_on"),
    ),
    "cost.json": ("sent.json", ("id", "journal", "processes")),
}
"""Records that an attempt had: which record has that now, and what of it; the spec as a whole."""


def gather(attempt: Path) -> None:
    """Put the small records of an attempt into those that have their content now."""
    for old, (name, kept) in GATHERED.items():
        if not (found := read_json(attempt / old)):
            continue
        about = {key: found[key] for key in kept if key in found} if kept else {"spec": found}
        if "digest" in about:
            about = {"code": about["digest"]}
        record = read_record(attempt / name)
        if name == "sent.json" and record.get("journal") != found["journal"]:
            record = {"schema": 1, "lines": 0}  # nothing was sent yet
        if record:
            write_record(attempt / name, record | about)
            (attempt / old).unlink()


def main() -> int:
    """Rewrite the files of the project, and its jobs' records; returns the exit status."""
    if len(sys.argv) != 2 or not Path(sys.argv[1], "settings.py").is_file():
        print("usage: python scripts/move_project.py PROJECT", file=sys.stderr)
        return 2
    project = Path(sys.argv[1])
    for path in [*project.glob("*.py"), *project.glob("*.sh")]:
        before = path.read_text()
        after = rewritten(before)
        if after != before:
            path.write_text(after)
            print(path)
    for settings in project.glob("runs/*/*/settings.json"):
        gather(settings.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
