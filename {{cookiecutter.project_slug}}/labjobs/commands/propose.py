"""What run.sh's `propose`, `breed` and `confirm` ask: which jobs follow from results of others.

`propose`: which settings to try next. A generation is a function of its declaration and of the
results of the generations before it, in whatever order these came, so it can be made again from the
journals. By default, a Gaussian process is fitted to the metric that jobs monitor, and the settings
with the largest expected improvement are taken: Jones, Schonlau and Welch 1998,
doi.org/10.1023/A:1008306431147. If several are taken, each is chosen as if those before it had come
out as expected: Ginsbourger, Le Riche and Carraro 2010, doi.org/10.1007/978-3-642-10701-6_6.
`with=` takes a sampler of Optuna instead.

`breed`: which units of a population train on, and how. After each generation the worst quarter is
replaced by copies of the best quarter, which go on with other settings: population based training,
Jaderberg et al. 2017, arxiv.org/abs/1711.09846. The choice is between whole generations, so that it
does not depend on which unit was first.

`confirm`: what validation has chosen runs again. The best of many settings was partly lucky, on
validation data and on test data alike. Jobs with seeds that had no part in the choice say how good
it is; tables report these alone.

`python -m labjobs.commands.propose propose|confirm` reads what is asked, and prints the answer, as
JSON.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labjobs import exit_status, settings
from labjobs.cli.ranges import Range
from labjobs.errors import SettingsError
from labjobs.job import attempts, identity
from labjobs.job.terminal import leave
from labjobs.results import groups, tables
from labjobs.results.metrics import NoResults, chooser
from labjobs.sweeps import proposals, search
from labjobs.sweeps.proposals import INIT_FROM, Generation, Proposals
from labjobs.tracking.mlflow_store import experiment_name

if TYPE_CHECKING:
    import pandas as pd

Numbers = NDArray[np.float64]

CANDIDATES = 1024  # settings of which the best are taken, and as many close to the best ones so far
NEAR = 0.05  # how close: a standard deviation, in parts of a range
PARENTS = 4  # how many are the best ones so far

LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)  # of ranges over which results change, and parts of noise in
NOISES = (1e-3, 1e-2, 1e-1)  # their variance, of which the likeliest pair is taken

NORMAL = NormalDist()

FRUITLESS = 100  # proposals of a sampler without a new job, for each job, after which it gives up

QUARTER = 4  # one in how many units of a population is copied, and as many are replaced
LESS, MORE = 0.8, 1.2  # what a setting of a copy is multiplied by
ANEW = 0.25  # probability that it is drawn anew


def next_generation(words: list[str], ids: list[str]) -> dict[str, Any]:
    """Write the next generation down, if all jobs have results; return whether it has `grown`, and
    `said`, a line if the results that an earlier one follows from have changed. Raises
    SettingsError, and NoResults if jobs cannot be compared."""
    asked = proposals.read(words)
    known, scores = asked.known(), _scores(ids, at_end=bool(asked.length))
    said, grown = "", False
    for number in range(1, len(known) + 1):
        before = {job: scores[job] for job in ids[: number * asked.count] if job in scores}
        if len(before) < number * asked.count:
            break
        if not asked.path.exists():
            asked.write(known)
        basis = proposals.digest("".join(f"{job} {before[job]!r}\n" for job in sorted(before)))
        if number < len(known) and known[number].basis != basis:
            line = f"earlier results changed; generation {number + 1} stays"
            said = said or f"{asked.line}: {line}"
        if number == len(known) < asked.generations:
            tried = [job for generation in known for job in generation.jobs]
            if asked.length:
                jobs = breed(asked, tried, before, number)
            else:
                jobs = propose(asked, tried, [*before.values()], number)
            asked.write([*known, Generation(jobs, basis)])
            grown = True
    return {"grown": grown, "said": said}


def _results(ids: Sequence[str]) -> "pd.DataFrame | None":
    """The jobs among these that finished or diverged with the present code; None if none has."""
    try:
        kind = identity.read(identity.DEFAULT).settings
        every = tables.jobs(experiment_name(), kind, diverged=True)
    except NoResults:
        return None
    own = every[every["job_id"].isin(ids) & ~every["stale"]]
    return own if len(own) else None


def _scores(ids: Sequence[str], at_end: bool) -> dict[str, float]:
    """The results by which jobs are chosen, of their best evaluation or of the one at their end,
    for jobs that have one with the present code: lower is better, and a job that diverged has
    infinity."""
    own = _results(ids)
    if own is None:
        return {}
    metric = chooser(own)
    column = metric.key if at_end else metric.result
    measured = own.get(column, own["ended"] * math.nan)  # nothing is, if all have diverged
    values = -metric.sign * measured.where(~own["diverged"], math.nan)
    found = dict(zip(own["job_id"], map(float, values), strict=True))
    return {job: value if math.isfinite(value) else math.inf for job, value in found.items()}


def propose(
    asked: Proposals, tried: Sequence[list[str]], scores: Sequence[float], generation: int
) -> list[list[str]]:
    """Return the arguments of the jobs of a generation, the `generation`-th after the first, none
    of which was tried. Raises SettingsError if there are no further ones."""
    every = sorted(zip(tried, scores, strict=True))  # in whatever order they came
    tried, scores = [job for job, _ in every], [score for _, score in every]
    # By their ranks, whatever the scale of the metric, and however bad it is to diverge.
    ends = [np.searchsorted(np.sort(scores), scores, side) for side in ("left", "right")]
    shares = np.mean(ends, axis=0) / len(scores)
    normal = np.array([NORMAL.inv_cdf(share) for share in shares])
    maker = _by_optuna if asked.sampler else _by_gaussian_process
    seen = {tuple(job) for job in tried}
    jobs: list[list[str]] = []
    for numbers in maker(asked, tried, normal, generation):
        job = [*search.arguments(asked.ranges, asked.fixed, numbers), *asked.fixed]
        if tuple(job) not in seen:
            seen.add(tuple(job))
            jobs.append(job)
        if len(jobs) == asked.count:
            return jobs
    line = f"its ranges do not have {asked.count} more jobs; ask for fewer, or widen a range"
    raise SettingsError(f"{asked.line}: {line}")


def _by_gaussian_process(
    asked: Proposals, tried: Sequence[list[str]], scores: Numbers, generation: int
) -> Iterator[dict[str, float]]:
    """The numbers of settings that were not tried, those with the largest expected improvement
    first."""
    best = [tried[index] for index in np.argsort(scores, kind="stable")[:PARENTS]]
    spread = (  # evenly over the ranges, others for each generation
        {each.flag: search.point(f"{asked.seed} {each.flag}", index) for each in asked.ranges}
        for index in range(generation * CANDIDATES, (generation + 1) * CANDIDATES)
    )
    every = (*spread, *_close_to(best, asked, generation))
    candidates = {search.arguments(asked.ranges, asked.fixed, each): each for each in every}
    for job in tried:
        candidates.pop(tuple(job[: len(job) - len(asked.fixed)]), None)
    known = np.array([_coordinates(asked.ranges, job) for job in tried])
    new = np.array([_coordinates(asked.ranges, job) for job in candidates])
    lengths, noise = _likeliest(known, scores)
    numbers = [*candidates.values()]
    known = known / lengths
    while numbers:
        means, deviations = _predicted(known, scores, new / lengths, noise)
        lowest = _predicted(known, scores, known, noise)[0].min()
        z = (lowest - means) / deviations
        improvement = [each * NORMAL.cdf(each) + NORMAL.pdf(each) for each in z]
        chosen = int(np.argmax(deviations * improvement))
        yield numbers.pop(chosen)
        known = np.vstack([known, new[chosen] / lengths])
        scores, new = np.append(scores, means[chosen]), np.delete(new, chosen, axis=0)


def _close_to(
    parents: Sequence[list[str]], asked: Proposals, generation: int
) -> Iterator[dict[str, float]]:
    """Settings close to others; their choices change now and then."""
    random = np.random.default_rng([int(asked.seed), generation])
    for index in range(CANDIDATES):
        given = search.flags(parents[index % len(parents)])
        numbers = {}
        for each in asked.ranges:
            place = each.place(given[each.flag]) if each.flag in given else random.random()
            moved, other = place + NEAR * random.normal(), random.random()
            jumps = each.choices and random.random() < 1 / len(asked.ranges)
            numbers[each.flag] = other if jumps else place if each.choices else moved
        yield {flag: float(np.clip(number, 0, search.LAST)) for flag, number in numbers.items()}


def _coordinates(ranges: Sequence[Range], job: Sequence[str]) -> list[float]:
    """Where a job lies: a number in [0, 1] for each range, but for a choice one for each value; the
    middle for a flag that is not given."""
    given, found = search.flags(job), list[float]()
    for each in ranges:
        value = given.get(each.flag)
        if each.choices:
            found += [(value == choice) / math.sqrt(2) for choice in each.choices]
        else:
            found.append(0.5 if value is None else each.place(value))
    return found


def _likeliest(points: Numbers, scores: Numbers) -> tuple[Numbers, float]:
    """The lengths, one for each coordinate, and the noise that make the scores the likeliest."""
    lengths, noise = np.full(points.shape[1], LENGTHS[2]), NOISES[1]

    def unlikely(lengths: Numbers, noise: float) -> float:
        factor = _factor(points / lengths, noise)
        misfit = (np.linalg.solve(factor, scores) ** 2).sum() / 2
        return float(np.log(np.diag(factor)).sum() + misfit)

    for _ in range(2):
        noise = min(NOISES, key=lambda each: unlikely(lengths, each))
        for place in range(len(lengths)):
            others = (np.where(np.arange(len(lengths)) == place, each, lengths) for each in LENGTHS)
            lengths = min(others, key=lambda each: unlikely(each, noise))
    return lengths, noise


def _covariance(one: Numbers, other: Numbers) -> Numbers:
    """Matérn's covariance, 5/2, of points in units of their lengths."""
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1) - 2 * one @ other.T
    r = np.sqrt(5 * np.maximum(squares, 0))
    return np.asarray((1 + r + r**2 / 3) * np.exp(-r))


def _factor(points: Numbers, noise: float) -> Numbers:
    """The Cholesky factor of the scores' covariance, whose variance is 1."""
    found = (1 - noise) * _covariance(points, points) + noise * np.eye(len(points))
    return np.asarray(np.linalg.cholesky(found))


def _predicted(
    known: Numbers, scores: Numbers, new: Numbers, noise: float
) -> tuple[Numbers, Numbers]:
    """The means and standard deviations of the scores at new points, without noise."""
    factor = _factor(known, noise)
    explained = np.linalg.solve(factor, (1 - noise) * _covariance(known, new))
    means = explained.T @ np.linalg.solve(factor, scores)
    return means, np.sqrt(np.maximum(1 - noise - (explained**2).sum(0), 1e-12))


def _by_optuna(
    asked: Proposals, tried: Sequence[list[str]], scores: Numbers, generation: int
) -> Iterator[dict[str, float]]:
    """The numbers of settings that a sampler of Optuna suggests, after being told all results."""
    import optuna
    from optuna import distributions, samplers

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spaces = {
        each.flag: distributions.CategoricalDistribution(each.choices)
        if each.choices
        else distributions.FloatDistribution(0, 1)
        for each in asked.ranges
    }
    told = []
    for job, score in zip(tried, scores, strict=True):
        given, params = search.flags(job), dict[str, Any]()
        for each in asked.ranges:
            if each.flag in given:
                value = given[each.flag]  # which was rounded, maybe to beyond an end
                params[each.flag] = value if each.choices else min(1, max(0, each.place(value)))
        own = {flag: spaces[flag] for flag in params}
        told.append(optuna.create_trial(params=params, distributions=own, value=score))
    seed = int(proposals.digest(f"{asked.seed} {generation}")[:8], 16)
    makers: dict[str, Any] = {
        "tpe": lambda: samplers.TPESampler(seed=seed, constant_liar=True),
        "gp": lambda: samplers.GPSampler(seed=seed),
        # Each ten times, since it starts from the best tenth.
        "cmaes": lambda: samplers.CmaEsSampler(seed=seed, source_trials=told * 10),
    }
    study = optuna.create_study(sampler=makers[asked.sampler]())
    study.add_trials(told)
    for _ in range(FRUITLESS * asked.count):
        trial, numbers, given = study.ask(), dict[str, float](), search.flags(asked.fixed)
        for each in asked.ranges:
            if each.holds(given):
                if each.choices:
                    value = trial.suggest_categorical(each.flag, each.choices)
                    number = (each.choices.index(value) + 0.5) / len(each.choices)
                else:
                    number = min(trial.suggest_float(each.flag, 0, 1), search.LAST)
                numbers[each.flag] = number
                given[each.flag] = each.draw(number)
        yield numbers


def breed(
    asked: Proposals, tried: Sequence[list[str]], scores: Mapping[str, float], generation: int
) -> list[list[str]]:
    """Return the arguments of the units of a generation, the `generation`-th after the first. Each
    goes on from its own end, but in the place of the worst quarter, and of all that have diverged,
    there are copies of the best quarter. `scores` are those of the jobs that were tried, by their
    ids. Raises SettingsError if there is nothing to copy, or nothing else that a copy could try."""
    units = dict(zip([*scores], tried, strict=True))
    ids = [*units][-asked.count :]
    ranked = sorted(ids, key=lambda unit: (scores[unit], unit))
    quarter, lost = max(1, len(ids) // QUARTER), sum(math.isinf(scores[unit]) for unit in ids)
    best = ranked[: min(quarter, len(ids) - lost)]
    if not best:
        line = f"all {len(ids)} members of generation {generation} have diverged"
        raise SettingsError(f"{asked.line}: {line}; lower a range, under another name")
    own = {unit: _drawn_of(asked, search.flags(units[unit])) for unit in ids}
    following = {unit: (*own[unit], f"{INIT_FROM}={unit}:last") for unit in ids}
    seen = {(*own[parent], parent) for parent in best}
    for place, unit in enumerate(ranked[-max(quarter, lost) :]):
        parent = best[place % len(best)]
        tries = range(place, FRUITLESS * len(ids), len(ids))
        copies = (_explored(asked, own[parent], generation, index) for index in tries)
        copy = next((each for each in copies if (*each, parent) not in seen), None)
        if not copy:
            line = "its ranges have no other settings for a copy; widen one"
            raise SettingsError(f"{asked.line}: {line}")
        seen.add((*copy, parent))
        following[unit] = (*copy, f"{INIT_FROM}={parent}:fork")
    same = asked.same(generation + 1)
    return [[*settings, *same, source] for *settings, source in following.values()]


def _explored(asked: Proposals, parent: Sequence[str], generation: int, index: int) -> list[str]:
    """The settings of a copy, close to those of its parent; some are drawn anew."""
    before, values = search.flags(parent), search.flags(asked.fixed)
    for each in asked.ranges:
        key = f"{asked.seed} {each.flag} {generation}"
        anew, side, place = (search.point(f"{key} {what}", index) for what in range(3))
        if not each.holds(values):
            continue
        if anew < ANEW or each.flag not in before:
            values[each.flag] = each.draw(place)
        else:
            values[each.flag] = each.next_to(before[each.flag], LESS if side < 0.5 else MORE)
    return _drawn_of(asked, values)


def _drawn_of(asked: Proposals, values: Mapping[str, str]) -> list[str]:
    """The arguments for what a job's ranges have drawn."""
    return [f"{each.flag}={values[each.flag]}" for each in asked.ranges if each.flag in values]


def confirming(count: int, ids: list[str]) -> list[list[str]]:
    """Return the arguments of run.py for the jobs that confirm the best of these on each task, with
    `count` fresh seeds each; an empty list while one has no results with the present code. Raises
    SettingsError if there are no seeds, NoResults if nothing can be chosen."""
    own = _results(ids)
    if own is None or {*own["job_id"]} != {*ids}:
        return []
    if own["diverged"].all():
        raise SettingsError("confirm: no job before it has a result, since all have diverged")
    if groups.SEED not in own.attrs["settings"]:
        raise SettingsError("confirm: settings.py has no setting seed")
    return [job for alike in groups.tasks(own).values() for job in _of_task(count, alike)]


def _of_task(count: int, own: "pd.DataFrame") -> Iterator[list[str]]:
    metric = chooser(own)
    groups.having(own, metric.result)
    best = next(iter(groups.ranked(own, groups.varied(own), metric).values()))
    others = [name for name in groups.repeated(own) if name != groups.SEED]
    for job in best.drop_duplicates(others)["job_id"] if others else best["job_id"][:1]:
        known = attempts.settings_of(job, attempts.runs_root())
        assert known  # `tables` has registered all jobs
        for seed in range(settings.CONFIRMING, settings.CONFIRMING + count):
            yield identity.as_flags(replace(known[0], seed=seed))


def main(what: str) -> int:
    """Answer what a sweep asks on standard input; returns the exit status."""
    act: Callable[..., Any] = next_generation if what == "propose" else confirming
    try:
        print(json.dumps(act(**json.load(sys.stdin))))
    except NoResults as none:
        return leave(exit_status.WRONG, f"{what}: {none}")
    except (SettingsError, ConnectionError) as error:
        return leave(exit_status.WRONG, str(error))
    return exit_status.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
