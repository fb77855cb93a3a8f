"""`bisect`: which changed definitions make two attempts at a job differ? Mixtures of the two codes,
definition by definition, run as far as the curves part.
"""

import argparse
import ast
import shutil
from collections.abc import Callable, Collection, Sequence
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from labjobs import exit_status
from labjobs.commands import replay
from labjobs.commands.diff import side
from labjobs.commands.inventory import Project
from labjobs.commands.replay import Recorded, curve_points, first_difference
from labjobs.errors import JobError, SettingsError, cause, few
from labjobs.files import json_of
from labjobs.job import code_evidence
from labjobs.job.terminal import Interruption, counted

ENGINE = "labjobs"
"""The engine, which counts as one definition."""

Texts = dict[str, str]
"""Files by their paths, or the statements of one by what they define."""


def bisect_attempts(project: Project, given: argparse.Namespace) -> int:
    """Print which definitions explain how two attempts at a job differ; return 0. Raises
    SettingsError unless two attempts are named, JobError if it cannot be told."""
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
        return exit_status.DONE
    verb = "explains" if len(guilty) == 1 else "together explain"
    print(f"{', '.join(guilty)} {verb} all of it: {name} at step {step} {was} | {now}")
    print(f"without effect on it: {few(others, 3)}" if others else "nothing else differs")
    print(f"{counted(runs, 'mixture')} ran up to step {step}")
    return exit_status.DONE


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

    for number, (each, chosen) in enumerate(((old, []), (new, units))):
        if not gives(frozenset(chosen))[number]:
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
