"""The searches that halving_kills.py kills: `python killed_searches.py "Ray Tune" FOLDER`.

Their jobs report the losses of FOLDER/losses.json, an epoch each second; each epoch is written down
in FOLDER/trained. Started in the same folder again, a search goes on as its documentation says. At
its end, FOLDER/known has what it knows.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

JOBS, EPOCHS = 9, 27
FACTOR, RUNGS = 3, (1, 3, 9)
PACE = 1.0  # seconds of an epoch

LENGTHS = {"max_t": EPOCHS, "grace_period": RUNGS[0], "reduction_factor": FACTOR}

Epoch = tuple[str, int]
"""A job and the number of an epoch, from 1."""


def epoch_trained(folder: Path, job: object, epoch: int) -> None:
    """Take the time of an epoch, and write down that it was trained."""
    time.sleep(PACE)
    with (folder / "trained").open("a") as file:
        print(job, epoch, file=file)


def by_optuna(folder: Path, losses: list[list[float]], heartbeat: bool = False) -> set[Epoch]:
    """A study in a file, which is loaded if it exists; with `heartbeat`, trials whose process has
    ended are tried again."""
    import optuna
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
    from optuna.trial import TrialState

    def objective(trial: Any) -> float:
        """The loss at the end of a trial, or where it is pruned."""
        number = trial.suggest_int("number", 0, JOBS - 1)
        for epoch, loss in enumerate(losses[number], 1):
            epoch_trained(folder, number, epoch)
            trial.report(loss, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return loss

    again = RetryHeartbeatStaleTrialCallback(max_retry=3)
    beats = {"heartbeat_interval": 1, "grace_period": 2, "heartbeat_stale_trial_callback": again}
    url = f"sqlite:///{folder}/study.db"
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
    study = optuna.create_study(
        study_name="search",
        storage=RDBStorage(url, **beats) if heartbeat else url,
        load_if_exists=True,
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=pruner,
    )
    for number in () if study.trials else range(JOBS):
        study.enqueue_trial({"number": number})
    if heartbeat:
        optuna.storages.fail_stale_trials(study)

    def waiting(study: Any) -> bool:
        return bool(study.get_trials(states=(TrialState.WAITING,)))

    if waiting(study):
        until_none_waits = [lambda study, _: None if waiting(study) else study.stop()]
        study.optimize(objective, callbacks=until_none_waits)
    ended = (TrialState.COMPLETE, TrialState.PRUNED)
    trials = [trial for trial in study.trials if trial.state in ended]
    return {(str(t.params["number"]), epoch) for t in trials for epoch in t.intermediate_values}


def by_optuna_with_heartbeat(folder: Path, losses: list[list[float]]) -> set[Epoch]:
    """The same, which finds trials whose process has ended."""
    return by_optuna(folder, losses, heartbeat=True)


def by_ray(folder: Path, losses: list[list[float]]) -> set[Epoch]:
    """A Tuner whose jobs keep a checkpoint of each epoch, restored if it has begun."""
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    ray.init("local", num_cpus=1, include_dashboard=False)

    def train(config: dict[str, int]) -> None:
        """Report a job's losses, from its checkpoint on."""
        begin = 0
        if checkpoint := tune.get_checkpoint():
            with checkpoint.as_directory() as kept:
                begin = int(Path(kept, "epoch").read_text())
        measured = losses[config["number"]]
        for epoch in range(begin + 1, EPOCHS + 1):
            epoch_trained(folder, config["number"], epoch)
            with tempfile.TemporaryDirectory() as kept:
                Path(kept, "epoch").write_text(str(epoch))
                metrics = {"loss": measured[epoch - 1], "epoch": epoch}
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(kept))

    path = str(folder / "search")
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, train, resume_errored=True)
    else:
        scheduler = ASHAScheduler(time_attr="epoch", metric="loss", mode="min", **LENGTHS)
        tuner = tune.Tuner(
            train,
            param_space={"number": tune.grid_search([*range(JOBS)])},
            tune_config=tune.TuneConfig(
                scheduler=scheduler, max_concurrent_trials=1, reuse_actors=True
            ),
            run_config=tune.RunConfig(name="search", storage_path=str(folder)),
        )
    results = [each for each in tuner.fit() if each.metrics_dataframe is not None]
    return {
        (str(each.config["number"]), int(epoch))
        for each in results
        for epoch in each.metrics_dataframe["epoch"]
    }


def by_syne_tune(folder: Path, _: list[list[float]]) -> set[Epoch]:
    """A Tuner on this machine, loaded from its folder if that is there."""
    os.environ["SYNETUNE_FOLDER"] = str(folder)
    from syne_tune import Tuner
    from syne_tune.backend import PythonBackend
    from syne_tune.config_space import randint
    from syne_tune.experiments import load_experiment
    from syne_tune.optimizer.baselines import ASHA

    def train(number: int, place: str, pace: float) -> None:
        """Report a job's losses."""
        import json
        import time
        from pathlib import Path

        from syne_tune import Reporter

        report = Reporter()
        for epoch, loss in enumerate(json.loads(Path(place, "losses.json").read_text())[number], 1):
            time.sleep(pace)
            with Path(place, "trained").open("a") as file:
                print(number, epoch, file=file)
            report(loss=loss, epoch=epoch)

    if tuner := load_experiment("search", load_tuner=True).tuner:
        tuner.run()
    else:
        space = {"number": randint(0, JOBS - 1), "place": str(folder), "pace": PACE}
        points = [{"number": number} for number in range(JOBS)]
        Tuner(
            PythonBackend(train, space),
            ASHA(space, "loss", "epoch", random_seed=0, points_to_evaluate=points, **LENGTHS),
            lambda status: status.num_trials_started >= JOBS,
            n_workers=1,
            sleep_time=0.1,
            wait_trial_completion_when_stopping=True,
            tuner_name="search",
            suffix_tuner_name=False,
        ).run()
    results = load_experiment("search").results
    return {*zip(results["config_number"].astype(str), results["epoch"].astype(int), strict=True)}


OTHERS = {
    "Optuna": by_optuna,
    "Optuna, with a heartbeat": by_optuna_with_heartbeat,
    "Ray Tune": by_ray,
    "Syne Tune": by_syne_tune,
}


def main(way: str, folder: Path) -> None:
    """Search, and write down what is known at the end."""
    losses = json.loads((folder / "losses.json").read_text())
    (folder / "known").write_text(json.dumps([*OTHERS[way](folder, losses)]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
