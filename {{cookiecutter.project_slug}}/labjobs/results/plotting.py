"""The command line of plot.py: from a store's jobs to the files of its figures."""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labjobs import exit_status
from labjobs.errors import SettingsError, did_you_mean
from labjobs.files import PROJECT
from labjobs.job.identity import DEFAULT
from labjobs.job.terminal import counted, prepare_streams
from labjobs.results import figure_files, figures, groups, style, tables
from labjobs.results.metrics import NoResults, chooser, declared
from labjobs.tracking import stored_jobs
from labjobs.tracking.mlflow_client import experiment_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Drawing = Callable[["pd.DataFrame"], tuple[Any, str]]
"""From a table of jobs to a figure and its caption."""


def main(
    kind: type[Any],
    of_all: Mapping[str, Drawing],
    of_one: Mapping[str, Drawing],
    only: Mapping[str, Any],
    labels: Mapping[str, str],
    script: str = DEFAULT,
) -> int:
    """Draw figures, by their names: figures `of_all` jobs that have the settings of `only`, and
    figures `of_one` of these jobs, by default the best on validation data.

    The jobs all belong to one script, `run` for run.py; `kind` is the class of their settings.
    `labels` are what settings are called in figures.
    Returns the exit status: 1 if a figure would not print correctly, or none could be drawn.
    """
    prepare_streams()
    args = _parser().parse_args()
    try:
        if args.provenance:
            print(figure_files.as_lines(figure_files.read(args.provenance)))
            return 0
        if args.venue == "list":
            print(style.listing())
            return 0
        figures.use(style.named(args.venue))
        for format in args.format.split(","):
            if format not in figure_files.METADATA:
                known = did_you_mean(format, figure_files.METADATA)
                raise SettingsError(f"--format {args.format}: unknown format {format!r}; {known}")
        style.label_settings(labels)
        if args.experiment == experiment_name():
            stored_jobs.settle(args.experiment)
        return _draw(args, of_all, of_one, *_tried(args, kind, only, script))
    except SettingsError as error:
        status, said = exit_status.WRONG, str(error)
    except (NoResults, OSError) as error:
        status, said = exit_status.FAILED, str(error)
        if isinstance(error, NoResults):
            _put_aside(args.out, {**of_all, **of_one}, [])
    print(f"plot.py: {said}", file=sys.stderr)
    return status


def _tried(
    args: argparse.Namespace, kind: type[Any], only: Mapping[str, Any], script: str
) -> "tuple[pd.DataFrame, ...]":
    """All jobs with results, those to draw, and those that were tried besides: their settings, and
    why they are not drawn."""
    import pandas as pd

    every = tables.jobs(args.experiment, kind, script)
    if args.job and args.job not in set(every.loc[~every["diverged"], "job_id"]):
        raise SettingsError(f"--job {args.job}: no finished job has this id")
    jobs = wanted = tables.only(every, only)
    if not args.any_code:
        jobs = _without_earlier_trials(jobs)
    declared(jobs)  # no figure can be correct if a metric has two directions
    earlier = wanted.drop(jobs.index).assign(state="diverged with other code or data")
    unfinished = tables.unfinished(args.experiment, script, only)
    others = [each.astype(object) for each in (earlier, unfinished) if len(each)]
    return every, jobs, pd.concat(others) if others else unfinished


def _draw(
    args: argparse.Namespace,
    of_all: Mapping[str, Drawing],
    of_one: Mapping[str, Drawing],
    every: "pd.DataFrame",
    jobs: "pd.DataFrame",
    others: "pd.DataFrame",
) -> int:
    """Draw the figures of each task, and return the exit status."""
    mixed = _other_code(jobs, args.any_code)
    of_tasks = groups.tasks(jobs)
    drawings, left_out, files = {**of_all, **of_one}, dict[str, list[str]](), list[Path]()
    right = []
    for stem, task, name in [
        *_stems(of_all, of_tasks),
        *_stems(of_one, [""] if args.job else of_tasks),
    ]:
        alike = of_tasks.get(task, jobs)
        try:
            shown = alike if name in of_all else _one(args.job, every, alike)
            about = figure_files.provenance(shown) | {"figure": name, "venue": args.venue}
            figure, caption = drawings[name](shown)
            caption += f" Task: {task}." if task else ""
            caption += _differences(shown, mixed)
            caption += "" if args.job and name in of_one else _counts(alike, others)
            written = _save(args, args.out / stem, figure, caption, about)
            right.append(bool(written))
            files += written
        except NoResults as error:
            left_out.setdefault(str(error), []).append(stem)
    for why, names in left_out.items():
        print(f"left out {', '.join(names)}: {why}", file=sys.stderr)
    _put_aside(args.out, drawings, files)
    return 0 if right and all(right) else 1


def _put_aside(out: Path, names: Collection[str], written: Collection[Path]) -> None:
    """Move figures that were not drawn away, and say so."""
    if moved := figure_files.put_aside(out, names, written):
        line = "moved what was not drawn this time"
        print(f"{line} to {out / figure_files.OLD}: {', '.join(moved)}", file=sys.stderr)


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


def _save(
    args: argparse.Namespace,
    stem: Path,
    figure: "Figure",
    caption: str,
    about: dict[str, Any],
) -> list[Path]:
    """Write a figure, and print the path and the printed size of its images; return all of its
    files, none if it would not print correctly."""
    formats, venue = args.format.split(","), style.named(args.venue)
    try:
        files = figure_files.save(figure, stem, caption, about, venue, not args.unchecked, formats)
    except figure_files.Misprint as error:
        lines = [*str(error).splitlines(), "not written; --unchecked writes it anyway"]
        print("\n".join(f"{stem.name}: {line}" for line in lines), file=sys.stderr)
        return []
    for path, width, height in files:
        print(f"{path}  {width:g} x {height:g} in")
    return [stem.with_name(f"{stem.name}.{kind}") for kind in (*formats, "tex", "json")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Draw the figures from finished jobs.")
    add = parser.add_argument
    out, experiment = PROJECT / "figures", experiment_name()
    add("--out", type=Path, default=out, help="folder for the figures (default: figures)")
    add("--experiment", default=experiment, help="experiment in the store (default: %(default)s)")
    venues = "venue to draw for; `list` shows all with their sizes"
    add("--venue", default=style.DEFAULT, help=venues)
    known = ", ".join(figure_files.METADATA)
    add("--format", default="pdf,png", help=f"{known}; several with commas (default: %(default)s)")
    add("--job", default="", metavar="ID", help="job for figures of one job (default: the best)")
    add("--unchecked", action="store_true", help="write figures even if the print check fails")
    add("--any-code", action="store_true", help="also draw jobs with other code or data")
    add("--provenance", type=Path, metavar="FILE", help="print which jobs a figure was drawn from")
    return parser


def _without_earlier_trials(jobs: "pd.DataFrame") -> "pd.DataFrame":
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


def _other_code(jobs: "pd.DataFrame", any_code: bool) -> list[str]:
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
            "bash run.sh --redo-stale runs those of its grid again, --force any other job; ONLY in "
            "plot.py leaves jobs out, --any-code draws them anyway"
        )
    if len(stale) and not any_code:
        warning = "the code or the data has changed since these jobs finished"
        print(f"plot.py: {warning}", file=sys.stderr)
    return mixed


def _one(job_id: str, every: "pd.DataFrame", jobs: "pd.DataFrame") -> "pd.DataFrame":
    """The job with an id, or the best of some jobs; `attrs["about"]` says which."""
    why = "" if job_id else f", the best of {len(jobs)} by {chooser(jobs)}"
    job = every[every["job_id"] == (job_id or groups.best(jobs))]
    told = groups.described(job, every)
    job.attrs["about"] = f"job {job['job_id'].item()}{why}{f' ({told})' if told else ''}"
    return job


# What every caption says of the jobs behind its figure, whatever the figure is. Sentences begin
# with a space, and are empty if there is nothing to say.

NAMED = 6
"""The largest number of settings that are named; more are counted."""


def _counts(jobs: "pd.DataFrame", others: "pd.DataFrame") -> str:
    """Say how many jobs of a task were tried, if not all finished. `others` are the settings of the
    jobs that have no results, and why (`state`)."""
    for name in groups.with_role(jobs, "task"):
        if name in others:
            others = others[others[name].map(str) == str(jobs[name].iloc[0])]
    diverged = int(jobs["diverged"].sum())
    states = Counter({"diverged": diverged}) + Counter(others["state"].tolist())
    if not states:
        return ""
    why = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f" Of {len(jobs) + len(others)} jobs tried, {len(jobs) - diverged} finished: {why}."


def _differences(jobs: "pd.DataFrame", mixed: list[str]) -> str:
    """Say in what the finished jobs of a figure differ besides their settings: code, kinds of
    devices, and the metric by which their weights were kept. `mixed` are the ids of jobs from
    different code."""
    return _on_code(jobs, mixed) + _on_devices(jobs) + _on_monitors(jobs)


def _on_code(jobs: "pd.DataFrame", mixed: list[str]) -> str:
    other = jobs["job_id"].isin(mixed)
    if not other.any():
        return ""
    if len(jobs) == 1:
        return " The job is from different code or data."
    alike = groups.groups(jobs, groups.varied(jobs))
    names = [name for name, own in alike.items() if own["job_id"].isin(mixed).all() and name]
    which = f": all of {'; '.join(names)}" if 0 < len(names) <= min(NAMED, len(alike) - 1) else ""
    are = "is" if other.sum() == 1 else "are"
    return f" {other.sum()} of the {len(jobs)} jobs {are} from different code or data{which}."


def _on_devices(jobs: "pd.DataFrame") -> str:
    kinds = Counter(jobs["hardware"].tolist())
    each = ", ".join(f"{count} on {kind}" for kind, count in sorted(kinds.items()))
    return f" The jobs ran on different kinds of devices: {each}." if len(kinds) > 1 else ""


def _on_monitors(jobs: "pd.DataFrame") -> str:
    kinds = Counter(jobs["monitor"].tolist() if "monitor" in jobs else [])
    each = ", ".join(f"{count} by {name}" for name, count in sorted(kinds.items()))
    return f" Jobs kept the weights that were best by different metrics: {each}." * (len(kinds) > 1)
