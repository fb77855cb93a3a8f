"""`python jobs.py sync`: send what the tracking store lacks of the jobs on this disk."""

from contextlib import ExitStack
from pathlib import Path

from engine import locks
from engine.errors import JobError, SettingsError, cause
from engine.job import attempts, lines
from engine.job.lines import Damaged
from engine.job.terminal import leave
from engine.tracking import address
from engine.tracking.courier import turn
from engine.tracking.delivery import Delivery, delivered
from engine.tracking.store import Elsewhere


def sync(runs_root: Path) -> int:
    """Send what is left of every job that is not running; the exit status.

    Raises SettingsError if there is no such folder, or there can be no such store.
    """
    address.check()
    if not runs_root.expanduser().is_dir():
        raise SettingsError(f"--runs-root: there is no folder {runs_root}")
    folders = [file.parent for file in sorted(runs_root.expanduser().glob(f"*/*/{lines.FILE}"))]
    left = [folder for folder in folders if not delivered(folder)]
    left = [folder for folder in left if not locks.held(folder / "lock")]
    sent = 0
    for folder in left:
        try:
            _send(folder)
        except (JobError, Elsewhere) as error:
            leave(1, f"job {folder.parent.name} {error}")
        except Exception as error:
            line = f"{sent} of {len(left)} jobs sent; the tracking store: {address.reason(error)}"
            return leave(3, f"{line}; python jobs.py sync sends the rest")
        else:
            sent += 1
            print(f"job {folder.parent.name} sent")
    line = f"{sent} of {len(left)} jobs sent" if left else "the tracking store has all"
    return leave(0 if sent == len(left) else 1, line)


def _send(folder: Path) -> None:
    """Raises JobError for what is wrong with the job's files, or what the store raises."""
    with ExitStack() as held:
        delivery = _open(folder, held)
        delivery.send()
        delivery.end(delivery.status or "KILLED")
        if attempts.status(folder) == "finished":
            attempts.drop_checkpoints(folder)


def _open(folder: Path, held: ExitStack) -> Delivery:
    try:
        if lock := locks.take(folder / "lock"):
            held.enter_context(lock)
            held.enter_context(turn(folder))
            return Delivery(folder)
    except (OSError, Damaged) as error:
        raise JobError(f"cannot be sent: {cause(error)}") from error
    raise JobError("is running and uploads its results itself")
