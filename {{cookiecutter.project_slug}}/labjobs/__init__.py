"""The template's engine: everything around the training loop. It needs no change for an experiment.

    cli        the command line of a settings dataclass
    evidence   the code that a job's results depend on
    job        a job from the command to its exit status: identity, folder, journal, signals
    tracking   the tracking store, MLflow
    data       datasets, splits, batches, augmentation
    training   what a training loop is made of
    sweeps     many jobs: the grid, the queue, the GPUs, Slurm
    results    tables, statistics and figures of finished jobs
    finding    what `python jobs.py find` does: it looks for a learning rate, a batch size
    exporting  what `python jobs.py export-model` does: a network to use without the project
    repeating  what `python jobs.py repeat` does: it runs jobs again and compares the bits
    jobs       what `python jobs.py` does: it looks after jobs
    warm       programs that start as forks of a process with the slow imports
    checks     what `--check` does: it tests the guarantees on the project's own code
    profiling  what `--profile` measures and reports

`launch`, `attempt`, `following`, `loop` and `watched` make commands of them. `errors`, `files`,
`paths`, `locks`, `machine`, `privacy`, `stateful` and `template` are small modules that all
packages share. Each package says in its docstring what it may import; pyproject.toml holds the
rules (import-linter).
"""

import sys
from importlib.util import find_spec

if sys.platform == "win32":
    sys.exit("This project needs Unix's file locks and signals; on Windows, use it within WSL 2")
if not find_spec("mlflow"):
    sys.exit(f"{sys.executable}: missing packages; README.md says how to install them")
