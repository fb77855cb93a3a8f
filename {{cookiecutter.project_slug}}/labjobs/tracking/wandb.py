"""Weights & Biases: offline folders in `wandb/` of the project, or of WANDB_DIR, for `wandb sync`.

`wandb sync` adds whatever a folder has to a run. So each time that an attempt ends, what is new
becomes one more folder of the same run, and `wandb.json` notes how far the folders reach.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labjobs import layout
from labjobs.files import PROJECT, write_record
from labjobs.job.journal import record_of
from labjobs.tracking.copies import Copy


def write(copy: Copy) -> None:
    """Make a folder of what has come since the last one."""
    place = Path(os.environ.get("WANDB_DIR") or PROJECT) / layout.WANDB
    part = place / f".{copy.journal}"
    noted = record_of(copy.attempt, layout.WANDB_SENT)
    done = noted["lines"] if noted.get("journal") == copy.journal else 0
    if done and (ready := part / layout.WANDB / noted["folder"]).exists():
        ready.rename(place / ready.name)  # since its courier was killed
    shutil.rmtree(part, ignore_errors=True)
    rows = [row for row in copy.rows() if row["line"] > done and (row["metrics"] or row["images"])]
    if rows:
        made = _made(copy, rows, part)
        about = {"schema": 1, "id": copy.attempt.parent.name, "journal": copy.journal}
        about |= {"lines": rows[-1]["line"], "folder": made.name}
        write_record(copy.attempt / layout.WANDB_SENT, about)
        made.rename(place / made.name)
        shutil.rmtree(part)


def _made(copy: Copy, rows: Sequence[dict[str, Any]], part: Path) -> Path:
    """The folder, below a hidden one that `wandb sync` does not see."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # to its makers
    import wandb

    part.mkdir(parents=True)
    nothing = {"disable_code": True, "disable_git": True, "x_disable_meta": True}
    quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, **nothing)
    run = wandb.init(
        mode="offline",
        dir=part,
        project=copy.project,
        id=copy.journal,
        name=copy.title,
        group=copy.tags.get("seed_group"),
        config=copy.config,
        settings=quiet,
    )
    # Its own steps may not decrease; those of test results do. They are the journal's lines.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    for row in rows:
        images = {name: wandb.Image(str(path)) for name, path in row["images"].items()}
        at = {"step": row["step"], "_timestamp": row["time"]}
        run.log(row["metrics"] | images | at, step=row["line"])
    run.finish(exit_code=int(copy.status != "FINISHED"))
    return Path(run.dir).parent
