"""The command line of jobs.py.

Exit status: 0 done, 1 not done, 2 wrong arguments, 3 results are not uploaded (only `sync`).
"""

import argparse
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from labjobs import exit_status, installation, layout
from labjobs.cli.parser import Parser, unknown_flag
from labjobs.commands import accept, listing, pages, staleness
from labjobs.commands import repeat as again
from labjobs.commands.inventory import Job, Project
from labjobs.commands.repeat import Recorded, Repeated, Workplace
from labjobs.errors import JobError, SettingsError, cause, did_you_mean
from labjobs.files import PROJECT, shown
from labjobs.job import attempts, runtime, terminal
from labjobs.job.terminal import Interrupted, Interruption, counted, leave
from labjobs.results import figure_provenance
from labjobs.tracking import mlflow_client
from labjobs.tracking.courier import sync

# `export-model`: a job's network in a folder of its own, to use without the project.

EXPORT_ARGUMENTS: dict[str, dict[str, Any]] = {
    "--out": {
        "help": f"folder to make (default: {layout.EXPORTED}/JOB)",
        "metavar": "FOLDER",
        "type": Path,
    },
    "--onnx": {"help": "also write the network as ONNX", "action": "store_true"},
}
"""The arguments of the command besides a job, as in command.py."""


def start_export(project: Project, given: argparse.Namespace) -> int:
    """Export the network of a job; return the exit status.

    Raises SettingsError for wrong arguments, JobError if it cannot be exported.
    """
    job = project.one(given.job)
    if not job.folder:
        raise JobError(f"job {job.id}: {job.problem}")
    if not find_spec("safetensors"):  # the environment is older than this command
        raise JobError("safetensors is missing; README.md says how to install packages")
    out: Path = given.out or PROJECT / layout.EXPORTED / job.id
    interruption = Interruption()
    try:
        interruption.listen()
        interruption.hold()
        from labjobs.commands import export as command  # with torch, which is slow to import

        what = job.id, type(job.folder.settings), job.folder.runs_root, out.expanduser().absolute()
        return command.export(command.Wanted(*what, given.onnx, given.json, interruption))
    except Interrupted as stop:
        return leave(
            exit_status.SIGNALLED + stop.number, f"jobs.py: export-model was interrupted {stop}"
        )


# `repeat`: does the stored code of jobs still give the same results, bit for bit?

VERSIONS = ("recorded", "present")
"""The versions of Python and of packages to use, the default first."""

REPEAT_ARGUMENTS: dict[str, dict[str, Any]] = {
    "what": {
        "help": "a job's id or the beginning of one, or a figure, for all of its jobs",
        "metavar": "JOB|FIGURE",
        "nargs": "+",
    },
    "--versions": {
        "help": "versions of Python and of all packages: recorded (default; uv installs them in a "
        "temporary environment) or present",
        "metavar": "WHICH",
        "choices": VERSIONS,
        "default": VERSIONS[0],
    },
}
"""The arguments of the command, as in command.py."""


def start_repeat(project: Project, given: argparse.Namespace) -> int:
    """Repeat jobs and print the outcome of each; return the exit status, 0 if all are the same.

    Raises SettingsError if a job or a figure does not exist.
    """
    jobs = _named(project, given.what)
    quiet = given.json
    found: dict[str, Repeated] = {}
    try:
        Interruption().listen()
        with Workplace(given.versions == VERSIONS[0]) as workplace:
            for job_id, job in jobs.items():
                if not quiet:
                    print(f"repeating job {job_id}: {job.words if job else ''}", flush=True)
                found[job_id] = _repeated(job, workplace)
                if not quiet:
                    _say(job_id, found[job_id])
    except Interrupted as stop:
        return leave(
            exit_status.SIGNALLED + stop.number,
            f"jobs.py: repeat was interrupted {stop}; nothing is left",
        )
    if quiet:
        print(json.dumps({"versions": given.versions, "jobs": [*_plain(found)]}, indent=2))
    else:
        _sum_up(found.values(), given.versions)
    return 0 if all(each.status == "same" for each in found.values()) else 1


def _named(project: Project, words: Iterable[str]) -> dict[str, Job | None]:
    """The jobs, by id; None for a job of a figure that is not here."""
    found: dict[str, Job | None] = {}
    for word in words:
        path = Path(word)
        if not path.suffix and not path.is_file():
            job = project.one(word)
            found[job.id] = job
            continue
        for job_id in _jobs_of(path):
            try:
                found[job_id] = project.one(job_id)
            except SettingsError:
                found[job_id] = None
    return found


def _jobs_of(figure: Path) -> list[str]:
    """The ids of the jobs of a figure. Raises SettingsError if it does not name any."""
    if not figure.is_file():
        raise SettingsError(f"{figure}: there is no such figure")
    try:
        found = figure_provenance.read(figure).get("jobs", [])
    except (OSError, SettingsError):
        found = []
    if not found:
        raise SettingsError(f"{figure} does not say which jobs it shows; draw it with plot.py")
    return [str(job_id) for job_id in found]


def _repeated(job: Job | None, workplace: Workplace) -> Repeated:
    try:
        return again.repeat(_attempt(job), workplace)
    except (JobError, OSError) as error:
        return Repeated("not repeated", cause(error))


def _attempt(job: Job | None) -> Recorded:
    """The finished attempt that counts: the one with the present code, or else the latest."""
    if not job or not job.attempts:
        raise JobError("it has not run in this folder of runs")
    finished = [path for path in job.attempts if attempts.status_of(path) == "finished"]
    if not finished:
        raise JobError("it has not finished")
    present = [path for path in finished if job.folder and path == job.folder.path]
    return Recorded([*finished, *present][-1])


def _say(job_id: str, repeated: Repeated) -> None:
    match repeated.status:
        case "same":
            counted = ", ".join(f"{n} {what}" for what, n in repeated.compared.items())
            print(f"job {job_id}: the same bits ({counted})")
        case "different":
            print(f"job {job_id}: different: {repeated.difference}")
        case _:
            print(f"job {job_id}: could not be repeated: {repeated.reason}")
    for name, text in repeated.conditions.items():
        print(f"  {name}: {text}")


def _sum_up(found: Iterable[Repeated], versions: str) -> None:
    counts = Counter(each.status for each in found)
    said = ", ".join(f"{counts[word]} {word}" for word in ("same", "different", "not repeated"))
    print(f"{counted(counts.total(), 'job')} with the {versions} versions: {said}")


def _plain(found: dict[str, Repeated]) -> Iterable[dict[str, Any]]:
    for job_id, repeated in found.items():
        difference = repeated.difference._asdict() if repeated.difference else None
        yield {"job": job_id} | asdict(repeated) | {"difference": difference}


# The arguments of `find lr`, `find batch-size`, `find noise-scale` and `find workers`.

Arguments = dict[str, dict[str, Any]]
"""Arguments of a command, as in command.py."""

LARGEST = 1_000_000
"""The default of the largest batch size to try."""


def number(flag: str, about: str, default: int | None = None) -> Arguments:
    """Return a flag whose value is a whole number."""
    return {flag: {"help": about, "metavar": "N", "type": int, "default": default}}


def name(flag: str, about: str) -> Arguments:
    """Return a flag whose value is a name, by default none."""
    return {flag: {"help": about, "metavar": "NAME", "default": ""}}


SETTING = name("--setting", "name of the setting to find a value for, if not the usual one")
AGAIN: Arguments = {
    "--force": {"help": "measure again, even if there are results", "action": "store_true"}
}
UP_TO: Arguments = {
    "--up-to": {
        "help": "highest rate to test; the lowest is a millionth of it (default: 10)",
        "metavar": "RATE",
        "type": float,
        "default": 10.0,
    }
}

FINDERS: dict[str, tuple[str, Arguments]] = {
    runtime.FIND_LR: (
        "find a learning rate by range tests with the job's flags, which follow --",
        UP_TO
        | number("--steps", "optimizer steps of a test (default: 150)", 150)
        | number("--seeds", "tests, each with its own seed (default: 3)", 3)
        | name(
            "--metric",
            "the training loss, by its name in METRICS (default: the monitored metric if lower is "
            "better, or else the first such metric)",
        )
        | SETTING
        | AGAIN,
    ),
    runtime.FIND_BATCH_SIZE: (
        "find the largest batch size that fits, and the smallest that is nearly as fast as any",
        number("--smallest", "size to start with (default: 8)", 8)
        | number("--largest", f"size to end with (default: {LARGEST})", LARGEST)
        | SETTING
        | AGAIN,
    ),
    runtime.FIND_NOISE_SCALE: (
        "find the batch size above which more examples help little (the noise scale)",
        number("--steps", "optimizer steps to measure (default: 200)", 200) | SETTING | AGAIN,
    ),
    runtime.FIND_WORKERS: (
        "find how many processes should read the data with --loader workers",
        number("--largest", "most processes to try (default: the number of cores)") | AGAIN,
    ),
}
"""Help and arguments, by command."""

LEAST = {"steps": 20, "seeds": 1, "smallest": 1, "largest": 0}
"""The smallest allowed values."""


def start_find(project: Project, given: argparse.Namespace) -> int:
    """Run the jobs that measure, print the answer, and return the exit status.

    Raises SettingsError for wrong arguments.
    """
    for name, least in LEAST.items():
        value = getattr(given, name, None)
        if value is not None and value < least:
            raise SettingsError(f"--{name} {value}: must be at least {least}")
    if getattr(given, "smallest", 0) > (getattr(given, "largest", None) or LARGEST):
        raise SettingsError(f"--smallest {given.smallest}: must be at most --largest")
    if getattr(given, "up_to", 1.0) <= 0:
        raise SettingsError(f"--up-to {given.up_to:g}: must be above 0")
    from labjobs.commands import find as command  # with NumPy, which is slow to import

    return command.find(given, given.words, given.runs_root)


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
        lambda project, given: listing.print_details(project, project.one(given.job), given.json),
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
        lambda project, given: staleness.print_why(
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
        lambda project, given: accept.accept(project, given.because, given.verify),
    ),
    "export-model": Command(
        "write a job's network into a folder, for use without the project, and check its outputs",
        JOB | EXPORT_ARGUMENTS | JSON,
        start_export,
    ),
    "repeat": Command(
        "run jobs again from their stored code, and print whether they give the same bits",
        REPEAT_ARGUMENTS | JSON,
        start_repeat,
    ),
    "docs": Command(
        "print a page about the engine, or the lines of all pages that have a word in them",
        {"wanted": {"help": "a page or a word (default: all pages)", "nargs": "?", "default": ""}},
        lambda _, given: pages.print_docs(given.wanted),
    ),
    "eject": Command(
        "copy the engine's source into the project, as labjobs/, where it can be edited",
        {},
        lambda *_: _eject(),
    ),
    **{name: Command(about, takes | JSON, start_find) for name, (about, takes) in FINDERS.items()},
}


def _eject() -> int:
    folder = installation.eject(PROJECT)
    print(f"{shown(folder)}/ is what runs from now on; remove it to use the installed engine again")
    return exit_status.DONE


def jobs_command(**kinds: type) -> int:
    """Run the command line; returns the exit status. `kinds` are classes of settings, by job
    script, for scripts that no longer exist: `former=FormerSettings`."""
    terminal.handle_signals(signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `list | head` prints no trace
    os.environ["MLFLOW_TRACKING_URI"] = (
        mlflow_client.store_uri()
    )  # absolute, for all that is started
    try:
        given = _read(sys.argv[1:])
        project = Project(kinds, given.runs_root)
        status = COMMANDS[given.command].act(project, given)
    except (SettingsError, JobError, ConnectionError) as error:
        return leave(
            exit_status.WRONG if isinstance(error, SettingsError) else 1, f"jobs.py: {error}"
        )
    for problem in project.problems:
        leave(exit_status.FAILED, f"jobs.py: {problem}")
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
        version=_version() if "--version" in words else "",
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
        if given.command in FINDERS:
            wrong += f"; the job's own flags follow --, as in {given.command} -- --lr 0.01"
        raise SettingsError(wrong)
    given.words = flags
    return given


def _version() -> str:
    lines = (f"labjobs {installation.version()}", installation.problem(PROJECT))
    return "\n".join(filter(None, lines))


def _joined(words: list[str]) -> list[str]:
    """The words, with `find lr` as one. Raises SettingsError for `find` alone."""
    if words[:1] != ["find"]:
        return words
    things = [name.removeprefix("find ") for name in FINDERS]
    if not words[1:] or words[1] not in things:
        named = f"find {words[1]}: " if words[1:] else "find: "
        hint = did_you_mean(words[1], things) if words[1:] else ", ".join(things)
        raise SettingsError(f"{named}{'' if words[1:] else 'what? '}{hint}")
    return [" ".join(words[:2]), *words[2:]]
