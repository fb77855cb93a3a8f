"""What a job stands on. Read all of it; nothing here needs changing for an experiment.

Floors, each importing only those below it (tests/test_house.py holds them to it):

3  a job from outside   launch, sync, sweep (with sweep.sh, queue.sh), search, slots, states,
                        snapshot, slurm (with slurm-job.sh), profiling, profile_report, tracing,
                        flops, plotting
2  the training loop    devices, precision, compilation, seeding, datasets, splits, loaders,
                        augmentation, classifiers, networks, optimizers, schedules, ema, evaluation,
                        early_stopping, checkpoints, training_state, meters, predictions
1  one library each     locks, interruption, job, journal, delivery, courier, store, reading,
                        database, stored_jobs, results (MLflow and its database), counters
                        (nvidia-ml-py), style, figures, plots, print_check, pdf_check, figure_files
                        (matplotlib), captions, statistics (SciPy), progress (tqdm)
0  settings             settings, cli, provenance, venues (the standard library only)

The scripts at the project's root stand on floor 4.
"""

import sys
from importlib.util import find_spec

if not find_spec("mlflow"):
    sys.exit(f"{sys.executable} has not what the project needs; README.md tells how to get it")
