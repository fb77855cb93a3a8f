"""`stale`: the jobs that the present code no longer fits, by what has changed; `why`: how a job's
code reaches a definition; `accept`: changes that change no results.
"""

import ast
import difflib
import re
import sys
import textwrap
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from labjobs import exit_status, layout, sources
from labjobs.cli.flags import option
from labjobs.commands.inventory import Job, Project
from labjobs.commands.replay import Recorded, Repeated, repeated
from labjobs.errors import JobError, SettingsError, cause, few
from labjobs.files import json_of
from labjobs.job import attempts, code_evidence, data_evidence, provenance
from labjobs.job.code_evidence import Accepted
from labjobs.job.folder import JobFolder
from labjobs.job.identity import identity, inputs
from labjobs.job.terminal import Interruption, counted, leave
from labjobs.privacy import scrub
from labjobs.tracking import mlflow_store


@dataclass
class Change:
    """What makes jobs stale. `name` is the name of a definition, as in Python, or empty if no
    definition can be named; then `what` says why."""

    name: str
    what: str  # changed, new or gone, if it is a definition
    stale: bool = True  # whether it makes jobs stale; otherwise, it is why that cannot be told
    jobs: list[str] = field(default_factory=list)
    diffs: list[str] = field(default_factory=list)
    """One diff for each version of the definition with which one of these jobs ran."""


def print_stale(project: Project, given: Namespace) -> None:
    """Print what makes jobs stale, the changes that concern most of them first."""
    jobs = project.all()
    found = _all_changes(project, jobs)
    if given.json:
        rows = [
            {"definition": each.name or None, "change": each.what, "stale": each.stale}
            | {"jobs": each.jobs}
            | ({"diffs": each.diffs} if given.diff else {})
            for each in found
        ]
        print(json_of(rows))
        return
    if not any(each.stale for each in found):
        print(f"none of {counted(len(jobs), 'job')} is stale" if jobs else "there are no jobs yet")
    for each in found:
        of = f"{len(each.jobs)} of {counted(len(jobs), 'job')}"
        print(f"{each.name} {each.what}: {of} ({few(each.jobs, 4)})".lstrip())
        if given.diff:
            print("".join(f"\n{text}\n" for text in each.diffs), end="")


def _all_changes(project: Project, jobs: list[Job]) -> list[Change]:
    """What makes jobs stale, by the number of jobs, the most first."""
    found: dict[str, Change] = {}
    known: dict[tuple[str, ...], list[Change]] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        state = job.state(project.view)
        if state.word in ("finished", "unsent") and state.about:
            change = found.setdefault(state.about, Change("", state.about, stale=False))
            change.jobs.append(job.id)
        if state.word != "stale":
            continue
        # Thousands of jobs have the same code, then and now, and so the same changes.
        then = job.latest.name if job.latest else ""
        now = job.folder.code.digest if job.folder else ""
        of_codes = then, now, state.about
        if of_codes not in known:
            known[of_codes] = list(_changes(job, state.about))
        for each in known[of_codes]:
            change = found.setdefault(each.name or each.what, Change(each.name, each.what))
            change.jobs.append(job.id)
            shown = {_body(text) for text in change.diffs}
            change.diffs += [text for text in each.diffs if _body(text) not in shown]
    return sorted(found.values(), key=lambda change: (-len(change.jobs), change.name))


def _changes(job: Job, about: str) -> Iterator[Change]:
    """What makes one job stale: `about`, if it is none of its definitions."""
    attempt, names = job.latest, list[str]()
    code = job.folder.code if job.folder else None
    if code and attempt and code_evidence.difference(attempt, code):
        names = code_evidence.changed(attempt, code)
    if not (code and attempt and names):
        yield Change("", about)
        return
    kept = code_evidence.parts(attempt)
    now = code_evidence.present_as_in(attempt, code)
    for part in names:
        name, before, diffs = code_evidence.in_python(part), kept.get(part), list[str]()
        unused = part not in now.parts and code_evidence.binds(job.script, name)
        lost = "no longer used" if unused else "gone"
        what = "new" if before is None else "changed" if part in now.parts else lost
        what = code_evidence.UNREAD if part in now.unread else what
        if not part.startswith("file:") and not unused:  # files are not stored
            old = before["source"] if before else ""
            new = scrub(now.source(part), code=True) if part in now.parts else ""
            same = f"{name} reads as in job {job.id}, but a name in it now means something else"
            diffs.append(as_diff(old, new, f"{name} of job {job.id}", f"{name} now") or same)
        yield Change(name, what, diffs=diffs)


def _body(diff: str) -> str:
    """A diff without its titles, which name a job."""
    return diff.partition("\n@@")[2]


def as_diff(before: str, after: str, title: str, other: str) -> str:
    """Return how a text has changed, below the titles of both."""
    lines = before.splitlines(), after.splitlines()
    return "\n".join(difflib.unified_diff(*lines, title, other, lineterm=""))


# `python jobs.py why JOB DEFINITION`: how a job's code reaches a definition.


def print_why(project: Project, given: Namespace) -> int:
    """Print the chain from a definition to where the job begins; returns the exit status: 1 if the
    job's results do not depend on it. Something inside a definition, such as a method, belongs to
    that definition; a name without its module is allowed."""
    job, definition = project.one(given.job), given.definition
    if job.folder is None:
        raise SettingsError(f"job {job.id}: {job.problem}")
    code = job.folder.code
    if job.latest:
        code = code_evidence.present_as_in(job.latest, code)
    named = {code_evidence.in_python(part): part for part in code.parts}
    alike = [each for each in named if each.endswith(f".{definition}")]
    found = alike[0] if len(alike) == 1 else definition
    while found and found not in named:
        inner, found = found, found.rpartition(".")[0]
        if f"{found}.py" in named and code_evidence.binds(job.folder.script, inner):
            found += ".py"  # a module that counts as a whole
    parts = code.why(named[found]).split(" <- ") if found else []
    chain = [code_evidence.in_python(part) for part in parts]
    if given.json:
        print(json_of({"job": job.id, "definition": definition, "chain": chain}))
    elif chain:
        print(" <- ".join(chain))
        print("".join(f"{line}\n" for line in code.advice if line.startswith(chain[0])), end="")
    if chain:
        return exit_status.DONE
    near = alike
    if not (near or code_evidence.binds(job.folder.script, definition)):
        near = difflib.get_close_matches(definition, named)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return leave(exit_status.FAILED, f"job {job.id} does not depend on {definition}{hint}")


# `accept`: makes stale jobs count again if the present code would give the same results.


def accept(project: Project, given: Namespace) -> int:
    """Accept that the changes in the code of stale jobs do not change results; return the exit
    status. With --verify, some jobs are replayed first of all; changes that give different bits are
    not accepted, and the status is 1. Raises SettingsError without a reason.
    """
    if not given.because.strip():
        raise SettingsError("--because: say why results do not change")
    states = [(job, job.state(project.view).word) for job in project.all()]
    stale = [job for job, word in states if word == "stale"]
    diverged = [job for job, _ in states if _has_diverged_before(job)]
    if not given.verify:
        stale += diverged
    elif diverged:
        why = "diverged, which no replay verifies; without --verify, they count again too"
        print(f"{counted(len(diverged), 'job')} left out: {why}", file=sys.stderr)
    changes = {job.id: _own_changes(job.folder) for job in stale}
    # What is stale by its inputs alone, without changes of its own, counts again when they do.
    own = {job: found for job, found in changes.items() if found}
    known = {job.id: job.folder for job in stale if job.folder and job.id in own}
    other = "the data has changed, or their records are in another folder: publish and adopt them"
    unknown = [job.problem or other for job in stale if changes[job.id] is None]
    if not known and not unknown and not given.json:
        print("no job is stale")
    for why, number in Counter(unknown).items():
        leave(exit_status.FAILED, f"{counted(number, 'job')} left out: {why}")
    proofs = _proofs([*known.values()], given)
    proof = {name: proofs[_codes(job)] for name, job in known.items()}
    accepted = [
        name
        for name in attempts.inputs_first({name: job.settings for name, job in known.items()})
        if "" not in proof[name].values() and _accept(known[name], given.because, proof[name])
    ]
    definitions = list[dict[str, Any]]()
    for part in sorted({part for job in accepted for part in own[job]}):
        of = [job for job in accepted if part in own[job]]
        replayed = {job: proof[job][job] for job in of if job in proof[job]}
        about = {"definition": code_evidence.in_python(part), "jobs": of, "replayed": replayed}
        definitions.append(about)
    running = [job.folder for job, word in states if word == "running" and job.folder]
    later = [job.id for job in running if job.evidence.change]
    if given.json:
        print(json_of({"accepted": definitions, "jobs": accepted, "running": later}))
    else:
        _print_accepted(definitions, accepted, later)
    return exit_status.DONE if len(accepted) == len(known) + len(unknown) else exit_status.FAILED


def _print_accepted(definitions: list[dict[str, Any]], jobs: list[str], running: list[str]) -> None:
    for each in definitions:
        of, ways = each["jobs"], [*each["replayed"].values()]
        count = f"{len(ways)} " if len(ways) < len(of) else ""
        replayed = f"{count}replayed {', '.join(sorted({*ways}))} with the same bits"
        how = replayed if ways else "not verified"
        print(f"accepted: {each['definition']}, of {counted(len(of), 'job')} ({how})")
    if jobs:
        count = counted(len(jobs), "job")
        print(f"no longer stale: {count}; commit {layout.ACCEPTED} with the change")
    if running:
        print(f"running with other code: {few(running, 4)}; accept again when they have ended")


def _has_diverged_before(job: Job) -> bool:
    """Whether a job has diverged with other code: it would start over, and is in no figure."""
    ended = job.latest and attempts.status_of(job.latest) == "diverged"
    return bool(ended and job.folder and job.folder.evidence.change)


def _own_changes(job: JobFolder[Any] | None) -> dict[str, list[str]] | None:
    """The changes in a job's code without those of its inputs; None if they are not known, or if
    the job is stale by its data."""
    if not (job and job.latest) or data_evidence.compare(job.latest, job.places)[0]:
        return None
    found = code_evidence.changes(job.latest, job.code)
    return {n: found[n] for n in sorted(found) if not _is_input(n)} if found else None


def _is_input(part: str) -> bool:
    return part.startswith(f"{code_evidence.INPUT}:")


Codes = tuple[str, str]


def _codes(job: JobFolder[Any]) -> Codes:
    """The digests of a job's code, then and now."""
    assert job.latest
    present = code_evidence.present_as_in(job.latest, job.code)
    return code_evidence.digest(job.latest), present.digest


def _accept(job: JobFolder[Any], because: str, replayed: Mapping[str, str]) -> bool:
    """Accept the changes in a job's code, unless an input of it is stale still."""
    assert job.latest
    for known in ("code", "path"):  # its inputs may have been accepted since
        vars(job).pop(known, None)
    found = code_evidence.changes(job.latest, job.code)
    if still := [*filter(_is_input, found)]:
        names = ", ".join(map(code_evidence.in_python, still))
        leave(exit_status.FAILED, f"{job.label} left out: {names} is stale")
        return False
    old, new = _codes(job)
    if old not in code_evidence.same(new):
        named = {code_evidence.in_python(part): hashes for part, hashes in found.items()}
        today = datetime.now(UTC).date().isoformat()
        who = provenance.git("config", "user.name").decode().strip() or mlflow_store.user()
        code_evidence.accept([Accepted(old, new, named, because, who, today, replayed)])
    return True


# `accept --verify` replays jobs with the present code: are the results the same, bit for bit?

SHORT = 300.0  # seconds of training up to which a job is replayed to its end, test results included

INDIRECT = sources.WHOLE | {"getattr", "replace"}
"""Words in code that may read any setting."""


def _proofs(jobs: Sequence[JobFolder[Any]], given: Namespace) -> dict[Codes, dict[str, str]]:
    """For the digests of each change, how far jobs were replayed, by their ids, if they are to be;
    empty if the bits were others."""
    alike: dict[Codes, list[JobFolder[Any]]] = {}
    for job in sorted(jobs, key=lambda job: bool(inputs(job.settings))):  # those without, first
        alike.setdefault(_codes(job), []).append(job)
    found: dict[Codes, dict[str, str]] = {codes: {} for codes in alike}
    chosen = [(codes, job) for codes in alike if given.verify for job in _chosen(alike[codes])]
    if chosen:
        Interruption().listen()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a courier may still write
        for number, (codes, job) in enumerate(chosen, start=1):
            if "" in found[codes].values():
                continue  # nothing is accepted of them any more
            if not given.json:
                place = f"{number} of {len(chosen)}"
                print(f"replaying job {job.id} ({place}): {job.name}", flush=True)
            found[codes][job.id] = _verified(job, len(alike[codes]), Path(folder))
    for (old, new), proof in found.items():
        others = [found.get((each, new), {}) for each in code_evidence.same(old)]
        if "" not in proof.values() and any("" in other.values() for other in others):
            count = counted(len(alike[old, new]), "job")
            why = "their old code was accepted as equal to that of jobs that now give other bits"
            leave(exit_status.FAILED, f"not accepted for {count}: {why}")
            found[old, new] = dict.fromkeys(proof, "")
    return found


def _chosen(jobs: Sequence[JobFolder[Any]]) -> list[JobFolder[Any]]:
    """Those that are replayed of jobs with the same changes: one for each combination of values of
    the settings that these read; and more, since a setting may decide unseen what a change does,
    until there is one for each value in `_ends`."""
    read = _settings_read(jobs[0])
    values = {job.id: {(n, repr(v)) for n, v in identity(job.settings).items()} for job in jobs}
    groups: dict[frozenset[Value], JobFolder[Any]] = {}
    for job in jobs:
        groups.setdefault(frozenset(each for each in values[job.id] if each[0] in read), job)
    chosen = [*groups.values()]
    wanted = _ends(jobs).difference(*(values[job.id] for job in chosen))
    while wanted:
        chosen.append(max(jobs, key=lambda job: len(wanted & values[job.id])))
        wanted -= values[chosen[-1].id]
    return chosen


Value = tuple[str, str]
"""The name of a setting, and a value of it, written out."""


def _ends(jobs: Sequence[JobFolder[Any]]) -> set[Value]:
    """The lowest and the highest number that each setting has in some jobs, and all its values that
    are no numbers, but for the jobs that these are derived from."""
    every: dict[str, list[Any]] = {}
    for job in jobs:
        for name, value in identity(job.settings).items():
            if option(name) not in inputs(job.settings).values():
                every.setdefault(name, []).append(value)
    found = set[Value]()
    for name, values in every.items():
        numbers = sorted(each for each in values if isinstance(each, int | float))
        others = [each for each in values if not isinstance(each, int | float)]
        found |= {(name, repr(each)) for each in (*numbers[:1], *numbers[-1:], *others)}
    return found


def _settings_read(job: JobFolder[Any]) -> Set[str]:
    """The settings that may decide what the changed definitions of a job do, as they were or are
    now: those that they name or what they call names, and, on the way to them, those in a condition
    or in what is passed on; all, if a text is not known, or may read any."""
    assert job.latest
    every, texts = identity(job.settings).keys(), _texts(job)
    if not all(texts.values()):
        return every
    changed = {*code_evidence.changes(job.latest, job.code)}
    above = {*map(_name, changed)}
    while more := {_name(part) for part in texts if above & _words(texts[part])} - above - {""}:
        above |= more
    leading = (_leading(text, frozenset(above)) for text in texts.values() if above & _words(text))
    passed = set[str]().union(*leading)
    makers = {part for part in texts if _name(part) in passed - above}
    words = passed | _words_below(changed, texts) | _words_below(makers, texts, above)
    return every if words & INDIRECT else every & words


def _words_below(
    parts: Set[str], texts: Mapping[str, str], but: Set[str] = frozenset()
) -> set[str]:
    """The words in these parts of the code, in those that they name, and so on; without the parts
    whose names are in `but`."""
    words = set[str]()
    while parts:
        new = set[str]().union(*(_words(texts.get(part, "")) for part in parts)) - words
        words |= new
        parts = {part for part in texts if _name(part) in new - but}
    return words


def _texts(job: JobFolder[Any]) -> dict[str, str]:
    """The parts of a job's code, and the properties of its settings, each as it was and as it is
    now; empty where that is not kept."""
    assert job.latest
    now = code_evidence.present_as_in(job.latest, job.code)
    kept = code_evidence.parts(job.latest)
    texts = {part: known.get("source", "") for part, known in kept.items()}
    for part in now.parts:
        if not part.startswith("file:"):
            texts[part] = f"{texts.get(part, '')}\n{now.source(part)}"
    own = (text for part, text in texts.items() if part.startswith("settings:"))
    functions = (n for text in own for n in ast.walk(_tree(text)) if isinstance(n, ast.FunctionDef))
    return texts | {f"property:{each.name}": ast.unparse(each) for each in functions}


def _name(part: str) -> str:
    """The word by which code names a part; empty for the settings, which all code names."""
    module, _, name = part.partition(":")
    return "" if module == "settings" else name.partition("[")[0]


@cache
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


@cache
def _tree(text: str) -> ast.Module:
    """A text as Python, without docstrings; empty for an entry of a dict."""
    tree = ast.Module([], [])
    with suppress(SyntaxError):
        tree = ast.parse(textwrap.dedent(text))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(...)
    return tree


CONDITIONS = {"if", "elif", "while", "for", "with", "match", "case", "and", "or"}


@cache
def _leading(text: str, names: Set[str]) -> Set[str]:
    """The words in statements that name one of some definitions or have a condition, and in those
    where what these use is assigned."""
    lines = ast.unparse(_tree(text)).splitlines() or [text]  # one for each statement
    assigned = {line: _words("".join(re.findall("^[^=(]+(?==)", line))) for line in lines}
    further, found = [line for line in lines if _words(line) & (names | CONDITIONS)], set[str]()
    while further:
        found = found.union(*map(_words, further))
        further = [line for line in lines if assigned[line] & found and not _words(line) <= found]
    return found


def _verified(job: JobFolder[Any], alike: int, folder: Path) -> str:
    """How far a job was replayed with the same bits; empty if they are others, or if it cannot be
    replayed: then nothing is accepted of the jobs, as many as are `alike`, that have its code."""
    assert job.latest
    try:
        before = Recorded(job.latest)
        short = all(seconds <= SHORT for seconds in before.evaluated.values())
        whole = short and attempts.status_of(job.latest) == "finished"
        found = repeated(before, folder, job, whole)
    except (JobError, OSError) as error:
        found = Repeated("not repeated", f"cannot be replayed: {cause(error)}")
    if found.status == "same":
        return found.how
    said = "; ".join([found.said, *found.conditions])
    leave(exit_status.FAILED, f"not accepted for {counted(alike, 'job')}: job {job.id}: {said}")
    return ""
