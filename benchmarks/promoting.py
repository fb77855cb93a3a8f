"""Searches by Syne Tune 0.13, whose ASHA pauses jobs and promotes them later, for halving.py.

    pip install 'syne-tune[blackbox-repository]==0.13.0'    # into an environment of its own
    python benchmarks/promoting.py < searches.json

Reads a line for each search, and answers it with a line: the epochs of training in their order, as
pairs of a job's number and the number of the epoch. They run on Syne Tune's simulator, where
`checkpoints` says whether a promoted job goes on where it was paused, or from its beginning.
"""

import json
import math
import os
import sys
from typing import Any


def trained(
    losses: list[list[float]], lengths: dict[str, int], checkpoints: bool, seed: int, budget: int
) -> list[tuple[int, int]]:
    """The epochs of a search among jobs with these losses, up to a budget."""
    import numpy as np
    import pandas as pd
    from syne_tune import Tuner, config_space
    from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
    from syne_tune.blackbox_repository import UserBlackboxBackend
    from syne_tune.blackbox_repository.blackbox_tabular import BlackboxTabular
    from syne_tune.optimizer.baselines import ASHA

    count, epochs = len(losses), len(losses[0])
    seconds = 60.0 * np.arange(1, epochs + 1)
    space = {"job": config_space.randint(0, count - 1)}
    measured = BlackboxTabular(
        pd.DataFrame({"job": range(count)}),
        space,
        {"epoch": config_space.randint(1, epochs)},
        np.array([[np.stack([each, seconds], axis=1)] for each in losses]),
        objectives_names=["loss", "seconds"],
    )
    found: list[tuple[int, int]] = []

    class Spent(SimulatorCallback):  # type: ignore[misc]
        def on_trial_result(self, trial: Any, status: str, result: Any, decision: str) -> None:
            super().on_trial_result(trial, status, result, decision)
            found.append((int(trial.config["job"]), int(result["epoch"])))

    points = [{"job": number} for number in range(count)]
    kind = {"type": "promotion", "mode": "min", "resource_attr": "epoch", **lengths}
    Tuner(
        UserBlackboxBackend(
            measured, elapsed_time_attr="seconds", support_checkpointing=checkpoints
        ),
        ASHA(space, metric="loss", points_to_evaluate=points, random_seed=seed, **kind),
        stop_criterion=lambda _: len(found) >= budget,
        n_workers=1,
        sleep_time=0,
        callbacks=[Spent()],
        tuner_name="halving",
        save_tuner=False,
        print_update_interval=math.inf,
    ).run()
    return found


def main() -> None:
    """Answer what is asked on standard input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # where Syne Tune prints, from its import on
    for line in sys.stdin:
        print(json.dumps(trained(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
