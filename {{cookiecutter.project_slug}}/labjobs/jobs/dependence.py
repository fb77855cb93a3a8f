"""`python jobs.py why JOB DEFINITION`: how a job's code reaches a definition."""

import difflib
import json
from collections.abc import Iterable

from labjobs.errors import SettingsError
from labjobs.evidence import Fingerprint
from labjobs.job import code
from labjobs.job.terminal import leave
from labjobs.jobs.project import Job

NEAR = 3
"""The largest number of names that are suggested."""


def print_why(job: Job, definition: str, as_json: bool) -> int:
    """Print the chain from a definition to where the job begins; returns the exit status: 1 if the
    job's results do not depend on it."""
    if job.folder is None:
        raise SettingsError(f"job {job.id}: {job.problem}")
    found = code.present_as_in(job.latest, job.folder.code) if job.latest else job.folder.code
    chain = [code.in_python(part) for part in _chain(found, definition)]
    if as_json:
        print(json.dumps({"job": job.id, "definition": definition, "chain": chain}, indent=2))
    elif chain:
        print(" <- ".join(chain))
    if chain:
        return 0
    near = _near(found, definition)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return leave(1, f"job {job.id} does not depend on {definition}{hint}")


def _chain(found: Fingerprint, definition: str) -> list[str]:
    """The parts from a definition to the entry; none if the job does not reach it. Something inside
    a definition, such as a method, belongs to that definition; a name without its module is
    allowed."""
    named = {code.in_python(part): part for part in found.parts}
    if len(same := _called(definition, named)) == 1:
        (definition,) = same
    while definition and definition not in named:
        definition = definition.rpartition(".")[0]
    return found.why(named[definition]).split(" <- ") if definition else []


def _near(found: Fingerprint, definition: str) -> list[str]:
    """Names of the job's definitions that may be meant."""
    names = [code.in_python(part) for part in found.parts]
    return _called(definition, names)[:NEAR] or difflib.get_close_matches(definition, names, n=NEAR)


def _called(name: str, names: Iterable[str]) -> list[str]:
    """The definitions that have this name in their modules."""
    return [each for each in names if each.rpartition(".")[2] == name]
