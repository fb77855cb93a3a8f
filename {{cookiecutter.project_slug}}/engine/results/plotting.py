"""The command line of plot.py: from a store's jobs to the files of its figures."""

import argparse
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import SettingsError
from engine.paths import PROJECT
from engine.results import figure_files, figures, venues
from engine.results import tables as results
from engine.tracking.store import experiment_name

if TYPE_CHECKING:
    import pandas as pd

Drawing = Callable[["pd.DataFrame"], tuple[Any, str]]
"""From a table of jobs to a figure and its caption."""


def main(
    of_all: Mapping[str, Drawing], of_one: Mapping[str, Drawing], varied: Collection[str], best: str
) -> int:
    """Draw figures, by their names: those `of_all` jobs that differ in nothing but the settings
    `varied`, and those `of_one` of them, by default that which was best by the metric `best`.

    Returns the exit status: 1 if a figure would not print right, or none could be drawn.
    """
    args = _parser().parse_args()
    try:
        if args.whence:
            print(figure_files.told(figure_files.whence(args.whence)))
            return 0
        if args.venue == "list":
            print(venues.listing())
            return 0
        venue = venues.named(args.venue, args.font)
        every = results.jobs(args.experiment)
        chosen = _chosen(every, args.job)
        alike = _alike(every, varied)
        figures.use(venue)
        how = (args.out, venue, not args.unchecked)
        done = [_draw(name, drawing, lambda: alike, *how) for name, drawing in of_all.items()]
        one = partial(_one, chosen, alike, best)
        done += [_draw(name, drawing, one, *how) for name, drawing in of_one.items()]
        return 0 if True in done and False not in done else 1
    except SettingsError as error:
        status, said = 2, str(error)
    except (results.NoResults, OSError) as error:
        status, said = 1, str(error)
    print(f"plot.py: {said}", file=sys.stderr)
    return status


def _draw(
    name: str,
    drawing: Drawing,
    of: "Callable[[], pd.DataFrame]",
    out: Path,
    venue: venues.Venue,
    checked: bool,
) -> bool | None:
    """Write a figure and print the path and the printed size of its files; whether it prints right,
    None if it was left out."""
    try:
        jobs = of()
        about = results.provenance(jobs) | {"venue": venue.name}
        fig, caption = drawing(jobs)
        files = figure_files.save(fig, out / name, caption, about, venue, checked)
    except results.NoResults as why:
        print(f"left out {name}: {why}", file=sys.stderr)
        return None
    except figure_files.Misprint as error:
        for line in str(error).splitlines():
            print(f"{name}: {line}", file=sys.stderr)
        print(f"{name}: not written; --unchecked writes it as it is", file=sys.stderr)
        return False
    for path, width, height in files:
        print(f"{path}  {width:g} x {height:g} in")
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Draw the figures from finished jobs.")
    add = parser.add_argument
    add("--out", type=Path, default=PROJECT / "figures", help="folder for them; default: figures")
    add("--experiment", default=experiment_name(), help="default: %(default)s")
    add("--venue", default=venues.DEFAULT, help="widths and sizes; `list` shows all")
    add("--font", choices=["serif", "sans"], help="default: the venue's")
    add("--job", default="", metavar="ID", help="for figures of one job; default: the best")
    add("--unchecked", action="store_true", help="write what would not print right, too")
    add("--whence", type=Path, metavar="FILE", help="say where a figure comes from")
    return parser


def _alike(jobs: "pd.DataFrame", varied: Collection[str]) -> "pd.DataFrame":
    """The jobs to draw; says how many are left out."""
    alike = results.comparable(jobs, varied)
    if len(alike) < len(jobs):
        odd, others = len(jobs) - len(alike), ", ".join(results.differing(jobs, varied))
        print(f"left out {odd} of {len(jobs)} jobs: unlike the rest in {others}", file=sys.stderr)
    return alike


def _chosen(jobs: "pd.DataFrame", job_id: str) -> "pd.DataFrame":
    """The job of an id, in a table; none if none is asked for."""
    found = jobs[(jobs["job_id"] == job_id) & ~jobs["diverged"]]
    if job_id and found.empty:
        raise SettingsError(f"--job {job_id}: no finished job has this id")
    return found


def _one(chosen: "pd.DataFrame", jobs: "pd.DataFrame", metric: str) -> "pd.DataFrame":
    """The chosen job, else the best."""
    return jobs[jobs["job_id"] == results.best(jobs, metric)] if chosen.empty else chosen
