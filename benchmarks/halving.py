"""Searches that stop bad jobs early: how good is the best job after 27, 81 and 243 epochs?

    pip install optuna 'ray[tune]' syne-tune
    python benchmarks/halving.py --promoting PYTHON > benchmarks/halving.md

All searches ask for epochs of the same jobs (halving_jobs.py), one job at a time. These are trained
once, and their losses are kept in the file --curves. Ours decides by the functions that run.sh
calls; Optuna, Ray Tune and Syne Tune run as they are, with jobs that report what the file has.
"""

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import cache, cached_property, partial
from itertools import islice, starmap
from pathlib import Path
from typing import Any

from halving_jobs import EPOCHS, PROBLEMS, WORST, Curves, Problem, curves
from labjobs.commands.propose import propose
from labjobs.sweeps import proposals, search
from pages import machine, table

HERE = Path(__file__).resolve().parent

FACTOR, RUNGS = 3, (1, 3, 9)
LENGTHS = {"max_t": EPOCHS, "grace_period": RUNGS[0], "reduction_factor": FACTOR}
"""The same for ASHA."""

SIZES = (27, 81)
"""Jobs of a search below halving, which is made larger: about 81 and 243 epochs."""
BUDGETS = (27, 81, 243)
PACKAGES = ("numpy", "scipy", "torch", "optuna", "ray", "syne-tune")

READING = f"""
`search` and `propose tuned 3 x 3` train each job to its end. `halving 3 1e 3e 9e` stands before
`search 27`, which becomes `search 81` once that has ended. So in its first 27 epochs 27 jobs train
for one epoch each, while other searches take some further at once. Optuna has its
SuccessiveHalvingPruner, Ray Tune its ASHAScheduler and Syne Tune its ASHA, with the same factor and
rungs: a job that comes to a rung goes on or stops at once, by those that came there before it, so
the order of the draws decides too. ASHA of Syne Tune 0.13 could also pause jobs and promote them
later, which 0.16 cannot. If a job keeps no checkpoints, it then trains from its beginning each
time. With its own draws, by TPE, Optuna draws the same settings again; in ranges of real numbers it
would not. Jobs: how many were begun within {BUDGETS[-1]} epochs; the median, as of the epochs
trained twice.
"""

Epoch = tuple[str, int]
"""A job and the number of an epoch, from 1."""


class Search:
    """A search for the settings of a problem whose jobs measure `curves`."""

    def __init__(self, problem: Problem, curves: Curves, seed: int) -> None:
        self.problem, self.curves, self.seed = problem, curves, seed

    @cached_property
    def drawn(self) -> list[str]:
        """All jobs, in the order in which `search` draws them."""
        return self.problem.drawn(self.seed)

    @cached_property
    def ranges(self) -> dict[str, list[str]]:
        """Each flag's range: its kind, and its ends or choices."""
        words = shlex.split(self.problem.ranges)
        return {flag: text.split() for flag, text in zip(words[::2], words[1::2], strict=True)}

    def values(self, job: str) -> dict[str, Any]:
        """The flags of a job as others' searches have them, with numbers for whole numbers."""
        given = search.flags(job.split())
        return {flag: int(v) if self.ranges[flag][0] == "int" else v for flag, v in given.items()}

    def job(self, values: dict[str, Any]) -> str:
        """The job with these values."""
        return " ".join(f"{flag}={values[flag]}" for flag in self.ranges)


def by_search(asked: Search) -> Iterator[Epoch]:
    """Each job to its end."""
    for job in asked.drawn:
        yield from ((job, epoch + 1) for epoch in range(EPOCHS))


def by_halving(asked: Search) -> Iterator[Epoch]:
    """`halving 3 1e 3e 9e` before `search 27`, which then becomes `search 81`."""
    lengths = dict.fromkeys(asked.drawn, 0)
    for size in SIZES:
        while due := next_due(asked, asked.drawn[:size], lengths):
            job, end = due
            yield from ((job, epoch + 1) for epoch in range(lengths[job], end))
            lengths[job] = end


def next_due(asked: Search, jobs: list[str], lengths: dict[str, int]) -> tuple[str, int] | None:
    """The first job that is due, as the queue of run.sh has it, and where it pauses next."""
    rungs = [
        {job: asked.curves[job][rung - 1] if lengths[job] >= rung else None for job in jobs}
        for rung in RUNGS
    ]
    decision, ends = search.decide(FACTOR, rungs), (*RUNGS, EPOCHS)
    for job in jobs:
        end = ends[decision.passed[job]]
        if job not in decision.stopped and lengths[job] < end:
            return job, end
    return None


def by_propose(asked: Search) -> Iterator[Epoch]:
    """`propose tuned 3 x 3`, whose jobs train to their end."""
    words = shlex.split(asked.problem.ranges)
    line = proposals.read(["propose", "tuned", "3", "x", "3", f"seed={asked.seed}", *words])
    tried = [job.split() for job in asked.drawn[: line.count]]
    for generation in range(1, line.generations + 1):
        for job in tried[-line.count :]:
            yield from ((" ".join(job), epoch + 1) for epoch in range(EPOCHS))
        if generation < line.generations:
            scores = [min(asked.curves[" ".join(job)]) for job in tried]
            tried += propose(line, tried, scores, generation)


def by_optuna(asked: Search, own: bool = False) -> list[Epoch]:
    """A study with SuccessiveHalvingPruner; `own`: it draws the settings itself, by TPE."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    trained: list[Epoch] = []

    def objective(trial: Any) -> float:
        """The loss at the end of a trial, or where it is pruned."""
        values = {}
        for flag, (kind, *words) in asked.ranges.items():
            if kind == "int":
                values[flag] = trial.suggest_int(flag, *map(int, words))
            else:
                values[flag] = trial.suggest_categorical(flag, words)
        job = asked.job(values)
        for epoch, loss in enumerate(asked.curves[job], 1):
            trained.append((job, epoch))
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=asked.seed),
        pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR),
    )
    for job in () if own else asked.drawn:
        study.enqueue_trial(asked.values(job))
    enough = [lambda study, _: study.stop() if len(trained) >= BUDGETS[-1] else None]
    study.optimize(objective, None if own else len(asked.drawn), callbacks=enough)
    return trained


def by_optuna_alone(asked: Search) -> list[Epoch]:
    """As somebody uses Optuna who has nothing else."""
    return by_optuna(asked, own=True)


def by_ray(asked: Search) -> list[Epoch]:
    """A Tuner with ASHAScheduler."""
    os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=1, include_dashboard=False, ignore_reinit_error=True, **quiet)
    trained: list[Epoch] = []
    measured = asked.curves

    def train(config: dict[str, str]) -> None:
        for epoch, loss in enumerate(measured[config["job"]], 1):
            tune.report({"loss": loss, "epoch": epoch})

    class Spent(tune.Callback):
        def on_trial_result(self, trial: Any, result: dict[str, Any], **_: Any) -> None:
            trained.append((trial.config["job"], result["epoch"]))

    class Enough(tune.Stopper):
        def __call__(self, *_: Any) -> bool:
            return False

        def stop_all(self) -> bool:
            return len(trained) >= BUDGETS[-1]

    scheduler = ASHAScheduler(time_attr="epoch", metric="loss", mode="min", **LENGTHS)
    with tempfile.TemporaryDirectory() as folder:
        tune.Tuner(
            train,
            param_space={"job": tune.grid_search(asked.drawn)},
            tune_config=tune.TuneConfig(
                scheduler=scheduler, max_concurrent_trials=1, reuse_actors=True
            ),
            run_config=tune.RunConfig(
                storage_path=folder, callbacks=[Spent()], stop=Enough(), verbose=0
            ),
        ).fit()
    return trained


def by_syne_tune(asked: Search) -> list[Epoch]:
    """A Tuner with ASHA, on its simulator."""
    import numpy as np
    import pandas as pd
    from syne_tune import Tuner, config_space
    from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
    from syne_tune.blackbox_repository import UserBlackboxBackend
    from syne_tune.blackbox_repository.blackbox_tabular import BlackboxTabular
    from syne_tune.optimizer.baselines import ASHA

    trained: list[Epoch] = []
    minutes = 60.0 * np.arange(1, EPOCHS + 1)
    points = [asked.values(job) for job in asked.drawn]
    space = {
        flag: config_space.randint(*map(int, words))
        if kind == "int"
        else config_space.choice(words)
        for flag, (kind, *words) in asked.ranges.items()
    }
    measured = BlackboxTabular(
        pd.DataFrame(points),
        space,
        {"epoch": config_space.randint(1, EPOCHS)},
        np.array([[np.stack([asked.curves[job], minutes], axis=1)] for job in asked.drawn]),
        objectives_names=["loss", "seconds"],
    )

    class Spent(SimulatorCallback):  # type: ignore[misc]
        def on_trial_result(self, trial: Any, status: str, result: Any, decision: str) -> None:
            super().on_trial_result(trial, status, result, decision)
            trained.append((asked.job(trial.config), int(result["epoch"])))

    seed = {"random_seed": asked.seed, "points_to_evaluate": points}
    Tuner(
        UserBlackboxBackend(measured, elapsed_time_attr="seconds"),
        ASHA(space, metric="loss", time_attr="epoch", **LENGTHS, **seed),
        stop_criterion=lambda _: len(trained) >= BUDGETS[-1],
        n_workers=1,
        sleep_time=0,
        callbacks=[Spent()],
        tuner_name="halving",
        save_tuner=False,
        print_update_interval=math.inf,
    ).run()
    return trained


@cache
def promoting(python: str) -> subprocess.Popen[str]:
    """A process that answers searches by Syne Tune 0.13."""
    command = [python, str(HERE / "promoting.py")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def by_promoting(asked: Search, python: str, checkpoints: bool) -> list[Epoch]:
    """ASHA of Syne Tune 0.13, which pauses jobs and promotes them, in an environment of its own."""
    about = {"budget": BUDGETS[-1], "seed": asked.seed, "checkpoints": checkpoints}
    losses = [asked.curves[job] for job in asked.drawn]
    process = promoting(python)
    assert process.stdin and process.stdout
    print(
        json.dumps({**about, "lengths": LENGTHS, "losses": losses}), file=process.stdin, flush=True
    )
    return [(asked.drawn[job], epoch) for job, epoch in json.loads(process.stdout.readline())]


Way = Callable[[Search], Iterable[Epoch]]

WAYS: dict[str, Way] = {
    "search": by_search,
    "propose": by_propose,
    "halving": by_halving,
    "Optuna, the same draws": by_optuna,
    "Optuna, its own draws": by_optuna_alone,
    "Ray Tune": by_ray,
    "Syne Tune": by_syne_tune,
}

PROMOTING = {"Syne Tune 0.13, promoting": True, "the same, without checkpoints": False}


def regrets(measured: Curves, trained: Sequence[Epoch]) -> list[float]:
    """How far the best loss is from the least of all jobs, after each epoch up to the last
    budget; a search that ended earlier stays where it was."""
    least, best = min(map(min, measured.values())), math.inf
    found = []
    for job, epoch in trained:
        best = min(best, measured[job][epoch - 1])
        found.append(best - least)
    return found + found[-1:] * (BUDGETS[-1] - len(found))


def row(name: str, way: Way, problem: Problem, measured: Curves, seeds: range) -> list[str]:
    """Of all seeds, the regret at each budget, the jobs begun, and the epochs trained twice."""
    searches = []
    for seed in seeds:
        with redirect_stdout(sys.stderr):
            asked = Search(problem, measured, seed)
            searches.append([*islice(way(asked), BUDGETS[-1])])
    by_seed = [regrets(measured, trained) for trained in searches]
    cells = [quartiles([each[budget - 1] for each in by_seed]) for budget in BUDGETS]
    begun = statistics.median(len({job for job, _ in trained}) for trained in searches)
    twice = statistics.median(len(trained) - len({*trained}) for trained in searches)
    return [name, *cells, f"{begun:g}", f"{twice:g}"]


def quartiles(values: Sequence[float]) -> str:
    """Median, lower and upper quartile."""
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({lower:.3f} to {upper:.3f})"


def about(seeds: range) -> str:
    """What the page says before its tables."""
    digits, gpt = (problem.count for problem in PROBLEMS.values())
    return (
        f"{machine(*PACKAGES)}. Two problems: rate, momentum and batch size of a small network on "
        f"scikit-learn's digits, {digits} settings; rate, width and batch size of a GPT with two "
        f"layers on Python's documentation, {gpt} settings, where an epoch is 512 windows of 32 "
        f"bytes. A job trains for {EPOCHS} epochs. Each was trained once, and searches ask for "
        f"what it measured; a loss above {WORST:g}, or that is not a number, counts as {WORST:g}. "
        f"One job trains at a time. n = {len(seeds)} seeds: all searches have the same draws in "
        "the same order, but for Optuna's own and for what is proposed. In nats, the least "
        "validation loss after 27, 81 and 243 epochs, which all jobs of a search share, minus the "
        "least of all jobs and epochs: median (quartiles). `python benchmarks/halving.py "
        "--promoting PYTHON` makes this page."
    )


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", type=Path, default=Path(tempfile.gettempdir(), "curves.json"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--promoting", metavar="PYTHON", help="with Syne Tune 0.13: promoting.py")
    given = parser.parse_args()
    seeds, found, ways = range(given.seeds), curves(given.curves), dict(WAYS)
    for name, checkpoints in PROMOTING.items() if given.promoting else ():
        ways[name] = partial(by_promoting, python=given.promoting, checkpoints=checkpoints)
    print(f"# Halving compared with other searches\n\n{textwrap.fill(about(seeds), 100)}\n")
    for name, problem in PROBLEMS.items():
        head = [name, *(f"{each} epochs" for each in BUDGETS), "jobs", "trained twice"]
        each = ((way, ways[way], problem, found[name], seeds) for way in ways)
        table(head, starmap(row, each))
        print(flush=True)
    print(textwrap.fill(READING.strip(), 100))


if __name__ == "__main__":
    main()
