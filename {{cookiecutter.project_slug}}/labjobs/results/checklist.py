"""The answers to the NeurIPS paper checklist that the tracking store knows: items 7 and 8.

neurips.cc/public/guides/PaperChecklist
"""

from collections import Counter
from typing import TYPE_CHECKING

from labjobs.results import groups, paper_tables, style, tables
from labjobs.results.metrics import NoResults

if TYPE_CHECKING:
    import pandas as pd


def markdown(jobs: "pd.DataFrame") -> str:
    """Return a page on statistical significance and compute resources, from the jobs of plot.py."""
    return "\n".join([*_significance(jobs), "", *_compute(jobs)])


def _significance(jobs: "pd.DataFrame") -> list[str]:
    repeats = groups.varying_repeats(jobs)
    fixed = [name for name in groups.repeated(jobs) if name not in repeats]
    tried = Counter(paper_tables.tried(jobs)["state"])
    states = ", ".join(f"{count} {state}" for state, count in sorted(tried.items()))
    same = f"; the same in all: {style.settings(fixed)}" if fixed else ""
    lines = [
        "## 7. Experiment statistical significance",
        "",
        f"- Jobs tried: {tried.total()}: {states}.",
        f"- Varied between repeats: {style.settings(repeats) if repeats else 'nothing'}{same}.",
    ]
    try:
        table = paper_tables.results(jobs)
        lines.append(f"- {table.what}, as in tables/main.tex:{table.about}")
    except NoResults as none:
        lines.append(f"- There is no table of test results: {none}.")
    return [
        *lines,
        "- Intervals are 95% t intervals; over repeats and test examples, the squares of both "
        "halves are added; near the ends of a fraction's range they are binomial (Korn and "
        "Graubard 1998). Differences are paired by repeat and test example where these are shared, "
        "else by Welch's test, and adjusted for all rows of a column by Holm's method.",
    ]


def _compute(jobs: "pd.DataFrame") -> list[str]:
    spent, lines = tables.spent(jobs.attrs["experiment"]), []
    for name in paper_tables.COSTS:
        each = groups.finite(jobs, name)
        if len(each):
            total = groups.finite(spent, name).sum() if name in paper_tables.TOTALS else None
            whole = f"; {style.number(total)} in all {len(spent)} attempts" if total else ""
            what = f"{paper_tables.COSTS[name]}: {style.number(each.mean())} for a job on average"
            lines.append(f"- {what}, {style.number(each.max())} at most{whole}.")
    return [
        "## 8. Experiments compute resources",
        "",
        f"- Devices: {', '.join(sorted(jobs['hardware'].unique()))}.",
        *lines,
        "- All attempts are those in the store: also jobs that failed, diverged, became stale, or "
        "were made by `jobs.py find`.",
    ]
