"""The command line of jobs.py.

Exit status: 0 done, 1 not done, 2 wrong arguments, 3 results are not uploaded (only `sync`).
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from labjobs import template
from labjobs.cli.parser import Parser, unknown_flag
from labjobs.errors import JobError, SettingsError, did_you_mean
from labjobs.job import interruption
from labjobs.job.terminal import leave
from labjobs.jobs import (
    accepting,
    dependence,
    details,
    exporting,
    finders,
    listing,
    repeating,
    staleness,
)
from labjobs.jobs.project import Project
from labjobs.tracking import address
from labjobs.tracking.sync import sync

Arguments = dict[str, dict[str, Any]]
"""The arguments of a command by name, as argparse's add_argument takes them."""

SWITCH: dict[str, Any] = {"action": "store_true"}
JOB: Arguments = {"job": {"help": "a job's id, or the beginning of one", "metavar": "JOB"}}
JSON: Arguments = {"--json": {"help": "print it as JSON"} | SWITCH}
RUNS_ROOT: Arguments = {
    "--runs-root": {
        "help": "folder with the jobs' folders (default: runs)",
        "metavar": "PATH",
        "type": Path,
    }
}


class Command(NamedTuple):
    """A command: its help, its arguments, and the function that runs it and returns the exit
    status."""

    help: str
    takes: Arguments
    act: Callable[[Project, argparse.Namespace], int]


COMMANDS = {
    "list": Command(
        "print each job: id, state, when it ended, its result, settings",
        {
            "--state": {
                "help": f"only jobs in this state: {', '.join(listing.STATES)}",
                "metavar": "STATE",
                "default": "",
            }
        }
        | JSON,
        lambda project, given: listing.print_list(project, given.state, given.json),
    ),
    "show": Command(
        "print all there is to know of a job, and the command that runs it again",
        JOB | JSON,
        lambda project, given: details.print_details(project, project.one(given.job), given.json),
    ),
    "sync": Command(
        "upload the results of all jobs that the tracking store or the Parquet files lack",
        {},
        lambda project, _: sync(project.runs_root),
    ),
    "stale": Command(
        "print which definitions have changed since jobs used them, and which jobs these are",
        {"--diff": {"help": "print the changes as a diff"} | SWITCH} | JSON,
        lambda project, given: staleness.print_stale(project, given.diff, given.json),
    ),
    "why": Command(
        "print by which way a job's code reaches a definition, such as models.MLP",
        JOB | {"definition": {"help": "its name in Python, such as models.MLP"}} | JSON,
        lambda project, given: dependence.print_why(
            project.one(given.job), given.definition, given.json
        ),
    ),
    "accept": Command(
        "accept that what has changed in the code changes no results: stale jobs count again",
        {
            "--because": {"help": "the reason", "metavar": "REASON", "required": True},
            "--verify": {"help": "first replay a job for each set of changes, and compare the bits"}
            | SWITCH,
        },
        lambda project, given: accepting.accept(project, given.because, given.verify),
    ),
    "export-model": Command(
        "write a job's network into a folder, for use without the project, and check its outputs",
        JOB | exporting.ARGUMENTS | JSON,
        exporting.export,
    ),
    "repeat": Command(
        "run jobs again from their stored code, and print whether they give the same bits",
        repeating.ARGUMENTS | JSON,
        repeating.repeat,
    ),
    **{
        name: Command(about, takes | JSON, finders.find)
        for name, (about, takes) in finders.FINDERS.items()
    },
}


def run(**kinds: type) -> int:
    """Run the command line; returns the exit status. `kinds` are classes of settings, by job
    script, for scripts that no longer exist: `former=FormerSettings`."""
    interruption.handle(signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `list | head` prints no trace
    os.environ["MLFLOW_TRACKING_URI"] = address.uri()  # absolute, for all that is started
    try:
        given = _read(sys.argv[1:])
        project = Project(kinds, given.runs_root)
        status = COMMANDS[given.command].act(project, given)
    except (SettingsError, JobError, ConnectionError) as error:
        return leave(2 if isinstance(error, SettingsError) else 1, f"jobs.py: {error}")
    for problem in project.problems:
        leave(1, f"jobs.py: {problem}")
    return status


def _read(words: list[str]) -> argparse.Namespace:
    """Return the arguments on the command line; `words` are the flags of a job, which follow `--`.
    Raises SettingsError if they are wrong."""
    cut = words.index("--") if words[:1] == ["find"] and "--" in words else len(words)
    words, flags = _joined(words[:cut]), words[cut + 1 :]
    parser = Parser(prog="jobs.py", usage="python jobs.py COMMAND …", allow_abbrev=False)
    parser.add_argument(
        "--version",
        action="version",
        version=f"template {template.version()}",
        help="print the version of the template that the engine comes from",
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
        for argument, takes in (command.takes | RUNS_ROOT).items():
            about.add_argument(argument, **takes)
    if not words:
        raise SettingsError(f"which command? {', '.join(COMMANDS)}; see --help")
    if words[0] not in (*COMMANDS, "-h", "--help", "--version"):
        raise SettingsError(f"{words[0]}: no such command; {did_you_mean(words[0], COMMANDS)}")
    given, unknown = parser.parse_known_args(words)
    if unknown:
        known = [*COMMANDS[given.command].takes, *RUNS_ROOT]
        wrong = unknown_flag(unknown[0], known)
        if given.command in finders.FINDERS:
            wrong += f"; the job's own flags follow --, as in {given.command} -- --lr 0.01"
        raise SettingsError(wrong)
    given.words = flags
    return given


def _joined(words: list[str]) -> list[str]:
    """The words, with `find lr` as one. Raises SettingsError for `find` alone."""
    if words[:1] != ["find"]:
        return words
    things = [name.removeprefix("find ") for name in finders.FINDERS]
    if not words[1:] or words[1] not in things:
        named = f"find {words[1]}: " if words[1:] else "find: "
        hint = did_you_mean(words[1], things) if words[1:] else ", ".join(things)
        raise SettingsError(f"{named}{'' if words[1:] else 'what? '}{hint}")
    return [" ".join(words[:2]), *words[2:]]
