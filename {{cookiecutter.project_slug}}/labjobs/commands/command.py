"""The command line of jobs.py.

Exit status: 0 done, 1 not done, 2 wrong arguments, 3 results are not uploaded (only `sync`).
"""

import argparse
import os
import pydoc
import shutil
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from labjobs import exit_status
from labjobs.cli.parser import Parser, unknown_flag
from labjobs.commands.inventory import Project
from labjobs.errors import JobError, SettingsError, cause, did_you_mean
from labjobs.files import ENGINE, PROJECT, json_of, shown
from labjobs.job import identity, provenance, terminal
from labjobs.job.terminal import Interrupted, leave
from labjobs.tracking import mlflow_store

Arguments = dict[str, dict[str, Any]]
"""The arguments of a command by name, as argparse's add_argument takes them."""


class Command(NamedTuple):
    """A command: its help, its arguments, and the name of the function that runs it, in a module of
    this package, which is imported only then. It returns the exit status, if that can vary."""

    help: str
    takes: Arguments
    act: str

    @property
    def flags(self) -> Arguments:
        """All that it takes: --runs-root too, if it looks at jobs."""
        return self.takes | (RUNS_ROOT if self.act not in WITHOUT_JOBS else {})


WITHOUT_JOBS = ("command.print_docs", "command.eject", "gpu.print_gpu", "cluster.check")


def argument(name: str, about: str, metavar: str | None, **more: Any) -> Arguments:
    """Return an argument with a value: a flag, or a word that has to be given."""
    return {name: {"help": about, "metavar": metavar, **more}}


def switch(flag: str, about: str) -> Arguments:
    """Return a flag without a value."""
    return {flag: {"help": about, "action": "store_true"}}


def number(flag: str, about: str, default: int | None = None) -> Arguments:
    """Return a flag whose value is a whole number."""
    return argument(flag, about, "N", type=int, default=default)


def setting(usual: str) -> Arguments:
    """Return the flag that names the setting to find a value for."""
    return argument("--setting", f"name of the setting (default: {usual})", "NAME", default=usual)


JOB = argument("job", "a job's id, or the beginning of one", "JOB")
JOBS = argument("jobs", "a job's id, or the beginning of one", "JOB", nargs="+")
JSON = switch("--json", "print it as JSON")
DRY_RUN = switch("--dry-run", "only print what would be removed")
RUNS_ROOT = argument(
    "--runs-root", "folder with the jobs' folders (default: runs)", "PATH", type=Path
)
CONDITIONS = "print only jobs with such a setting, state or script: 'lr>1e-3', state=failed"
SIDE = "a job, an attempt of one, such as 1872aa/1f0a, or a group of jobs: lr=1e-3,model=mlp"
AGAINST = "finished jobs: one and its repeats, its attempts with one code, or a group: lr=1e-3"
DRAW = "how many jobs to draw (default: 3), or jobs, or a figure"
FIND = JSON | switch("--force", "measure again, even if there are results")

COMMANDS = {
    "list": Command(
        "print each job: id, state, when it ended, its validation results, settings",
        JSON
        | argument(
            "--by",
            "sort by a metric, the best first; one that METRICS lacks: the lowest first",
            "METRIC",
            default="",
        )
        | argument("--where", CONDITIONS, "CONDITION", action="append", default=[])
        | switch("--groups", "a line for jobs that differ in repeats alone")
        | switch("--test", "print test results, by which nothing is chosen"),
        "inventory.print_list",
    ),
    "show": Command(
        "print all there is to know about a job, and the command that runs it again",
        JOB | JSON,
        "inventory.print_details",
    ),
    "sync": Command(
        "upload what the tracking store or the Parquet files lack, and restore what differs there",
        JSON,
        "inventory.sync",
    ),
    "diff": Command(
        "print how two jobs, attempts or groups of jobs differ, and where their curves part",
        argument("a", SIDE, "A") | argument("b", "the other one", "B") | JSON,
        "diff.print_diff",
    ),
    "bisect": Command(
        "print which changed definitions make two attempts at a job differ, by running mixtures",
        argument("a", "an attempt: 1872aa/1f0a", "A") | argument("b", "the other one", "B") | JSON,
        "diff.bisect_attempts",
    ),
    "stale": Command(
        "print which definitions have changed since jobs used them, and which jobs these are",
        JSON | switch("--diff", "print the changes as a diff"),
        "staleness.print_stale",
    ),
    "why": Command(
        "print how a job's code reaches a definition, such as models.MLP",
        JOB | argument("definition", "its name in Python, such as models.MLP", None) | JSON,
        "staleness.print_why",
    ),
    "accept": Command(
        "accept that what has changed in the code changes no results: stale jobs count again",
        argument("--because", "the reason", "REASON", required=True)
        | switch("--verify", "first replay a job for each change")
        | JSON,
        "staleness.accept",
    ),
    "try": Command(
        "run repeats until it is clear whether changed code, or flags after --, are better",
        argument("--against", AGAINST, "JOB|GROUP", required=True)
        | argument("--metric", "validation result to compare", "METRIC", required=True)
        | number("--at-most", "how many repeats to run (default: one for each of those jobs)")
        | JSON,
        "gate.judge",
    ),
    "export-model": Command(
        "write a job's network into a folder, for use without the project, and check its outputs",
        JOB | JSON | argument("--out", "folder to make", "FOLDER", type=Path),
        "export.export",
    ),
    "repeat": Command(
        "run jobs again from their stored code, and print whether they give the same bits",
        argument("what", "a job, or a figure, for all its jobs", "JOB|FIGURE", nargs="+") | JSON,
        "replay.repeat_jobs",
    ),
    "audit": Command(
        "run finished jobs with the present code to their first evaluation, and compare the bits",
        argument("what", DRAW, "N|JOB|FIGURE", nargs="*", default=["3"])
        | number("--seed", "seed of the draw (default: another one each time)")
        | JSON,
        "replay.audit_jobs",
    ),
    "publish": Command(
        "write jobs into a folder to give away: results, code, versions, and a page about them",
        argument("what", "a job, or a figure or a table, for its jobs", "JOB|FIGURE", nargs="+")
        | argument("folder", "the new folder", "FOLDER", type=Path)
        | switch("--weights", "include the weights that were kept")
        | switch("--logs", "include logs, which name the machine")
        | JSON,
        "publish.publish",
    ),
    "adopt": Command(
        "take the jobs of a published folder into this project, as if they had run here",
        argument("source", "the folder, or an archive of it", "FOLDER|ARCHIVE", type=Path)
        | number("--spot-check", "how many jobs to audit afterwards (default: 0)", 0)
        | JSON,
        "publish.adopt",
    ),
    "disk": Command(
        "print how much space each kind of file takes, and the largest jobs",
        JSON,
        "disk.print_disk",
    ),
    "clean": Command(
        "remove what nothing needs: old checkpoints, caches, attempts given up, runs of find",
        DRY_RUN | JSON,
        "disk.clean",
    ),
    "rm": Command(
        "remove jobs from this disk and from the store",
        JOBS | switch("--anyway", "even if a figure, a job or a search needs it") | DRY_RUN | JSON,
        "disk.remove_jobs",
    ),
    "docs": Command(
        "print a page about the engine, or the lines of all pages that contain a word",
        argument("wanted", "a page or a word (default: all pages)", None, nargs="?", default=""),
        "command.print_docs",
    ),
    "gpu": Command(
        "print what this machine's driver, torch and GPUs can do, and what is wrong with them",
        JSON,
        "gpu.print_gpu",
    ),
    "cluster check": Command(
        "submit a short job to a cluster in cluster.toml, and print what works there",
        argument("name", "a cluster in cluster.toml", "NAME") | JSON,
        "cluster.check",
    ),
    "eject": Command(
        "copy the engine's source into the project, as labjobs/, where it can be edited",
        JSON,
        "command.eject",
    ),
    identity.FIND_LR: Command(
        "find a learning rate by range tests with the job's flags, which follow --",
        argument("--up-to", "highest rate to test (default: 10)", None, type=float, default=10.0)
        | number("--steps", "optimizer steps of a test (default: 150)", 150)
        | number("--seeds", "tests, each with its own seed (default: 3)", 3)
        | setting("lr")
        | FIND,
        "find.find",
    ),
    identity.FIND_BATCH_SIZE: Command(
        "find the largest batch size that fits, and the smallest that is nearly as fast as any",
        number("--smallest", "size to start with (default: 8)", 8)
        | number("--largest", "size to end with (default: 1000000)", 1_000_000)
        | setting("batch_size")
        | FIND,
        "find.find",
    ),
    identity.FIND_NOISE_SCALE: Command(
        "find the batch size above which more examples help little (the noise scale)",
        number("--steps", "optimizer steps to measure (default: 200)", 200)
        | setting("batch_size")
        | FIND,
        "find.find",
    ),
    identity.FIND_WORKERS: Command(
        "find how many processes should read the data with --loader workers",
        number("--largest", "most processes to try (default: the number of cores)") | FIND,
        "find.find",
    ),
}


def print_docs(_: Project, given: argparse.Namespace) -> None:
    """Print the page about the engine that is `wanted`, the lines of all pages that have this word
    in them, or, if nothing is, the names of the pages. Raises SettingsError for an unknown word."""
    wanted = given.wanted
    pages = {
        path.stem: [line for line in path.read_text("utf-8").splitlines() if line[:2] != "!["]
        for path in sorted((ENGINE / "docs").glob("*.md"))  # without their pictures
    }
    if not wanted:
        for name, lines in pages.items():
            print(f"{name:{max(map(len, pages))}}  {lines[0].removeprefix('# ')}")
        print("python jobs.py docs NAME shows a page, docs WORD the lines that have a word")
    elif wanted in pages:
        pydoc.pager("\n".join([*pages[wanted], ""]))  # which prints where there is no terminal
    else:
        every = [f"{name}: {text.strip()}" for name, lines in pages.items() for text in lines]
        found = [text for text in every if wanted.lower() in text.partition(": ")[2].lower()]
        if not found:
            hint = did_you_mean(wanted, pages)
            raise SettingsError(f"docs {wanted}: no page has this word; {hint}")
        print("\n".join(found))


def eject(_: Project, given: argparse.Namespace) -> None:
    """Copy the engine that runs into the project. Raises SettingsError if it is there already."""
    folder = PROJECT / "labjobs"
    if folder.exists():
        raise SettingsError(f"{shown(folder)} already exists, and is what runs")
    shutil.copytree(ENGINE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    line = f"{shown(folder)}/ is what runs from now on; remove it to use the installed engine again"
    print(json_of({"folder": str(folder)}) if given.json else line)


def jobs_command() -> int:
    """Run the command line; returns the exit status."""
    terminal.prepare_streams()
    terminal.handle_signals(signal.SIG_DFL)
    # Absolute, for all that is started.
    os.environ["MLFLOW_TRACKING_URI"] = mlflow_store.store_uri()
    try:
        given = _read(sys.argv[1:])
        if given.version:
            print(f"labjobs {provenance.engine()}\n{provenance.other_engine(PROJECT)}".strip())
            return exit_status.DONE
        project = Project(given.runs_root)
        module, _, name = COMMANDS[given.command].act.partition(".")
        act = getattr(import_module(f"labjobs.commands.{module}"), name)
        status: int = act(project, given) or exit_status.DONE
    except (SettingsError, JobError, ConnectionError) as error:
        return leave(exit_status.of(error), f"jobs.py: {error}")
    except OSError as error:  # a full disk, a folder of another user
        return leave(exit_status.FAILED, f"jobs.py: {cause(error)}")
    except Interrupted as stop:
        return leave(exit_status.of(stop), f"jobs.py: {given.command} was interrupted {stop}")
    for problem in project.problems:
        leave(exit_status.FAILED, f"jobs.py: {problem}")
    return status


def _read(words: list[str]) -> argparse.Namespace:
    """Return the arguments on the command line; `words` are the flags of a job, which follow `--`.
    Raises SettingsError if they are wrong."""
    runs = words[:1] in (["find"], ["try"])
    cut = words.index("--") if runs and "--" in words else len(words)
    words, flags = words[:cut], words[cut + 1 :]
    parser = Parser(prog="jobs.py", usage="python jobs.py COMMAND …", allow_abbrev=False)
    parser.add_argument(
        "--version",
        action="store_true",
        help="print the version of the engine, and whether it is the project's",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        about = commands.add_parser(
            name,
            prog=f"python jobs.py {name}",
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            allow_abbrev=False,
        )
        about.set_defaults(runs_root=None)
        for argument, takes in command.flags.items():
            about.add_argument(argument, **takes)
    within = [each for each in COMMANDS if each.startswith(f"{words[0]} ")] if words else []
    if not words or (within and not words[1:]):
        raise SettingsError(f"which command? {', '.join(within or COMMANDS)}; see --help")
    if within:  # whose names are two words
        words = [" ".join(words[:2]), *words[2:]]
    if words[0] not in (*COMMANDS, "-h", "--help", "--version"):
        hint = did_you_mean(words[0], within or COMMANDS)
        raise SettingsError(f"{words[0]}: no such command; {hint}")
    given, unknown = parser.parse_known_args(words)
    if unknown:
        wrong = unknown_flag(unknown[0], [*COMMANDS[given.command].flags])
        if runs:
            wrong += f"; the job's own flags follow --, as in {given.command} -- --lr 0.01"
        raise SettingsError(wrong)
    given.words = flags
    return given
