"""What every caption says of the jobs behind its figure, whatever the figure is.

Sentences begin with a space, and are empty if there is nothing to say.
"""

from collections import Counter
from typing import TYPE_CHECKING

from labjobs.results import groups

if TYPE_CHECKING:
    import pandas as pd

NAMED = 6
"""The largest number of settings that are named; more are counted."""


def counts(jobs: "pd.DataFrame", others: "pd.DataFrame") -> str:
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


def on(jobs: "pd.DataFrame", mixed: list[str]) -> str:
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
