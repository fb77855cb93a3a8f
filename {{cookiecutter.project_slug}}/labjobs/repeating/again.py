"""Runs an attempt again, and compares the results."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from labjobs.errors import JobError
from labjobs.job import purpose
from labjobs.job.copies import INSTALLED
from labjobs.job.lines import FILE
from labjobs.paths import PROJECT
from labjobs.repeating import curves, processes
from labjobs.repeating.curves import Difference
from labjobs.repeating.recorded import Recorded
from labjobs.repeating.workplace import Workplace
from labjobs.tracking import parquet

FINE = (0, 3)
"""Exit statuses of a job that has finished, even if its store does not have everything."""

NOT_PASSED_ON = (parquet.VARIABLE, purpose.VARIABLE)
"""Variables that would make the job write elsewhere, or log something else."""

NAMED = 5
"""The largest number of packages with different versions that are named."""


@dataclass
class Repeated:
    """The outcome of repeating an attempt: `same`, `different` or `not repeated`."""

    status: str
    reason: str = ""
    """Why it was not repeated."""

    difference: Difference | None = None
    compared: dict[str, int] = field(default_factory=dict)
    """Numbers of values that are the same, by what they are."""

    conditions: dict[str, str] = field(default_factory=dict)
    """What differed from the record: versions, device, threads."""


def repeat(attempt: Recorded, workplace: Workplace) -> Repeated:
    """Run an attempt again and compare. Raises JobError if that cannot be done, OSError."""
    attempt.check()
    code = workplace.code(attempt)
    environment = workplace.environment(attempt, code)
    workplace.forget(attempt.job)
    workplace.copy_inputs(attempt)
    script = code / f"{attempt.about['script']}.py"
    words = [str(environment.python), str(script), *attempt.flags()]
    env = {k: v for k, v in environment.env.items() if k not in NOT_PASSED_ON}
    env |= {"PROJECT_FOLDER": str(PROJECT)}
    status, said = processes.run([*words, f"--runs-root={workplace.runs}", "--quiet"], PROJECT, env)
    if status not in FINE:
        raise JobError(f"it ended with status {status}: {said.strip().rpartition(chr(10))[2]}")
    found = [path.parent for path in (workplace.runs / attempt.job).glob(f"*/{FILE}")]
    if len(found) != 1:
        raise JobError("with its stored code, it is another job")
    return _compared(attempt, Recorded(found[0]))


def _compared(before: Recorded, after: Recorded) -> Repeated:
    from labjobs.repeating import outputs  # with torch, which is slow to import

    points = [curves.points(each.journal) for each in (before, after)]
    difference = curves.difference(*points)
    compared = {"points of the curves": len(points[0])}
    if not difference:
        counts, difference = outputs.compare(before.path, after.path)
        compared |= counts
    status = "different" if difference else "same"
    conditions = dict(_conditions(before, after))
    return Repeated(status, difference=difference, compared=compared, conditions=conditions)


def _conditions(before: Recorded, after: Recorded) -> Iterator[tuple[str, str]]:
    """The differences, in a few words."""
    for name in ("device", "gpu", "threads", "precision"):
        was, now = (each.journal.tag(name) for each in (before, after))
        if was != now:
            yield name, f"{was or 'unknown'}, now {now or 'unknown'}"
    try:
        lists = [each.copy(INSTALLED).read_text().splitlines() for each in (before, after)]
    except JobError:
        yield "versions", "not recorded"
        return
    if changes := [*_changes(*map(_versions, lists))]:
        more = len(changes) - NAMED
        yield "versions", "; ".join(changes[:NAMED]) + (f"; {more} more" if more > 0 else "")


def _versions(lines: Sequence[str]) -> dict[str, str]:
    packages = (line.removeprefix("# ").replace("==", " ").rpartition(" ") for line in lines)
    return {name: version for name, _, version in packages}


def _changes(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}, key=str.lower):
        was, now = (versions.get(name, "none") for versions in (before, after))
        if was != now:
            yield f"{name} {was}, now {now}"
