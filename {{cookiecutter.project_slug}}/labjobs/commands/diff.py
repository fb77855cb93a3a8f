"""`diff`: how two attempts, or two groups of jobs, differ: settings, definitions, data,
packages, device, curves, results. Of two groups, those attempts are compared whose jobs agree in
all other settings. `bisect`: which changed definitions make two attempts at a job differ.
"""

import argparse
import ast
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from labjobs.cli.flags import as_text
from labjobs.commands import inventory, replay, staleness
from labjobs.commands.inventory import Job, Project
from labjobs.commands.replay import Recorded, curve_points, first_difference
from labjobs.errors import JobError, SettingsError, cause, few
from labjobs.files import json_of
from labjobs.job import code_evidence, data_evidence, identity
from labjobs.job.terminal import Interruption, counted
from labjobs.results import groups, samples, tables
from labjobs.results.figure_files import plain
from labjobs.results.intervals import NEEDED
from labjobs.results.metrics import Measured, NoResults, Part, declared
from labjobs.results.style import number
from labjobs.settings import roles as declared_roles
from labjobs.tracking.mlflow_store import experiment_name

MOST = 20  # the largest number of lines of a section

Row = dict[str, Any]
"""Something that differs, as JSON: its name, what it is on each side, `a` and `b`, and in words."""

Rows = list[Row]

Pair = tuple[Recorded, Recorded]


class Side(NamedTuple):
    """One of the two sides: what was given, and its attempts with their jobs."""

    given: str
    each: list[tuple[Job, Recorded]]

    def within(self, pairs: Iterable[Pair]) -> "Side":
        """Return the same side with those of its attempts that are in a pair."""
        paired = {attempt for pair in pairs for attempt in pair}
        return self._replace(each=[each for each in self.each if each[1] in paired])

    @property
    def names(self) -> list[str]:
        """Its attempts, as they can be given."""
        return [attempt.name for _, attempt in self.each]

    @property
    def values(self) -> dict[str, set[str]]:
        """The values of each setting."""
        found: dict[str, set[str]] = {}
        for job, _ in self.each:
            for name, value in job.plain.items():
                found.setdefault(name, set()).add(as_text(value))
        return found

    @property
    def settings(self) -> dict[str, str]:
        """The same, as a text."""
        return {name: ", ".join(sorted(values)) for name, values in self.values.items()}


def print_diff(project: Project, given: argparse.Namespace) -> None:
    """Print how two sides differ. Raises SettingsError if there are no such jobs, or some are on
    both sides, JobError if their records cannot be read, ConnectionError for results of groups."""
    one, other = (side(project, word) for word in (given.a, given.b))
    alone = len(one.each) == len(other.each) == 1
    if (both := sorted({*one.names} & {*other.names})) and not alone:
        raise SettingsError(f"{given.a} and {given.b}: both have {few(both, 2)}")
    scripts = sorted({job.script for job, _ in one.each + other.each})
    if len(scripts) > 1 and not alone:
        line = f"jobs of {' and '.join(scripts)}, which have other results; compare those of one"
        raise SettingsError(f"{given.a} and {given.b}: {line}")
    # What distinguishes the sides has no value that both have; jobs have to agree in the rest.
    of_one, of_other = one.values, other.values
    shared = {name for name in of_one if of_one[name] & of_other.get(name, set())}
    differ = {*of_one, *of_other} - shared
    pairs = _pairs(one, other, differ)
    same = sum(pairs.values())
    one, other = one.within(pairs), other.within(pairs)
    if alone:
        results, stale = _of_pairs(pairs, _results), dict[str, list[str]]()
    else:
        results, stale = _of_groups(one, other, differ)
    sections = {
        "settings": _unequal(one.settings, other.settings),
        "code": _of_pairs(pairs, _definitions),
        "data": _of_pairs(pairs, lambda a, b: _unequal(_data(a), _data(b))),
        "packages": _of_pairs(pairs, lambda a, b: _unequal(a.versions, b.versions)),
        "device": _of_pairs(pairs, lambda a, b: _unequal(a.conditions, b.conditions)),
        "curves": _of_pairs(pairs if alone else [], _curves),
        "results": results,
    }
    if given.json:
        about = {"a": one.names, "b": other.names, "pairs": same, "stale": stale}
        print(json_of({**about, **sections}))
        return
    for letter, each in (("A", one), ("B", other)):
        print(f"{letter}: {each.given}: {few(each.names, 2)}")
    if not alone:
        del sections["curves"]
        others = f", and {len(pairs) - same} of other repeats" if len(pairs) > same else ""
        print(f"{counted(same, 'pair')} of attempts with the same other settings{others}")
    for letter, ids in stale.items():
        if ids:
            print(f"stale in {letter}: {few(ids, 4)}")
    for title, rows in sections.items():
        if rows:
            print(f"\n{title}")
            print("\n".join(f"  {line}" for line in _lines(rows)))
    if not any(data_evidence.digest(each.path) for pair in pairs for each in pair):
        del sections["data"]  # it was made by code, so this does not say whether it is the same
    if equal := [title for title, rows in sections.items() if not rows]:
        print(f"\nsame {', '.join(equal)}")


def _lines(rows: Rows) -> Iterator[str]:
    for row in rows[:MOST]:
        said = row["said"] if "said" in row else f"{row['a']} | {row['b']}"
        said += f"  (in {counted(row['pairs'], 'pair')})" if "pairs" in row else ""
        yield f"{row['name']}  {said}"
        yield from ("", *row["diff"].splitlines(), "") if row.get("diff") else ()
    if len(rows) > MOST:
        yield f"and {len(rows) - MOST} more; --json has all"


# What is compared.


def side(project: Project, given: str) -> Side:
    """Return the finished jobs that `lr=1e-3`, or several such conditions with commas between them,
    selects; or the job or the attempt, `1872aa/1f0a`, that is named. Raises SettingsError."""
    if re.search("[=<>]", given):
        every = (job for job in project.all() if job.latest)
        chosen = inventory.fulfilling(f"{given},state=finished", every)
        if not chosen:
            raise SettingsError(f"{given}: no finished job here has such settings")
        return Side(given, [(job, Recorded(job.latest)) for job in chosen if job.latest])
    prefix, _, begins = given.partition("/")
    job = project.one(prefix)
    counts = [job.latest] if job.latest in job.attempts else []
    named = [path for path in job.attempts if path.name.startswith(begins)] if begins else counts
    if len(named) != 1:
        here = few((path.name for path in job.attempts), MOST)
        which = f"which attempt? It has {here}" if here else "it has not run in this folder of runs"
        raise SettingsError(f"{given}: job {job.id}: {which}")
    return Side(given, [(job, Recorded(path)) for path in named if path])


def _pairs(one: Side, other: Side, differ: set[str]) -> dict[Pair, bool]:
    """The attempts whose jobs agree in all settings but those that distinguish the sides, or but
    their repeats if there is no such partner, and whether the repeats agree too; each that has a
    partner is in one pair at least. Raises SettingsError if there are none."""
    roles = declared_roles(identity.kind_of(one.each[0][0].script))
    repeats = {name for name, role in roles.items() if role == "repeat"}

    def rest(job: Job, but: set[str]) -> str:
        return repr(sorted((k, as_text(v)) for k, v in job.plain.items() if k not in but))

    found: dict[Pair, bool] = {}
    for but in differ, differ | repeats:
        of_one, of_other = (
            {rest(job, but): attempt for job, attempt in side.each} for side in (one, other)
        )
        every = [
            *((attempt, of_other.get(rest(job, but))) for job, attempt in one.each),
            *((of_one.get(rest(job, but)), attempt) for job, attempt in other.each),
        ]
        done = {attempt for pair in found for attempt in pair}
        left = [(a, b) for a, b in every if a and b and not {a, b} <= done]
        found |= dict.fromkeys(left, but == differ)
    if not found:
        line = f"{one.given} and {other.given}: no two jobs agree in their other settings"
        raise SettingsError(line)
    return found


# How they differ.


def _unequal(was: Mapping[str, str], now: Mapping[str, str]) -> Rows:
    each = ((name, was.get(name, "none"), now.get(name, "none")) for name in {**was, **now})
    return [{"name": name, "a": a, "b": b} for name, a, b in sorted(each) if a != b]


def _of_pairs(pairs: Iterable[Pair], differ: Callable[[Recorded, Recorded], Iterable[Row]]) -> Rows:
    """How pairs differ, and how many of them if not all. Raises JobError if the records of one
    cannot be read."""
    found, counts, every = dict[str, Row](), Counter[str](), [*pairs]
    for pair in every:
        try:
            rows = {repr(row): row for row in differ(*pair)}
            counts.update(rows.keys())
            found = rows | found
        except (JobError, OSError) as error:
            raise JobError(f"{pair[0].name} or {pair[1].name}: {cause(error)}") from error
    each = ((row, counts[key]) for key, row in found.items())
    return [row if count == len(every) else row | {"pairs": count} for row, count in each]


def _data(attempt: Recorded) -> Mapping[str, str]:
    """The files that an attempt has read, with the beginnings of their hashes; if these are not
    known, the digest of all."""
    found = data_evidence.read_by(attempt.path)
    hashes = {name: entry.hash[:12] for name, entry in found.items()}
    return hashes or {"all": data_evidence.digest(attempt.path)}


def _definitions(one: Recorded, other: Recorded) -> Iterator[Row]:
    """The definitions that differ, and how their texts do; of other files, none is stored."""
    was, now = (code_evidence.parts(each.path) for each in (one, other))
    if not (was and now):
        yield {"name": "code", "said": "not recorded, or the job went on with changed code"}
    for part in sorted({**was, **now}) if was and now else ():
        name, (a, b) = code_evidence.in_python(part), (each.get(part, {}) for each in (was, now))
        if a.get("hash") != b.get("hash"):
            said = "changed" if a and b else "only in A" if a else "only in B"
            sources = a.get("source", ""), b.get("source", "")
            text = staleness.as_diff(*sources, f"{name} of A", f"{name} of B") if a and b else ""
            if a and b and sources[0] and not text:
                said = "the same text, which uses other definitions"
            yield {"name": name, "said": said, "diff": text}


def _curves(one: Recorded, other: Recorded) -> Iterator[Row]:
    """The first point that both have and that differs."""
    was, now = (curve_points(each.lines) for each in (one, other))
    both = [{point: each[point] for point in was if point in now} for each in (was, now)]
    if not both[0]:
        yield {"name": "curves", "said": "there is no point that both have"}
    if found := first_difference(*both):
        step, name, a, b = found
        said = f"{a} | {b}: the first of {len(both[0])} points to differ"
        yield {"name": f"{name} at step {step}", "step": step, "a": a, "b": b, "said": said}


def _results(one: Recorded, other: Recorded) -> Iterator[Row]:
    """The results that both have and that differ."""
    was, now = (inventory.on_disk(each.path, None)["metrics"] for each in (one, other))
    if not {*was} & {*now}:
        yield {"name": "results", "said": "there are none that both have"}
    for name, a in was.items():
        b = now.get(name, a)
        if repr(a) != repr(b):
            said = f"{number(a, 4)} | {number(b, 4)}  B - A {number(b - a)}"
            yield {"name": name, "a": a, "b": b, "difference": b - a, "said": said}


def _of_groups(one: Side, other: Side, differ: set[str]) -> tuple[Rows, dict[str, list[str]]]:
    """The mean results of two groups with the intervals of their differences, for each combination
    of the settings in which the jobs of a group differ; and the stale jobs of each group, which are
    in no mean unless it has no others. Raises JobError if there are no results,
    ConnectionError."""
    script = one.each[0][0].script
    of = [{job.id for job, _ in side.each} for side in (one, other)]
    try:
        every = tables.jobs(experiment_name(), script=script)
        every = every[every["job_id"].isin(of[0] | of[1])]
        stale = {}
        for letter, ids in zip("AB", of, strict=True):
            own = every[every["job_id"].isin(ids)]
            stale[letter] = sorted(own.loc[own["stale"], "job_id"])
            if len(stale[letter]) < len(own):  # else there are no others
                every = every[~every["job_id"].isin(stale[letter])]
        by = {*groups.with_role(every, "task"), *groups.varied(every)} - differ
        rest = sorted(name for name in by if groups.combinations(every, [name]) > 1)
        alike, metrics = groups.groups(every, rest), declared(every)
        parts: tuple[Part | None, ...] = ("val", "test", None)
        rows = []
        for (cell, jobs), (name, metric), part in product(alike.items(), metrics.items(), parts):
            measured = Measured(name, metric, part)
            if measured.result in every.attrs["settings"]:
                continue  # the column has a setting of that name
            a, b = (samples.sample(jobs[jobs["job_id"].isin(ids)], measured) for ids in of)
            if len(a) and len(b):
                rows.append(_compared(plain(f"{cell} {measured.result}".strip()), a, b))
    except NoResults as none:
        raise JobError(f"results: {none}") from none
    return rows or [{"name": "results", "said": "there are none that both have"}], stale


def _compared(name: str, a: samples.Sample, b: samples.Sample) -> dict[str, Any]:
    log, (of_a, of_b) = a.metric.log, (float(each.estimate.interval.mean) for each in (a, b))
    row = {"name": name, "a": of_a, "b": of_b, "n": [len(a), len(b)]}
    said = f"{number(of_a, 4)} (n = {len(a)}) | {number(of_b, 4)} (n = {len(b)})"
    what, change = "B / A" if log else "B - A", samples.means_apart(b, a)
    digits = 4 if log else 3
    how = f"no interval of fewer than {NEEDED} repeats or splits"
    how = f"over the repeats that both have; {how}" if samples.leaves_out(a, b) else how
    if found := samples.differences({"A": a, "B": b}, "A").get("B"):
        change, low, high = map(float, found.estimate.interval)
        ends = {"low": low, "high": high} if found.has_interval else {}
        row |= {**ends, "paired": found.paired}
        how = f"95% interval {number(low, digits)} to {number(high, digits)}, {found.n} "
        how += "pairs" if found.paired else "repeats, not paired"
        how = how if found.has_interval else "no interval, the same in all repeats"
    if abs(change) < 1e-12 * abs(of_a):  # it comes from rounding alone
        change = 0.0
    return {**row, "difference": change, "said": f"{said}  {what} {number(change, digits)} ({how})"}


# `bisect`. Mixtures of the two codes, definition by definition, run as far as the curves part.

ENGINE = "labjobs"  # the engine, which counts as one definition

Texts = dict[str, str]
"""Files by their paths, or the statements of one by what they define."""


def bisect_attempts(project: Project, given: argparse.Namespace) -> None:
    """Print which definitions explain how two attempts at a job differ. Raises SettingsError unless
    two attempts are named, JobError if it cannot be told."""
    attempts = [attempt for word in (given.a, given.b) for _, attempt in side(project, word).each]
    if len(attempts) != 2 or attempts[0].job != attempts[1].job:
        raise SettingsError("bisect: takes two attempts at one job: JOB/ATTEMPT JOB/ATTEMPT")
    old, new = attempts
    Interruption().listen()
    with TemporaryDirectory(prefix="bisect-", ignore_cleanup_errors=True) as folder:
        a, b = (_stored(each, Path(folder, each.path.name)) for each in attempts)
        if not (parted := first_difference(curve_points(old.lines), curve_points(new.lines))):
            raise JobError("the curves of both are the same")
        step, name, was, now = parted
        guilty, others, runs = _explained(old, new, a, b, step, Path(folder))
    if given.json:
        about = {"step": step, "metric": name, "a": was, "b": now, "runs": runs}
        print(json_of({**about, "definitions": guilty, "others": others}))
        return
    verb = "explains" if len(guilty) == 1 else "together explain"
    print(f"{', '.join(guilty)} {verb} the difference: {name} at step {step} {was} | {now}")
    print(f"without effect: {few(others, 3)}" if others else "nothing else differs")
    print(f"{counted(runs, 'mixture')} ran up to step {step}")


def _explained(
    old: Recorded, new: Recorded, a: Texts, b: Texts, step: int, folder: Path
) -> tuple[list[str], list[str], int]:
    """The definitions that explain the difference up to a step, the others that differ, and the
    number of mixtures that ran. Raises JobError if an attempt does not give its own bits again."""
    known = {*code_evidence.parts(old.path), *code_evidence.parts(new.path)}
    modules = {part.partition(":")[0] for part in known}
    units = sorted(_mixed(a, b, modules, ())[1])
    wanted = [
        {point: value for point, value in curve_points(each.lines).items() if point[0] <= step}
        for each in (old, new)
    ]

    @cache
    def gives(chosen: frozenset[str]) -> list[bool]:
        """Whether the old code with these definitions of the new one gives the bits of each."""
        code = folder / "code"
        for place in (code, folder / "runs"):
            shutil.rmtree(place, ignore_errors=True)
        replay.copy_inputs(new, folder / "runs")
        for path, text in _mixed(a, b, modules, {*units} - chosen)[0].items():
            (code / path).parent.mkdir(parents=True, exist_ok=True)
            (code / path).write_text(text, "utf-8", newline="")
        try:
            found = curve_points(replay.run_again(new, code, new.flags(until=step), folder).lines)
        except JobError:  # definitions that do not go together
            return [False, False]
        return [all(found.get(at) == each[at] for at in each) for each in wanted]

    for place, (each, chosen) in enumerate(((old, []), (new, units))):
        if not gives(frozenset(chosen))[place]:
            raise JobError(f"{each.name} does not give its own bits again; jobs.py repeat says why")
    guilty = _smallest(lambda chosen: gives(frozenset(chosen))[1], [], units)
    if not gives(frozenset(guilty))[1]:
        raise JobError(f"no set smaller than all {len(units)} definitions explains it")
    return guilty, [each for each in units if each not in guilty], gives.cache_info().misses


def _stored(attempt: Recorded, folder: Path) -> Texts:
    """The stored files of an attempt's code. Raises JobError if it cannot be repeated, as when its
    journal is damaged."""
    try:
        attempt.check()
        files = [path for path in replay.write_code(attempt, folder).rglob("*") if path.is_file()]
    except (JobError, OSError) as error:
        raise JobError(f"{attempt.name}: {cause(error)}") from error
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in files}


def _smallest(
    explain: Callable[[Sequence[str]], bool],
    given: list[str],
    units: list[str],
    grown: bool = False,
) -> list[str]:
    """Return a smallest set of units that explain the difference together with what is given, if
    no unit hides what another does: QuickXplain, Junker 2004."""
    if grown and explain(given):
        return []
    if len(units) <= 1:
        return units
    first, second = units[: len(units) // 2], units[len(units) // 2 :]
    of_second = _smallest(explain, [*given, *first], second, True)
    return _smallest(explain, [*given, *of_second], first, bool(of_second)) + of_second


# Two codes, mixed.


def _mixed(
    a: Texts, b: Texts, modules: Collection[str], old: Collection[str]
) -> tuple[Texts, set[str]]:
    """The new code with some old definitions, and all definitions of these modules that differ, as
    in Python. What only one of the codes has is in it too."""
    mixed, differ = {**a, **b}, set[str]()
    for path in (path for path in a if path in b and a[path] != b[path]):
        module = path.removesuffix(".py").replace("/", ".")
        if path.startswith(f"{ENGINE}/"):
            differ.add(ENGINE)
            mixed[path] = (a if ENGINE in old else b)[path]
        elif path.endswith(".py") and module in modules:
            first, second = _statements(a[path]), _statements(b[path])
            before, after = {**second, **first}, {**first, **second}
            names = {key: f"{module}.{key}" for key in _in_order([*first], [*second])}
            differ |= {name for key, name in names.items() if before[key] != after[key]}
            texts = ((before if name in old else after)[key] for key, name in names.items())
            mixed[path] = "\n".join(texts)
    return mixed, differ


def _in_order(one: list[str], other: list[str]) -> list[str]:
    """All words of two lists, each once. Words that both have keep their common order."""
    steps = SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return [*dict.fromkeys(word for _, i, j, k, m in steps for word in one[i:j] + other[k:m])]


def _statements(text: str) -> Texts:
    """The statements of a module, without its docstring, by what they define or import."""
    found: Texts = {}
    for node in ast.parse(text).body:
        match node:
            case (
                ast.FunctionDef(name=key) | ast.AsyncFunctionDef(name=key) | ast.ClassDef(name=key)
            ):
                pass
            case ast.Assign(targets=[ast.Name(id=key)]) | ast.AnnAssign(target=ast.Name(id=key)):
                pass
            case ast.Import() | ast.ImportFrom():
                key = ast.unparse(node)
            case ast.Expr(value=ast.Constant()):
                continue
            case _:
                key = f"({type(node).__name__.lower()})"
        while key in found:
            key += "'"
        found[key] = ast.unparse(node)
    return found
