"""How much of the engine's code the tests run: those of `bash test.sh`, or others.

    python scripts/measure_coverage.py > docs/coverage.md
    python scripts/measure_coverage.py tests/test_sweep.py -m "not root"

Each process that a test starts is measured, with its forks: the engine in a generated project is
the same as the template's, so both count as one. A process that is killed at once, as tests of
exact resume do, tells nothing. Sources: coverage.readthedocs.io, "Managing processes" and the
setting `[run] patch`.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coverage import Coverage

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from pages import machine, page  # noqa: E402

ENGINE = REPOSITORY / "{{cookiecutter.project_slug}}" / "labjobs"

FIRST_STAGE = ["-m", "not (full or alike or root or gpu)", "-n", "2", "--dist", "loadfile"]
FIRST_STAGE += ["--no-loadscope-reorder"]
"""What test.sh gives to pytest."""

SETTINGS = """[run]
branch = True
parallel = True
data_file = {folder}/data
include = */labjobs/*
omit =
    */site-packages/*
    */tests/*
patch = subprocess, fork, _exit, execv
disable_warnings = no-data-collected, module-not-imported, couldnt-parse, trace-changed

[report]
ignore_errors = True

[paths]
engine =
    {engine}
    */labjobs
"""

LITTLE = 0.75
"""Modules of which less is run are named."""

Summary = Mapping[str, int]
"""Coverage's numbers of a module."""


def measured(folder: Path, tests: list[str]) -> str:
    """Run tests; their data comes into a folder. Returns pytest's last line."""
    settings = folder / "coveragerc"
    settings.write_text(SETTINGS.format(folder=folder, engine=ENGINE))
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest"]
    with subprocess.Popen([*command, *tests], cwd=REPOSITORY, stdout=-1, text=True) as running:
        assert running.stdout
        last = ""
        for line in running.stdout:
            print(line, end="", file=sys.stderr)
            last = line.strip("= \n") or last
    return last


def summaries(folder: Path) -> dict[str, Summary]:
    """Return what was run of each module of the engine, by its path."""
    coverage = Coverage(config_file=str(folder / "coveragerc"))
    coverage.combine()
    modules = [str(path) for path in ENGINE.rglob("*.py")]
    coverage.get_data().touch_files(modules)
    coverage.json_report(outfile=str(folder / "report.json"))
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())["files"]
    return {
        str(path.relative_to(ENGINE)): entry["summary"]
        for name, entry in sorted(found.items())
        if (path := (REPOSITORY / name).resolve()).is_relative_to(ENGINE)
    }


def row(name: str, each: list[Summary]) -> list[str]:
    """Return a row of the table, of some modules together."""

    def total(key: str) -> int:
        return sum(summary[key] for summary in each)

    def part(run: str, of: str) -> str:
        return f"{total(run) / total(of):.0%}" if total(of) else ""

    lines, branches = total("num_statements"), total("num_branches")
    return [
        name,
        *(f"{lines:,}", part("covered_lines", "num_statements")),
        *(f"{branches:,}", part("covered_branches", "num_branches")),
    ]


def rate(summary: Summary) -> float:
    """Return the fraction of lines and branches of a module that is run."""
    run = summary["covered_lines"] + summary["covered_branches"]
    there = summary["num_statements"] + summary["num_branches"]
    return run / there if there else 1.0


def main() -> None:
    """Print the page."""
    with tempfile.TemporaryDirectory() as name:
        said = measured(Path(name), sys.argv[1:] or FIRST_STAGE)
        found = summaries(Path(name))
    packages: dict[str, list[Summary]] = {}
    for module, summary in found.items():
        package = module.rpartition("/")[0]
        packages.setdefault(f"`{package}`" if package else "modules of no package", []).append(
            summary
        )
    rows = [row(package, each) for package, each in sorted(packages.items())]
    rows.append(row("all", [*found.values()]))
    which = f"`pytest {' '.join(sys.argv[1:])}`" if sys.argv[1:] else "the tests of `bash test.sh`"
    about = (
        f"{machine('torch', 'coverage')}. Lines and branches of the engine that {which} run "
        f"({said}), in their own process and in those of the projects that they make, forks "
        "included; processes that are killed tell nothing. `bash test.sh --rest` is not counted. "
        "`python scripts/measure_coverage.py` makes this page."
    )
    page("Coverage of the engine", about, ["package", "lines", "run", "branches", "taken"], rows)
    print(f"\nModules of which less than {LITTLE:.0%} is run:\n")
    for module, summary in sorted(found.items(), key=lambda item: rate(item[1])):
        if rate(summary) < LITTLE:
            print(f"- `{module}`: {rate(summary):.0%}")


if __name__ == "__main__":
    main()
