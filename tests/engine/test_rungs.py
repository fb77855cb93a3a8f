"""Who trains on in a halving: a function of what is known of the scores at the rungs."""

import math
import random
from collections import Counter

import pytest
from labjobs.cli.parser import parse
from labjobs.errors import SettingsError
from labjobs.job.folder import JobFolder
from labjobs.job.runtime import Runtime
from labjobs.sweeps import search
from labjobs.sweeps.search import Bracket, decide
from settings import METRICS, Settings


def by_the_book(factor, rungs):
    """How many rungs each unit passes, once every score is known."""
    here, passed = [*rungs[0]], dict.fromkeys(rungs[0], 0)
    for number, scores in enumerate(rungs, start=1):
        finite = [unit for unit in here if scores[unit] < math.inf]
        best = sorted(finite, key=lambda unit: (scores[unit], unit))
        here = best[: max(1, len(passed) // factor**number)]
        passed |= dict.fromkeys(here, number)
    return passed


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_scores_changes_who_trains_on(seed):
    chance = random.Random(seed)
    for _ in range(50):
        units = [f"{number:02}" for number in range(chance.randint(1, 12))]
        kinds = (math.inf, 0.0, 1.0, chance.random)  # with ties, and some diverged
        scores = [
            {unit: each() if callable(each := chance.choice(kinds)) else each for unit in units}
            for _ in range(chance.randint(1, 3))
        ]
        factor = chance.choice((2, 3))
        at_the_end = by_the_book(factor, scores)
        known = [dict.fromkeys(units) for _ in scores]
        cells = [(rung, unit) for rung in range(len(scores)) for unit in units]
        before = decide(factor, known)
        for rung, unit in chance.sample(cells, len(cells)):
            known[rung][unit] = scores[rung][unit]
            now = decide(factor, known)
            assert before.stopped <= now.stopped
            assert all(before.passed[unit] <= now.passed[unit] for unit in units)
            assert all(now.passed[unit] == at_the_end[unit] for unit in now.stopped)
            assert all(now.passed[unit] <= at_the_end[unit] for unit in units)
            assert {*now.leading}.isdisjoint(now.stopped)
            before = now
        assert now.passed == at_the_end
        assert now.stopped == {unit for unit in units if at_the_end[unit] < len(scores)}


@pytest.mark.parametrize("words", ["3", "1 2e", "3 6e 2e", "3 2e 500", "x 2e", "3 2e 2e", "3 0e"])
def test_a_line_that_means_nothing_is_refused(words):
    with pytest.raises(SettingsError, match=f"halving {words}: must look like halving 3 2e 6e"):
        search.read_halving(1, words.split())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--epochs 6", "halving: rung 6e is not before the end, --epochs 6"),
        ("--minutes 3", "halving: --minutes: not with halving"),
        ("--pause-after 3e", "halving: --pause-after: not with halving"),
        ("--steps 500", "halving: --steps 500: the rungs are not in steps"),
        ("--monitor none", "halving: --monitor none: must be a metric on"),
        ("--eval-every 3e", "halving: rung 2e: no evaluation there, --eval-every 3e"),
    ],
)
def test_what_cannot_be_halved_is_refused(flags, said):
    job = JobFolder(*parse(Settings, Runtime, flags.split()), METRICS)
    with pytest.raises(SettingsError, match=said):
        search.check_halving(search.read_halving(1, ["3", "2e", "6e"]), job)


def test_rungs_may_be_fractions_of_epochs():
    job = JobFolder(*parse(Settings, Runtime, ["--eval-every", "0.1e"]), METRICS)
    search.check_halving(search.read_halving(1, ["2", "0.3e", "0.7e"]), job)


def test_it_is_decided_as_soon_as_nothing_that_is_missing_can_change_it():
    rung = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": None, "f": None}
    now = decide(3, [rung, dict.fromkeys(rung)])  # 2 of 6 pass
    assert (now.passed["a"], now.stopped, now.leading) == (0, {"c", "d"}, ["a", "b"])
    now = decide(3, [rung | {"e": 5.0}, dict.fromkeys(rung)])
    assert (now.passed["a"], now.passed["b"], now.leading) == (1, 0, ["b"])
    beyond = dict.fromkeys(rung) | {"b": 0.5}  # it has trained on, and changes nothing
    now = decide(3, [rung | {"e": 5.0}, beyond])
    assert (now.passed["b"], now.leading) == (0, [])
    now = decide(3, [rung | {"e": 5.0, "f": 1.5}, beyond])
    assert now.passed == {"a": 1, "b": 0, "c": 0, "d": 0, "e": 0, "f": 1}


def test_as_many_are_expected_to_train_on_as_pass_each_rung(monkeypatch):
    """Those that have come furthest, and no unit that is stopped."""
    rates = [10**-power for power in range(1, 10)]
    jobs = [JobFolder(Settings(lr=rate), Runtime(), METRICS) for rate in rates]
    scores = {job.id: [None, None] for job in jobs}
    monkeypatch.setattr(search, "_scores", lambda job, rungs: scores[job.id])
    monkeypatch.setattr(search, "_stamp", lambda job, name: (0, 0))
    halving = search.read_halving(1, ["3", "1e", "2e"])  # 3 of 9 pass the first, 1 the second
    ends = Bracket(halving, jobs).expected.values()
    assert Counter(ends) == {"1e": 6, "2e": 2, None: 1}
    scores |= {job.id: [float(number), None] for number, job in enumerate(jobs)}
    scores[jobs[1].id] = [1.0, 0.5]
    expected = Bracket(halving, jobs).expected
    assert [expected[job.id] for job in jobs] == ["2e", None, "2e", *["1e"] * 6]


def test_while_it_is_not_certain_no_job_trains_beyond_the_next_rung(monkeypatch):
    """Not even if another seed of its settings has not come there, and never to the end."""
    jobs = {
        (lr, seed): JobFolder(Settings(lr=lr, seed=seed), Runtime(), METRICS)
        for lr in (1e-3, 1e-2)
        for seed in (0, 1)
    }
    ahead, beside, *_ = jobs.values()
    scores = {job.id: [None, None] for job in jobs.values()}
    scores |= {ahead.id: [1.0, 0.5], beside.id: [1.0, None]}
    monkeypatch.setattr(search, "_scores", lambda job, rungs: scores[job.id])
    monkeypatch.setattr(search, "_stamp", lambda job, name: (0, 0))
    bracket = Bracket(search.read_halving(1, ["2", "1e", "2e"]), [*jobs.values()])
    assert not bracket.is_due(ahead) and not bracket.is_due(beside)
    assert (bracket.lead(ahead), bracket.lead(beside)) == (None, 0)
    assert bracket.pause_after(beside) == "2e"
    scores[beside.id] = [1.0, 0.5]
    bracket = Bracket(search.read_halving(1, ["2", "1e", "2e"]), [*jobs.values()])
    assert bracket.lead(beside) is None


def test_a_job_killed_before_it_could_say_that_it_diverged_is_stopped(monkeypatch):
    jobs = [JobFolder(Settings(lr=rate), Runtime(), METRICS) for rate in (1e-3, 1.0)]
    scores = {jobs[0].id: [1.0], jobs[1].id: [math.inf]}
    monkeypatch.setattr(search, "_scores", lambda job, rungs: scores[job.id])
    bracket = Bracket(search.read_halving(1, ["2", "1e"]), jobs)
    assert bracket.state(jobs[1], "interrupted") == "stopped"
    monkeypatch.setattr(search.attempts, "status_of", lambda path: "diverged")
    assert bracket.state(jobs[1], "diverged") == "diverged"
