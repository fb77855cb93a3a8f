"""The command line of plot.py: from a store's jobs to the files of its figures and tables."""

import json
import re
import signal
import sys
import traceback
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from labjobs import exit_status, layout, machine
from labjobs.cli.parser import Parser, unknown_flag
from labjobs.errors import JobError, SettingsError, cause, few, require_known
from labjobs.files import PROJECT, read_json, write_json, write_text
from labjobs.job import attempts
from labjobs.job.identity import DEFAULT
from labjobs.job.journal import record_of
from labjobs.job.terminal import counted, leave, prepare_streams
from labjobs.results import (
    figure_files,
    figures,
    groups,
    page,
    paper,
    paper_tables,
    print_check,
    searches,
    style,
    table_files,
    tables,
    text,
)
from labjobs.results.comparison import MOST
from labjobs.results.metrics import SHOWN, WORDS, NoResults, chooser, declared
from labjobs.results.paper_tables import Tabulating
from labjobs.sources import described, fault
from labjobs.tracking import stored_jobs
from labjobs.tracking.mlflow_store import experiment_name

Drawing = Callable[[pd.DataFrame], tuple[Any, str]]  # from jobs to a figure and its caption

PAGE = "page.html"


def main(
    kind: type[Any],
    of_all: Mapping[str, Drawing],
    of_one: Mapping[str, Drawing],
    only: Mapping[str, Any],
    labels: Mapping[str, str],
    printed: Mapping[str, Tabulating] = MappingProxyType({}),
    script: str = DEFAULT,
    of_tasks: Mapping[str, Drawing] = MappingProxyType({}),
    of_searches: Mapping[str, Drawing] = searches.FIGURES,
) -> int:
    """Draw figures, by their names: figures `of_all` jobs that have the settings of `only`, and
    figures `of_one` of these jobs, by default the best on validation data, figures `of_tasks`, if
    there are several, and figures `of_searches`, if there are any; and write the tables that are to
    be `printed`.

    The jobs all belong to one script, `run` for run.py; `kind` is the class of their settings.
    `labels` are what settings are called in figures.
    Returns the exit status: 1 if a figure would not print correctly, or none could be drawn.
    """
    machine.keep_imported()
    prepare_streams()
    drawings = (of_all, of_one, of_tasks, of_searches)
    try:
        args = _parsed(sys.argv[1:])
        if args.out and (both := sorted({*chain(*drawings)} & {*printed})):
            line = f"a figure and a table are called {few(both, MOST)}, and would be the same files"
            raise SettingsError(f"--out: {line}; give one of them another name")
        if args.provenance or args.audit or args.venue == "list":
            return _answer(args)
        figures.use(style.named(args.venue))
        text.check_labels("LABELS in plot.py", labels.values())
        style.label_settings(labels)
        pages = _Pages(args)
        try:
            found = _tried(args, kind, only, script)
            if args.checklist:
                print(paper.checklist(found.jobs, found.left_out(), printed.get("main")))
                return exit_status.DONE
            _draw(pages, found, *drawings)
            _write(pages, found, printed, script)
            if args.page:
                _write_page(pages, found)
        except NoResults:
            pages.end()
            raise
        return pages.end()
    except SettingsError as error:
        return leave(exit_status.WRONG, f"plot.py: {error}")
    except KeyboardInterrupt:
        return leave(exit_status.SIGNALLED + signal.SIGINT, "plot.py: interrupted")
    except (NoResults, OSError) as error:
        said = cause(error) if isinstance(error, OSError) else error
        return leave(exit_status.FAILED, f"plot.py: {said}")


def _answer(args: Namespace) -> int:
    """Answer what needs no jobs: where a figure comes from, what is wrong in a paper, venues."""
    if args.provenance:
        for key, value in figure_files.read(args.provenance).items():
            print(f"{key}: {json.dumps(value)}")
    elif args.audit:
        wrong = paper.findings(args.audit, *args.folders)
        print("\n".join(wrong) or f"{args.audit}: every number with a decimal point is a result")
        return exit_status.FAILED if wrong else exit_status.DONE
    else:
        print(style.listing())
    return exit_status.DONE


@dataclass
class _Found:
    """The jobs behind figures and tables."""

    every: pd.DataFrame  # all jobs with results
    jobs: pd.DataFrame  # those to draw
    mixed: list[str]  # the ids of those from different code
    others: pd.DataFrame  # those that ONLY leaves out
    only: list[str]  # the settings that it names
    unsent: int  # how many jobs of the script ran here that the store does not have

    @cached_property
    def tried(self) -> pd.DataFrame:
        """All jobs that were tried, in the order of their ids: their state, settings, results and
        costs; of those that are not drawn, the state says why."""
        every = tables.tried(self.jobs)
        numbers = [name for name in every.select_dtypes("number") if name != "ended"]
        about = ("hardware", "commit", "stale", "unchecked")
        names = dict.fromkeys(["job_id", "state", *every.attrs["settings"], *numbers, *about])
        return every[[name for name in names if name in every]].sort_values("job_id")

    def counts(self, shown: pd.DataFrame | None = None, task: str = "") -> str:
        """Say what became of the jobs that were tried, and how many are not among those that are
        `shown` because they only confirm; with a `task`, of those alone that have it."""
        alike = self.tried
        if shown is not None and task:
            alike = groups.with_task_of(shown, alike)
        states = Counter(alike["state"].tolist())
        tried, finished = states.total(), states.pop("finished", 0)
        why = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        all_finished = f" {counted(tried, 'job')} tried; all finished."
        said = f" Of {tried} jobs tried, {finished} finished: {why}." if states else all_finished
        hidden = 0 if shown is None else finished + states["diverged"] - len(shown)
        confirm = f" Not shown: {counted(hidden, 'job')} with the seeds of confirm." * bool(hidden)
        are = "is" if self.unsent == 1 else "are"
        lacking = f" {counted(self.unsent, 'job')} that ran here {are} not in the store, and so not"
        said += f"{lacking} counted." * bool(self.unsent)
        return confirm + said + self.left_out(shown if task else None)

    def left_out(self, shown: pd.DataFrame | None = None) -> str:
        """Say how many jobs ONLY leaves out, of the task of those that are `shown` if there are
        any."""
        others = self.others if shown is None else groups.with_task_of(shown, self.others)
        if others.empty:
            return ""
        which = "other values of" if len(self.only) > 1 else "another"
        return f" Left out: {counted(len(others), 'job')} with {which} {style.settings(self.only)}."


class NothingMade(Exception):
    """A function of the project has made no figure, or no table, with a caption."""


class _Pages:
    """What is written to the folders of figures and tables, and what is left out and why."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self._right: list[bool] = []
        self.files: list[Path] = []
        self._left_out: dict[str, list[str]] = {}

    @contextmanager
    def of(self, stem: str) -> Iterator[None]:
        """Note why a figure or a table is left out, if it is. If its function in the project has a
        mistake, the trace is printed, and the others are made all the same."""
        try:
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                yield  # missing characters: the print check names them
        except (NoResults, JobError, NothingMade) as error:
            self._left_out.setdefault(str(error), []).append(stem)
            self._right += [False] * isinstance(error, NothingMade)
        except Exception as error:
            if not fault(error):
                raise
            traceback.print_exception(error)
            self._left_out.setdefault(described(error), []).append(stem)
            self._right.append(False)

    def write(self, made: Any, stem: str, name: str, caption: str, jobs: pd.DataFrame) -> bool:
        """Save a figure or a table of jobs, and print what is said of its files; return whether it
        prints correctly. If not, nothing is written, and it is said why."""
        args, venue, is_figure = self.args, style.named(self.args.venue), isinstance(made, Figure)
        what, out = ("figure", args.folders[0]) if is_figure else ("table", args.folders[1])
        about = _provenance(jobs) | {what: name, "venue": args.venue}
        check: Callable[..., list[str]] = print_check.check if is_figure else table_files.problems
        if problems := [] if args.unchecked else _taken(out / stem, about) or check(made, venue):
            self.refuse(stem, (*problems, "not written; --unchecked writes it anyway"))
        else:
            if is_figure:
                kinds: tuple[str, ...] = (*args.format, "tex", "json")
                said = figure_files.save(made, out / stem, caption, about, args.format)
            else:
                kinds = table_files.KINDS
                said = table_files.save(made, out / stem, caption, about, venue)
            print(*said, sep="\n")
            self.files += [out / f"{stem}.{kind}" for kind in kinds]
            self._right.append(True)
        return not problems

    def refuse(self, stem: str, why: Iterable[str]) -> None:
        """Say why a figure or a table is not written."""
        for line in why:
            print(f"{stem}: {line}", file=sys.stderr)
        self._right.append(False)

    def end(self) -> int:
        """Say what was left out, move what was not written this time away, if something was, and
        return the exit status."""
        for why, stems in self._left_out.items():
            print(f"left out {few(stems, 2 * MOST)}: {why}", file=sys.stderr)
        kinds_of_files = (("figure", figure_files.KINDS), ("table", table_files.KINDS))
        each, program = zip(kinds_of_files, self.args.folders, strict=True), Path(sys.argv[0]).name
        for (what, kinds), out in each if self.files else ():
            if moved := figure_files.put_aside(out, what, program, self.files, kinds):
                line = f"moved what was not written this time to {out / figure_files.OLD}"
                print(f"{line}: {', '.join(moved)}", file=sys.stderr)
        return exit_status.DONE if self._right and all(self._right) else exit_status.FAILED


def _taken(stem: Path, about: Mapping[str, Any]) -> list[str]:
    """Whose files those of a figure or a table are, if they are not this program's: in a paper,
    results of other jobs would take their place."""
    owner = read_json(stem.with_name(f"{stem.name}.json")).get("program")
    if owner in (None, about["program"]) or not (PROJECT / owner).is_file():
        return []
    return [f"its files are those of {owner}; give it another name in {about['program']}"]


def _tried(args: Namespace, kind: type[Any], only: Mapping[str, Any], script: str) -> _Found:
    """Return the jobs that the command line asks for."""
    unsent = 0
    if args.experiment == experiment_name():
        stored_jobs.settle(args.experiment)
        unsent = _name_unsent(args.experiment, script)
    every = tables.jobs(args.experiment, kind, script)
    if args.job:
        named = [job for job in every.loc[~every["diverged"], "job_id"] if job.startswith(args.job)]
        if len(named) != 1:
            why = "give more digits of its id" if named else "no finished job has this id"
            raise SettingsError(f"--job {args.job}: {why}")
        (args.job,) = named
    if args.task:
        tasks = {str(one): name for name in groups.with_role(every, "task") for one in every[name]}
        require_known([args.task], tasks, "--task {}: no job with results has this task")
        only = {**only, tasks[args.task]: args.task}
    wanted = tables.only(every, only)
    tried = tables.unfinished(args.experiment, kind, script)
    known = {name: value for name, value in only.items() if name in tried}
    others, jobs = tables.with_values(tried, known), wanted
    if not args.any_code:
        jobs = _without_earlier_trials(jobs)
    # No figure can be correct if a metric has two directions.
    text.check_labels("METRICS", (metric.label for metric in declared(jobs).values()))
    jobs.attrs[SHOWN] = args.metric
    earlier = wanted.drop(jobs.index).assign(state="diverged with other code or data")
    rows = (row for some in (earlier, others) for row in some.to_dict("records"))
    jobs.attrs[tables.UNFINISHED] = tables.Rows(rows)
    left = pd.concat([every.drop(wanted.index), tried.drop(others.index)], ignore_index=True)
    by_setting = [name for name in only if name not in groups.with_role(every, "task")]
    for name in {*only} - {*by_setting}:  # jobs of other tasks are never compared
        left = tables.with_values(left, {name: only[name]})
    return _Found(every, jobs, _other_code(jobs, args.any_code), left, by_setting, unsent)


def _name_unsent(experiment: str, script: str) -> int:
    """Say which jobs in the project's folder of runs the store does not have, so that no figure
    counts them; return how many of them are of a script."""
    known = stored_jobs.known(experiment)
    here = [] if known.problem else [*attempts.runs_root().glob("[0-9a-f]*")]
    others = (path for path in here if path.name not in known.runs)
    begun = (path.parent for each in others for path in each.glob(f"*/{layout.JOURNAL}"))
    unsent = {path.parent.name: path for path in begun if not attempts.was_measured(path)}
    if unsent:
        count = counted(len(unsent), "job")
        line = f"the tracking store does not have {count} that ran here ({few(sorted(unsent), 2)})"
        print(f"plot.py: {line}; python jobs.py sync sends what is missing", file=sys.stderr)
    scripts = (record_of(each, layout.SETTINGS).get("script") for each in unsent.values())
    return sum(each == script for each in scripts)


def _draw(pages: _Pages, found: _Found, *drawings: Mapping[str, Drawing]) -> None:
    """Draw the figures of each task and of its searches, and those of all tasks."""
    of_all, of_one, of_tasks, of_searches = drawings
    job, jobs = pages.args.job, groups.choosing(found.jobs)
    tasks = groups.tasks(jobs)
    for stem, task, name in [
        *_stems(of_all, tasks),
        *_stems(of_one, [""] if job else tasks),
        *_stems(of_tasks if len(tasks) > 1 else (), [""]),
        *_stems(of_searches, [task for task, own in tasks.items() if any(own[tables.SEARCH])]),
    ]:
        alike = tasks.get(task, jobs)
        with pages.of(stem):
            shown = _one(job, found.every, alike) if name in of_one else alike
            drawing = {**of_all, **of_one, **of_tasks, **of_searches}[name]
            figure, caption = _made(drawing, shown, Figure)
            caption += _about(shown) + _differences(shown, found.mixed)
            if not (job and name in of_one):
                caption += found.counts(alike, task)
            pages.write(figure, stem, name, caption, shown)


def _write(pages: _Pages, found: _Found, printed: Mapping[str, Tabulating], script: str) -> None:
    """Write the tables, all their cells for a paper's text, and all jobs."""
    jobs, written, (_, out) = found.jobs, dict[str, Any](), pages.args.folders
    for name, make in printed.items():
        with pages.of(name):
            table, caption = _made(make, jobs, paper_tables.Table)
            caption += _about(jobs) + _differences(jobs, found.mixed) + found.counts()
            if pages.write(table, name, name, caption, jobs):
                written[name] = table
    both = {"results.tex": table_files.macros(written), "jobs.csv": found.tried.to_csv(index=False)}
    for name, content in both.items() if written else ():
        stem, _, kind = name.partition(".")
        stem = stem if script == DEFAULT else f"{stem}-{script}"
        path, record = out / f"{stem}.{kind}", out / f"{stem}.json"
        if problems := _taken(out / stem, _provenance(jobs)):
            pages.refuse(stem, problems)
            continue
        write_text(path, content)
        write_json(record, _provenance(jobs) | {"table": stem})
        pages.files += [path, record]


def _made(make: Callable[[pd.DataFrame], Any], jobs: pd.DataFrame, kind: type[Any]) -> Any:
    """What a function of the project makes of the jobs, which may change them: those after it have
    them as they were. Raises NothingMade."""
    name = getattr(make, "__name__", "the function")
    try:
        made = make(jobs.copy())
    except SystemExit as error:
        raise NothingMade(f"{name}() ends plot.py") from error
    match made:
        case (figure, str()) if isinstance(figure, kind):
            return made
    what = kind.__name__.lower()
    raise NothingMade(f"{name}() must return a {what} and its caption, not {made!r:.60}")


def _provenance(jobs: pd.DataFrame) -> dict[str, Any]:
    """Where a figure or a table of these jobs comes from, by which program, and which of the jobs
    were audited."""
    audited = tables.audits(jobs)
    about = figure_files.provenance(jobs) | ({"audited": audited} if audited else {})
    return about | {"program": Path(sys.argv[0]).name}


def _write_page(pages: _Pages, found: _Found) -> None:
    """Write a page with all that was drawn and all jobs, and print its path."""
    args, jobs = pages.args, found.jobs
    tasks, repeats = groups.with_role(jobs, "task"), groups.repeated(jobs)
    others = [name for name in map(str, jobs) if name not in jobs.attrs["settings"]]
    results = [name for name in others if name.startswith(("best_", "test_"))]
    tried, settings = found.tried, [*tasks, *groups.varied(jobs), *repeats]
    differ = [name for name in settings if tried[name].map(str).nunique() > 1]
    rows = tried[["job_id", "state", *differ, *results]].astype(object)
    shown = page.Jobs([*rows], rows.where(rows.notna(), None).to_numpy().tolist())
    with suppress(NoResults):
        shown.curve = chooser(jobs).key
        points = tables.curves(jobs, shown.curve).groupby("job_id")[["step", "value"]]
        shown.curves = {str(job): [*map(tuple, own.to_numpy().tolist())] for job, own in points}
    path = args.folders[0] / PAGE
    page.write(path, args.experiment, found.counts().strip(), pages.files, shown)
    print(path)


def _stems(names: Iterable[str], tasks: Iterable[str]) -> list[tuple[str, str, str]]:
    """The figures to draw: the names of their files, their tasks, and their names. If there are
    several tasks, each has its own figures, `ranking-digits`, so that nothing is compared across
    them."""
    words = {task: "-".join(re.findall(r"\w+", task)) for task in tasks}
    for number, (task, word) in enumerate(words.items(), 1):
        if [*words.values()].count(word) > 1 or (task and not word):
            words[task] = f"{word}-{number}".strip("-")
    return [
        (f"{name}-{word}" if word else name, task, name)
        for name in names
        for task, word in words.items()
    ]


def _parsed(words: list[str]) -> Namespace:
    """The flags of plot.py. Raises SettingsError if they are wrong."""
    parser = Parser(description="Draw the figures from finished jobs.", allow_abbrev=False)
    add = parser.add_argument
    experiment = experiment_name()
    where = "folder for figures and tables (default: figures and tables)"
    add("--out", type=Path, metavar="DIR", help=where)
    add("--experiment", default=experiment, help="experiment in the store (default: %(default)s)")
    venues = "venue to draw for; `list` shows all with their sizes"
    add("--venue", default=style.DEFAULT, help=venues)
    several = f"{', '.join(figure_files.METADATA)}; several with commas (default: %(default)s)"
    add("--format", default="pdf,png", help=several)
    shown = "metric in figures (default: the monitored one, which always chooses and ranks)"
    add("--metric", default="", metavar="NAME", help=shown)
    add("--task", default="", metavar="NAME", help="only this task, such as a dataset")
    add("--job", default="", metavar="ID", help="job for figures of one job (default: the best)")
    add("--unchecked", action="store_true", help="write figures even if the print check fails")
    add("--any-code", action="store_true", help="also draw jobs with other code or data")
    where = "name the numbers in a paper's text that no result has, and figures that it rescales"
    add("--audit", type=Path, metavar="PAPER.tex", help=where)
    about = "answer the NeurIPS checklist's items on statistics and compute"
    add("--checklist", action="store_true", help=about)
    whole = f"also write figures, tables and all jobs to {PAGE}, a page for a browser"
    add("--page", action="store_true", help=whole)
    add("--provenance", type=Path, metavar="FILE", help="print which jobs a figure was drawn from")
    given, unknown = parser.parse_known_args(words)
    if unknown:
        flags = [each for action in parser._actions for each in action.option_strings]
        raise SettingsError(unknown_flag(unknown[0], flags))
    formats = given.format.split(",")
    require_known(formats, figure_files.METADATA, f"--format {given.format}: unknown format '{{}}'")
    given.format = formats
    if given.page and not {*formats} & {*page.IMAGES}:
        raise SettingsError("--page: browsers show png or svg; name one in --format")
    given.folders = [given.out] * 2 if given.out else [PROJECT / "figures", PROJECT / "tables"]
    return given


def _without_earlier_trials(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the jobs without those that diverged with other code or data, if all others have the
    present code and data, with which these may not diverge."""
    earlier = jobs["diverged"] & jobs["stale"]
    left = jobs[~earlier]
    if not earlier.any() or left["stale"].any() or left["diverged"].all():
        return jobs
    left_out = jobs.loc[earlier, "job_id"]
    line = f"left out {counted(len(left_out), 'job')} that diverged with other code or data"
    print(f"plot.py: {line}, such as {left_out.iloc[0]}; --any-code draws all", file=sys.stderr)
    return left


def _other_code(jobs: pd.DataFrame, any_code: bool) -> list[str]:
    """The ids of jobs that come from different code. Raises NoResults unless such jobs should be
    drawn anyway. If all jobs are from older code, there is only a warning, since they may
    all be from the same code.
    """
    stale, n = jobs.loc[jobs["stale"], "job_id"], len(jobs)
    mixed = [*stale] if len(stale) < n else groups.of_mixed_evidence(jobs)
    are = "is" if len(mixed) == 1 else "are"
    if mixed and not any_code:
        raise NoResults(
            f"{len(mixed)} of {n} jobs {are} from different code or data, such as {mixed[0]}; "
            "bash run.sh --redo-stale runs those of its grid again, --force any other job, "
            "python jobs.py rm removes one; ONLY in plot.py leaves jobs out, --any-code draws them "
            "anyway"
        )
    if len(stale) and not any_code:
        warning = "the code or the data has changed since these jobs finished"
        print(f"plot.py: {warning}", file=sys.stderr)
    for why, count in Counter(filter(None, jobs["unchecked"])).items():
        print(f"plot.py: {counted(count, 'job')}: {why}", file=sys.stderr)
    return mixed


def _one(job_id: str, every: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """The job with an id, or the best of some jobs; `attrs["about"]` says which."""
    metric = None if job_id else chooser(jobs)
    why = f", the best of {len(groups.having(jobs, metric.result))} by {metric}" if metric else ""
    job = every[every["job_id"] == (job_id or groups.best(jobs))]
    among = jobs if job["job_id"].isin(jobs["job_id"]).all() else every
    names = [*groups.varied(among), *groups.varying_repeats(among)]
    told = groups.label(among, names)[job.index].item()  # what distinguishes it: `mlp, seed 2`
    job.attrs["about"] = f"job {job['job_id'].item()}{why}{f' ({told})' if told else ''}"
    return job


# What every caption says of the jobs behind its figure, whatever the figure is. Sentences begin
# with a space, and are empty if there is nothing to say.


def _about(jobs: pd.DataFrame) -> str:
    """Say what all jobs have in common: their task, their model, and the numbers of examples, if
    their files are on this machine."""
    names = [*groups.with_role(jobs, "task"), *["model"] * ("model" in jobs)]
    same = [name for name in names if groups.combinations(jobs, [name]) == 1]
    said = [f"{style.setting(name)} {style.names(jobs[name])[jobs[name].iloc[0]]}" for name in same]
    sizes = [*filter(None, map(tables.sizes, jobs["job_folder"].map(str)))]
    parts = [part for part in WORDS if sizes and all(part in each for each in sizes)]
    known = {part: [each[part] for each in sizes] for part in parts}
    each = [f"{groups.between(counts)} {WORDS[part]}" for part, counts in known.items()]
    *most, last = each or [""]
    said += [f"{', '.join(most)}{' and ' * bool(most)}{last} examples"] * bool(each)
    alike = len({tuple(each.items()) for each in sizes}) == 1
    said += ["one split"] * (len(each) > 1 and alike and not groups.split_by(jobs))
    text = ", ".join(said)
    return f" {text[0].upper()}{text[1:]}." if text else ""


UNLIKE = (
    ("hardware", "on", "The jobs ran on different kinds of devices"),
    ("threads", "with", "The jobs ran with different numbers of threads"),
    ("monitor", "by", "Jobs kept the weights that were best by different metrics"),
)
"""Columns in which jobs may differ, what stands between a count and a value, and what is said."""


def _differences(jobs: pd.DataFrame, mixed: list[str]) -> str:
    """Say in what the finished jobs of a figure differ besides their settings: code, data, kinds of
    devices, and the metric by which their weights were kept. `mixed` are the ids of jobs from
    different code."""
    said = _on_code(jobs, mixed)
    if unknown := int((jobs["unchecked"] != "").sum()):
        of = f"{unknown} of {counted(len(jobs), 'job')}"
        said += f" It is not known whether the data of {of} has changed since."
    for name, word, unlike in UNLIKE:
        kinds = Counter(jobs[name].tolist() if name in jobs else [])
        each = ", ".join(f"{n} {word} {kind}" for kind, n in sorted(kinds.items()))
        said += f" {unlike}: {each}." * (len(kinds) > 1)
    if continuing := int(tables.continuing(jobs).sum()):
        said += f" Jobs that continue others: {continuing} of {len(jobs)}; their costs and"
        said += " settings do not include those of the earlier jobs."
    if audited := [*tables.audits(jobs).values()]:
        same = "all" if {*audited} == {"same"} else audited.count("same") or "none"
        of = f"{len(audited)} of {counted(len(jobs), 'job')}"
        said += f" Audited: {of}; {same} of these gave the same bits again, up to the first "
        said += "evaluation."
    return said


def _on_code(jobs: pd.DataFrame, mixed: list[str]) -> str:
    other = jobs["job_id"].isin(mixed)
    if not other.any():
        return " The code or the data has changed since." if jobs["stale"].all() else ""
    if len(jobs) == 1:
        return " The job is from different code or data."
    alike = groups.groups(jobs, groups.varied(jobs))
    names = [name for name, own in alike.items() if own["job_id"].isin(mixed).all() and name]
    can_be_named = 0 < len(names) <= min(MOST, len(alike) - 1)
    can_be_named &= sum(len(alike[name]) for name in names) == other.sum()
    which = f": all of {'; '.join(names)}" if can_be_named else ""
    are = "is" if other.sum() == 1 else "are"
    return f" {other.sum()} of the {len(jobs)} jobs {are} from different code or data{which}."
